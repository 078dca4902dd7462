"""The supervisor in virtual time, with children that can hang so that no signal ends them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from node_agent.nvml.model import Device, Driver, NvmlEvent, NvmlState, NvmlView
from node_agent.nvml.process import ChildGoneError
from node_agent.nvml.protocol import (
    Answer,
    Done,
    Enumerate,
    Enumerated,
    Event,
    Failed,
    Group,
    InFlight,
    Poll,
    Request,
    Slot,
    Stop,
    Values,
)
from node_agent.nvml.supervisor import Cadence, Supervisor


pytestmark = pytest.mark.looptime

DRIVER = Driver("580.1", "13.580", "13.0")
DEVICE = Device(index=0, uuid="GPU-0", pci="0000:18:00.0", pci_nvml="", name="H200")
CADENCE = Cadence(fast=10, slow=60, rare=600, gpm=30, processes=30, enumerations=30)
CALL = "nvmlDeviceGetPowerUsage gpu 0"


def now() -> float:
    return asyncio.get_running_loop().time()


class ScriptedChild:
    """Answers at once, except where told to hang; `immortal` ones survive SIGKILL (state D)."""

    def __init__(
        self,
        *,
        failed: Failed | None = None,
        hangs_in: Group | None = None,
        immortal: bool = False,
        changed: str = "",
    ) -> None:
        self.requests: list[Request] = []
        self.killed = False
        self.gone = False
        self.immortal = immortal
        self.changed = changed
        self._failed = failed
        self._hangs_in = hangs_in
        self._answers: asyncio.Queue[Answer | None] = asyncio.Queue()
        self._calls: tuple[InFlight, ...] = ()

    async def send(self, request: Request) -> None:
        self.requests.append(request)
        match request:
            case Enumerate(number):
                well = Enumerated(number, DRIVER, (DEVICE,), {}, any_lost=False, bound=None)
                self.say(self._failed or well)
            case Poll(number, groups):
                self._poll(number, groups)
            case Stop():
                self.exit()

    def _poll(self, number: int, groups: tuple[Group, ...]) -> None:
        if self._hangs_in in groups:
            self._calls = (InFlight(Slot.POLL, CALL, now()),)
            return
        for group in groups:
            self.say(Values("GPU-0", group, {f"of_{group}": 1.0}, {}, lost=False))
        self.say(Done(number, {}, self.changed))

    def say(self, answer: Answer) -> None:
        self._answers.put_nowait(answer)

    def exit(self) -> None:
        self.gone = True
        self._answers.put_nowait(None)

    async def receive(self) -> Answer:
        answer = await self._answers.get()
        if answer is None:
            raise ChildGoneError("the NVML child ended with signal 11")
        return answer

    def in_flight(self) -> tuple[InFlight, ...]:
        return self._calls

    def kill(self) -> None:
        self.killed = True
        if not self.immortal:
            self.exit()

    def ended(self) -> bool:
        return self.gone

    def close(self) -> None:
        pass

    def groups(self) -> list[tuple[Group, ...]]:
        return [request.groups for request in self.requests if isinstance(request, Poll)]


class Site:
    """A supervisor and the children that it is given, in order; the last kind repeats."""

    def __init__(self, make: Sequence[Callable[[], ScriptedChild]]) -> None:
        self._make = list(make)
        self.children: list[ScriptedChild] = []
        self.started_at: list[float] = []
        self.states: list[NvmlState] = []
        self.events: list[NvmlEvent] = []
        self.supervisor = Supervisor(
            start=self._start,
            on_view=self._on_view,
            on_event=self.events.append,
            cadence=CADENCE,
            clock=now,
            wall=now,
        )
        self.task = asyncio.create_task(self.supervisor.run())

    async def _start(self) -> ScriptedChild:
        child = (self._make.pop(0) if len(self._make) > 1 else self._make[0])()
        self.children.append(child)
        self.started_at.append(now())
        return child

    def _on_view(self, view: NvmlView) -> None:
        if not self.states or self.states[-1] is not view.state:
            self.states.append(view.state)

    @property
    def view(self) -> NvmlView:
        return self.supervisor.view

    def state(self) -> NvmlState:
        return self.supervisor.view.state

    def alive(self) -> int:
        return sum(not child.gone for child in self.children)


@contextlib.asynccontextmanager
async def running(*make: Callable[[], ScriptedChild]) -> AsyncIterator[Site]:
    site = Site(make)
    try:
        yield site
    finally:
        site.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await site.task


async def test_each_group_has_its_own_cadence() -> None:
    async with running(ScriptedChild) as site:
        await asyncio.sleep(61)
    polled = site.children[0].groups()
    assert polled[0] == (Group.FAST,)
    assert polled[1] == (Group.SLOW, Group.RARE, Group.GPM, Group.PROCESSES)
    flat = [group for groups in polled for group in groups]
    assert {group: flat.count(group) for group in Group} == {
        Group.FAST: 7,
        Group.SLOW: 2,
        Group.RARE: 1,
        Group.GPM: 3,
        Group.PROCESSES: 3,
    }


async def test_an_event_has_the_levels_read_at_once_but_never_twice_in_a_second() -> None:
    async with running(ScriptedChild) as site:
        await asyncio.sleep(5)
        child = site.children[0]
        before = len(child.groups())
        child.say(Event("GPU-0", 0x8000, 0, None, None))
        await asyncio.sleep(0.01)
        assert child.groups()[before:] == [(Group.FAST,)]
        for _ in range(100):
            child.say(Event("GPU-0", 0x8, 31, None, None))
            await asyncio.sleep(0.02)
        await asyncio.sleep(1.5)
        assert child.groups()[before:] == [(Group.FAST,)] * 3
        await asyncio.sleep(8)
        assert child.groups()[before:] == [(Group.FAST,)] * 3
    assert site.view.events == {"recovery_action": 1, "xid": 100}
    assert len(site.events) == 101


async def test_a_hung_call_is_named_within_its_deadline_and_the_child_replaced() -> None:
    async with running(lambda: ScriptedChild(hangs_in=Group.SLOW), ScriptedChild) as site:
        await asyncio.sleep(9)
        assert site.state() is NvmlState.OK
        await asyncio.sleep(1.5)
        assert site.state() is NvmlState.HUNG
        assert site.view.hung_call == CALL
        assert site.view.readings["GPU-0"].values == {"of_fast": 1.0}  # kept, with its age
        await asyncio.sleep(5)
        assert site.children[0].killed
        assert site.state() is NvmlState.OK
        assert (site.view.restarts, site.view.abandoned, site.view.hung_call) == (1, 0, "")
        assert site.children[1].requests[1] == Poll(5, (Group.FAST,), ("GPU-0",))


async def test_hung_stays_until_what_hung_has_been_read() -> None:
    def hangs() -> ScriptedChild:
        return ScriptedChild(hangs_in=Group.SLOW)

    async with running(hangs, hangs, hangs, ScriptedChild) as site:
        await asyncio.sleep(60)
    assert site.states == [NvmlState.STARTING, NvmlState.OK, NvmlState.HUNG, NvmlState.OK]


async def test_never_more_than_two_abandoned_children_and_then_it_waits() -> None:
    def immortal() -> ScriptedChild:
        return ScriptedChild(hangs_in=Group.FAST, immortal=True)

    async with running(immortal) as site:
        await asyncio.sleep(3600)
        assert len(site.children) == 2
        assert site.view.abandoned == 2
        assert site.state() is NvmlState.HUNG
        assert "cannot be ended" in site.view.why
        assert CALL in site.view.why
        site.children[0].exit()  # the kernel let go of it
        await asyncio.sleep(600)
        assert len(site.children) == 3
        assert site.alive() == 2


async def test_what_failed_is_tried_again_ever_more_slowly_by_a_new_process() -> None:
    failed = Failed(0, NvmlState.DRIVER_NOT_LOADED, "nvmlInit: Driver Not Loaded")
    async with running(lambda: ScriptedChild(failed=failed)) as site:
        await asyncio.sleep(600)
        assert site.state() is NvmlState.DRIVER_NOT_LOADED
        assert site.view.why == "nvmlInit: Driver Not Loaded"
        assert site.view.restarts == 0
        gaps = [b - a for a, b in zip(site.started_at, site.started_at[1:], strict=False)]
    assert gaps[:3] == pytest.approx([1, 2, 4], abs=0.5)
    assert max(gaps) == pytest.approx(60, abs=0.5)


async def test_a_crash_is_counted_and_the_view_kept() -> None:
    async with running(ScriptedChild) as site:
        await asyncio.sleep(100)
        site.children[0].exit()
        await asyncio.sleep(0.9)
        assert site.state() is NvmlState.RESTARTING
        assert "signal 11" in site.view.why
        assert site.view.devices == (DEVICE,)
        await asyncio.sleep(1)
        assert site.state() is NvmlState.OK
        assert site.view.restarts == 1


async def test_a_child_that_says_nothing_is_hung_too() -> None:
    class Mute(ScriptedChild):
        async def send(self, request: Request) -> None:
            self.requests.append(request)

    async with running(Mute, ScriptedChild) as site:
        await asyncio.sleep(29)
        assert site.state() is NvmlState.STARTING
        await asyncio.sleep(2)
        assert site.state() is NvmlState.HUNG


async def test_a_hung_event_thread_is_found_although_polls_go_on() -> None:
    async with running(ScriptedChild) as site:
        await asyncio.sleep(5)
        site.children[0]._calls = (InFlight(Slot.EVENTS, "nvmlEventSetWait_v2", now()),)
        await asyncio.sleep(5.5)
        assert site.state() is NvmlState.OK
        await asyncio.sleep(10)
        assert "nvmlEventSetWait_v2" in site.view.why


async def test_release_returns_when_nothing_of_ours_is_open_and_ends_by_itself() -> None:
    async with running(ScriptedChild) as site:
        await asyncio.sleep(5)
        assert await site.supervisor.release(600) == ""
        assert site.alive() == 0
        assert site.children[0].requests[-1].__class__ is Stop
        assert site.state() is NvmlState.RELEASED
        await asyncio.sleep(590)
        assert len(site.children) == 1
        await asyncio.sleep(20)
        assert site.state() is NvmlState.OK


async def test_release_can_be_taken_back() -> None:
    async with running(ScriptedChild) as site:
        await site.supervisor.release(600)
        await site.supervisor.release(0)
        await asyncio.sleep(1)
        assert site.state() is NvmlState.OK


async def test_release_says_when_a_process_cannot_be_ended() -> None:
    async with running(lambda: ScriptedChild(hangs_in=Group.FAST, immortal=True)) as site:
        await asyncio.sleep(15)
        answer = await site.supervisor.release(60)
        assert CALL in answer


async def test_the_handles_are_closed_when_the_agent_ends() -> None:
    async with running(ScriptedChild) as site:
        await asyncio.sleep(5)
    assert site.children[0].requests[-1].__class__ is Stop
    assert site.alive() == 0


async def test_devices_are_enumerated_again_when_the_child_says_so_but_not_in_a_loop() -> None:
    async with running(lambda: ScriptedChild(changed="MIG")) as site:
        await asyncio.sleep(301)
    enumerations = [one for one in site.children[0].requests if isinstance(one, Enumerate)]
    assert 8 <= len(enumerations) <= 11


async def test_devices_are_enumerated_at_once_when_asked_for() -> None:
    async with running(ScriptedChild) as site:
        await asyncio.sleep(5)
        site.supervisor.renumber()
        await asyncio.sleep(0.1)
        enumerations = [one for one in site.children[0].requests if isinstance(one, Enumerate)]
        assert len(enumerations) == 2


async def test_events_come_between_the_answers() -> None:
    async with running(ScriptedChild) as site:
        await asyncio.sleep(5)
        site.children[0].say(Event("GPU-0", 8, 79, None, None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [(one.uuid, one.data, one.at) for one in site.events] == [("GPU-0", 79, 5.0)]
