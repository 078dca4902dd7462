"""Breaker: when very many nodes turn bad at once, the signal itself is suspect.

It counts *distinct nodes that newly match*, for each policy and for each source that matches
rest on (:func:`remediator.decide.instances.source_of`): a rollout of agents that goes wrong may
show as a few nodes under each of many policies. It counts before any budget, so that a low
budget cannot hide a storm. Nodes with a session, and faults that were there when the
controller took over or the policy was loaded, are a backlog and not counted; so are those
that a source names in its first answer, which may come later. Once open it stays open until
people reset it.
"""

from __future__ import annotations

from itertools import takewhile

from remediator.decide.candidate import ActivePolicy, Candidate
from remediator.decide.decision import Hold
from remediator.decide.facts import NOTHING_KNOWN, ClusterFacts, NodeFacts
from remediator.decide.instances import gone, in_first_answer, sources_of
from remediator.decide.ledger import Ledger
from remediator.decide.look import takes_capacity
from remediator.decide.match import Answer, Match
from remediator.decide.session import Session
from remediator.decide.storms import Matching, Recent, Watch
from remediator.policy.model import Breaker
from remediator.policy.quantities import format_duration


_HUNDRED = 100


def breaker(candidate: Candidate, ledger: Ledger, now: float) -> Hold | None:  # noqa: ARG001
    """Hold new disruptive steps of a policy whose breaker is open, or that of its source."""
    return stopped(candidate.policy.name, candidate.facts.uid, ledger)


def stopped(policy: str, uid: str, ledger: Ledger) -> Hold | None:
    """Say why a policy takes nothing more away on a node: its breaker; None if it may.

    Asked about a drain that is under way, too: it evicts nothing more meanwhile.
    """
    if ledger.breakers:
        watch = ledger.watches.get(policy)
        known = watch.matching.get(uid) if watch is not None else None
        for name in (policy, *(known.sources if known is not None else ())):
            opened = ledger.breakers.get(name)
            if opened is not None:
                whose = "" if name == policy else f" of {name}"
                reset = f"`remediator breaker reset {name}` closes it"
                return Hold(policy, "breaker", f"breaker{whose} open: {opened.why}; {reset}")
    if uid in ledger.dropped.get(policy, ()):
        why = "left alone by a breaker reset until its fault clears and returns"
        return Hold(policy, "breaker", why)
    return None


def is_forgotten(active: ActivePolicy, uid: str, ledger: Ledger) -> bool:
    """Tell that there is nothing to note when this node is well: it was, at the last look.

    So are nearly all, at every look.
    """
    name = active.policy.name
    watch = ledger.watches.get(name)
    return (
        watch is not None
        and watch.loaded_at == active.loaded_at
        and uid in watch.scope
        and uid not in watch.matching
        and uid not in watch.backlog
        and (not ledger.dropped or uid not in ledger.dropped.get(name, ()))
    )


def note(  # noqa: PLR0917 - what one policy says of one node
    active: ActivePolicy,
    facts: NodeFacts,
    match: Match,
    ledger: Ledger,
    now: float,
    cluster: ClusterFacts = NOTHING_KNOWN,
) -> tuple[float, tuple[str, ...]]:
    """Take in what a policy says of a node; return since when it matches, and what that opened.

    Called for every node and policy, before any guard: the breaker measures the
    rate of decisions, not of actions.
    """
    name, uid = active.policy.name, facts.uid
    watch = ledger.storms.watch(name, active.loaded_at)
    watch.scope.add(uid)
    first_look = uid not in watch.looked
    watch.looked.add(uid)
    if (
        match.answer >= Answer.PENDING
        and uid not in watch.matching
        and (
            (first_look and facts.created <= max(ledger.started, active.loaded_at))
            or _is_old_news(match, facts, cluster)
        )
    ):
        _leave_behind(name, watch, facts, match, ledger)
    if not match.holds or match.silenced:
        if match.answer is Answer.CLEAR:
            ledger.storms.undrop(name, uid)
        if match.answer is Answer.CLEAR or (
            match.answer is Answer.UNKNOWN and _said_no_more(watch, facts)
        ):
            watch.backlog.discard(uid)
            watch.matching.pop(uid, None)
        return now, ()
    known = watch.matching.get(uid)
    if known is not None:
        if known.instances != match.instances:
            sources = sources_of(match.instances, facts)
            watch.matching[uid] = Matching(known.since, match.instances, sources)
        return known.since, ()
    sources = sources_of(match.instances, facts)
    watch.matching[uid] = Matching(now, match.instances, sources)
    if uid in watch.backlog or isinstance(facts.session, Session):
        return now, ()
    return now, _count(active, uid, sources, ledger, now)


