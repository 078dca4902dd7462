"""`simulate` and `policy explain`: what would be done now, and why. Both only read."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

import typer

from remediator.cli.blockers import drain_blockers
from remediator.cli.cluster import Target
from remediator.cli.failure import Failure
from remediator.cli.policysource import policy_source
from remediator.cli.replay import read_cluster
from remediator.cli.snapshot import Snapshot, take_snapshot
from remediator.cli.terminal import counted, say, table
from remediator.decide.answer import Answer
from remediator.decide.decision import Hold, NodePhase
from remediator.decide.facts import AGENTS, NodeFacts
from remediator.lab.explain import WORDS, Explained, Told, explain
from remediator.lab.player import with_mode
from remediator.lab.simulate import Row, Simulated, Use, simulate
from remediator.policy.drain import Drain
from remediator.policy.model import Mode
from remediator.policy.quantities import format_duration
from remediator.replica import sources_of


_NEAR: Final = 3
"""Nodes named where none has the name that was given."""
_TITLES: Final = ("NODE", "PHASE", "MATCHES", "WOULD DO NOW", "HELD BY")


class Given(NamedTuple):
    """What both commands are told."""

    policies: Sequence[Path]
    policies_from: str
    config: Path | None
    tape: Path | None
    at: float | None
    as_written: bool


def show_simulation(target: Target, given: Given, *, output: str) -> None:
    """Print what would be done now, per node, and what that takes of the budgets.

    Raises:
        Failure: a file is wrong (2), or the cluster cannot be read (1).
    """
    seen, found = _simulate(target, given)
    drains: dict[str, list[Drain]] = {}
    for row in found.rows:  # of both worlds
        if row.drains:
            drains.setdefault(row.decision.node, []).extend(row.drains)
    blockers = drain_blockers(target, drains) if given.tape is None else {}
    if output == "json":
        typer.echo(json.dumps(_as_json(found, seen, blockers), indent=2))
        return
    mode = "in their own modes" if given.as_written else "as though enforced"
    policies = counted(len(found.lab.policies.active), "policy", "policies")
    say(f"{counted(len(seen.nodes), 'node')}, {policies} {mode}")
    for note in (*seen.notes, *_doubts(found)):
        say(f"note: {note}")
    if seen.pause is not None:
        say(f"PAUSED by {seen.pause.by}: {seen.pause.reason}")
    for use in found.budgets:
        if use.used:
            say(_use(use))
    if not found.rows:
        say("nothing would be done: no policy matches")
        return
    rows = [_TITLES]
    for row in found.rows:
        held = "; ".join(f"{hold.guard}: {hold.reason}" for hold in row.decision.holds)
        stuck = _stuck(row, blockers)
        blocked = "; ".join(f"its drain would wait: {one}" for one in stuck)
        rows.append(
            (
                row.decision.node,
                f"{row.decision.phase.value}{' [dry-run]' if row.dry_run else ''}",
                ", ".join(row.decision.matched) or "-",
                ", ".join(row.steps) or "-",
                "; ".join(text for text in (held, blocked) if text) or "-",
            )
        )
    say("", *table(rows))


def show_explanation(
    target: Target, node: str, given: Given, *, policy: str | None, output: str
) -> None:
    """Print why policies match a node, or do not, and what holds them.

    Raises:
        Failure: a file is wrong or there is no such node or policy (2).
    """
    seen, found = _simulate(target, given)
    facts = found.before.get(node)
    if facts is None:
        near = difflib.get_close_matches(node, found.before, n=_NEAR, cutoff=0.5)
        there = f"; near to that: {', '.join(near)}" if near else ""
        raise Failure(f"error: there is no node {node}{there}", code=2)
    policies = [one.policy for one in found.lab.policies.active.values()]
    written = seen.policies
    if policy is not None and policy not in {one.name for one in written}:
        names = ", ".join(one.name for one in written)
        raise Failure(f"error: there is no policy {policy}; policies: {names}", code=2)
    if policy is not None and policy not in {one.name for one in policies}:
        raise Failure(
            f"error: policy {policy} is Disabled, so it matches nothing; set mode: DryRun", code=2
        )
    around = found.around
    told = [explain(one, facts, around, seen.now) for one in written if policy in {None, one.name}]
    rows = [row for row in found.rows if row.decision.uid == facts.uid]
    if output == "json":
        typer.echo(json.dumps(_explained_as_json(node, told, rows, seen, found), indent=2))
        return
    say(*_node_lines(facts, rows, seen, found))
    for one in sorted(told, key=lambda one: -one.match.answer):
        say(*_explained(one, rows, seen.now, brief=policy is None))


def _simulate(target: Target, given: Given) -> tuple[Snapshot, Simulated]:
    cluster = read_cluster(given.config)
    source = policy_source(
        given.policies,
        given.policies_from,
        cluster=cluster if given.config is not None else None,
        recorded=given.tape is not None,
    )
    folder = Path() if given.config is None else given.config.parent
    seen = take_snapshot(target, source, sources_of(cluster, folder), tape=given.tape, at=given.at)
    policies = seen.policies
    if not given.as_written:
        cluster = cluster.model_copy(update={"mode": Mode.ENFORCE})
        enforced = [one for one in policies if one.spec.mode is not Mode.DISABLED]
        policies = tuple(with_mode(one, Mode.ENFORCE) for one in enforced)
    found = simulate(
        seen.nodes,
        policies=policies,
        cluster=cluster,
        now=seen.now,
        loaded=seen.loaded,
        pause=seen.pause,
        sightings=seen.sightings,
    )
    return seen, found


def _doubts(found: Simulated) -> Iterator[str]:
    """Say why agents as a whole cannot be believed."""
    agents = found.around.sources[AGENTS]
    if not agents.ok:
        yield f"{AGENTS}: {agents.why}"


# -- text --------------------------------------------------------------------------------------


def _use(use: Use) -> str:
    return f"budget {use.limit} of {use.scope}: {use.used} of {use.allowed} used after that"


def _stuck(row: Row, blockers: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return what a node's drains would wait for, or fail by."""
    takes_pods = ("the node takes new pods, so it would fail: cordon first",)
    return (*(takes_pods if row.takes_pods else ()), *blockers.get(row.decision.node, ()))


