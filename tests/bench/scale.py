"""A large cluster: 5,000 nodes of which 50 fail within a minute, and 20,000 nodes to keep in mind.

First: 5,000 nodes as in `tests.bench.memory`, on the real API server. KWOK plays their kubelets,
this process their agents, each with a heartbeat in five minutes; the controller runs the shipped
policies and one more in enforce mode. Within a minute the agents of 50 nodes report Xid 79.
`lag_p99_s` is from the start of such a PATCH until a watch of this process shows that node
unschedulable; of 50, it is the most. `heartbeats_per_s` are those that the same watch shows.

Then: the same program on 20,000 nodes that a stand-in for the API server shows
(`tests.bench.crowd`), each of which sends a heartbeat. `rss_mb_20000` is the most that was seen
after the sync and after the heartbeats. `python -m tests.bench.scale [nodes [failing [many]]]`.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import sys
import time
from pathlib import Path
from typing import Final

from testbed.kwok import LABEL, Kwok
from tests.bench.crowd import Crowd
from tests.bench.figures import cpu_seconds, finish, memory_mb, percentile, say, say_machine
from tests.bench.memory import HEARTBEAT_SECONDS, POLICIES, Heartbeats, create, say_size
from tests.bench.site import CORDON_ONLY, NEVER_BINDING, Controller, Site, status_patch
from tests.bench.wire import STRATEGIC_MERGE, Wire


NODES: Final = 5000
FAILING: Final = 50
MANY: Final = 20_000
SECONDS: Final = 60.0
SETTLE: Final = 10.0
PATIENCE: Final = 60.0
CALM: Final = 0.25
"""Of a core: more than KWOK takes for 5,000 nodes, and less than while it has a backlog."""


class Failures:
    """Agents that report Xid 79, and when a watch shows their nodes unschedulable."""

    def __init__(self, boots: dict[str, str]) -> None:
        self._boots = boots
        self._patched: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self._cordoned: dict[str, float] = {}
        self.all_cordoned = asyncio.Event()
        self.others = 0
        """Versions of nodes that do not fail: heartbeats."""

    async def report(self, wire: Wire, *, seconds: float) -> None:
        """At even distances."""
        started = time.monotonic()
        for number, (name, boot_id) in enumerate(self._boots.items()):
            wait = started + seconds * number / len(self._boots) - time.monotonic()
            await asyncio.sleep(max(0.0, wait))
            body = status_patch(bad=True, boot_id=boot_id)
            self._patched[name] = time.monotonic()
            await wire.patch(f"/api/v1/nodes/{name}/status", body, STRATEGIC_MERGE)

    async def follow(self, wire: Wire, since: str) -> None:
        """Watch, until it is cancelled."""
        async for events in wire.watch(since):
            now = time.monotonic()
            for event in events:
                name = event.object.metadata.name
                if name not in self._boots:
                    self.others += 1
                    continue
                if event.object.status.shows("GPUXidError", "True"):
                    self._seen.setdefault(name, now)
                if event.object.spec.unschedulable:
                    self._cordoned.setdefault(name, now)
            if len(self._cordoned) == len(self._boots):
                self.all_cordoned.set()

    async def wait(self, follow: asyncio.Task[None]) -> None:
        """Wait until all of them are cordoned, while `follow` follows."""
        cordoned = asyncio.create_task(self.all_cordoned.wait())
        await asyncio.wait((cordoned, follow), timeout=PATIENCE, return_when="FIRST_COMPLETED")
        if follow.done():
            await follow
        if not cordoned.done():
            missing = sorted(self._boots.keys() - self._cordoned.keys())
            seen = len(self._seen)
            raise RuntimeError(f"{seen} of {len(self._boots)} seen bad, not cordoned: {missing}")

    def lags(self) -> list[float]:
        """Seconds from report to cordon."""
        return [self._cordoned[name] - at for name, at in self._patched.items()]

    def delays(self) -> list[float]:
        """Seconds from report to the moment at which the watch shows the condition."""
        return [self._seen[name] - at for name, at in self._patched.items()]


def calm(kwok: int) -> None:
    """Wait until KWOK has sent the heartbeats that were due when it began."""
    busy = CALM + 1
    while busy > CALM:
        before = cpu_seconds(kwok)
        time.sleep(SETTLE)
        busy = (cpu_seconds(kwok) - before) / SETTLE


async def fail(
    site: Site, boots: dict[str, str], failing: int, *, pid: int, kwok: int
) -> dict[str, float]:
    """Heartbeats of all, and failures of some; lag and memory."""
    # Heartbeats go through the nodes from the first on, and do not get so far in a minute.
    picked = list(boots)[-1 : -1 - 4 * failing : -4]
    failures = Failures({name: boots[name] for name in picked})
    rate = len(boots) / HEARTBEAT_SECONDS
    address = site.address
    async with Wire(**address) as wire, Wire(**address) as beats, Wire(**address) as eyes:
        follow = asyncio.create_task(failures.follow(eyes, await eyes.newest()))
        synced, before, at = memory_mb(pid), cpu_seconds(pid), time.monotonic()
        kubelets = cpu_seconds(kwok)
        agents = Heartbeats(beats, boots, kubelets=False)
        heartbeats = asyncio.create_task(agents.at_rate(rate, SECONDS + 5))
        await failures.report(wire, seconds=SECONDS)
        await failures.wait(follow)
        await heartbeats
        follow.cancel()
        took = time.monotonic() - at
        busy, kubelets = cpu_seconds(pid) - before, cpu_seconds(kwok) - kubelets
    lags = failures.lags()
    figures = {
        "rss_mb": max(synced, memory_mb(pid)),
        "rss_peak_mb": memory_mb(pid, "VmHWM"),
        "lag_p50_s": percentile(lags, 50),
        "lag_p99_s": percentile(lags, 99),
        "seen_p50_s": percentile(failures.delays(), 50),
        "seen_p99_s": percentile(failures.delays(), 99),
        "failing": failing,
        "heartbeats_per_s": failures.others / took,
        "cpu_percent": 100 * busy / took,
        "kwok_cpu_percent": 100 * kubelets / took,
    }
    say(", ".join(f"{key} {value:.3f}" for key, value in figures.items()))
    return figures


def watched(
    site: Site, boots: dict[str, str], failing: int, *, policies: Path, config: Path, kwok: int
) -> dict[str, float]:
    """The controller's start, and what it does when nodes fail."""
    with Controller(site, policies=policies, config=config) as controller:
        say(f"synced after {controller.sync_seconds:.1f} s")
        time.sleep(SETTLE)
        try:
            figures = asyncio.run(fail(site, boots, failing, pid=controller.pid, kwok=kwok))
        except BaseException:
            print(controller.log[-4000:])
            raise
        if problems := controller.problems():
            raise RuntimeError(f"the controller logged a bug: {problems[0]}")
        return {"sync_s": controller.sync_seconds, **figures}


