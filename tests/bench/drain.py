"""What a drain adds to the time that pods need, and how fast it evicts, against a bare loop.

KWOK plays the kubelets: pods run, and a second after their eviction they are gone.
`added_s`: from the moment at which a watch shows that the pod is gone until another shows the
node saying that its drain is done; the whole controller, one pod, one after the other.
`ours_per_s`, `bare_per_s`: evictions of 1,000 running pods of one node, without budgets and
with the rate limit off, from the first to the last pod that a watch shows terminating; the
controller and a loop of 16 connections that does nothing else, each in a process of its own.

    python -m tests.bench.drain [SAMPLES [PODS [ENDS_AFTER]]]

ENDS_AFTER: what the many pods need to end; with `60s` KWOK deletes none while others are
evicted, and the difference is what it takes.
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

from testbed.kwok import ENDS_AFTER, LABEL, Kwok
from tests.bench.figures import finish, percentile, say, say_machine
from tests.bench.site import NEVER_BINDING, Controller, Site, status_patch
from tests.bench.wire import METADATA_LIST, STRATEGIC_MERGE, Wire


SAMPLES: Final = 20
PODS: Final = 1000
ROUNDS: Final = 3
IN_FLIGHT: Final = 16
POLL: Final = 0.2
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


class _List(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


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


async def make_pods(wire: Wire, node: str, count: int, *, ends_after: str = "1s") -> list[str]:
    """Pods that need a kubelet to run and to end; return once they run."""
    limit = asyncio.Semaphore(IN_FLIGHT)

    async def one() -> str:
        name = f"p-{uuid.uuid4().hex[:10]}"
        body = {
            "metadata": {"name": name, "annotations": {ENDS_AFTER: ends_after}},
            "spec": {
                "nodeName": node,
                "serviceAccountName": "gpu-remediator",
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 30,
                "containers": [{"name": "main", "image": "pause"}],
            },
        }
        async with limit:
            await wire.call("POST", pods_path(), json.dumps(body).encode(), "application/json")
        return name

    names = list(await asyncio.gather(*(one() for _ in range(count))))
    while await count_pods(wire, node, phase="Running") < count:  # noqa: ASYNC110 - of a server
        await asyncio.sleep(POLL)
    return names


async def count_pods(wire: Wire, node: str, *, phase: str = "") -> int:
    """How many pods the node has, in any phase or in this one."""
    fields = f"spec.nodeName={node}" + (f",status.phase={phase}" if phase else "")
    path = f"{pods_path()}?fieldSelector={fields}"
    raw = await wire.call("GET", path, None, "application/json", accept=METADATA_LIST)
    return len(msgspec.json.decode(raw, type=_List).items or ())


async def delete_node(wire: Wire, site: Site, node: str) -> None:
    """Delete the node once KWOK has ended its pods."""
    while await count_pods(wire, node):  # noqa: ASYNC110 - of a server
        await asyncio.sleep(POLL)
    site.cluster.delete_node(node)


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


async def gone(wire: Wire, node: str) -> float:
    """When a watch showed that a pod of the node is gone."""
    async for event in watch(wire, "/api/v1/pods", f"spec.nodeName={node}"):
        if event.type == "DELETED":
            return time.monotonic()
    raise RuntimeError("the watch ended")


async def added(wire: Wire, site: Site) -> float:
    """One pod: seconds from its end to the end of its drain."""
    boot = str(uuid.uuid4())
    node = site.cluster.create_node(f"one-{boot[:8]}", labels=LABEL, boot_id=boot)
    await make_pods(wire, node, 1)
    done = asyncio.create_task(drained(wire, node))
    ended = asyncio.create_task(gone(wire, node))
    await report(wire, node, boot, bad=True)
    at = await asyncio.wait_for(ended, 30)
    seconds = await asyncio.wait_for(done, 30) - at
    site.cluster.delete_node(node)
    return seconds


async def ours(wire: Wire, site: Site, count: int, ends_after: str) -> float:
    """Evictions a second of the controller."""
    boot = str(uuid.uuid4())
    node = site.cluster.create_node(f"many-{boot[:8]}", labels=LABEL, boot_id=boot)
    await make_pods(wire, node, count, ends_after=ends_after)
    seen = asyncio.create_task(terminating(wire, node, count))
    await asyncio.sleep(0.5)
    await report(wire, node, boot, bad=True)
    first, last = await asyncio.wait_for(seen, 120)
    await delete_node(wire, site, node)
    return (count - 1) / (last - first)


async def bare(wire: Wire, site: Site, count: int, ends_after: str) -> float:
    """Evictions a second of a loop that does nothing else."""
    node = site.cluster.create_node(
        f"bare-{uuid.uuid4().hex[:8]}", labels={**LABEL, "nvidia.com/gpu.present": ""}
    )
    names = await make_pods(wire, node, count, ends_after=ends_after)
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
    await delete_node(wire, site, node)
    return (count - 1) / (last - first)


async def measure(site: Site, samples: int, count: int, ends_after: str) -> dict[str, Any]:
    async with Wire(**site.address) as wire:
        times = [await added(wire, site) for _ in range(samples)]
        say(f"one pod, {samples} times: done {max(times):.3f} s after it is gone, at most")
        rates: list[tuple[float, float]] = []
        for _ in range(ROUNDS):
            pair = [await one(wire, site, count, ends_after) for one in (ours, bare)]
            rates.append((pair[0], pair[1]))
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


def main(samples: int = SAMPLES, count: int = PODS, *, ends_after: str = "1s") -> None:
    say_machine()
    with Site(controllers=False) as site, Kwok(site.plane):
        spec = {**NEVER_BINDING, "evictions": OFF}
        spec["rates"] = {"cordon": "1000000/1m", "drain": "1000000/1m"}
        config = site.write("config.yaml", "RemediatorConfig", spec)
        policy = site.write("policies/bench.yaml", "RemediationPolicy", POLICY)
        with Controller(site, policies=policy.parent, config=config) as controller:
            say("the controller runs")
            try:
                figures = asyncio.run(measure(site, samples, count, ends_after))
            except BaseException:
                print(controller.log[-4000:])
                raise
            if problems := controller.problems():
                say(f"the controller logged bugs: {problems[0]}")
    finish(figures)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(*(int(text) for text in given[:2]), ends_after="".join(given[2:]) or "1s")