def _is_old_news(match: Match, facts: NodeFacts, cluster: ClusterFacts) -> bool:
    """Tell whether sources said all of it in their first answer.

    A policy is often looked at before its query was answered, or an Alertmanager polled.
    """
    return bool(match.instances) and all(
        in_first_answer(one, facts, cluster) for one in match.instances
    )


def _said_no_more(watch: Watch, facts: NodeFacts) -> bool:
    """Tell whether the alerts and queries by which a node matched are gone.

    That proves no health, so nothing is undone; but if they come back, that is new.
    """
    known = watch.matching.get(facts.uid)
    return known is not None and all(gone(one, facts) for one in known.instances)


def _leave_behind(
    policy: str, watch: Watch, facts: NodeFacts, match: Match, ledger: Ledger
) -> None:
    """Take a node for one that was faulty before anybody looked: a backlog, no storm."""
    watch.backlog.add(facts.uid)
    if watch.dropping & {policy, *sources_of(match.instances, facts)}:
        ledger.storms.drop(policy, {facts.uid})


def _count(
    active: ActivePolicy, uid: str, sources: tuple[str, ...], ledger: Ledger, now: float
) -> tuple[str, ...]:
    """Count one new match; return the names of the breakers that this opened.

    A storm under one policy opens that policy's breaker alone, and its source's with the next
    node of another one. What a source's breaker has stopped opens no other as well. A policy
    that only tells counts for itself alone: a job that crashes on many nodes is no doubt of agents.
    """
    policy, storms = active.policy, ledger.storms
    if any(source in ledger.breakers for source in sources):
        return ()
    watch = storms.watches[policy.name]
    limits, common = limits_of(active, ledger), ledger.cluster.breaker
    _forget_older(watch.recent, now - max(limits.window, common.window))
    counting = sources if takes_capacity(policy.plan) else ()
    storms.count(watch, uid, Recent(now, counting))
    if policy.name in ledger.breakers:
        return ()
    seen = len(watch.recent)
    if limits.window < common.window:
        seen = sum(one.at > now - limits.window for one in watch.recent.values())
    if _opens(policy.name, seen, limits, ledger, now):
        return (policy.name,)
    at_most = sum(len(one.recent) for one in storms.watches.values())
    if at_most <= believable(common, len(ledger.nodes)):
        return ()  # nearly always: no need to count for each source
    since = now - common.window
    return tuple(
        source
        for source in counting
        if _opens(source, len(storms.newly_on(source, since)), common, ledger, now)
    )


def limits_of(active: ActivePolicy | None, ledger: Ledger) -> Breaker:
    """Return the limits of a breaker: a policy may have its own, a source has the cluster's."""
    own = active.policy.spec.limits.breaker if active is not None else None
    return own or ledger.cluster.breaker


def believable(limits: Breaker, scope: int) -> int:
    """Return how many nodes may newly match within the window, of so many."""
    return max(limits.min_nodes, scope * limits.percent // _HUNDRED)


def _opens(name: str, seen: int, limits: Breaker, ledger: Ledger, now: float) -> bool:
    scope = ledger.scope_of(name)
    allowed = believable(limits, scope)
    if seen <= allowed:
        return False
    ledger.open_breaker(
        name,
        f"{seen} nodes newly matched within {format_duration(limits.window)}, "
        f"{allowed} of {scope} are believable",
        now,
    )
    return True


def leave(active: ActivePolicy, uid: str, ledger: Ledger) -> None:
    """Take in that a node is not (or no longer) of those that a policy selects."""
    watch = ledger.watches.get(active.policy.name)
    if watch is not None:
        watch.scope.discard(uid)
        watch.matching.pop(uid, None)


def _forget_older(recent: dict[str, Recent], limit: float) -> None:
    for uid in [uid for uid, _ in takewhile(lambda one: one[1].at <= limit, recent.items())]:
        del recent[uid]
