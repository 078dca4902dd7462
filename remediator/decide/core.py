"""``decide``: the one function behind enforce, dry-run, simulate and policy tests.

A batch of nodes goes in, a decision per node comes out. The batch matters: it is
sorted, so that when places are few the worst and longest-waiting node gets them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from remediator.decide.admit import Verdicts, admit
from remediator.decide.candidate import ActivePolicy, Candidate
from remediator.decide.decision import Decision, Effect, Outcome, SendMessage, Urgency
from remediator.decide.draft import World
from remediator.decide.endings import waived
from remediator.decide.facts import NOTHING_KNOWN, ClusterFacts, NodeFacts, NodeMode
from remediator.decide.guards.breaker import leave, note
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
from remediator.decide.match import match
from remediator.decide.plan import plan
from remediator.decide.session import Session
from remediator.decide.steps import wants
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import Mode, RemediationPolicy
from remediator.policy.plan import parse_plan
from remediator.policy.selector import selector_matches


__all__ = ["ActivePolicy", "Policies", "World", "decide", "effective_mode"]


@dataclass(frozen=True)
class Policies:
    """What is in force now, by name."""

    active: Mapping[str, ActivePolicy] = field(default_factory=dict)


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
    looks = [
        _look(one, policies, ledger, alarms, world=world, now=now, cluster_facts=cluster_facts)
        for one in nodes
    ]
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
    own = Mode.DRY_RUN if facts.mode is NodeMode.DRY_RUN else Mode.ENFORCE
    ranks = _STRICT[policy.spec.mode], _STRICT[cluster.mode], _STRICT[own]
    return _BY_STRICTNESS[min(ranks)]


_BY_STRICTNESS = (Mode.DISABLED, Mode.DRY_RUN, Mode.ENFORCE)
_STRICT = {mode: rank for rank, mode in enumerate(_BY_STRICTNESS)}


_WORLD_OF = {Mode.ENFORCE: World.REAL, Mode.DRY_RUN: World.VIRTUAL}


def _look(
    facts: NodeFacts,
    policies: Policies,
    ledger: Ledger,
    alarms: dict[str, list[Effect]],
    *,
    world: World,
    now: float,
    cluster_facts: ClusterFacts,
) -> Look:
    """Match all policies of this world against a node, and let the breakers count."""
    matched: dict[str, Matched] = {}
    for name, active in policies.active.items():
        spec = active.policy.spec
        if _WORLD_OF.get(effective_mode(active.policy, facts, ledger.cluster)) is not world:
            leave(active, facts.uid, ledger)
            continue
        if not facts.gpu or not selector_matches(spec.nodes.selector, facts.labels):
            leave(active, facts.uid, ledger)
            continue
        found = match(active.policy, facts, now, cluster_facts)
        since, opened = note(active, facts, found, ledger, now)
        matched[name] = Matched(active, found, since)
        if opened:
            alarms.setdefault(facts.uid, []).append(_alarm(name, ledger))
    return Look(facts, matched, cluster_facts)


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
        text = hold.plan if hold is not None else opening(policy, attempt_of(facts, now))[0]
        action = wants(facts, session, hold, parse_plan(text))
        if action in {"drain", "job"} and any(known.action == action for known in found):
            continue  # one at a time on a node
        if action is not None and facts.uid in ledger.nodes:
            found.append(
                Candidate(facts, one.active, one.match, action, one.since, look.cluster_facts)
            )
    return found


def _forget_held(looks: list[Look], verdicts: Verdicts, ledger: Ledger) -> None:
    """Forget since when a step is held where none is held any more."""
    if not ledger.held_since:
        return
    for look in looks:
        uid = look.facts.uid
        for name in look.matched:
            if verdicts.get((uid, name)) is None:
                ledger.held_since.pop((name, uid), None)


def _alarm(source: str, ledger: Ledger) -> SendMessage:
    """Tell people once that a breaker opened."""
    opened = ledger.breakers[source]
    return SendMessage(
        key=f"breaker/{source}/{opened.at:.0f}",
        to=ledger.cluster.alerts_to,
        title=f"breaker of {source} opened",
        text=(
            f"{opened.why}. No new disruptive step of this policy; recovery goes on. "
            f"`remediator breaker reset {source}` leaves the present faults alone, "
            "`--keep` acts on them."
        ),
        policy=source,
        urgency=Urgency.CRITICAL,
    )
