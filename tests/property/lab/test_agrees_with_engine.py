"""The lab and the real engine agree: the same facts at the same times make the same nodes.

The engine runs with its executor, queue and clock in a loop whose time is virtual, against an
API server in memory; the lab runs by itself. Compared is what stands on the nodes before each
next event: cordons, taints and sessions with every step and its result. A board tells the engine
whether agents as a whole can be believed, as in the product.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import looptime
import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from node_agent.contract import ConditionType, FaultKind, Severity
from remediator.act.outbox import Report
from remediator.decide.candidate import ActivePolicy
from remediator.decide.core import Policies, decide
from remediator.decide.decision import Outcome, SendMessage, Work
from remediator.decide.facts import NodeFacts
from remediator.decide.ledger import Pause
from remediator.decide.session import Session
from remediator.kube.objects import Node
from remediator.lab import nodes as on
from remediator.lab.given import ApproveGiven
from remediator.lab.outside import CHANGES
from remediator.lab.run import Lab
from remediator.lab.works import Assumed, Assumptions
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import RemediationPolicy
from remediator.signals.board import AGENTS_SECONDS, Board
from remediator.signals.glance import Nobody
from remediator.signals.resolve import NodeIndex
from tests.property.cases import cases
from tests.unit.engine.test_engine import LoopClock, Records, World_


START = 1_000_000.0
NAMES = ("n1", "n2", "n3")
BOTH = (False, True)
APART = 0.037
BLIND = 42.0
SPEC: dict[str, Any] = {
    "mode": "Enforce",
    "settling": "5s",
    "budgets": [{"maxUnavailable": 1, "per": "cluster"}],
    "rates": {"cordon": "2/1m", "drain": "100/1m"},
    "breaker": {"minNodes": 100},
    "sanity": {"minAgents": 1, "percent": 1},
}
ROOM = SPEC | {
    "budgets": [{"maxUnavailable": "100%", "per": "cluster"}],
    "rates": {"cordon": "100/1m", "drain": "100/1m"},
}
"""No node waits for another: who comes first at one instant is not the question."""
LOG = {"notify": {"to": ["log"]}}
SECONDS = {"drain": 30.0, "job": 16.0}
DRAIN = {
    "mode": "Enforce",
    "when": [{"condition": {"type": "GPUOverheating"}}],
    "steps": [{"cordon": {}}, {"drain": {}, "timeout": "25s", "onFailure": "escalate"}, LOG],
    "recover": {"for": "20s"},
}
POLICIES = {
    "slow": DRAIN,
    "quick": DRAIN
    | {
        "when": [{"condition": {"type": "GPUMemoryDegraded"}}],
        "steps": [{"cordon": {}}, {"drain": {}}, {"wait": {"for": "15s"}}, {"event": {}}],
    },
    "reset": {
        "mode": "Enforce",
        "when": [{"condition": {"type": "GPUInterconnectDegraded"}}],
        "steps": [{"cordon": {}}, {"job": {"template": "reset"}}, {"event": {}}],
        "recover": {"for": "20s"},
    },
    "asks": {
        "mode": "Enforce",
        "when": [{"condition": {"type": "GPUDriverUnresponsive"}}],
        "steps": [{"cordon": {}}, {"approve": {}, "timeout": "50s"}, {"job": {"template": "x"}}],
        "recover": {"for": "20s"},
    },
    "bus": {
        "mode": "Enforce",
        "when": [{"xid": {"codes": [79]}}],
        "steps": [{"cordon": {}}, LOG, {"event": {}}],
        "recover": {"for": "20s"},
    },
    "ecc": {
        "mode": "Enforce",
        "when": [{"xid": {"codes": [48]}}],
        "steps": [LOG | {"onFailure": "hold", "timeout": "1m"}, {"taint": {}}],
        "recover": {"for": "40s"},
    },
    "lost": {
        "mode": "DryRun",
        "when": [{"condition": {"type": "GPULost", "for": "15s"}}],
        "steps": [{"cordon": {}}, LOG],
        "recover": {"for": "20s"},
    },
}
MODES = ("Enforce", "DryRun")
"""Events that set the mode of policy `lost`, and of no node."""
PAUSES = {
    "pause": Pause(by="ann", at="now"),
    "pause all": Pause(by="ann", at="now", all=True),
    "resume": None,
}
"""Events that are about the controller."""
EVENTS = (
    *(
        "GPUOverheating",
        "GPUMemoryDegraded",
        "79",
        "79",
        "48",
        "GPULost",
        "GPUInterconnectDegraded",
        "clear",
        "clear",
        "cordon",
        "uncordon",
        "taint",
        "untaint",
    ),
    *("down", "up", "beat", *MODES, "pause", "resume"),
)

events = st.lists(
    st.tuples(st.integers(1, 12), st.sampled_from(NAMES), st.sampled_from(EVENTS)),
    min_size=3,
    max_size=20,
)
of_works = st.lists(
    st.tuples(
        st.integers(1, 5),
        st.sampled_from(NAMES),
        st.sampled_from(
            [
                *("GPUOverheating", "GPUMemoryDegraded", "GPUInterconnectDegraded"),
                *("GPUDriverUnresponsive", "GPUDriverUnresponsive", "approve", "approve"),
                *("pause all", "resume", "resume", "uncordon", "clear"),
            ]
        ),
    ),
    min_size=4,
    max_size=12,
)
of_silence = st.lists(
    st.tuples(
        st.sampled_from([1, 7, 40, 60, 90, 130]),
        st.sampled_from(NAMES),
        st.sampled_from(["beat", "beat", "beat", "79", "GPUOverheating", "clear"]),
    ),
    min_size=4,
    max_size=12,
)


of_replacement = st.lists(
    st.tuples(
        st.integers(1, 6),
        st.sampled_from(NAMES),
        st.sampled_from(
            [
                *("gone", "gone", "other", "blind", "79", "79", "48", "clear", "uncordon"),
                *("GPUOverheating", "GPUInterconnectDegraded", "GPUDriverUnresponsive", "cordon"),
            ]
        ),
    ),
    min_size=4,
    max_size=14,
)


def policies(mode: str = "DryRun") -> list[RemediationPolicy]:
    specs = POLICIES | {"lost": POLICIES["lost"] | {"mode": mode}}
    return [
        RemediationPolicy.model_validate(
            {
                "apiVersion": "gpu-remediator.io/v1alpha1",
                "kind": "RemediationPolicy",
                "metadata": {"name": name},
                "spec": spec,
            }
        )
        for name, spec in specs.items()
    ]


def changed(node: Node, what: str, now: float) -> Node:
    """Return the node after an event."""
    if what.isdecimal():
        fault = on.fault(
            FaultKind.XID,
            int(what),
            severity=Severity.FATAL,
            pci="0000:9b:00.0",
            boot_id=node.boot_id,
            now=now,
        )
        return on.with_fault(node, fault, now=now)
    happens: dict[str, Callable[[], Node]] = {
        **{
            kind: partial(on.with_condition, node, kind, "True", "X", now=now)
            for kind in ConditionType
        },
        "approve": lambda: CHANGES["approve"](node, ApproveGiven(), now),
        "clear": lambda: on.cleared(node, now=now),
        "cordon": lambda: on.cordoned(node, unschedulable=True),
        "uncordon": lambda: on.cordoned(node, unschedulable=False),
        "taint": lambda: on.with_taint(node, "example.org/maintenance", "NoSchedule"),
        "untaint": lambda: on.without_taint(node, "gpu-remediator.io/unhealthy"),
        "down": lambda: on.with_condition(node, on.READY, "Unknown", now=now),
        "up": lambda: on.with_condition(node, on.READY, "True", now=now),
        "beat": lambda: on.beaten(node, now=now),
    }
    return happens[what]()


def next_version(node: Node | None, name: str, what: str, now: float) -> Node:
    """Return the node after an event; "other", or any of one that is gone, makes it anew."""
    if node is None or what == "other":
        return msgspec.structs.replace(node_of(name), uid=f"{name} since {now}")
    return changed(node, what, now)


def picture(facts: NodeFacts | None) -> object:
    """Return what is compared of a node: all but times, versions and ids."""
    if facts is None:
        return None
    session = facts.session
    holds = []
    if isinstance(session, Session):
        holds = [
            (
                one.policy,
                one.step,
                one.state.value,
                sorted((r.step, r.action, r.result.value) for r in one.results),
                one.instances,
            )
            for one in session.holds
        ]
    return (
        facts.unschedulable,
        sorted((one.key, one.effect) for one in facts.taints),
        holds,
        len(facts.history.attempts),
        sorted((one.policy, one.instance, one.reminded) for one in facts.history.waivers),
    )


def times(script: list[tuple[int, str, str]]) -> list[tuple[float, str, str]]:
    """Return when what happens: never at a time that is due by itself.

    That is whole seconds after something that happened; each has another fraction of a second.
    """
    at, found = 10.07, []
    for gap, name, what in script:
        at += 7 * gap + APART
        found.append((at, name, what))
    return found


def by_lab(script: list[tuple[int, str, str]], spec: dict[str, Any]) -> list[object]:
    assume = Assumptions(work={name: Assumed(seconds) for name, seconds in SECONDS.items()})
    cluster = ClusterSpec.model_validate(spec)
    lab = Lab(policies=policies(), cluster=cluster, start=START, assume=assume)
    for name in NAMES:
        lab.put(node_of(name))
    pictures: list[object] = []
    for at, name, what in [*times(script), (2000.37, NAMES[0], "beat")]:
        lab.run(START + at)
        pictures.append([picture(lab.seen(one, dry_run=dry)) for dry in BOTH for one in NAMES])
        if what in MODES:
            lab.use(policies(what))
        elif what in PAUSES:
            lab.pause(PAUSES[what])
        elif what == "blind":
            lab.blind(BLIND)
        elif what == "gone":
            lab.remove(name)
        else:
            lab.put(next_version(lab.fleet.node(name), name, what, lab.now))
    return pictures


class Delivering(Records):
    """Every message arrives at once, and its sender is told."""

    world: World_

    def submit(self, message: SendMessage, *, dry_run: bool) -> bool:
        new = super().submit(message, dry_run=dry_run)
        if new:
            outcome = Outcome(key=message.key, delivered=True)
            report = Report(message, outcome, dry_run)
            asyncio.get_running_loop().call_soon(self.world.executor.reported, report)
        return new


class Sleeper:
    """Work that takes as long as the lab assumes, without the time in which nobody ran it."""

    async def run(self, work: Work, *, say: Callable[[str], None]) -> Outcome:
        say("asleep")
        now = START + asyncio.get_running_loop().time()
        await asyncio.sleep(work.since + SECONDS[work.action] - now)
        return Outcome(key=work.key, delivered=True)


class Cluster:
    """Jobs that, once made, go on whether or not anybody follows them, until they are deleted."""

    def __init__(self) -> None:
        self.made: dict[str, float] = {}

    async def run(self, work: Work, *, say: Callable[[str], None]) -> Outcome:
        say("made, or found")
        due = self.made.setdefault(work.key, work.since) + SECONDS["job"]
        await asyncio.sleep(due - START - asyncio.get_running_loop().time())
        return Outcome(key=work.key, delivered=True)

    async def stop(self, work: Work) -> None:
        self.made.pop(work.key, None)


async def by_engine(script: list[tuple[int, str, str]], spec: dict[str, Any]) -> list[object]:
    it = World_(spec, decide)
    it.server.latency = 0.0
    records = Delivering()
    records.world = it
    it.executor._outbox = records
    it.workers |= {"drain": Sleeper(), "job": Cluster()}
    it.engine.set_policies(in_force(it, policies(), START))
    for name in NAMES:
        put(it, node_of(name))
    it.engine.start()
    keep_judging(it)
    task = asyncio.create_task(it.engine.run())
    pictures: list[object] = []
    for at, name, what in [*times(script), (2000.37, NAMES[0], "beat")]:
        await asyncio.sleep(at - asyncio.get_running_loop().time())
        pictures.append([picture(facts_of(it, one, dry_run=dry)) for dry in BOTH for one in NAMES])
        if what in MODES:
            it.engine.set_policies(in_force(it, policies(what), START + at))
        elif what in PAUSES:
            for side in (it.real, it.virtual):
                side.ledger.pause = PAUSES[what]
            it.engine.look_at_all()
        elif what == "blind":
            it.fleet.blind(BLIND)
        elif what == "gone":
            it.fleet.on_event(it.server.nodes.pop(name, None), None)
        else:
            put(it, next_version(it.server.nodes.get(name), name, what, START + at))
    it.engine.stop()
    await task
    return pictures


def keep_judging(it: World_) -> None:
    """Have a board look at the heartbeats, at the lab's times."""
    loop, index = asyncio.get_running_loop(), NodeIndex()
    board = Board(
        cluster=it.cluster, fleet=it.fleet, index=index, clock=LoopClock(), observer=Nobody()
    )

    def judge(turn: int) -> None:
        board.publish()
        loop.call_at((turn + 1) * AGENTS_SECONDS, judge, turn + 1)

    judge(0)


