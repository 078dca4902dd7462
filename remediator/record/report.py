"""From decisions and the ledger to the status document: a pure function.

Both worlds are shown: what is done (Enforce policies) and what would be (dry-run), the
latter marked. A node that is well in both appears in the counts only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from remediator.decide.candidate import ActivePolicy
from remediator.decide.decision import Decision, NodePhase, Work
from remediator.decide.facts import NodeFacts
from remediator.decide.guards.breaker import believable, limits_of
from remediator.decide.ledger import Ledger, Pause, Scope, escalated
from remediator.decide.session import Session
from remediator.decide.storms import is_source
from remediator.policy.cluster import DEFAULT_BUDGETS
from remediator.policy.model import Budget, BudgetPer, Mode
from remediator.policy.quantities import Rate, format_rate
from remediator.record.status import (
    STATUS_VERSION,
    BreakerStatus,
    BudgetStatus,
    DueStatus,
    HoldStatus,
    NodeStatus,
    OutboxStatus,
    PauseStatus,
    PolicyProblem,
    PolicyStatus,
    RateStatus,
    Status,
    WorkStatus,
)


MAX_NAMED: Final = 50
"""Nodes named per budget or breaker; the numbers beside them are complete."""
MAX_FAULTS: Final = 20
"""Faults named per node."""
MAX_TEXT: Final = 500
"""Characters of a text about a node, much of which others wrote."""

_STRICTNESS: Final = (Mode.DISABLED, Mode.DRY_RUN, Mode.ENFORCE)
_SAME_IN_BOTH: Final = frozenset({NodePhase.LEFT_ALONE, NodePhase.FROZEN})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldView:
    """One world: its policies, its memory, its latest decision of each node (by UID)."""

    dry_run: bool
    ledger: Ledger
    policies: Mapping[str, ActivePolicy]
    decisions: Mapping[str, Decision]
    progress: Mapping[str, str] = field(default_factory=dict)
    """Of the work under way, by its key."""
    server: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What server dry-run found out, by UID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the document says beside the worlds.

    ``sources``: policy name to its file. ``idle``: policies of no world (Disabled).
    """

    leader: str
    program: str = ""
    synced: bool = True
    sources: Mapping[str, str]
    idle: tuple[PolicyStatus, ...] = ()
    problems: tuple[PolicyProblem, ...] = ()
    outbox: OutboxStatus | None = None
    notes: tuple[str, ...] = ()
    nodes_total: int = 0


def build_status(
    *,
    real: WorldView,
    virtual: WorldView | None,
    facts: Mapping[str, NodeFacts],
    around: Surroundings,
    now: float,
) -> Status:
    """Return the document.

    Args:
        real: the world of Enforce policies.
        virtual: the world of dry-run; None where no policy is in it.
        facts: of every node by UID, as they really are.
        around: process, policies' files, outbox.
        now: epoch seconds.
    """
    worlds = [world for world in (real, virtual) if world is not None]
    ledger = real.ledger
    settling = ledger.started + ledger.cluster.settling
    nodes = [one for world in worlds for one in _nodes(world, real, facts)]
    nodes.sort(key=lambda node: (node.node, node.dry_run))
    policies = (*_policies(worlds, around.sources, ledger.cluster.mode), *around.idle)
    return Status(
        version=STATUS_VERSION,
        time=now,
        leader=around.leader,
        program=around.program,
        mode=ledger.cluster.mode.value,
        started=ledger.started,
        settling_until=settling if now < settling else None,
        synced=around.synced,
        pause=_pause(ledger.pause),
        nodes_total=max(around.nodes_total, len(facts)),
        gpu_nodes=len(ledger.nodes),
        phases=_phases(real),
        phases_dry_run=_phases(virtual) if virtual is not None else {},
        well=len(set(real.decisions) - _unwell(worlds)),
        nodes=tuple(nodes),
        budgets=tuple(one for world in worlds for one in _budgets(world)),
        rates=tuple(one for world in worlds for one in _rates(world, now)),
        breakers=tuple(one for world in worlds for one in _breakers(world, now)),
        policies=policies,
        policy_problems=around.problems,
        outbox=around.outbox,
        notes=(*around.notes, *_failing(policies), *_unread(facts.values())),
    )


def session_counts(
    facts: Iterable[NodeFacts], *, dry_run: bool = False
) -> Counter[tuple[str, str, bool]]:
    """Count the policies' holds in sessions on nodes by policy, state and world, for metrics."""
    return Counter(
        (hold.policy, hold.state.value, dry_run)
        for one in facts
        if isinstance(one.session, Session)
        for hold in one.session.holds
    )


