"""Memory and idle cost of the controller on 5,000 nodes of about 25 KiB each.

The nodes are as large GPU nodes are (labels, annotations, managed fields written by the server,
conditions, images), on the real API server; the controller runs the shipped policies with the
default settings. `sync_s` is from the start of its process to the end of the first LIST, decoded
and turned into facts. Then come heartbeats at their normal rate, the kubelet's and the agent's,
each node every five minutes, and the controller's CPU time is read from /proc; then, as fast as
the server takes them, five more minutes' worth, to see what memory does.

`rss_mb` is the most of what it was after the sync, after the heartbeats and after the rest;
`rss_peak_mb` the most at any moment (VmHWM). `python -m tests.bench.memory [nodes [seconds]]`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from testbed.manifests import DEPLOY
from tests.bench.figures import cpu_seconds, finish, memory_mb, say, say_machine
from tests.bench.site import Controller, Site, conditions
from tests.bench.wire import STRATEGIC_MERGE, Wire


NODES: Final = 5000
SECONDS: Final = 60
HEARTBEAT_SECONDS: Final = 300.0
BURST_MINUTES: Final = 5
IN_FLIGHT: Final = 16
SETTLE: Final = 10.0
POLICIES: Final = DEPLOY.parent / "policies"
LABELS_BYTES: Final = 2600
ANNOTATIONS_BYTES: Final = 900
IMAGES_BYTES: Final = 11000
_GOLDEN: Final = (5**0.5 - 1) / 2
"""Its multiples, modulo 1, lie evenly, however many of them there are."""
KUBELET: Final = {
    "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
    "MemoryPressure": (
        "False",
        "KubeletHasSufficientMemory",
        "kubelet has sufficient memory available",
    ),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
}
PROBLEMS: Final = (
    "KernelDeadlock",
    "ReadonlyFilesystem",
    "FrequentKubeletRestart",
    "FrequentContainerdRestart",
    "FrequentUnregisterNetDevice",
    "CorruptDockerOverlay2",
    "NetworkUnavailable",
    "NTPProblem",
)
"""What node-problem-detector and the cloud provider add."""


def node(number: int, more_labels: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """A Node as its POST; conditions follow from their writers, as in life.

    Labels are mostly the same on all nodes, as in life, annotations are not.
    """
    name, net = f"gpu-{number:05}", f"10.{number // 250}.{number % 250}"
    labels = {
        "kubernetes.io/hostname": name,
        "nvidia.com/gpu.present": "true",
        "topology.kubernetes.io/zone": f"zone-{number % 3}",
        "gpu-remediator.io/pool": f"pool-{number // 500}",
        **_padding("nvidia.com/gpu-feature-discovery.label-", "value-of-this-label", LABELS_BYTES),
        **more_labels,
    }
    unique = f"{uuid.uuid5(uuid.NAMESPACE_DNS, name)}" * 2
    annotations = _padding("example.com/annotation-", unique, ANNOTATIONS_BYTES)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {"podCIDR": f"{net}.0/24", "providerID": f"x:///{name}"},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": f"{net}.1"},
                {"type": "Hostname", "address": name},
            ],
            "capacity": {"cpu": "192", "memory": "2Ti", "pods": "110", "nvidia.com/gpu": "8"},
            "allocatable": {"cpu": "190", "memory": "2Ti", "pods": "110", "nvidia.com/gpu": "8"},
            "nodeInfo": _info(name),
            "images": _images(),
        },
    }


def _padding(prefix: str, value: str, size: int) -> dict[str, str]:
    """Entries that take about so many bytes of JSON."""
    each = len(f'"{prefix}10":"{value}",')
    return {f"{prefix}{number}": value for number in range(10, 10 + size // each)}


def _info(name: str) -> dict[str, str]:
    return {
        "architecture": "amd64",
        "bootID": str(uuid.uuid5(uuid.NAMESPACE_DNS, name)),
        "containerRuntimeVersion": "containerd://2.1.4",
        "kernelVersion": "6.8.0-79-generic",
        "kubeProxyVersion": "",
        "kubeletVersion": "v1.36.3",
        "machineID": uuid.uuid5(uuid.NAMESPACE_URL, name).hex,
        "operatingSystem": "linux",
        "osImage": "Ubuntu 24.04.3 LTS",
        "systemUUID": str(uuid.uuid5(uuid.NAMESPACE_OID, name)),
    }


@cache
def _images() -> tuple[dict[str, Any], ...]:
    found: list[dict[str, Any]] = []
    while len(json.dumps(found)) < IMAGES_BYTES:
        digest = f"{random.getrandbits(256):064x}"
        image = f"registry.example.com/team/some-image-of-a-workload-{len(found)}"
        found.append({"names": [f"{image}@sha256:{digest}", f"{image}:v1.2.3"], "sizeBytes": 10**9})
    return tuple(found)


def kubelet_patch(at: float | None = None) -> bytes:
    """A kubelet's heartbeat, of now or of another time."""
    stamp = _stamp(at)
    return json.dumps(
        {
            "status": {
                "conditions": [
                    _condition(kind, *rest, stamp=stamp) for kind, rest in KUBELET.items()
                ]
            }
        }
    ).encode()