def in_force(it: World_, given: list[RemediationPolicy], now: float) -> Policies:
    """Put policies in force: one that did not change keeps its age, as for files."""
    known = it.engine.policies.active
    return Policies(
        {
            one.name: known[one.name]
            if one.name in known and known[one.name].policy.version == one.version
            else ActivePolicy(one, now)
            for one in given
        }
    )


def node_of(name: str) -> Node:
    return on.well_node(name, now=START, labels={"nvidia.com/gpu.present": "true"})


def put(it: World_, node: Node) -> None:
    it.server._version += 1
    it.server._store(msgspec.structs.replace(node, resource_version=str(it.server._version)))


def facts_of(it: World_, name: str, *, dry_run: bool) -> NodeFacts | None:
    facts = it.fleet.get(name)
    return it.executor.overlay.view(facts) if dry_run and facts is not None else facts


@settings(max_examples=cases(60))
@given(script=events)
def test_the_lab_and_the_engine_agree(script: list[tuple[int, str, str]]) -> None:
    agree(script, SPEC)


@settings(max_examples=cases(60))
@given(script=of_works)
@example(
    script=[
        (1, "n1", "GPUInterconnectDegraded"),
        (1, "n1", "pause all"),
        (5, "n1", "resume"),
        (1, "n2", "clear"),
    ]
)
def test_the_lab_and_the_engine_agree_about_work(script: list[tuple[int, str, str]]) -> None:
    """What takes time, and is suspended, taken up again, stopped or taken back."""
    agree(script, ROOM)


@settings(max_examples=cases(40))
@given(script=of_silence)
def test_the_lab_and_the_engine_agree_about_silent_agents(
    script: list[tuple[int, str, str]],
) -> None:
    """Of three agents one may be silent; nothing new rests on the word of two when two are."""
    agree(script, SPEC)


@settings(max_examples=cases(25))
@given(script=of_replacement)
def test_the_lab_and_the_engine_agree_about_nodes_that_come_and_go(
    script: list[tuple[int, str, str]],
) -> None:
    """Deleted, made anew under their name, and not seen for a while."""
    agree(script, SPEC)
    agree(script, ROOM)


def agree(script: list[tuple[int, str, str]], spec: dict[str, Any]) -> None:
    with capture_logs(), asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        real = runner.run(by_engine(script, spec))
    assert by_lab(script, spec) == real
