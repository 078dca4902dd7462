"""``decide``: the one function behind enforce, dry-run, simulate and policy tests.

A batch of nodes goes in, a decision per node comes out. The batch matters: it is
sorted, so that when places are few the worst and longest-waiting node gets them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from remediator.decide.admit import ONE_AT_A_TIME, Verdicts, admit
from remediator.decide.answer import CLEAR, Answer, any_of
from remediator.decide.calm import calm
from remediator.decide.candidate import ActivePolicy, Candidate
from remediator.decide.decision import Decision, Effect, Outcome, SendMessage, Urgency
from remediator.decide.draft import World
from remediator.decide.endings import waived
from remediator.decide.facts import NOTHING_KNOWN, ClusterFacts, NodeFacts, NodeMode
from remediator.decide.guards.breaker import is_forgotten, leave, note
from remediator.decide.guards.cooling import cool
from remediator.decide.instances import still_there, unhealthy_since
from remediator.decide.ledger import Ledger
from remediator.decide.look import (
    Look,
    Matched,
    attempt_of,
    opening,
    uncordoned,
    untainted,
    unusable_session,
)
from remediator.decide.match import Match, match
from remediator.decide.plan import plan
from remediator.decide.session import PolicyHold, Session
from remediator.decide.signal_clauses import alerts_named, silenced_by_people
from remediator.decide.steps import wants
from remediator.decide.storms import is_source
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import Mode, RemediationPolicy
from remediator.policy.plan import parse_plan
from remediator.policy.selector import selector_matches
from remediator.policy.when import AlertClause


__all__ = ["ActivePolicy", "Policies", "World", "decide", "effective_mode"]


@dataclass(frozen=True)
class Policies:
    """What is in force now, by name."""

    active: Mapping[str, ActivePolicy] = field(default_factory=dict)
    sides: dict[tuple[NodeMode, Mode, World], _Side] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """What was found out about the modes of these policies."""

    @cached_property
    def alerts(self) -> tuple[AlertClause, ...]:
        """The alerts that they name. In dry-run, too: a silence means the node, not the mode."""
        given = (one.policy for one in self.active.values())
        return alerts_named(one for one in given if one.spec.mode is not Mode.DISABLED)

    def in_dry_run(self, *, cap: Mode) -> frozenset[str]:
        """Return those that are in dry-run on every node; ``cap``: the cluster's mode."""
        pretending = {Mode.DRY_RUN, Mode.ENFORCE} if cap is Mode.DRY_RUN else {Mode.DRY_RUN}
        modes = {name: one.policy.spec.mode for name, one in self.active.items()}
        return frozenset(name for name, mode in modes.items() if mode in pretending)


def decide(
    nodes: Sequence[NodeFacts],
    *,
    policies: Policies,
    ledger: Ledger,
    outcomes: Mapping[str, Outcome],
    world: World,
    now: float,
    cluster_facts: ClusterFacts = NOTHING_KNOWN,
) -> list[Decision]:
    """Decide about a batch of nodes: one decision each, in the same order.

    Every node must have been shown to the ledger (:meth:`Ledger.observe`) before.
    ``outcomes``: what became of messages, by key. ``now``: the controller's clock.
    ``cluster_facts``: alerts, queries and sources beside the nodes.
    """
    alarms: dict[str, list[Effect]] = {}
    sides = _sides(nodes, policies, ledger.cluster, world)
    for one in nodes:
        ledger.settle(one.uid)
    looks = [
        _look(
            one,
            sides[one.mode],
            ledger,
            alarms,
            now=now,
            cluster_facts=cluster_facts,
            silenced=silenced_by_people(policies.alerts, one),
        )
        for one in nodes
    ]
    if looks:
        looks[0] = _cooled(looks[0], policies, ledger, alarms, now)
    verdicts = admit((one for look in looks for one in _candidates(look, ledger, now)), ledger, now)
    _forget_held(looks, verdicts, ledger)
    decisions = [
        plan(look, verdicts, ledger=ledger, outcomes=outcomes, world=world, now=now)
        for look in looks
    ]
    if not alarms:
        return decisions
    return [
        replace(one, effects=(*one.effects, *alarms[one.uid])) if one.uid in alarms else one
        for one in decisions
    ]


