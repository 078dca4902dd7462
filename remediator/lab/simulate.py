"""What a controller would do now, seeing these nodes: one look, and what follows at once.

The controller is one that has settled: what is there is a backlog and opens no breaker. Ages
of conditions are taken from the nodes' own times, since nobody watched: the one place
where another clock is believed, and only for looking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from remediator.decide.decision import Decision
from remediator.decide.facts import (
    AlertFact,
    ClusterFacts,
    ConditionFact,
    NodeFacts,
)
from remediator.decide.guards.budget import budgets_of
from remediator.decide.ledger import Pause, Scope, scopes_of
from remediator.kube.objects import Node, epoch_seconds
from remediator.lab.run import Lab
from remediator.lab.timeline import What
from remediator.policy.cluster import ClusterSpec
from remediator.policy.drain import Drain
from remediator.policy.model import RemediationPolicy
from remediator.policy.quantities import format_amount
from remediator.record.state import NOTHING_LOADED, Loaded, restore
from remediator.signals.sightings import NOTHING_SIGHTED, Sightings


@dataclass(frozen=True, slots=True)
class Row:
    """One node on which something would be done or held; ``dry_run``: only in dry-run.

    ``does``: what would be done, each with its policy.
    """

    decision: Decision
    does: tuple[tuple[str, str], ...]
    messages: int
    dry_run: bool = False
    drains: tuple[Drain, ...] = ()
    """How the policies that match would drain it, sooner or later."""
    takes_pods: bool = False
    """It would be drained, and take new pods meanwhile: then the drain fails."""

    @property
    def steps(self) -> tuple[str, ...]:
        """What would be done, as text."""
        return tuple(f"{step} ({policy})" for step, policy in self.does)


@dataclass(frozen=True, slots=True)
class Use:
    """One budget: how much of it is used after that."""

    scope: Scope
    limit: str
    allowed: int
    used: int


@dataclass(frozen=True, slots=True)
class Simulated:
    """What would be done now.

    ``before`` and ``around``: what was known of the nodes, and beside them, before anything was
    done.
    """

    lab: Lab
    before: Mapping[str, NodeFacts]
    rows: tuple[Row, ...]
    budgets: tuple[Use, ...]
    around: ClusterFacts


def simulate(
    nodes: Iterable[Node],
    *,
    policies: Sequence[RemediationPolicy],
    cluster: ClusterSpec,
    now: float,
    loaded: Loaded = NOTHING_LOADED,
    pause: Pause | None = None,
    sightings: Sightings = NOTHING_SIGHTED,
) -> Simulated:
    """Look at all nodes once.

    Args:
        nodes: as they are now.
        policies: with the modes in which they are to be tried.
        cluster: RemediatorConfig's settings.
        now: seconds since the epoch.
        loaded: what the real controller's guards remember, or why that cannot be read.
        pause: whether the real controller is paused.
        sightings: what alerts and queries say.
    """
    known = {one.name: one for one in nodes}
    lab = Lab(policies=policies, cluster=cluster, start=now - cluster.settling - 1.0)
    lab.adjust = lambda facts: _aged(facts, known.get(facts.name), now)
    lab.pause(pause)
    lab.run(now)
    for node in known.values():
        lab.put(node)
    for name in sightings.nodes & known.keys():
        lab.set_signals(
            name,
            alerts=tuple(map(_by_its_start, sightings.alerts.get(name, ()))),
            queries=sightings.queries.get(name, {}),
        )
    restore(lab.real.ledger, loaded, dry_run=lab.virtual.ledger, now=now)
    before = {name: facts for name in known if (facts := lab.facts(name)) is not None}
    alerts = tuple(map(_by_its_start, sightings.around.alerts))
    lab.set_around(replace(sightings.around, alerts=alerts))
    lab.agents.judge()
    around = lab.around
    lab.run(now)
    return Simulated(lab, before, tuple(_rows(lab)), tuple(_budgets(lab)), around)


def _aged(facts: NodeFacts, node: Node | None, now: float) -> NodeFacts:
    """Take ages from the node's own times."""
    if node is None:
        return facts
    times = {one.type: one for one in node.conditions}
    conditions = {}
    for kind, fact in facts.conditions.items():
        given = times.get(kind)
        since = epoch_seconds(given.last_transition_time) if given is not None else None
        beat = epoch_seconds(given.last_heartbeat_time) if given is not None else None
        conditions[kind] = _with_times(fact, since, beat, now)
    away = facts.unavailable_since
    if away is not None:
        ready = conditions.get("Ready")
        stamps = [_seconds(one.time_added) for one in node.taints]
        if ready is not None and not facts.ready:
            stamps.append(ready.since)
        away = min([away, *(one for one in stamps if one is not None)])
    return replace(facts, conditions=conditions, unavailable_since=away)


def _by_its_start(fact: AlertFact) -> AlertFact:
    """Take an alert's age from its own start: whoever watches has seen it since then."""
    return replace(fact, since=min(fact.since, fact.starts_at))


def _with_times(
    fact: ConditionFact, since: float | None, beat: float | None, now: float
) -> ConditionFact:
    since = min(now, fact.since if since is None else since)
    reasons = {reason: min(now, at, since) for reason, at in fact.reasons.items()}
    seen = min(now, fact.seen if beat is None else beat)
    return replace(fact, since=since, seen=seen, reasons=reasons)


def _seconds(text: str | None) -> float | None:
    return epoch_seconds(text)


def _rows(lab: Lab) -> Iterable[Row]:
    for side in lab.sides:
        for decision in sorted(side.decisions.values(), key=lambda one: one.node):
            own = [
                one
                for one in lab.timeline.happenings
                if one.node == decision.node and one.dry_run is side.dry_run
            ]
            does = tuple(
                (one.name, one.policy)
                for one in own
                if one.what in {What.STEP, What.WORK, What.RESUMED, What.UNDONE}
            )
            messages = sum(one.what is What.MESSAGE for one in own)
            if does or messages or decision.holds or decision.matched:
                yield Row(
                    decision,
                    does,
                    messages,
                    side.dry_run,
                    _drains(lab, decision),
                    _takes_pods(lab, decision, does, dry_run=side.dry_run),
                )


def _takes_pods(
    lab: Lab, decision: Decision, does: Iterable[tuple[str, str]], *, dry_run: bool
) -> bool:
    facts = lab.seen(decision.node, dry_run=dry_run)
    drained = any(step == "drain" for step, _ in does)
    return drained and facts is not None and not facts.out_of_service


def _drains(lab: Lab, decision: Decision) -> tuple[Drain, ...]:
    """Return the drains among the steps of the policies that match a node, each once."""
    policies = [lab.policies.active[name].policy for name in decision.matched]
    steps = (step for policy in policies for step in policy.spec.steps)
    found: list[Drain] = []
    for step in steps:
        if step.drain is not None and step.drain not in found:
            found.append(step.drain)
    return tuple(found)


def _budgets(lab: Lab) -> Iterable[Use]:
    """Yield the budgets that apply to some policy, each once, with their use afterwards."""
    ledger = lab.real.ledger
    policies = [one.policy for one in lab.policies.active.values()]
    budgets = dict.fromkeys(one for policy in policies for one in budgets_of(policy, ledger))
    groups = {scope for facts in lab.fleet.all() if facts.gpu for scope in scopes_of(facts)}
    for one in budgets:
        for scope in sorted(groups):
            if scope.per == one.per:
                allowed = one.max_unavailable.of(ledger.total[scope])
                limit = str(format_amount(one.max_unavailable))
                yield Use(scope, limit, allowed, ledger.unavailable[scope])
