"""What a drain adds to the time that pods need, and how fast it evicts, against a bare loop.

`added_s`: from the answer to the deletion of the last pod (a stand-in kubelet ends it) until
the node says that the drain is done; the whole controller, one pod, one after the other.
`ours_per_s`, `bare_per_s`: evictions of 1,000 running pods of one node, without budgets and
with the rate limit off, from the first to the last pod that a watch shows terminating; the
controller and a loop of 16 connections that does nothing else, each in a process of its own.

    python -m tests.bench.drain [SAMPLES [PODS]]
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from tests.bench.figures import finish, percentile, say, say_machine
from tests.bench.site import NEVER_BINDING, Controller, Site, status_patch
from tests.bench.wire import STRATEGIC_MERGE, Wire


SAMPLES: Final = 20
PODS: Final = 1000
ROUNDS: Final = 3
IN_FLIGHT: Final = 16
NAMESPACE: Final = "gpu-remediator"
POLICY: Final = {
    "mode": "Enforce",
    "when": [{"xid": {"codes": [79]}}],
    "steps": [{"cordon": {}}, {"drain": {"despite": ["unmanaged"]}}],
    "recover": {"for": "0s"},
}
OFF: Final = {"perSecond": 10_000, "burst": 10_000}


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    deletion_timestamp: str | None = None
    annotations: dict[str, str] = {}


class _Object(msgspec.Struct):
    metadata: _Meta


class _Event(msgspec.Struct):
    type: str
    object: _Object


async def watch(wire: Wire, path: str, selector: str) -> AsyncIterator[_Event]:
    """Watch from now on."""
    decode = msgspec.json.Decoder(_Event).decode
    assert wire._session is not None
    target = f"{wire._url}{path}?watch=1&fieldSelector={selector}"
    rest = b""
    async with wire._session.get(target, timeout=None, read_bufsize=1 << 20) as response:
        async for chunk in response.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield decode(line)


def pods_path(name: str = "", tail: str = "") -> str:
    return f"/api/v1/namespaces/{NAMESPACE}/pods" + (f"/{name}" if name else "") + tail


async def make_pods(wire: Wire, node: str, count: int) -> list[str]:
    """Running pods that need a kubelet to end."""
    limit = asyncio.Semaphore(IN_FLIGHT)

    async def one() -> str:
        name = f"p-{uuid.uuid4().hex[:10]}"
        body = {
            "metadata": {"name": name},
            "spec": {
                "nodeName": node,
                "serviceAccountName": "gpu-remediator",
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 30,
                "containers": [{"name": "main", "image": "pause"}],
            },
        }
        running = {
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        }
        async with limit:
            await wire.call("POST", pods_path(), json.dumps(body).encode(), "application/json")
            path = pods_path(name, "/status")
            await wire.patch(path, json.dumps(running).encode(), STRATEGIC_MERGE)
        return name

    return list(await asyncio.gather(*(one() for _ in range(count))))


async def end_pods(wire: Wire, names: list[str]) -> None:
    """What a kubelet does once the containers have ended."""
    limit = asyncio.Semaphore(IN_FLIGHT)

    async def one(name: str) -> None:
        async with limit:
            path = pods_path(name) + "?gracePeriodSeconds=0"
            await wire.call("DELETE", path, None, "application/json")

    await asyncio.gather(*(one(name) for name in names))


async def report(wire: Wire, node: str, boot_id: str, *, bad: bool) -> None:
    """What the agent says of the node."""
    body = status_patch(bad=bad, boot_id=boot_id)
    await wire.patch(f"/api/v1/nodes/{node}/status", body, STRATEGIC_MERGE)


async def drained(wire: Wire, node: str) -> float:
    """When the node says that its drain is done."""
    async for event in watch(wire, "/api/v1/nodes", f"metadata.name={node}"):
        session = event.object.metadata.annotations.get("gpu-remediator.io/session", "{}")
        holds = json.loads(session).get("holds", [])
        if any(
            one["action"] == "drain" and one["result"] == "done"
            for hold in holds
            for one in hold.get("results", [])
        ):
            return time.monotonic()
    raise RuntimeError("the watch ended")


async def terminating(wire: Wire, node: str, count: int) -> tuple[float, float]:
    """When a watch showed the first and the last of so many pods terminating."""
    seen: set[str] = set()
    first = 0.0
    async for event in watch(wire, "/api/v1/pods", f"spec.nodeName={node}"):
        meta = event.object.metadata
        if meta.deletion_timestamp and meta.name not in seen:
            seen.add(meta.name)
            first = first or time.monotonic()
            if len(seen) == count:
                return first, time.monotonic()
    raise RuntimeError("the watch ended")


async def added(wire: Wire, site: Site) -> float:
    """One pod: seconds from its end to the end of its drain."""
    boot = str(uuid.uuid4())
    node = site.cluster.create_node(f"one-{boot[:8]}", boot_id=boot)
    (pod,) = await make_pods(wire, node, 1)
    done = asyncio.create_task(drained(wire, node))
    evicted = asyncio.create_task(terminating(wire, node, 1))
    await report(wire, node, boot, bad=True)
    await asyncio.wait_for(evicted, 30)
    await asyncio.sleep(1.0)  # its containers end
    await end_pods(wire, [pod])
    gone = time.monotonic()
    seconds = await asyncio.wait_for(done, 30) - gone
    site.cluster.delete_node(node)
    return seconds


async def ours(wire: Wire, site: Site, count: int) -> float:
    """Evictions a second of the controller."""
    boot = str(uuid.uuid4())
    node = site.cluster.create_node(f"many-{boot[:8]}", boot_id=boot)
    names = await make_pods(wire, node, count)
    seen = asyncio.create_task(terminating(wire, node, count))
    await asyncio.sleep(0.5)
    await report(wire, node, boot, bad=True)
    first, last = await asyncio.wait_for(seen, 120)
    await end_pods(wire, names)
    site.cluster.delete_node(node)
    return (count - 1) / (last - first)


async def bare(wire: Wire, site: Site, count: int) -> float:
    """Evictions a second of a loop that does nothing else."""
    node = site.cluster.create_node(
        f"bare-{uuid.uuid4().hex[:8]}", labels={"nvidia.com/gpu.present": ""}
    )
    names = await make_pods(wire, node, count)
    seen = asyncio.create_task(terminating(wire, node, count))
    await asyncio.sleep(0.5)
    given = site.plane.folder / "evict.json"
    address = {**site.address, "ca_file": str(site.plane.ca_file), "token": site.controller_token}
    given.write_text(json.dumps({**address, "names": names}), "utf-8")
    loop = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.evict", str(given), stdout=subprocess.DEVNULL
    )
    first, last = await asyncio.wait_for(seen, 120)
    await loop.wait()
    await end_pods(wire, names)
    site.cluster.delete_node(node)
    return (count - 1) / (last - first)


async def measure(site: Site, samples: int, count: int) -> dict[str, Any]:
    async with Wire(**site.address) as wire:
        times = [await added(wire, site) for _ in range(samples)]
        say(f"one pod, {samples} times: done {max(times):.3f} s after it is gone, at most")
        rates: list[tuple[float, float]] = []
        for _ in range(ROUNDS):
            rates.append((await ours(wire, site, count), await bare(wire, site, count)))
            say(f"{count} pods: {rates[-1][0]:.0f}/s; bare loop: {rates[-1][1]:.0f}/s")
    mine, floor = (percentile([one[at] for one in rates], 50) for at in (0, 1))
    return {
        "added_s": max(times),
        "added_p50_s": percentile(times, 50),
        "ours_per_s": mine,
        "bare_per_s": floor,
        "ratio": mine / floor,
        "pods": count,
        "n": samples,
    }


def main(samples: int = SAMPLES, count: int = PODS) -> None:
    say_machine()
    with Site(controllers=False) as site:
        spec = {**NEVER_BINDING, "evictions": OFF}
        spec["rates"] = {"cordon": "1000000/1m", "drain": "1000000/1m"}
        config = site.write("config.yaml", "RemediatorConfig", spec)
        policy = site.write("policies/bench.yaml", "RemediationPolicy", POLICY)
        with Controller(site, policies=policy.parent, config=config) as controller:
            say("the controller runs")
            try:
                figures = asyncio.run(measure(site, samples, count))
            except BaseException:
                print(controller.log[-4000:])
                raise
            if problems := controller.problems():
                say(f"the controller logged bugs: {problems[0]}")
    finish(figures)


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]))
