"""Who has waited longest for a place gets it, whoever frees it: a new fault comes behind.

One place for four nodes that fail, go down, come back (with a new fault, too) and get well. In
the engine, against an API server in memory, and in the lab.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import looptime
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from node_agent.contract import ConditionType
from remediator.decide.candidate import ActivePolicy
from remediator.decide.core import Policies, decide
from remediator.kube.objects import Node
from remediator.lab import nodes as on
from remediator.lab.run import Lab
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import RemediationPolicy
from tests.property.cases import cases
from tests.unit.engine.test_engine import World_
from tests.unit.lab.build import faulty


START: Final = 1_000_000.0
NAMES: Final = ("n1", "n2", "n3", "n4")
SPEC: Final[dict[str, Any]] = {
    "mode": "Enforce",
    "settling": "0s",
    "budgets": [{"maxUnavailable": 1, "per": "cluster"}],
    "rates": {"cordon": "1000/1s", "drain": "1000/1s", "job": "1000/1s"},
    "breaker": {"minNodes": 1000},
}
POLICY: Final = RemediationPolicy.model_validate(
    {
        "apiVersion": "gpu-remediator.io/v1alpha1",
        "kind": "RemediationPolicy",
        "metadata": {"name": "p"},
        "spec": {
            "mode": "Enforce",
            "when": [{"xid": {"codes": [79]}}],
            "steps": [{"cordon": {}}],
            "recover": {"for": "10s"},
        },
    }
)

Script = list[tuple[int, str, str]]
Cordon = tuple[str, bool]
"""A write of ours: a node, and whether it is cordoned or uncordoned."""

scripts = st.lists(
    st.tuples(
        st.integers(1, 20),
        st.sampled_from(NAMES),
        st.sampled_from(["fault", "fault", "well", "down", "up", "up with a fault"]),
    ),
    min_size=4,
    max_size=16,
)
A_FAULT_ON_THE_WAY_UP: Final = [
    (1, "n1", "down"),
    (5, "n2", "fault"),
    (5, "n1", "up with a fault"),
    (5, "n2", "well"),
]


def after(node: Node, what: str, now: float) -> Node:
    """Return the node after an event, in one version."""
    if what == "well":
        return on.cleared(node, now=now)
    if what == "down":
        return on.with_condition(node, on.READY, "Unknown", now=now)
    if what.startswith("up"):
        node = on.with_condition(node, on.READY, "True", now=now)
    if not what.endswith("fault") or is_faulty(node):
        return node
    return faulty(node, now)


def is_faulty(node: Node) -> bool:
    said = node.condition(ConditionType.XID_ERROR)
    return said is not None and said.status == "True"


def well(name: str) -> Node:
    return on.well_node(name, now=START, labels={"nvidia.com/gpu.present": "true"})


def times(script: Script) -> Iterator[tuple[float, str, str]]:
    """Yield when what happens: each at a fraction of a second of its own."""
    at = 1.07
    for gap, name, what in [*script, (60, NAMES[0], "up")]:
        at += gap + 0.037
        yield at, name, what


def by_lab(script: Script) -> list[list[Cordon]]:
    """Return what is written before each event."""
    lab = Lab(policies=[POLICY], cluster=ClusterSpec.model_validate(SPEC), start=START)
    written: list[Cordon] = []

    def note(old: Node | None, new: Node | None) -> None:
        if old is not None and new is not None and old.unschedulable is not new.unschedulable:
            written.append((new.name, new.unschedulable))

    lab.on_version = note
    for name in NAMES:
        lab.put(well(name))
    found = []
    for at, name, what in times(script):
        lab.run(START + at)
        found.append(list(written))
        written.clear()
        lab.put(after(lab.node(name), what, lab.now))
    return found


async def in_engine(script: Script) -> list[list[Cordon]]:
    it = World_(SPEC, decide)
    it.engine.set_policies(Policies({"p": ActivePolicy(POLICY, START)}))
    for name in NAMES:
        put(it, well(name))
    it.engine.start()
    task = asyncio.create_task(it.engine.run())
    found, seen = [], 0
    for at, name, what in times(script):
        await asyncio.sleep(at - asyncio.get_running_loop().time())
        new = [one for one in it.server.writes[seen:] if one.unschedulable is not None]
        found.append([(one.name, bool(one.unschedulable)) for one in new])
        seen = len(it.server.writes)
        put(it, after(it.server.nodes[name], what, START + at))
    it.engine.stop()
    await task
    return found


def put(it: World_, node: Node) -> None:
    it.server._version += 1
    it.server._store(msgspec.structs.replace(node, resource_version=str(it.server._version)))


def by_engine(script: Script) -> list[list[Cordon]]:
    with capture_logs(), asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        return runner.run(in_engine(script))


@pytest.mark.parametrize("world", [by_lab, by_engine])
@settings(max_examples=cases(60))
@given(script=scripts)
@example(script=A_FAULT_ON_THE_WAY_UP)
def test_a_place_goes_to_who_has_waited_longest(world: Any, script: Script) -> None:
    faulty: dict[str, float] = {}
    down: set[str] = set()
    ours: set[str] = set()
    for (at, name, what), written in zip(times(script), world(script), strict=True):
        for node, cordoned in written:
            if not cordoned:
                ours.discard(node)
                continue
            ours.add(node)
            waiting = {one: since for one, since in faulty.items() if one not in ours | down}
            if node not in down:  # that one costs no place
                assert faulty[node] <= min(waiting.values(), default=at), (node, waiting, at)
        if what.endswith("fault"):
            faulty.setdefault(name, at)
        if what == "well":
            faulty.pop(name, None)
        if what == "down":
            down.add(name)
        elif what.startswith("up"):
            down.discard(name)