def _node_lines(
    facts: NodeFacts, rows: Sequence[Row], seen: Snapshot, found: Simulated
) -> Iterator[str]:
    ready = "Ready" if facts.ready else "not Ready"
    cordon = "cordoned" if facts.unschedulable else "schedulable"
    group = ", ".join(
        f"{key} {value}" for key, value in (("pool", facts.pool), ("zone", facts.zone)) if value
    )
    mode = f", mode {facts.mode}" if facts.mode else ""
    yield f"{facts.name}: {ready}, {cordon}{f', {group}' if group else ''}{mode}"
    for fault in facts.faults:
        code = "" if fault.code is None else f" {fault.code}"
        yield f"  {fault.kind}{code} on {fault.pci or 'a GPU'} ({fault.severity}, {fault.count}x)"
    for condition in facts.conditions.values():
        if condition.status != "False" and condition.type != "Ready":
            age = format_duration(float(int(seen.now - condition.since)))
            said = f"{condition.type}={condition.status} ({condition.reason})"
            yield f"  {said} for {age}"
    for alert in facts.alerts:
        quiet = ", silenced" if alert.suppressed else ""
        age = _span(seen.now - alert.starts_at)
        yield f"  alert {alert.name or alert.instance} of {alert.source} for {age}{quiet}"
    if facts.faults_note:
        yield f"  the fault report is not used: {facts.faults_note}"
    for said in dict.fromkeys(filter(None, map(_left_alone, rows))):
        yield f"  {said}"
    known = found.lab.policies.active
    for hold in (hold for row in rows for hold in row.decision.holds if hold.policy not in known):
        yield f"  its session has policy {hold.policy}, which is not among these: {hold.reason}"
    yield from (f"  note: {note}" for note in (*seen.notes, *_doubts(found)))


def _explained(one: Explained, rows: Sequence[Row], now: float, *, brief: bool) -> Iterator[str]:
    yield ""
    if one.not_asked and not one.holding:
        yield f"{one.policy} ({one.mode}): is not about this node: {one.not_asked}"
        return
    if one.not_asked:
        yield (
            f"{one.policy} ({one.mode}): begins nothing here: {one.not_asked};"
            " its session goes on whatever its labels"
        )
    yield f"{one.policy} ({one.mode}): {_verdict(one)}"
    if brief and not one.match.holds and not one.match.reasons:
        yield from (line for told in one.clauses if told.asked for line in _clause(told, now))
    else:
        yield from (line for told in one.clauses for line in _clause(told, now))
    yield from (f"  {said}" for said in _does(one, rows))
    for hold in _holds(one.policy, rows):
        look = hold.look_again
        again = f"; looks again in {_span(look - now)}" if look is not None else ""
        yield f"  held by {hold.guard}: {hold.reason}{again}"


