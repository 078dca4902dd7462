"""The leader's loop with an API server in memory, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from node_agent.contract import FAULTS_ANNOTATION, Fault, FaultKind, Severity, encode_report
from remediator.act.executor import Executor
from remediator.act.outbox import Report
from remediator.act.patch import patched
from remediator.act.side import Side
from remediator.act.work import Worker, Works
from remediator.act.writes import Verdict
from remediator.decide.candidate import ActivePolicy
from remediator.decide.core import Policies, World, decide
from remediator.decide.decision import (
    Decision,
    Outcome,
    PatchNode,
    SendMessage,
    Work,
    WriteEvent,
)
from remediator.decide.facts import NodeFacts
from remediator.decide.ledger import Ledger, Pause
from remediator.decide.session import SESSION_ANNOTATION
from remediator.engine import Engine
from remediator.kube.access import access_of
from remediator.kube.errors import (
    ApiError,
    Conflict,
    Forbidden,
    NotFound,
    ServerError,
    Throttled,
    TimedOut,
)
from remediator.kube.lease import NotLeading
from remediator.kube.objects import Condition, Node
from remediator.kube.patch import NodePatch
from remediator.kube.workqueue import WorkQueue
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import RemediationPolicy
from remediator.signals.fleet import Fleet
from tests.unit.held import held
from tests.unit.kube.build import bare_node


ACCESS = access_of("PATCH", "/api/v1/nodes/n1")
SEEN = datetime(2026, 1, 1, tzinfo=UTC)
XID = Fault(
    kind=FaultKind.XID,
    severity=Severity.FATAL,
    first_seen=SEEN,
    last_seen=SEEN,
    code=79,
    boot_id="b1",
)
OTHER = msgspec.structs.replace(XID, code=48)
pytestmark = pytest.mark.looptime


class LoopClock:
    """The loop's time, which looptime makes virtual, as time of day."""

    def now(self) -> float:
        return 1_000_000.0 + asyncio.get_running_loop().time()