def _phases(world: WorldView) -> dict[str, int]:
    return dict(sorted(Counter(one.phase.value for one in world.decisions.values()).items()))


def _unwell(worlds: Iterable[WorldView]) -> set[str]:
    """UIDs of the nodes that are not simply well in one of the worlds."""
    return {
        uid
        for world in worlds
        for uid, decision in world.decisions.items()
        if decision.phase is not NodePhase.WELL
    }


def _nodes(
    world: WorldView, real: WorldView, facts: Mapping[str, NodeFacts]
) -> Iterator[NodeStatus]:
    for uid, decision in world.decisions.items():
        if decision.phase is NodePhase.WELL:
            continue
        if world.dry_run and decision.phase in _SAME_IN_BOTH and uid in real.decisions:
            continue
        yield _node(decision, facts.get(uid), world)


def _node(decision: Decision, facts: NodeFacts | None, world: WorldView) -> NodeStatus:
    dry_run = world.dry_run
    session = facts.session if facts is not None and not dry_run else None
    known = session if isinstance(session, Session) else None
    return NodeStatus(
        node=decision.node,
        phase=decision.phase.value,
        sentence=_cut(decision.sentence),
        dry_run=dry_run,
        faults=_some(decision.reasons),
        policies=decision.matched,
        steps=decision.steps,
        work=tuple(
            WorkStatus(
                policy=one.policy,
                action=one.action,
                since=one.since,
                deadline=one.deadline,
                attempt=one.attempt,
                suspended=one.suspended,
                progress=world.progress.get(one.key, ""),
            )
            for one in decision.effects
            if isinstance(one, Work)
        ),
        holds=tuple(
            HoldStatus(
                policy=hold.policy,
                guard=hold.guard,
                reason=_cut(hold.reason),
                look_again=hold.look_again,
            )
            for hold in decision.holds
        ),
        dues=tuple(DueStatus(policy=one.policy, what=one.what, at=one.at) for one in decision.dues),
        next_look=decision.next_look,
        pool=facts.pool if facts else "",
        zone=facts.zone if facts else "",
        unschedulable=facts.unschedulable if facts else False,
        session=known.id if known else "",
        since=known.started if known else None,
        server=world.server.get(decision.uid, ()),
    )


def _budgets(world: WorldView) -> Iterator[BudgetStatus]:
    """The budgets as the guard reads them: the cluster's and the policies', or the default."""
    configured = world.ledger.cluster.budgets
    own = [
        (name, active.policy.spec.limits.budget)
        for name, active in sorted(world.policies.items())
        if active.policy.spec.limits.budget is not None
    ]
    if configured or len(own) < len(world.policies) or not own:
        for one in configured or DEFAULT_BUDGETS:
            yield from _budget_groups(world, one, "")
    for name, budget in own:
        if budget is not None:
            yield from _budget_groups(world, budget, name)


def _budget_groups(world: WorldView, budget: Budget, policy: str) -> Iterator[BudgetStatus]:
    ledger = world.ledger
    for scope in sorted(ledger.total):
        if scope.per != budget.per or ledger.total[scope] <= 0:
            continue
        entries = ledger.used_by(scope) if ledger.unavailable[scope] else []
        yield BudgetStatus(
            scope=scope_label(scope),
            used=ledger.unavailable[scope],
            limit=budget.max_unavailable.of(ledger.total[scope]),
            total=ledger.total[scope],
            policy=policy,
            dry_run=world.dry_run,
            holders=tuple(sorted(entry.name for entry in entries)[:MAX_NAMED]),
            escalated=tuple(escalated(entries)[:MAX_NAMED]),
        )


def scope_label(scope: Scope) -> str:
    """Return ``cluster``, ``pool/a100``; ``pool/`` is the nodes without the label."""
    return scope.per if scope.per == BudgetPer.CLUSTER else f"{scope.per}/{scope.name}"


def _rates(world: WorldView, now: float) -> Iterator[RateStatus]:
    for key, times in sorted(world.ledger.starts.items()):
        action, pool, owner = (*key.split(" "), "", "")[:3]
        rate = _rate_of(world, action, owner)
        if rate is None:
            continue
        recent = sorted(at for at in times if at > now - rate.seconds)
        if not recent:
            continue
        full = len(recent) >= rate.starts
        yield RateStatus(
            scope=f"pool/{pool}",
            action=action,
            used=len(recent),
            limit=format_rate(rate),
            policy=owner,
            dry_run=world.dry_run,
            next_at=recent[-rate.starts] + rate.seconds if full else None,
        )