def _does(one: Explained, rows: Sequence[Row]) -> Iterator[str]:
    """Say what a policy would do now, or how far it got with what it began."""
    enforced = "" if one.mode == Mode.ENFORCE else ", if it were enforced"
    for row in rows:
        where = ", in dry-run alone" if row.dry_run else enforced
        steps = [step for step, policy in row.does if policy == one.policy]
        if steps:
            yield f"would do now{where}: {', '.join(steps)}"
        begun = f"{one.policy}: "
        for said in row.decision.steps:
            if said.startswith(begun):
                yield f"{'then it is' if steps else 'it is'} at {said.removeprefix(begun)}"
    if one.mode == Mode.DISABLED:
        yield "would do nothing: it is Disabled"


def _left_alone(row: Row) -> str:
    """Say why no policy at all acts on a node; "" if they may."""
    decision = row.decision
    if decision.phase not in {NodePhase.FROZEN, NodePhase.LEFT_ALONE}:
        return ""
    return f"nothing is done here: {decision.sentence}"


def _verdict(one: Explained) -> str:
    if one.match.holds:
        return "matches"
    return f"does not match: {WORDS[one.match.answer]}"


def _clause(told: Told, now: float) -> Iterator[str]:
    indent = "  " * (told.depth + 1)
    asked = f" ({told.asked})" if told.asked else ""
    why = f": {told.why}" if told.why else ""
    again = ""
    if told.answer is Answer.PENDING and told.next_look is not None:
        again = f", look again in {_span(told.next_look - now)}"
    yield f"{indent}{told.path}{asked} {WORDS[told.answer]}{why}{again}"


def _holds(policy: str, rows: Sequence[Row]) -> Iterator[Hold]:
    for row in rows:
        yield from (hold for hold in row.decision.holds if hold.policy == policy)


def _span(seconds: float) -> str:
    return format_duration(float(max(0, round(seconds))))


# -- JSON --------------------------------------------------------------------------------------


def _as_json(
    found: Simulated, seen: Snapshot, blockers: Mapping[str, Sequence[str]]
) -> dict[str, object]:
    return {
        "time": seen.now,
        "notes": [*seen.notes, *_doubts(found)],
        "sources": _sources(found),
        "budgets": [
            {
                "scope": str(one.scope),
                "limit": one.limit,
                "allowed": one.allowed,
                "used": one.used,
            }
            for one in found.budgets
        ],
        "nodes": [
            {
                "node": row.decision.node,
                "phase": row.decision.phase.value,
                "dryRun": row.dry_run,
                "matched": list(row.decision.matched),
                "steps": list(row.steps),
                "messages": row.messages,
                "holds": [hold._asdict() for hold in row.decision.holds],
                "drainBlockers": list(_stuck(row, blockers)),
            }
            for row in found.rows
        ],
    }


def _sources(found: Simulated) -> dict[str, object]:
    """Return which sources were asked, and why one cannot be trusted."""
    return {name: {"ok": one.ok, "why": one.why} for name, one in found.around.sources.items()}


def _explained_as_json(
    node: str,
    told: Sequence[Explained],
    rows: Sequence[Row],
    seen: Snapshot,
    found: Simulated,
) -> dict[str, object]:
    return {
        "node": node,
        "time": seen.now,
        "notes": [*seen.notes, *_doubts(found)],
        "sources": _sources(found),
        "leftAlone": next(filter(None, map(_left_alone, rows)), ""),
        "policies": [
            {
                "policy": one.policy,
                "mode": one.mode,
                "matches": one.match.holds and not one.not_asked,
                "answer": one.match.answer.name.lower(),
                "notAsked": one.not_asked,
                "inSession": one.holding,
                "reasons": list(one.match.reasons),
                "nextLook": one.match.next_look,
                "clauses": [
                    asdict(clause) | {"answer": clause.answer.name.lower()}
                    for clause in one.clauses
                ],
                "steps": [
                    step for row in rows for step, policy in row.does if policy == one.policy
                ],
                "holds": [hold._asdict() for hold in _holds(one.policy, rows)],
            }
            for one in told
        ],
    }