class Server:
    """Nodes with versions and preconditions; the watch is delivered when the test says so.

    Attributes:
        errors: what the next writes get instead of an answer; a tuple (error,) is
            raised after the write was done.
        gate: writes wait for it.
        latency: seconds that a write takes.
        together: most writes to one node, and to all nodes, under way at once.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.nodes: dict[str, Node] = {}
        self.writes: list[NodePatch] = []
        self.attempts = 0
        self.errors: list[ApiError | NotLeading | tuple[ApiError]] = []
        self.read_errors: list[ApiError] = []
        self.reads = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.latency = 0.01
        self.together = [0, 0]
        self.watching = True
        self._under_way: list[str] = []
        self._fleet = fleet
        self._version = 0

    def put(self, name: str, *faults: Fault, **changes: Any) -> Node:
        """Create a node, or change it as its agent does."""
        self._version += 1
        old = self.nodes.get(name)
        base = old or bare_node(
            name=name,
            uid=f"uid-{name}",
            resource_version="",
            labels={"nvidia.com/gpu.present": "true"},
            created="2026-01-01T00:00:00Z",
            boot_id="b1",
        )
        beat = str(self._version)
        conditions = (
            Condition(type="Ready", status="True"),
            Condition(
                type="GPUXidError",
                status="True" if faults else "False",
                last_heartbeat_time=beat,
            ),
        )
        annotations = {**base.annotations, FAULTS_ANNOTATION: encode_report(faults, boot_id="b1")}
        new = msgspec.structs.replace(
            base,
            **{
                "resource_version": beat,
                "conditions": conditions,
                "annotations": annotations,
                **changes,
            },
        )
        self._store(new)
        return new

    def _store(self, new: Node) -> None:
        old, self.nodes[new.name] = self.nodes.get(new.name), new
        if self.watching:
            self._fleet.on_event(old, new)

    def watch(self) -> None:
        """Deliver what the watch held back."""
        self.watching = True
        for node in self.nodes.values():
            self._fleet.on_event(node, node)

    async def patch_node(self, patch: NodePatch) -> str:
        self.attempts += 1
        self._under_way.append(patch.name)
        self.together[0] = max(self.together[0], self._under_way.count(patch.name))
        self.together[1] = max(self.together[1], len(self._under_way))
        try:
            await self.gate.wait()
            await asyncio.sleep(self.latency)
            return self._answer(patch)
        finally:
            self._under_way.remove(patch.name)

    def _answer(self, patch: NodePatch) -> str:
        error = self.errors.pop(0) if self.errors else None
        if error is not None and not isinstance(error, tuple):
            raise error
        node = self.nodes.get(patch.name)
        if node is None:
            raise NotFound(ACCESS)
        if (node.uid, node.resource_version) != (patch.uid, patch.resource_version):
            raise Conflict(ACCESS)
        self.writes.append(patch)
        self._version += 1
        self._store(patched(node, patch, str(self._version)))
        if isinstance(error, tuple):
            raise error[0]
        return str(self._version)

    async def read_node(self, name: str) -> Node | None:
        self.reads += 1
        if self.read_errors:
            raise self.read_errors.pop(0)
        return self.nodes.get(name)


class Records:
    """Everything that was told."""

    def __init__(self) -> None:
        self.results: list[tuple[str, Verdict, bool]] = []
        self.events: list[WriteEvent] = []
        self.defects: list[str] = []
        self.messages: list[tuple[SendMessage, bool]] = []

    def decided(self, before: Decision | None, now: Decision, *, dry_run: bool) -> None:
        pass

    def written(
        self,
        patch: PatchNode,
        *,
        facts: NodeFacts,  # noqa: ARG002
        verdict: Verdict,
        dry_run: bool,
        reason: str = "",  # noqa: ARG002
    ) -> None:
        self.results.append((patch.action, verdict, dry_run))

    def asked(self, effect: WriteEvent) -> None:
        self.events.append(effect)

    def defect(self, where: str) -> None:
        self.defects.append(where)

    def submit(self, message: SendMessage, *, dry_run: bool) -> bool:
        known = any(one.key == message.key and dry == dry_run for one, dry in self.messages)
        if not known:
            self.messages.append((message, dry_run))
        return not known


class World_:  # noqa: N801 - the test's whole world; `World` is the product's word
    """All parts, joined as in the product."""

    def __init__(self, spec: dict[str, Any], decide: Callable[..., list[Decision]]) -> None:
        base = {
            "mode": "Enforce",
            "settling": "0s",
            "budgets": [{"maxUnavailable": "100%", "per": "cluster"}],
            "rates": {"cordon": "1000/1s", "drain": "1000/1s", "job": "1000/1s"},
            "breaker": {"minNodes": 1000},
        }
        self.cluster = ClusterSpec.model_validate(base | spec)
        clock = LoopClock()
        self.fleet = Fleet(cluster=self.cluster, clock=clock)
        self.queue = WorkQueue()
        self.server = Server(self.fleet)
        self.records = Records()
        self.real, self.virtual = (
            Side(world=world, ledger=Ledger(cluster=self.cluster, started=clock.now()))
            for world in (World.REAL, World.VIRTUAL)
        )
        self.workers: dict[str, Worker] = {}
        self.works = Works(
            workers=self.workers,
            ended=lambda work, outcome: self.executor.work_ended(work, outcome),  # noqa: PLW0108
        )
        self.executor = Executor(
            fleet=self.fleet,
            queue=self.queue,
            real=self.real,
            virtual=self.virtual,
            writer=self.server,
            reader=self.server,
            outbox=self.records,
            observer=self.records,
            works=self.works,
            workers=4,
        )
        self.engine = Engine(
            fleet=self.fleet,
            queue=self.queue,
            real=self.real,
            virtual=self.virtual,
            executor=self.executor,
            observer=self.records,
            clock=clock,
            decide=decide,
        )

    def policy(self, name: str = "p", mode: str = "Enforce", **spec: Any) -> None:
        """Put this policy in force, and no other."""
        policy = RemediationPolicy.model_validate(
            {
                "apiVersion": "gpu-remediator.io/v1alpha1",
                "kind": "RemediationPolicy",
                "metadata": {"name": name},
                "spec": {
                    "mode": mode,
                    "when": [{"xid": {"codes": [79]}}],
                    "steps": [{"cordon": {}}],
                    "recover": {"for": "10s"},
                    **spec,
                },
            }
        )
        self.engine.set_policies(Policies({name: ActivePolicy(policy, LoopClock().now())}))

    def cordoned(self, name: str) -> bool:
        return self.server.nodes[name].unschedulable

    def cordons(self) -> list[str]:
        return [patch.name for patch in self.server.writes if patch.unschedulable]


Run = Callable[..., Any]


@pytest.fixture
def world() -> Run:
    """Make a world and run its engine."""

    @asynccontextmanager
    async def run(
        *, decide: Callable[..., list[Decision]] = decide, nodes: int = 1, **spec: Any
    ) -> AsyncIterator[World_]:
        made = World_(spec, decide)
        for number in range(1, nodes + 1):
            made.server.put(f"n{number}")
        made.policy()
        made.engine.start()
        task = asyncio.create_task(made.engine.run())
        await asyncio.sleep(0.1)
        yield made
        made.server.gate.set()
        made.engine.stop()
        await task

    return run


async def test_a_fault_cordons_once_and_its_end_uncordons(world: Run) -> None:
    async with world() as it:
        it.server.put("n1", XID)
        await asyncio.sleep(1)
        assert it.cordons() == ["n1"]
        assert SESSION_ANNOTATION in it.server.nodes["n1"].annotations
        it.server.put("n1")
        await asyncio.sleep(9)
        assert it.cordoned("n1")
        await asyncio.sleep(2)
        assert not it.cordoned("n1")
        assert SESSION_ANNOTATION not in it.server.nodes["n1"].annotations


async def test_no_second_write_before_the_watch_tells_of_the_first(world: Run) -> None:
    async with world() as it:
        it.server.put("n1", XID)
        it.server.watching = False
        for _ in range(20):
            it.engine.look_at_all()
            await asyncio.sleep(0.1)
        assert len(it.server.writes) == 1
        assert it.server.attempts == 1
        it.server.watch()
        await asyncio.sleep(1)
        assert len(it.server.writes) == 1


async def test_one_write_at_a_time_to_a_node_and_few_to_all(world: Run) -> None:
    async with world(nodes=10) as it:
        it.server.gate.clear()
        for number in range(1, 11):
            it.server.put(f"n{number}", XID)
        await asyncio.sleep(1)
        for number in range(1, 11):
            it.server.put(f"n{number}", XID, labels={"nvidia.com/gpu.present": "true", "a": "b"})
        await asyncio.sleep(1)
        it.server.gate.set()
        await asyncio.sleep(5)
        assert sorted(it.cordons()) == sorted(f"n{number}" for number in range(1, 11))
        assert it.server.together == [1, 4]


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (Conflict(ACCESS), Verdict.CHANGED),
        (Throttled(ACCESS), Verdict.LATER),
        (Forbidden(ACCESS), Verdict.REFUSED),
        (ServerError(ACCESS), Verdict.DOUBTFUL),
        (TimedOut(ACCESS), Verdict.DOUBTFUL),
        ((TimedOut(ACCESS),), Verdict.DOUBTFUL),
    ],
    ids=["conflict", "throttled", "forbidden", "500", "timed-out", "timed-out-but-done"],
)
async def test_after_any_error_one_cordon_and_nothing_reserved_twice(
    world: Run, error: Any, verdict: Verdict
) -> None:
    async with world(budgets=[{"maxUnavailable": 1, "per": "cluster"}]) as it:
        it.server.errors = [error]
        it.server.watching = False
        it.server.watching = True
        it.server.put("n1", XID)
        await asyncio.sleep(0.05)
        assert it.records.results[0] == ("cordon", verdict, False)
        await asyncio.sleep(60)
        assert it.cordons() == ["n1"]
        entry = it.real.ledger.nodes["uid-n1"]
        assert (entry.reserved, entry.counted) == (False, True)


async def test_a_failed_write_gives_its_place_to_another_node(world: Run) -> None:
    async with world(nodes=2, budgets=[{"maxUnavailable": 1, "per": "cluster"}]) as it:
        it.server.errors = [Forbidden(ACCESS)]
        it.server.put("n1", XID)
        await asyncio.sleep(0.5)
        it.server.put("n2", XID)
        await asyncio.sleep(0.5)
        assert it.cordons() == ["n2"]


async def test_a_refusal_is_shown_until_there_is_nothing_to_write(world: Run) -> None:
    async with world() as it:
        it.server.errors = [Forbidden(ACCESS)]
        it.server.put("n1", XID)
        await asyncio.sleep(0.5)
        assert list(it.executor.refused) == ["n1"]
        it.server.put("n1")
        await asyncio.sleep(0.5)
        assert not it.executor.refused


async def test_a_doubtful_write_keeps_its_place_until_the_node_was_read(world: Run) -> None:
    async with world(nodes=2, budgets=[{"maxUnavailable": 1, "per": "cluster"}]) as it:
        it.server.errors = [(TimedOut(ACCESS),)]
        it.server.read_errors = [ServerError(ACCESS)] * 3
        it.server.put("n1", XID)
        it.server.watching = False  # done on the server, but nobody tells us
        await asyncio.sleep(0.2)
        it.fleet.on_event(None, it.server.put("n2", XID))
        await asyncio.sleep(60)
        assert it.server.reads >= 4
        assert it.cordons() == ["n1"]


async def test_a_write_without_answer_that_never_happened_is_done_then(world: Run) -> None:
    async with world() as it:
        it.server.errors = [TimedOut(ACCESS)]
        it.server.put("n1", XID)
        await asyncio.sleep(5)
        assert (it.server.reads, it.cordons()) == (1, ["n1"])


async def test_facts_that_change_before_the_write_stop_it(world: Run) -> None:
    async with world(nodes=8) as it:
        it.server.gate.clear()
        for number in range(1, 9):
            it.server.put(f"n{number}", XID)  # four under way, the others decided and waiting
        await asyncio.sleep(0.1)
        assert it.server.attempts == 4
        it.server.put("n8")
        it.server.gate.set()
        await asyncio.sleep(1)
        assert "n8" not in it.cordons()
        assert len(it.cordons()) == 7
        assert not it.real.ledger.nodes["uid-n8"].reserved


async def test_heartbeats_before_the_write_do_not_stop_it(world: Run) -> None:
    async with world(nodes=8) as it:
        it.server.gate.clear()
        for number in range(1, 9):
            it.server.put(f"n{number}", XID)
        await asyncio.sleep(0.1)
        it.server.put("n8", XID)
        it.server.gate.set()
        await asyncio.sleep(0.1)
        assert len(it.cordons()) == 8
        assert it.server.attempts == 8


async def test_a_pause_before_the_write_stops_it(world: Run) -> None:
    async with world(nodes=8) as it:
        it.server.gate.clear()
        for number in range(1, 9):
            it.server.put(f"n{number}", XID)
        await asyncio.sleep(0.1)
        it.real.ledger.pause = Pause(by="alice", at="now")
        it.server.gate.set()
        await asyncio.sleep(60)
        assert len(it.cordons()) == 4  # those that were under way
        it.real.ledger.pause = None
        it.engine.look_at_all()
        await asyncio.sleep(1)
        assert len(it.cordons()) == 8


async def test_without_the_lease_nothing_is_written_and_nothing_reserved(world: Run) -> None:
    async with world() as it:
        it.server.errors = [NotLeading("lost")] * 100
        it.server.put("n1", XID)
        await asyncio.sleep(5)
        assert it.server.writes == []
        assert not it.real.ledger.nodes["uid-n1"].reserved


async def test_dry_run_never_reaches_the_server(world: Run) -> None:
    async with world(nodes=3, budgets=[{"maxUnavailable": 1, "per": "cluster"}]) as it:
        it.policy(mode="DryRun", steps=[{"cordon": {}}, {"event": {}}, {"notify": {"to": ["log"]}}])
        for name in ("n1", "n2", "n3"):
            it.server.put(name, XID)
        await asyncio.sleep(5)
        assert it.server.attempts == 0
        assert it.records.events == []
        assert all(dry_run for _, dry_run in it.records.messages)
        cordons = [one for one in it.records.results if one[0] == "cordon"]
        assert cordons == [("cordon", Verdict.DONE, True)]
        for name in ("n1", "n2", "n3"):
            it.server.put(name)
        await asyncio.sleep(60)
        assert ("uncordon", Verdict.DONE, True) in it.records.results
        assert it.server.attempts == 0


async def test_a_policy_switched_to_enforce_begins_for_real(world: Run) -> None:
    async with world() as it:
        it.policy(mode="DryRun")
        it.server.put("n1", XID)
        await asyncio.sleep(1)
        assert not it.cordoned("n1")
        it.policy(mode="Enforce")
        await asyncio.sleep(1)
        assert it.cordoned("n1")
        assert len(it.executor.overlay) == 0
        assert it.records.messages == []


async def test_a_deleted_node_ends_its_session_and_people_are_told(world: Run) -> None:
    async with world(nodes=2, budgets=[{"maxUnavailable": 1, "per": "cluster"}]) as it:
        it.server.put("n1", XID)
        await asyncio.sleep(1)
        it.server.put("n2", XID)
        await asyncio.sleep(1)
        assert it.cordons() == ["n1"]
        it.fleet.on_event(it.server.nodes.pop("n1"), None)
        await asyncio.sleep(1)
        assert it.cordons() == ["n1", "n2"]  # its place is free again
        assert [one.key for one, _ in it.records.messages][-1].endswith("/node-gone")
        assert "uid-n1" not in it.real.decisions


async def test_nodes_that_come_and_go_leave_nothing_behind(world: Run) -> None:
    """An autoscaler gives each a name of its own: what one leaves, a year has by the million."""

    async def pass_through(it: World_, numbers: range) -> int:
        for number in numbers:
            if number == numbers[-1]:
                await asyncio.sleep(2 * 86400)  # some things are remembered for a while
            name = f"passes-{number}"
            it.server.put(name)
            await asyncio.sleep(1)
            it.server.put(name, XID)
            await asyncio.sleep(3)
            for beat in range(5):
                it.server.put(name, XID, *((OTHER,) if beat % 2 else ()))
                await asyncio.sleep(1)
            it.fleet.on_event(it.server.nodes.pop(name), None)
            await asyncio.sleep(1)
        for told in (it.server.writes, it.records.results, it.records.messages):
            told.clear()
        return held(it.engine)

    async with world() as it:
        it.records.submit = lambda *_, **__: True
        it.policy(
            windows=[],
            steps=[{"cordon": {}}, {"label": {"set": {"a": "b"}}}, {"notify": {"to": ["log"]}}],
        )
        after_few = await pass_through(it, range(10))
        after_many = await pass_through(it, range(10, 40))
        assert after_many <= after_few


async def test_a_write_to_a_node_that_is_gone_is_not_repeated(world: Run) -> None:
    async with world(nodes=2, budgets=[{"maxUnavailable": 1, "per": "cluster"}]) as it:
        node = it.server.put("n1", XID)
        del it.server.nodes["n1"]  # and the watch has not said so yet
        await asyncio.sleep(300)
        assert it.server.attempts == 1
        it.fleet.on_event(node, None)
        it.server.put("n2", XID)
        await asyncio.sleep(1)
        assert it.cordoned("n2"), "its place is free"


async def test_what_a_message_came_to_is_recorded(world: Run) -> None:
    async with world() as it:
        it.policy(steps=[{"cordon": {}}, {"notify": {"to": ["log"]}, "onFailure": "hold"}])
        it.server.put("n1", XID)
        await asyncio.sleep(1)
        ((message, dry_run),) = it.records.messages
        before = len(it.server.writes)
        it.executor.reported(Report(message, Outcome(key=message.key, delivered=True), dry_run))
        await asyncio.sleep(1)
        assert len(it.server.writes) == before + 1
        (decision,) = it.real.decisions.values()
        assert "done" in decision.steps[0]


async def test_no_message_before_its_write_is_done(world: Run) -> None:
    async with world() as it:
        it.policy(steps=[{"cordon": {}}, {"notify": {"to": ["log"]}}])
        it.server.errors = [Forbidden(ACCESS)]
        it.server.put("n1", XID)
        await asyncio.sleep(1)
        assert it.records.messages == []
        await asyncio.sleep(60)
        assert len(it.records.messages) == 1


async def test_a_bug_with_one_node_does_not_stop_the_others(world: Run) -> None:
    def broken(nodes: Sequence[NodeFacts], **rest: Any) -> list[Decision]:
        if any(facts.name == "n1" for facts in nodes):
            raise ZeroDivisionError
        return decide(nodes, **rest)

    async with world(decide=broken, nodes=2) as it:
        it.server.put("n1", XID)
        it.server.put("n2", XID)
        await asyncio.sleep(1)
        assert it.cordons() == ["n2"]
        failures = len(it.records.defects)
        await asyncio.sleep(60)
        assert failures < len(it.records.defects) < failures + 20  # later and later
        assert set(it.records.defects) == {"decision"}


async def test_stop_finishes_what_is_under_way_and_begins_nothing(world: Run) -> None:
    async with world(nodes=8) as it:
        it.server.gate.clear()
        for number in range(1, 9):
            it.server.put(f"n{number}", XID)
        await asyncio.sleep(0.1)
        it.engine.stop()
        it.server.gate.set()
        await asyncio.sleep(1)
        assert len(it.cordons()) == 4


async def test_a_node_that_is_none_of_ours_is_never_looked_at(world: Run) -> None:
    seen: list[str] = []

    def watching(nodes: Sequence[NodeFacts], **rest: Any) -> list[Decision]:
        seen.extend(facts.name for facts in nodes)
        return decide(nodes, **rest)

    async with world(decide=watching) as it:
        it.server.put("cpu", XID, labels={})
        await asyncio.sleep(1)
        assert "n1" in seen
        assert "cpu" not in seen


class Hands:
    """A worker that works until it is let go, and notes what the server knew when it began."""

    def __init__(self, it: World_) -> None:
        self.it = it
        self.begun: list[str] = []
        self.stopped: list[str] = []
        self.done = asyncio.Event()

    async def run(self, work: Work, *, say: Callable[[str], None]) -> Outcome:
        text = self.it.server.nodes[work.node].annotations[SESSION_ANNOTATION]
        assert "workSince" in text, "it began before the node says so"
        self.begun.append(work.key)
        say("at it")
        await self.done.wait()
        return Outcome(key=work.key, delivered=True, note="well")

    async def stop(self, work: Work) -> None:
        self.stopped.append(work.key)


def hire(it: World_, *steps: dict[str, Any]) -> Hands:
    hands = Hands(it)
    it.workers["job"] = hands
    it.policy(steps=[{"cordon": {}}, *(steps or ({"job": {"template": "reset"}},))])
    return hands


@pytest.mark.parametrize("error", [None, Conflict(ACCESS), TimedOut(ACCESS), (TimedOut(ACCESS),)])
async def test_work_begins_once_and_only_behind_the_patch_that_says_so(
    world: Run, error: Any
) -> None:
    async with world() as it:
        hands = hire(it)
        it.server.put("n1", XID)
        await asyncio.sleep(0.015)  # the cordon is written, the job is not
        if error is not None:
            it.server.errors = [error]
        await asyncio.sleep(60)
        assert len(hands.begun) == 1
        assert dict(it.works.progress) == {hands.begun[0]: "at it"}
        hands.done.set()
        await asyncio.sleep(2)
        assert '"well"' in it.server.nodes["n1"].annotations[SESSION_ANNOTATION]
        await asyncio.sleep(60)
        assert len(hands.begun) == 1
        assert not hands.stopped


async def test_an_uncordon_stops_the_work_even_if_its_patch_cannot_be_written(world: Run) -> None:
    async with world() as it:
        hands = hire(it)
        it.server.put("n1", XID)
        await asyncio.sleep(5)
        assert len(hands.begun) == 1
        it.server.gate.clear()
        it.server.put("n1", XID, unschedulable=False)
        await asyncio.sleep(1)
        assert hands.stopped == hands.begun
        it.server.gate.set()
        await asyncio.sleep(1)
        assert SESSION_ANNOTATION not in it.server.nodes["n1"].annotations


async def test_a_pause_of_everything_leaves_the_work_as_it_is(world: Run) -> None:
    async with world() as it:
        hands = hire(it)
        it.server.put("n1", XID)
        await asyncio.sleep(5)
        it.real.ledger.pause = Pause(by="ann", at="now", all=True)
        it.engine.look_at_all()
        await asyncio.sleep(5)
        assert not it.works.progress
        it.real.ledger.pause = None
        it.engine.look_at_all()
        await asyncio.sleep(5)
        assert hands.begun == [hands.begun[0]] * 2
        assert not hands.stopped


async def test_a_deleted_node_ends_its_work(world: Run) -> None:
    async with world() as it:
        hands = hire(it)
        it.server.put("n1", XID)
        await asyncio.sleep(5)
        it.fleet.on_event(it.server.nodes["n1"], None)
        await asyncio.sleep(1)
        assert not it.works.progress
        assert hands.stopped == hands.begun


async def test_dry_run_does_no_work_and_assumes_its_end(world: Run) -> None:
    async with world() as it:
        hands = Hands(it)
        it.workers["job"] = hands
        it.policy(mode="DryRun", steps=[{"cordon": {}}, {"job": {"template": "reset"}}])
        it.server.put("n1", XID)
        for _ in range(5):
            await asyncio.sleep(100)
            it.server.put("n1", XID)
        assert not hands.begun
        assert it.server.attempts == 0
        (decision,) = it.virtual.decisions.values()
        assert decision.steps == ("p: 2/2 done",)
