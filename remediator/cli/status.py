"""`remediator status`: the controller's own account of itself, as text or JSON.

It is read from a ConfigMap with the user's credentials, so it needs no way to the
controller; and it is shown with its age, because an account whose writer is gone is
history.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

import typer

from remediator.cli.cluster import Target, on_cluster
from remediator.cli.failure import Failure
from remediator.cli.terminal import counted, shown, table
from remediator.decide.decision import NodePhase
from remediator.kube.client import ApiClient
from remediator.kube.configmap import ConfigMaps
from remediator.policy.quantities import format_duration
from remediator.record.status import (
    REFRESH_SECONDS,
    STATUS_CONFIGMAP,
    STATUS_KEY,
    BreakerStatus,
    BudgetStatus,
    HoldStatus,
    NodeStatus,
    Status,
    StatusUnreadableError,
    WorkStatus,
    decode_status,
)


STALE_SECONDS: Final = 2.5 * REFRESH_SECONDS
_HOUR: Final = 3600.0
_LAST_DATE: Final = datetime.max.replace(tzinfo=UTC).timestamp() - 1.0
_TITLES: Final = ("NODE", "PHASE", "FAULTS", "POLICY", "STEP", "NEXT LOOK", "HELD BY")
_FROZEN: Final = NodePhase.FROZEN.value
_WELL: Final = NodePhase.WELL.value
_SAME_IN_BOTH: Final = {_FROZEN, NodePhase.LEFT_ALONE.value}
"""Said once of a node, whichever policies."""


def show_status(target: Target, *, output: str) -> None:
    """Print the status.

    Raises:
        Failure: there is none, or it cannot be read.
    """

    async def work(api: ApiClient) -> str:
        return await _read_text(api, target.namespace)

    text = on_cluster(target, work)
    status = _decode(text)
    if output == "json":
        typer.echo(json.dumps(json.loads(text), indent=2))
    else:
        typer.echo(render_status(status, now=time.time()))


async def read_status(api: ApiClient, namespace: str) -> Status:
    """Read the status.

    Raises:
        Failure: there is none, or it cannot be read.
    """
    return _decode(await _read_text(api, namespace))


async def _read_text(api: ApiClient, namespace: str) -> str:
    found = await ConfigMaps(api=api, namespace=namespace).read(STATUS_CONFIGMAP)
    if found is None or STATUS_KEY not in found.data:
        raise Failure(
            f"no controller has ever written a status in namespace {namespace}"
            " (`remediator run` starts one; --namespace looks elsewhere)"
        )
    return found.data[STATUS_KEY]


def _decode(text: str) -> Status:
    try:
        return decode_status(text)
    except StatusUnreadableError as error:
        raise Failure(f"error: {error}") from error


def render_status(status: Status, *, now: float) -> str:
    """Return the status as people read it. `now` is seconds since the epoch, our clock."""
    lines = [*_head(status, now), *_guards(status, now), *_policies(status)]
    nodes = _nodes(status, now)
    return shown([*lines, "", *nodes] if nodes else lines)


def _head(status: Status, now: float) -> Iterator[str]:
    age = max(0.0, now - status.time)
    if age > STALE_SECONDS:
        yield (
            f"STALE: written {_ago(age)} by {status.leader}, who has not been heard of since:"
            " no controller is running, or it cannot reach the API server"
        )
    yield (
        f"leader {status.leader}{_program(status)}, mode {status.mode},"
        f" {counted(status.gpu_nodes, 'GPU node')} of {status.nodes_total},"
        f" {counted(len(status.policies), 'policy', 'policies')},"
        f" written {_ago(age)}"
    )
    if status.pause is not None:
        scope = "EVERYTHING PAUSED" if status.pause.everything else "PAUSED"
        why = f": {status.pause.reason}" if status.pause.reason else ""
        yield f"{scope} by {status.pause.by} since {status.pause.since}{why}"
    if not status.synced:
        yield "NOT SYNCED: the controller does not see the nodes now"
    if status.settling_until is not None and status.settling_until > now:
        yield f"settling: no new disruptive step for {_span(status.settling_until - now)}"
    yield from _counts(status)
    yield from (f"note: {note}" for note in status.notes)


def _counts(status: Status) -> Iterator[str]:
    """How many nodes are how; as well counts only who is so in dry-run, too."""
    real, dry = dict(status.phases), dict(status.phases_dry_run)
    dry.pop(_WELL, None)
    for phase in _SAME_IN_BOTH & dry.keys():  # shown once: of a world that has no say in it
        dry[phase] -= min(dry[phase], real.get(phase, 0))
    if status.well is not None and _WELL in real:
        real[_WELL] = status.well
    counts = [
        *(f"{count} {phase}" for phase, count in sorted(real.items()) if count),
        *(f"{count} {phase}{_dry(dry_run=True)}" for phase, count in sorted(dry.items()) if count),
    ]
    if counts:
        yield f"nodes: {', '.join(counts)}"


def _program(status: Status) -> str:
    return f" ({status.program})" if status.program else ""


def _guards(status: Status, now: float) -> Iterator[str]:
    for budget in status.budgets:
        yield _budget(budget)
    for rate in status.rates:
        of = f" of {rate.policy}" if rate.policy else ""
        again = f", next {_soon(rate.next_at, now)}" if rate.next_at else ""
        dry = _dry(dry_run=rate.dry_run)
        used = f"{rate.used} of {rate.limit}{again}"
        yield f"rate {rate.action} {_scope(rate.scope)}{of}{dry}: {used}"
    for breaker in status.breakers:
        if breaker.open:
            yield _breaker(breaker, now)
        if breaker.backlog:
            yield _backlog(breaker)
    box = status.outbox
    if box is not None and (box.pending or box.failed):
        last = f" (last: {box.last_failure})" if box.last_failure else ""
        why = f" ({'; '.join(box.trouble)})" if box.trouble else ""
        yield f"messages: {box.pending} waiting{why}, {box.failed} given up{last}"


def _scope(scope: str) -> str:
    """Return a group's name as people say it: ``pool/`` is the nodes without a pool label."""
    return f"{scope[:-1]} (no label)" if scope.endswith("/") else scope