def effective_mode(policy: RemediationPolicy, facts: NodeFacts, cluster: ClusterSpec) -> Mode:
    """Return the strictest of what the cluster, the policy and the node allow."""
    mode, most = policy.spec.mode, cluster.mode
    if mode is Mode.DISABLED or most is Mode.DISABLED:
        return Mode.DISABLED
    if Mode.DRY_RUN in (mode, most) or facts.mode is NodeMode.DRY_RUN:
        return Mode.DRY_RUN
    return Mode.ENFORCE


def _cooled(
    look: Look,
    policies: Policies,
    ledger: Ledger,
    alarms: dict[str, list[Effect]],
    now: float,
) -> Look:
    """Close the breakers whose storm is over. Any one node is looked at when the next may be."""
    told, due = cool(policies.active, ledger, now)
    if told:
        alarms.setdefault(look.facts.uid, []).extend(told)
    if due is None:
        return look
    return replace(look, next_look=due if look.next_look is None else min(due, look.next_look))


_WORLD_OF = {Mode.ENFORCE: World.REAL, Mode.DRY_RUN: World.VIRTUAL}


class _Side(NamedTuple):
    """The policies in force, for nodes of one mode: those of this world, and the others."""

    mine: list[ActivePolicy]
    others: list[ActivePolicy]


def _sides(
    nodes: Sequence[NodeFacts], policies: Policies, cluster: ClusterSpec, world: World
) -> dict[NodeMode, _Side]:
    """Tell once for all nodes of a mode which policies belong to this world."""
    sides: dict[NodeMode, _Side] = {}
    for facts in nodes:
        if facts.mode in sides:
            continue
        key = (facts.mode, cluster.mode, world)
        if key not in policies.sides:
            policies.sides[key] = _side(facts, policies, cluster, world)
        sides[facts.mode] = policies.sides[key]
    return sides


def _side(facts: NodeFacts, policies: Policies, cluster: ClusterSpec, world: World) -> _Side:
    side = _Side([], [])
    for _, active in sorted(policies.active.items()):  # in every shell the same
        world_of = _WORLD_OF.get(effective_mode(active.policy, facts, cluster))
        (side.mine if world_of is world else side.others).append(active)
    return side


def _look(
    facts: NodeFacts,
    side: _Side,
    ledger: Ledger,
    alarms: dict[str, list[Effect]],
    *,
    now: float,
    cluster_facts: ClusterFacts,
    silenced: str,
) -> Look:
    """Match all policies of this world against a node, and let the breakers count.

    Where no session asks, a policy of whose faults the agent says that none is there says nothing.
    """
    uid, quiet = facts.uid, calm(facts, now)
    nobody_asks = facts.session is None and not facts.history.waivers
    matched: dict[str, Matched] = {}
    looks: list[float] = [] if quiet is None else [quiet.until]
    for active, selected, hold in _asked(facts, side, ledger):
        policy = active.policy
        if quiet is not None and quiet.vouches(policy.asked):
            if nobody_asks:
                if not is_forgotten(active, uid, ledger):
                    note(active, facts, CLEAR, ledger, now)
                continue
            found = CLEAR
        else:
            found = match(policy, facts, now, cluster_facts)
        if selected and not (found.answer is Answer.CLEAR and is_forgotten(active, uid, ledger)):
            since, opened = note(active, facts, found, ledger, now, cluster_facts)
        else:  # nobody minds, or there is nothing to note
            since, opened = now, ()
        if hold is not None:
            since = hold.since
            found = found if found.holds else _begun(policy, hold, facts, now, cluster_facts)
        if found.next_look is not None:
            looks.append(found.next_look)
        matched[policy.name] = Matched(active, found, since)
        for name in opened:
            alarms.setdefault(uid, []).append(_alarm(name, ledger))
    return Look(
        facts,
        matched,
        cluster_facts,
        holding=tuple(one for one in matched.values() if one.match.holds),
        next_look=min(looks, default=None),
        silenced=silenced,
    )