def problems_patch() -> bytes:
    """Conditions of other programs, once."""
    text = "no problem was found by the last check of this kind on this node; all is well"
    return json.dumps(
        {
            "status": {
                "conditions": [
                    _condition(kind, "False", f"No{kind}", text, stamp=_stamp())
                    for kind in PROBLEMS
                ]
            }
        }
    ).encode()


def agent_patch(boot_id: str, *, first: bool = False) -> bytes:
    """The agent's heartbeat; the annotation is only in its first one."""
    said, report = conditions(bad=False, boot_id=boot_id)
    body: dict[str, Any] = {"status": {"conditions": said}}
    if first:
        body["metadata"] = {"annotations": {"gpu-remediator.io/gpu-faults": report}}
    return json.dumps(body).encode()


def _condition(kind: str, status: str, reason: str, message: str, *, stamp: str) -> dict[str, str]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": stamp,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def _stamp(at: float | None = None) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def create(
    site: Site, count: int, *, labels: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Make the nodes, with the managed fields of four writers; boot ids by name.

    The last heartbeats of their kubelets lie anywhere in the last five minutes, as those of
    kubelets do that were not all started at once.
    """
    boots: dict[str, str] = {}

    def one(number: int) -> None:
        body = node(number, labels)
        beaten = time.time() - HEARTBEAT_SECONDS * (number * _GOLDEN % 1)
        name, boot_id = body["metadata"]["name"], body["status"]["nodeInfo"]["bootID"]
        api = site.cluster.api
        api.create("/api/v1/nodes", body, fieldManager="kubelet")
        for manager, patch in (
            ("kubelet", kubelet_patch(beaten)),
            ("node-problem-detector", problems_patch()),
            ("gpu-remediator-node-agent", agent_patch(boot_id, first=True)),
        ):
            path = f"/api/v1/nodes/{name}/status"
            api.patch(path, json.loads(patch), fieldManager=manager)
        boots[name] = boot_id

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(count)))
    return boots


def say_size(site: Site, name: str) -> float:
    """Print what a node is made of; its size in KiB on the wire."""
    status, raw = site.cluster.api.raw("GET", f"/api/v1/nodes/{name}")
    found = json.loads(raw)
    assert status == 200
    parts = {
        "labels": found["metadata"]["labels"],
        "annotations": found["metadata"]["annotations"],
        "managedFields": found["metadata"]["managedFields"],
        "conditions": found["status"]["conditions"],
        "images": found["status"]["images"],
    }
    sizes = {key: len(json.dumps(value, separators=(",", ":"))) for key, value in parts.items()}
    text = ", ".join(f"{key} {size / 1000:.1f} KB" for key, size in sizes.items())
    say(f"a node is {len(raw) / 1024:.1f} KiB: {text}")
    return len(raw) / 1024


class Heartbeats:
    """Patches of kubelets and agents in turn, over all nodes; or of agents alone."""

    def __init__(self, wire: Wire, boots: dict[str, str], *, kubelets: bool = True) -> None:
        self._wire = wire
        self._boots = list(boots.items())
        self._kubelets = kubelets
        self._number = 0
        self.sent = 0

    async def at_rate(self, per_second: float, seconds: float) -> float:
        """At even distances for so long; returns how many a second were answered."""
        started = time.monotonic()
        tasks = []
        for number in range(int(per_second * seconds)):
            wait = started + number / per_second - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(self._one()))
        await asyncio.gather(*tasks)
        return len(tasks) / (time.monotonic() - started)

    async def burst(self, count: int) -> None:
        """As fast as the server takes them."""

        async def some() -> None:
            while self.sent < limit:
                await self._one()

        limit = self.sent + count
        await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))

    async def _one(self) -> None:
        number, self._number = self._number, self._number + 1
        self.sent += 1
        number, agents = divmod(number, 2) if self._kubelets else (number, True)
        name, boot_id = self._boots[number % len(self._boots)]
        patch = agent_patch(boot_id) if agents else kubelet_patch()
        await self._wire.patch(f"/api/v1/nodes/{name}/status", patch, STRATEGIC_MERGE)


async def measure(site: Site, pid: int, boots: dict[str, str], seconds: float) -> dict[str, float]:
    """CPU and memory of the controller under heartbeats."""
    rate = 2 * len(boots) / HEARTBEAT_SECONDS
    async with Wire(**site.address) as wire:
        heartbeats = Heartbeats(wire, boots)
        synced = memory_mb(pid)
        idle, at = cpu_seconds(pid), time.monotonic()
        await asyncio.sleep(SETTLE)
        idle = (cpu_seconds(pid) - idle) / (time.monotonic() - at)
        say(f"idle: {100 * idle:.1f} % of a core, {synced:.0f} MB; heartbeats, {rate:.1f}/s")
        before, at = cpu_seconds(pid), time.monotonic()
        answered = await heartbeats.at_rate(rate, seconds)
        busy = (cpu_seconds(pid) - before) / (time.monotonic() - at)
        after = memory_mb(pid)
        say(f"{answered:.1f}/s were answered: {100 * busy:.1f} % of a core, {after:.0f} MB")
        more = int(rate * 60 * BURST_MINUTES)
        before, at = cpu_seconds(pid), time.monotonic()
        await heartbeats.burst(more)
        await asyncio.sleep(2)
        each = (cpu_seconds(pid) - before) / more * 1e6
        last = memory_mb(pid)
        say(f"{more} more in {time.monotonic() - at:.0f} s: {each:.0f} us each, {last:.0f} MB")
    return {
        "rss_mb": max(synced, after, last),
        "cpu_percent_heartbeats": 100 * busy,
        "cpu_percent_idle": 100 * idle,
        "rss_after_sync_mb": synced,
        "rss_peak_mb": memory_mb(pid, "VmHWM"),
        "heartbeats_per_s": answered,
    }


def main(count: int = NODES, seconds: float = SECONDS) -> None:
    say_machine()
    with Site(controllers=False) as site:
        at = time.monotonic()
        boots = create(site, count)
        say(f"{count} nodes made in {time.monotonic() - at:.0f} s")
        size = say_size(site, next(iter(boots)))
        gc.freeze()
        with Controller(site, policies=POLICIES, config=None) as controller:
            say(f"synced after {controller.sync_seconds:.1f} s")
            time.sleep(SETTLE)
            figures = asyncio.run(measure(site, controller.pid, boots, seconds))
            sync = controller.sync_seconds
            if problems := controller.problems():
                raise RuntimeError(f"the controller logged a bug: {problems[0]}")
    finish({"nodes": count, "sync_s": sync, "node_kib": size, **figures})


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]))