def _budget(budget: BudgetStatus) -> str:
    of = f" of {budget.policy}" if budget.policy else ""
    holders = f", held by {_some(budget.holders)}" if budget.holders else ""
    waiting = (
        f"; {_some(budget.escalated)} escalated: only people can free the place"
        if budget.escalated
        else ""
    )
    dry = _dry(dry_run=budget.dry_run)
    used = f"{budget.used} of {budget.limit}{holders}{waiting}"
    return f"budget {_scope(budget.scope)}{of}{dry}: {used}"


def _backlog(breaker: BreakerStatus) -> str:
    dry = _dry(dry_run=breaker.dry_run)
    nodes = "1 node was" if breaker.backlog == 1 else f"{breaker.backlog} nodes were"
    named = _some(breaker.backlog_nodes)
    return f"backlog of {breaker.source}{dry}: {nodes} faulty before anybody looked: {named}"


def _breaker(breaker: BreakerStatus, now: float) -> str:
    since = f" since {_span(now - breaker.since)}" if breaker.since is not None else ""
    why = breaker.reason or f"{breaker.seen} nodes, limit {breaker.limit}"
    soon = (
        f", and it closes by itself in {_span(breaker.closes_at - now)} if no more nodes turn bad"
        if breaker.closes_at is not None
        else ""
    )
    return (
        f"BREAKER OPEN {breaker.source}{_dry(dry_run=breaker.dry_run)}{since}: {why}."
        f" `remediator breaker reset {breaker.source}` closes it{soon}"
    )


def _policies(status: Status) -> Iterator[str]:
    for policy in status.policies:
        mode = policy.effective_mode
        if policy.mode != policy.effective_mode:
            mode = f"{mode} (its own: {policy.mode})"
        nodes = counted(policy.matching, "node")
        yield f"policy {policy.name} {policy.version}: {mode}, matches {nodes}"
    for problem in status.policy_problems:
        yield f"POLICY FILE {problem.message}"


def _nodes(status: Status, now: float) -> list[str]:
    if not status.nodes:
        return ["no node matches a policy"] if not status.nodes_left_out else []
    rows = [_TITLES, *(_row(node, now) for node in status.nodes)]
    lines = table(rows)
    if status.nodes_left_out:
        lines.append(f"... and {status.nodes_left_out} more nodes, for which there was no room")
    return lines


def _row(node: NodeStatus, now: float) -> tuple[str, ...]:
    held = "; ".join(
        [
            *(_work(one, now) for one in node.work),
            *node.server,
            *(_hold(one, now) for one in node.holds),
            *(f"{one.policy}: {one.what} {_soon(one.at, now)}" for one in node.dues),
        ]
    )
    if not held and node.phase == _FROZEN:
        held = node.sentence
    look = _span(node.next_look - now) if node.next_look is not None else "-"
    return (
        node.node,
        f"{node.phase}{_dry(dry_run=node.dry_run)}",
        ", ".join(node.faults) or "-",
        ", ".join(node.policies) or "-",
        ", ".join(node.steps) or "-",
        look,
        held or "-",
    )


def _hold(hold: HoldStatus, now: float) -> str:
    """Say what holds a step, and when that is looked at again by itself."""
    again = "" if hold.look_again is None else f" ({_soon(hold.look_again, now)})"
    return f"{hold.guard}: {hold.reason}{again}"


def _work(work: WorkStatus, now: float) -> str:
    """Say of a step that takes time how long it has, and how far it got."""
    if work.suspended:
        return f"{work.action} suspended"
    left = f"{work.action} for {_span(now - work.since)}, {_span(work.deadline - now)} left"
    return f"{left}: {work.progress}" if work.progress else left


def _some(names: Iterable[str], *, limit: int = 5) -> str:
    listed = list(names)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more


def _dry(*, dry_run: bool) -> str:
    return " [dry-run]" if dry_run else ""


def _ago(seconds: float) -> str:
    return f"{_span(seconds)} ago"


def _soon(at: float, now: float) -> str:
    """Say when: to the second, which further away takes a date, if there is one."""
    if at - now < _HOUR or at > _LAST_DATE:
        return f"in {_span(at - now)}"
    return f"in {_span(at - now)}, {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%SZ}"


def _span(seconds: float) -> str:
    """Whole seconds below an hour, whole minutes above."""
    rounded = max(0.0, seconds)
    return format_duration(float(int(rounded if rounded < _HOUR else rounded // 60 * 60)))