def _asked(
    facts: NodeFacts, side: _Side, ledger: Ledger
) -> Iterator[tuple[ActivePolicy, bool, PolicyHold | None]]:
    """Yield the policies to ask about a node, whether they select it, and what they hold of it.

    A selector says where a policy begins. A node that it holds already is still looked at
    whatever became of its labels: the policy's own steps may have changed them.
    """
    session = facts.session if isinstance(facts.session, Session) else None
    known: dict[str, bool] = {}  # many policies select alike
    for active in side.others:
        leave(active, facts.uid, ledger)
    for active in side.mine:
        policy, selects = active.policy, active.policy.selects
        selected = known.get(selects)
        if selected is None:
            selected = facts.gpu and selector_matches(policy.spec.nodes.selector, facts.labels)
            known[selects] = selected
        hold = session.hold(policy.name) if session is not None else None
        if not selected:
            leave(active, facts.uid, ledger)
        if selected or hold is not None:
            yield active, selected, hold


def _begun(
    policy: RemediationPolicy,
    hold: PolicyHold,
    facts: NodeFacts,
    now: float,
    cluster_facts: ClusterFacts,
) -> Match:
    """Return what a policy says of a node that it holds already: without its filters.

    Of a policy that was edited since, the faults that the hold rests on are enough: what has
    begun goes on as it began, whether or not the new text would begin it.
    """
    found = match(policy, facts, now, cluster_facts, begun=True)
    if found.holds or hold.version == policy.version:
        return found
    known = still_there(hold.instances, facts, now, cluster_facts)
    return replace(any_of([found, known]), reasons=hold.reasons) if known.holds else found


def _candidates(look: Look, ledger: Ledger, now: float) -> list[Candidate]:
    """Return what the guards must be asked about for this node."""
    facts = look.facts
    if facts.deleting or facts.mode is NodeMode.DISABLED or not look.holding:
        return []
    if unusable_session(facts):
        return []
    session = facts.session if isinstance(facts.session, Session) else None
    if session is not None and (uncordoned(facts, session) or untainted(facts, session)):
        return []  # a person took it back
    found: list[Candidate] = []
    for one in look.holding:
        policy = one.active.policy
        hold = session.hold(policy.name) if session is not None else None
        if hold is None and waived(facts.history, policy.name, one.match.instances):
            continue
        attempt = attempt_of(facts, now, policy.name)
        text = hold.plan if hold is not None else opening(policy, attempt)[0]
        action = wants(facts, session, hold, parse_plan(text))
        if action in ONE_AT_A_TIME and not one.match.fresh:
            continue  # it could not begin, and would keep another policy from it
        if action is not None and (facts.uid in ledger.nodes or not facts.gpu):
            known = look.cluster_facts, look.silenced
            since = unhealthy_since(one.match.instances, facts, one.since)
            found.append(Candidate(facts, one.active, one.match, action, since, *known))
    return found


def _forget_held(looks: list[Look], verdicts: Verdicts, ledger: Ledger) -> None:
    """Forget since when a step is held where none is held any more."""
    for uid in [look.facts.uid for look in looks if look.facts.uid in ledger.held_since]:
        held = ledger.held_since[uid]
        for name in [name for name in held if verdicts.get((uid, name)) is None]:
            del held[name]
        if not held:
            del ledger.held_since[uid]


def _alarm(source: str, ledger: Ledger) -> SendMessage:
    """Tell people once that a breaker opened."""
    opened = ledger.breakers[source]
    which = "that rests on this source" if is_source(source) else "of this policy"
    return SendMessage(
        key=f"breaker/{source}/{opened.at:.0f}",
        to=ledger.cluster.alerts_to,
        title=f"breaker of {source} opened",
        text=(
            f"{opened.why}. No new disruptive step {which}; recovery goes on. "
            f"`remediator breaker reset {source}` leaves the present faults alone, "
            "`--keep` acts on them."
        ),
        policy="" if is_source(source) else source,
        urgency=Urgency.CRITICAL,
        kind="breaker",
    )
