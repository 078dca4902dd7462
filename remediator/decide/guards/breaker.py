"""Breaker: when very many nodes turn bad at once, the signal itself is suspect.

It counts *distinct nodes that newly match one policy* in a window, before any
budget, so that a low budget cannot hide a storm. Nodes with a session, and faults
that were there when the controller took over or the policy was loaded, are a
backlog and not counted. Once open it stays open until people reset it.
"""

from __future__ import annotations

from itertools import takewhile

from remediator.decide.candidate import ActivePolicy, Candidate
from remediator.decide.decision import Hold
from remediator.decide.facts import NodeFacts
from remediator.decide.ledger import Ledger
from remediator.decide.match import Answer, Match
from remediator.decide.session import Session
from remediator.policy.quantities import format_duration


_HUNDRED = 100


def breaker(candidate: Candidate, ledger: Ledger, now: float) -> Hold | None:  # noqa: ARG001
    """Hold new disruptive steps of a source whose breaker is open."""
    return stopped(candidate.policy.name, candidate.facts.uid, ledger)


def stopped(name: str, uid: str, ledger: Ledger) -> Hold | None:
    """Say why a policy takes nothing more away on a node: its breaker; None if it may.

    Asked about a drain that is under way, too: it evicts nothing more meanwhile.
    """
    opened = ledger.breakers.get(name)
    if opened is not None:
        why = f"breaker open: {opened.why}; `remediator breaker reset {name}` closes it"
        return Hold(name, "breaker", why)
    if uid in ledger.dropped.get(name, ()):
        why = "left alone by a breaker reset until its fault clears and returns"
        return Hold(name, "breaker", why)
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


def note(
    active: ActivePolicy, facts: NodeFacts, match: Match, ledger: Ledger, now: float
) -> tuple[float, bool]:
    """Take in what a policy says of a node; return since when it matches, and if that opened it.

    Called for every node and policy, before any guard: the breaker measures the
    rate of decisions, not of actions.
    """
    name = active.policy.name
    watch = ledger.watch(name, active.loaded_at)
    watch.scope.add(facts.uid)
    first_look = facts.uid not in watch.looked
    watch.looked.add(facts.uid)
    known_since = max(ledger.started, active.loaded_at)
    if first_look and match.answer >= Answer.PENDING and facts.created <= known_since:
        watch.backlog.add(facts.uid)
        if watch.drop_unseen:
            ledger.drop(name, {facts.uid})
    if not match.holds or match.silenced:
        if match.answer is Answer.CLEAR:
            watch.backlog.discard(facts.uid)
            watch.matching.pop(facts.uid, None)
            ledger.undrop(name, facts.uid)
        return now, False
    since = watch.matching.get(facts.uid)
    if since is not None:
        return since, False
    watch.matching[facts.uid] = now
    if facts.uid in watch.backlog or isinstance(facts.session, Session):
        return now, False
    return now, _count(active, facts.uid, ledger, now)


def _count(active: ActivePolicy, uid: str, ledger: Ledger, now: float) -> bool:
    """Count one new match; return whether that opened the breaker."""
    policy = active.policy
    watch = ledger.watches[policy.name]
    limits = policy.spec.limits.breaker or ledger.cluster.breaker
    _forget_older(watch.recent, now - limits.window)
    watch.recent.setdefault(uid, now)
    allowed = max(limits.min_nodes, len(watch.scope) * limits.percent // _HUNDRED)
    if len(watch.recent) <= allowed or policy.name in ledger.breakers:
        return False
    ledger.open_breaker(
        policy.name,
        f"{len(watch.recent)} nodes newly matched within {format_duration(limits.window)}, "
        f"{allowed} of {len(watch.scope)} are believable",
        now,
    )
    return True


def leave(active: ActivePolicy, uid: str, ledger: Ledger) -> None:
    """Take in that a node is not (or no longer) of those that a policy selects."""
    watch = ledger.watches.get(active.policy.name)
    if watch is not None:
        watch.scope.discard(uid)
        watch.matching.pop(uid, None)


def _forget_older(recent: dict[str, float], limit: float) -> None:
    for uid in [uid for uid, at in takewhile(lambda one: one[1] <= limit, recent.items())]:
        del recent[uid]
