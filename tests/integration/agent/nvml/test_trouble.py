"""Drivers that are missing, hang, lose GPUs or change under the agent, and how it ends."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.nvml.model import NvmlState
from testbed.fake_nvml import FakeNvml
from tests.integration.agent.nvml.watching import SHORT, Watched


@pytest.mark.parametrize(
    ("code", "state", "text"),
    [
        (9, NvmlState.DRIVER_NOT_LOADED, "Driver Not Loaded"),
        (18, NvmlState.VERSION_MISMATCH, "version mismatch"),
        (4, NvmlState.NO_ACCESS, "Insufficient Permissions"),
        (999, NvmlState.RESTARTING, "Unknown Error"),
    ],
)
async def test_nvml_that_does_not_start_and_then_does(
    driver: FakeNvml, watched: Watched, code: int, state: NvmlState, text: str
) -> None:
    await watched.in_state(NvmlState.OK)
    driver.set(init=code)
    watched.supervisor.renumber()
    view = await watched.in_state(state)
    assert text in view.why
    assert len(view.devices) == 2  # what was known stays, with its age
    driver.set(init=None)
    watched.supervisor.renumber()  # ends the pause
    await watched.in_state(NvmlState.OK)


async def test_no_library(driver: FakeNvml, tmp_path: Path) -> None:
    watched = Watched(driver, env={"LD_LIBRARY_PATH": str(tmp_path)})
    view = await watched.in_state(NvmlState.NO_LIBRARY)
    assert "Library Not Found" in view.why
    await watched.close()


async def test_a_loaded_driver_that_we_may_not_open_is_no_access(
    driver: FakeNvml, watched: Watched
) -> None:
    await watched.in_state(NvmlState.OK)
    (driver.proc / "driver" / "nvidia" / "version").touch()
    (driver.devices / "nvidiactl").unlink()
    driver.set(init=9)
    watched.supervisor.renumber()
    view = await watched.in_state(NvmlState.NO_ACCESS)
    assert "nvidiactl" in view.why


@pytest.mark.parametrize("deadlines", [SHORT])
async def test_a_hang_of_one_call_is_named_the_others_go_on_and_it_heals(
    driver: FakeNvml, watched: Watched
) -> None:
    await watched.in_state(NvmlState.OK)
    driver.hang("nvmlDeviceGetPowerUsage", gpu=0)
    view = await watched.in_state(NvmlState.HUNG)
    assert view.hung_call == "nvmlDeviceGetPowerUsage gpu 0"
    assert "has not returned for 1 s" in view.why
    # The replacement reads the healthy device before it hangs in the other one again.
    before = watched.reading(1).at
    await watched.until(lambda _: watched.reading(1).at > before, "a value of gpu 1")
    assert watched.view.state is NvmlState.HUNG
    driver.hang("nvmlDeviceGetPowerUsage", gpu=0, hangs=False)
    await watched.in_state(NvmlState.OK)
    assert watched.view.restarts >= 1
    assert watched.view.abandoned == 0


async def test_a_hang_at_start_is_named(driver: FakeNvml) -> None:
    driver.hang("nvmlInitWithFlags")
    watched = Watched(driver, deadlines=SHORT)
    view = await watched.in_state(NvmlState.HUNG)
    assert view.hung_call.startswith("nvmlInit")
    await watched.close()


async def test_events_arrive_while_a_poll_hangs(driver: FakeNvml, watched: Watched) -> None:
    await watched.in_state(NvmlState.OK)
    driver.hang("nvmlDeviceGetPowerUsage")
    driver.event(1, data=119)
    event = await asyncio.wait_for(watched.events.get(), 10)
    assert (event.uuid, event.data) == (driver.uuid(1), 119)
    assert watched.view.state is NvmlState.OK


async def test_a_gpu_is_lost_and_returns(driver: FakeNvml, watched: Watched) -> None:
    await watched.in_state(NvmlState.OK)
    driver.lose(1)
    view = await watched.until(lambda view: view.lost == (driver.uuid(1),), "the loss")
    assert view.state is NvmlState.OK
    assert len(view.devices) == 2
    aged = watched.reading(1).at
    watched.supervisor.renumber()
    await watched.until(lambda view: view.unanswered, "an enumeration without it")
    assert watched.view.unanswered == {1: "GPU is lost"}
    assert watched.view.lost == (driver.uuid(1),)
    seen = watched.reading(0).at
    await watched.until(lambda _: watched.reading(0).at > seen, "a value of gpu 0")
    assert watched.reading(1).at == aged
    assert watched.reading(1).errors == {}
    driver.lose(1, lost=False)
    watched.supervisor.renumber()
    view = await watched.until(lambda view: not view.lost, "its return")
    assert view.unanswered == {}


async def test_gpus_are_bound_and_unbound_without_a_restart(
    driver: FakeNvml, watched: Watched
) -> None:
    await watched.in_state(NvmlState.OK)
    driver.add_gpu("L4")
    view = await watched.until(lambda view: len(view.devices) == 3, "three devices")
    assert view.devices[2].name == "NVIDIA L4"
    assert view.bound == 3
    driver.remove_gpu()
    view = await watched.until(lambda view: len(view.devices) == 2, "two devices")
    assert view.lost == ()
    assert len(watched.children) == 1


async def test_a_gpu_that_the_driver_has_and_nvml_does_not_show_is_counted(
    driver: FakeNvml, watched: Watched
) -> None:
    await watched.in_state(NvmlState.OK)
    (driver.proc / "driver" / "nvidia" / "gpus" / "0000:f0:00.0").mkdir()
    view = await watched.until(lambda view: view.bound == 3, "the third")
    assert len(view.devices) == 2


async def test_only_wanted_and_supported_events_are_delivered(
    driver: FakeNvml, watched: Watched
) -> None:
    driver.set(1, event_types=0x8)
    watched.supervisor.renumber()
    await watched.until(
        lambda view: view.devices and view.devices[1].event_mask == 8, "the new mask"
    )
    await watched.next_poll()
    driver.event(0, bits=0x10, data=1)  # a clock change: not wanted
    driver.event(1, bits=0x8000, data=1)  # not supported there
    driver.event(0, bits=0x8000, data=1)
    driver.event(1, data=94, gi=5, ci=0)
    first = await asyncio.wait_for(watched.events.get(), 10)
    second = await asyncio.wait_for(watched.events.get(), 10)
    assert (first.uuid, first.bits, first.gi) == (driver.uuid(0), 0x8000, None)
    assert (second.uuid, second.data, second.gi, second.ci) == (driver.uuid(1), 94, 5, 0)


async def test_events_that_cannot_be_waited_for_do_not_stop_the_polls(
    driver: FakeNvml, watched: Watched
) -> None:
    await watched.in_state(NvmlState.OK)
    driver.fail("nvmlEventSetWait_v2", 999)
    view = await watched.until(lambda view: view.events_error, "the error")
    assert "Unknown Error" in view.events_error
    driver.fail("nvmlEventSetWait_v2", None)
    await watched.next_poll()
    assert watched.view.state is NvmlState.OK
    assert watched.view.calls["nvmlEventSetWait_v2"].errors < 20  # it does not spin


async def test_release_closes_the_handles_and_polling_resumes(
    driver: FakeNvml, watched: Watched
) -> None:
    await watched.in_state(NvmlState.OK)
    assert await watched.supervisor.release(600) == ""
    assert driver.shutdowns == 1
    assert watched.children[0].ended()
    assert watched.view.state is NvmlState.RELEASED
    await watched.supervisor.release(0)
    await watched.in_state(NvmlState.OK)


async def test_the_handles_are_closed_when_the_agent_stops(driver: FakeNvml) -> None:
    watched = Watched(driver)
    await watched.in_state(NvmlState.OK)
    await watched.close()
    assert driver.shutdowns == 1
    assert watched.children[0].ended()


async def test_a_child_that_is_told_to_end_closes_its_handles_and_is_replaced(
    driver: FakeNvml, watched: Watched
) -> None:
    await watched.in_state(NvmlState.OK)
    os.kill(watched.children[0].pid, signal.SIGTERM)
    await watched.until(lambda view: view.restarts == 1 and view.state is NvmlState.OK, "another")
    assert driver.shutdowns == 1


async def test_a_killed_child_is_replaced(watched: Watched) -> None:
    await watched.in_state(NvmlState.OK)
    os.kill(watched.children[0].pid, signal.SIGKILL)
    view = await watched.until(lambda view: view.restarts == 1, "the restart")
    assert "signal 9" in view.why
    await watched.in_state(NvmlState.OK)


AGENT = """
import asyncio
from pathlib import Path
from node_agent.nvml.process import start_child
from node_agent.nvml.supervisor import Supervisor

async def main():
    children = []
    async def start():
        child = await start_child(proc=Path("/nonexistent"), devices=Path("/nonexistent"))
        children.append(child)
        return child
    def show(view):
        if view.state == "ok":
            print(children[0].pid, flush=True)
    await Supervisor(start=start, on_view=show, on_event=print).run()

asyncio.run(main())
"""


@pytest.fixture
def agent(driver: FakeNvml) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", textwrap.dedent(AGENT)],
        env={**os.environ, **driver.env},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        process.kill()


def test_the_child_does_not_outlive_a_killed_agent(agent: subprocess.Popen[str]) -> None:
    assert agent.stdout is not None
    child = int(agent.stdout.readline())
    descriptor = os.pidfd_open(child)
    agent.kill()
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    try:
        assert poller.poll(10_000)
    finally:
        os.close(descriptor)


def test_the_child_imports_only_what_it_needs() -> None:
    script = "import sys, node_agent.nvml.child; print(*sys.modules)"
    loaded = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    ours = {name for name in loaded if name.startswith("node_agent.")}
    assert all(name.startswith("node_agent.nvml") for name in ours)
    costly = {"aiohttp", "asyncio", "structlog", "prometheus_client", "kubernetes", "ssl"}
    assert not costly & set(loaded)
