"""From a line in the kernel log to an unschedulable node, against the floor of bare PATCHes.

Ours: a line is appended to a file; a real node-agent (pod-bound token, its admission policies
active) patches `nodes/status`; a real controller (its own token, enforce mode, every guard
running) patches `unschedulable`; a watch of this process sees it. Two programs, one node.

Floor, on another node of the same server, sample by sample in between: what any solution has
to do at least. PATCH of `nodes/status` with the agent's body, its watch event, PATCH of
`unschedulable` with a 600-byte annotation, its watch event; aiohttp, administrator's token.

Between two samples the node is made well as an operator would (`set-healthy` on the agent's
socket), the controller uncordons it, and its history is removed, so that each sample is the
first one of its day. Both nodes then rest until nothing changes any more: a fault comes long
after the agent's last write, so its 100 ms of collecting changes are no part of the way.

The last line has percentiles in milliseconds; `python -m tests.bench.cordon [samples]`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, NamedTuple

import aiohttp

from testbed.gpunode import Agent, GpuMachine
from tests.bench.figures import finish, percentile, say, say_machine
from tests.bench.site import NEVER_BINDING, Controller, Site, status_patch
from tests.bench.wire import MERGE_PATCH, STRATEGIC_MERGE, Node, Wire


SAMPLES: Final = 250
WARM_UP: Final = 10
PATIENCE: Final = 10.0
REST: Final = 0.2
"""Seconds without a change of either node before a sample: twice the agent's coalescing."""
POLICY: Final = {
    "mode": "Enforce",
    "when": [
        {"xid": {"codes": [79]}},
        {"condition": {"type": "GPULost", "reasons": ["FallenOffBus"]}},
    ],
    "limits": {"maxAttempts": 1000000},
    "steps": [{"cordon": {}}, {"notify": {"to": ["log"]}}, {"event": {"reason": "FallenOffBus"}}],
    "recover": {"when": "cleared", "for": "0s"},
}
ANNOTATION: Final = "x" * 600