def _rate_of(world: WorldView, action: str, owner: str) -> Rate | None:
    if not owner:
        return world.ledger.cluster.rates.of(action)
    active = world.policies.get(owner)
    return active.policy.spec.limits.rate.of(action) if active else None


def _breakers(world: WorldView, now: float) -> Iterator[BreakerStatus]:
    ledger = world.ledger
    sources = {
        one
        for watch in ledger.watches.values()
        for new in watch.recent.values()
        for one in new.sources
    }
    for name in sorted({*ledger.breakers, *world.policies, *sources}):
        opened = ledger.breakers.get(name)
        limits = limits_of(world.policies.get(name), ledger)
        uids = _newly(name, ledger, now - limits.window)
        backlog = _names(ledger, _backlog(name, ledger))
        if opened is None and not uids and not backlog:
            continue
        calm = ledger.storms.calm.get(name) if opened is not None else None
        yield BreakerStatus(
            source=name,
            open=opened is not None,
            since=opened.at if opened else None,
            seen=len(uids),
            limit=believable(limits, ledger.scope_of(name)),
            reason=opened.why if opened else "",
            dry_run=world.dry_run,
            nodes=_names(ledger, uids)[:MAX_NAMED],
            closes_at=calm.since + limits.cooldown if calm and limits.cooldown else None,
            backlog=len(backlog),
            backlog_nodes=backlog[:MAX_NAMED],
        )


def _names(ledger: Ledger, uids: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(ledger.nodes[uid].name for uid in uids if uid in ledger.nodes))


def _backlog(name: str, ledger: Ledger) -> set[str]:
    """Return the nodes that match a policy and did so before anybody looked."""
    watch = ledger.watches.get(name)
    return watch.backlog & watch.matching.keys() if watch else set()


def _newly(name: str, ledger: Ledger, since: float) -> list[str]:
    """Return the nodes that newly matched a policy, or on a source, after a time."""
    if is_source(name):
        return list(ledger.storms.newly_on(name, since))
    watch = ledger.watches.get(name)
    return [uid for uid, one in watch.recent.items() if one.at > since] if watch else []


def _policies(
    worlds: Iterable[WorldView], sources: Mapping[str, str], mode: Mode
) -> Iterator[PolicyStatus]:
    found: dict[str, PolicyStatus] = {}
    for world in worlds:
        matching = Counter(name for one in world.decisions.values() for name in one.matched)
        failed = {
            name: (one.node, said) for one in world.decisions.values() for name, said in one.failed
        }
        failing = Counter(name for one in world.decisions.values() for name, _ in one.failed)
        for name, active in world.policies.items():
            own = active.policy.spec.mode
            found[name] = PolicyStatus(
                name=name,
                version=active.policy.version,
                mode=own.value,
                effective_mode=min(own, mode, key=_STRICTNESS.index).value,
                loaded_at=active.loaded_at,
                source=sources.get(name, ""),
                matching=matching[name],
                expression_failures=failing[name],
                expression_error="on {}: {}".format(*failed[name]) if name in failed else "",
            )
    for name in sorted(found):
        yield found[name]


def _failing(policies: Iterable[PolicyStatus]) -> Iterator[str]:
    """Say which expressions fail: nobody knows there whether the policy means the node."""
    for one in policies:
        if one.expression_failures:
            yield (
                f"policy {one.name}: its expression fails on {one.expression_failures} nodes, where"
                f" it is not known whether it matches, such as {one.expression_error}"
            )


def _unread(facts: Iterable[NodeFacts]) -> Iterator[str]:
    """Say of which nodes the agent's report is left aside: nothing rests on its faults."""
    found = sorted((one.name, one.faults_note) for one in facts if one.faults_note)
    if found:
        more = f" and {len(found) - 1} more nodes" if len(found) > 1 else ""
        yield _cut(f"the fault report of {found[0][0]}{more} is not used: {found[0][1]}")


def _some(texts: Sequence[str]) -> tuple[str, ...]:
    """Return a few of many texts: no node may take the room of the others."""
    shown = tuple(map(_cut, texts[:MAX_FAULTS]))
    left = len(texts) - len(shown)
    return (*shown, f"and {left} more") if left else shown


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _pause(pause: Pause | None) -> PauseStatus | None:
    if pause is None:
        return None
    return PauseStatus(everything=pause.all, reason=pause.reason, by=pause.by, since=pause.at)
