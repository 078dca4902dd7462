"""1,000 nodes turn bad within a second: how fast the controller cordons them, against bare PATCHes.

A round: 1,000 new GPU nodes that are well; one responder is started and has seen them; the load
(`tests.bench.load`, a process of its own) patches the agent's conditions and annotation into all
of them within one second; this process sees by a watch when the last one is unschedulable. The
rate is nodes per second from the start of the load to that moment.

Responders, in turn: `remediator run` in enforce mode with a cordon-only policy, every guard
running with limits that never bind; and `tests.bench.bare`, which answers the same watch events
with PATCHes of the same size by the same library with the same token, with as many in flight as
were best in rounds before. The figures are medians over rounds.

`python -m tests.bench.storm [rounds [nodes]]`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from testbed.processes import Child
from tests.bench.figures import cpu_seconds, finish, say, say_machine
from tests.bench.site import CORDON_ONLY, NEVER_BINDING, Controller, Site, conditions
from tests.bench.wire import Wire


ROUNDS: Final = 5
NODES: Final = 1000
LOAD_SECONDS: Final = 1.0
IN_FLIGHT: Final = (8, 16, 32, 64)
TRIES: Final = 2
SETTLE: Final = 3.0
"""Seconds for the server to come to rest after so many nodes were made."""
PATIENCE: Final = 60.0


class Round(NamedTuple):
    """Nodes made unschedulable per second, and the responder's CPU seconds for it."""

    rate: float
    cpu: float


class Storm:
    """Rounds on one server."""

    def __init__(self, site: Site, *, nodes: int) -> None:
        self.site = site
        self.nodes = nodes
        self.annotation = 600
        """Bytes of the session annotation; known after the controller's first round."""
        self._config = site.write("config.yaml", "RemediatorConfig", NEVER_BINDING)
        policy = site.write("policies/bench.yaml", "RemediationPolicy", CORDON_ONLY)
        self._policies = policy.parent

    def ours(self) -> Round:
        """One round of the controller."""
        names = self._create()
        with Controller(self.site, policies=self._policies, config=self._config) as controller:
            found = self._round(names, lambda: controller.log, controller.pid)
            if problems := controller.problems():
                raise RuntimeError(f"the controller logged a bug: {problems[0]}")
        session = self.site.cluster.node(names[0])["metadata"]["annotations"]
        self.annotation = len(session["gpu-remediator.io/session"])
        self.site.delete_nodes(names)
        return found

    def bare(self, workers: int) -> Round:
        """One round of the bare loop."""
        names = self._create()
        with self._bare_loop(workers) as child:
            found = self._round(names, child.log_tail, child.pid)
        self.site.delete_nodes(names)
        return found

    def _create(self) -> list[str]:
        names = [f"gpu-{number}" for number in range(self.nodes)]
        self.site.create_nodes([_node(name) for name in names])
        time.sleep(SETTLE)
        return names

    @contextmanager
    def _bare_loop(self, workers: int) -> Iterator[Child]:
        folder = self.site.plane.folder
        log, given = folder / "bare.log", folder / "bare.json"
        log.write_text("", "utf-8")
        address = {**self.site.address, "token": self.site.controller_token}
        _write(given, {**address, "workers": workers, "annotation": self.annotation})
        child = Child("bare", [sys.executable, "-m", "tests.bench.bare", str(given)], log=log)
        child.start()
        try:
            child.wait_until(lambda: "ready" in log.read_text("utf-8"), timeout=30)
            yield child
        finally:
            child.stop()
            child.close()

    def _round(self, names: list[str], log: Callable[[], str], pid: int) -> Round:
        before = cpu_seconds(pid)
        try:
            rate = asyncio.run(self._watched(names))
        except TimeoutError as error:
            raise RuntimeError(f"not all nodes became unschedulable:\n{log()[-3000:]}") from error
        return Round(rate, cpu_seconds(pid) - before)

    async def _watched(self, names: list[str]) -> float:
        async with Wire(**self.site.address) as wire:
            since = await wire.newest()
            load = asyncio.create_task(asyncio.to_thread(self._load, names))
            missing = set(names)
            async with asyncio.timeout(PATIENCE):
                async for events in wire.watch(since):
                    missing -= {
                        e.object.metadata.name for e in events if e.object.spec.unschedulable
                    }
                    if not missing:
                        break
            ended = time.monotonic()
            sent = await load
        spread = sent["last_started"] - sent["started"]
        if sent["failures"] or spread > LOAD_SECONDS * 1.5:
            raise RuntimeError(f"the load did not go as it should: {sent}")
        return len(names) / (ended - sent["started"])

    def _load(self, names: list[str]) -> dict[str, float]:
        given = self.site.plane.folder / "load.json"
        _write(given, {**self.site.address, "names": names, "seconds": LOAD_SECONDS})
        argv = [sys.executable, "-m", "tests.bench.load", str(given)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise RuntimeError(f"the load failed:\n{done.stderr[-3000:]}")
        return dict(json.loads(done.stdout))


def _node(name: str) -> dict[str, Any]:
    said, report = conditions(bad=False, boot_id="bench")
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "nvidia.com/gpu.present": "true"},
            "annotations": {"gpu-remediator.io/gpu-faults": report},
        },
        "status": {"conditions": [ready, *said], "nodeInfo": {**_INFO, "bootID": "bench"}},
    }


_INFO: Final = dict.fromkeys(
    (
        "architecture",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "kubeletVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ),
    "bench",
)


def _write(path: Path, given: dict[str, Any]) -> None:
    path.touch(mode=0o600)
    path.write_text(json.dumps(given, default=str), encoding="utf-8")


def main(rounds: int = ROUNDS, nodes: int = NODES) -> None:
    say_machine()
    with Site() as site:
        storm = Storm(site, nodes=nodes)
        first = storm.ours()
        say(f"warm-up: ours {first.rate:.0f}/s; session annotation {storm.annotation} bytes")
        tried = dict.fromkeys(IN_FLIGHT, 0.0)
        for workers in IN_FLIGHT * TRIES:
            tried[workers] = max(tried[workers], storm.bare(workers).rate)
        best = max(tried, key=lambda workers: tried[workers])
        found = ", ".join(f"{workers}: {rate:.0f}/s" for workers, rate in tried.items())
        say(f"bare loop by requests in flight: {found}; best {best}")
        pairs = []
        for number in range(rounds):
            pairs.append((storm.ours(), storm.bare(best)))
            say(f"round {number + 1} of {rounds}: {_words(*pairs[-1])}")
    finish(
        {
            "nodes": nodes,
            "cordons_per_s": median(ours.rate for ours, _ in pairs),
            "bare_patches_per_s": median(bare.rate for _, bare in pairs),
            "ratio": median(ours.rate / bare.rate for ours, bare in pairs),
            "bare_in_flight": best,
            "ours_cpu_s": median(ours.cpu for ours, _ in pairs),
            "bare_cpu_s": median(bare.cpu for _, bare in pairs),
            "rounds": rounds,
        }
    )


def _words(ours: Round, bare: Round) -> str:
    return (
        f"ours {ours.rate:.0f}/s ({ours.cpu:.2f} CPU-s), "
        f"bare {bare.rate:.0f}/s ({bare.cpu:.2f} CPU-s)"
    )


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]))