class Watcher:
    """Sees every change of every node, by a watch of its own."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._nodes: dict[str, Node] = {}
        self._last = time.perf_counter()
        self._wanted: list[tuple[str, Callable[[Node], bool], asyncio.Future[float]]] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run(await self._wire.newest()))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self, since: str) -> None:
        async for events in self._wire.watch(since):
            self._last = seen = time.perf_counter()
            for event in events:
                self._take(event.object, seen)

    def _take(self, node: Node, seen: float) -> None:
        name = node.metadata.name
        self._nodes[name] = node
        for wanted in list(self._wanted):
            if wanted[0] == name and wanted[1](node):
                self._wanted.remove(wanted)
                if not wanted[2].done():
                    wanted[2].set_result(seen)

    async def see(self, name: str, test: Callable[[Node], bool]) -> float:
        """When a version of the node passes the test."""
        known = self._nodes.get(name)
        if known is not None and test(known):
            return time.perf_counter()
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._wanted.append((name, test, future))
        async with asyncio.timeout(PATIENCE):
            return await future

    async def rest(self) -> None:
        """Wait until no node changed for a while."""
        while (wait := self._last + REST - time.perf_counter()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(wait)


def unschedulable(node: Node) -> bool:
    return node.spec.unschedulable


def schedulable(node: Node) -> bool:
    return not node.spec.unschedulable


def bad(node: Node) -> bool:
    return node.status.shows("GPUXidError", "True")


def well(node: Node) -> bool:
    return node.status.shows("GPUXidError", "False")


class Sample(NamedTuple):
    """Milliseconds until the condition was seen, and until the node was unschedulable."""

    condition: float
    cordon: float


class Floor:
    """Two PATCHes and their watch events."""

    def __init__(self, wire: Wire, watcher: Watcher, node: str) -> None:
        self._wire = wire
        self._watcher = watcher
        self._node = node
        self._cordon = self._cordoned(ANNOTATION, unschedulable=True)
        self._undo = self._cordoned(None, unschedulable=None)

    @staticmethod
    def _cordoned(text: str | None, *, unschedulable: bool | None) -> bytes:
        metadata = {"annotations": {"gpu-remediator.io/floor": text}}
        return json.dumps({"metadata": metadata, "spec": {"unschedulable": unschedulable}}).encode()

    async def sample(self) -> Sample:
        status = status_patch(bad=True, boot_id="floor")
        path = f"/api/v1/nodes/{self._node}"
        started = time.perf_counter()
        one = asyncio.create_task(self._wire.patch(f"{path}/status", status, STRATEGIC_MERGE))
        published = await self._watcher.see(self._node, bad)
        two = asyncio.create_task(self._wire.patch(path, self._cordon, MERGE_PATCH))
        seen = await self._watcher.see(self._node, unschedulable)
        await asyncio.gather(one, two)
        return Sample(1000 * (published - started), 1000 * (seen - started))

    async def reset(self) -> None:
        path = f"/api/v1/nodes/{self._node}"
        status = status_patch(bad=False, boot_id="floor")
        await self._wire.patch(f"{path}/status", status, STRATEGIC_MERGE)
        await self._wire.patch(path, self._undo, MERGE_PATCH)
        await self._watcher.see(self._node, lambda node: schedulable(node) and well(node))


class Ours:
    """A line in the log, two programs, the cordon."""

    def __init__(self, wire: Wire, watcher: Watcher, machine: GpuMachine, node: str) -> None:
        self._wire = wire
        self._watcher = watcher
        self._machine = machine
        self._node = node

    async def sample(self) -> Sample:
        started = time.perf_counter()
        self._machine.xid(79, "GPU has fallen off the bus.")
        published = await self._watcher.see(self._node, bad)
        seen = await self._watcher.see(self._node, unschedulable)
        return Sample(1000 * (published - started), 1000 * (seen - started))

    async def reset(self) -> None:
        connector = aiohttp.UnixConnector(str(self._machine.socket))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post("http://agent/set-healthy", json={}) as response,
        ):
            answer: dict[str, Any] = await response.json(content_type=None)
            if not answer.get("cleared"):
                raise RuntimeError(f"set-healthy cleared nothing: {answer}")
        await self._watcher.see(self._node, lambda node: schedulable(node) and well(node))
        forget = json.dumps({"metadata": {"annotations": {"gpu-remediator.io/history": None}}})
        await self._wire.patch(f"/api/v1/nodes/{self._node}", forget.encode(), MERGE_PATCH)


async def measure(site: Site, machine: GpuMachine, node: str, floor_node: str, count: int) -> None:
    async with Wire(**site.address) as wire:
        watcher = Watcher(wire)
        async with watcher.running():
            both: list[Floor | Ours] = [
                Floor(wire, watcher, floor_node),
                Ours(wire, watcher, machine, node),
            ]
            samples: list[list[Sample]] = [[], []]
            for number in range(WARM_UP + count):
                order = (0, 1) if number % 2 else (1, 0)
                for which in order:
                    await watcher.rest()
                    took = await both[which].sample()
                    await both[which].reset()
                    if number >= WARM_UP:
                        samples[which].append(took)
                if number % 50 == 49:
                    floor, ours = (percentile([one.cordon for one in some], 50) for some in samples)
                    say(f"{number + 1} samples; p50 floor {floor:.1f} ms, ours {ours:.1f} ms")
    finish(figures(*samples))


def figures(floor: list[Sample], ours: list[Sample]) -> dict[str, float]:
    found = {
        f"{name}_p{percent}_ms": percentile([one.cordon for one in samples], percent)
        for name, samples in (("floor", floor), ("ours", ours))
        for percent in (50, 99)
    }
    return {
        **found,
        "ratio_p50": found["ours_p50_ms"] / found["floor_p50_ms"],
        "ratio_p99": found["ours_p99_ms"] / found["floor_p99_ms"],
        "n": len(ours),
        "floor_condition_p50_ms": percentile([one.condition for one in floor], 50),
        "ours_condition_p50_ms": percentile([one.condition for one in ours], 50),
    }


def main(count: int = SAMPLES) -> None:
    say_machine()
    with Site() as site:
        say("control plane runs")
        folder = site.plane.folder / "machine"
        folder.mkdir()
        machine = GpuMachine(folder)
        node = site.cluster.create_node("ours", boot_id=machine.boot_id)
        floor_node = site.cluster.create_node("floor", labels={"nvidia.com/gpu.present": ""})
        agent = Agent(
            machine,
            node=node,
            url=site.plane.url,
            token=site.cluster.agent_token(node),
            ca_file=site.plane.ca_file,
            settings={"pci_interval": "60s", "node_interval": "30s"},
        )
        config = site.write("config.yaml", "RemediatorConfig", NEVER_BINDING)
        policy = site.write("policies/bench.yaml", "RemediationPolicy", POLICY)
        with Controller(site, policies=policy.parent, config=config) as controller, agent:
            say(f"agent and controller run; {count} samples of each, interleaved")
            try:
                asyncio.run(measure(site, machine, node, floor_node, count))
            except BaseException:
                print(f"agent:\n{agent.process.log_tail()}\ncontroller:\n{controller.log[-4000:]}")
                raise
            if problems := controller.problems():
                say(f"the controller logged bugs: {problems[0]}")


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]))