def many(site: Site, node: str, count: int) -> dict[str, float]:
    """Memory on so many nodes."""
    with Crowd(site, node, count=count) as crowd:
        kubeconfig = site.cluster.kubeconfig_for(site.controller_token, url=crowd.url)
        with Controller(site, policies=POLICIES, config=None, kubeconfig=kubeconfig) as controller:
            say(f"{count} nodes: synced after {controller.sync_seconds:.1f} s")
            time.sleep(SETTLE)
            pid = controller.pid
            synced = memory_mb(pid)
            crowd.beat()
            while crowd.sent < count:
                time.sleep(0.5)
            time.sleep(SETTLE)
            after, peak = memory_mb(pid), memory_mb(pid, "VmHWM")
            say(f"{synced:.0f} MB, after a heartbeat of each {after:.0f} MB, at most {peak:.0f} MB")
            if problems := controller.problems():
                raise RuntimeError(f"the controller logged a bug: {problems[0]}")
            sync = controller.sync_seconds
    return {
        f"rss_mb_{count}": max(synced, after),
        f"rss_peak_mb_{count}": peak,
        f"sync_s_{count}": sync,
    }


def main(nodes: int = NODES, failing: int = FAILING, count: int = MANY) -> None:
    say_machine()
    with Site(controllers=False) as site:
        config = site.write("config.yaml", "RemediatorConfig", NEVER_BINDING)
        policy = site.write("policies/bench.yaml", "RemediationPolicy", CORDON_ONLY)
        for file in POLICIES.glob("*.yaml"):
            shutil.copy(file, policy.parent)
        at = time.monotonic()
        boots = create(site, nodes, labels=LABEL)
        say(f"{nodes} nodes made in {time.monotonic() - at:.0f} s")
        size = say_size(site, next(iter(boots)))
        gc.freeze()
        with Kwok(site.plane) as kwok:
            calm(kwok.process.pid)
            say("KWOK has sent the heartbeats that were due")
            given = {"policies": policy.parent, "config": config}
            figures = watched(site, boots, failing, **given, kwok=kwok.process.pid)
        figures |= many(site, next(iter(boots)), count)
    finish({"nodes": nodes, "node_kib": size, **figures})


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]))
