"""Alerts a second that the webhook accepts, and whether any is lost with its leader.

Two replicas of `remediator run`, a pair of real Alertmanagers, 2,000 nodes. Calls as Alertmanager
makes them (ten alerts in each, bearer token) come from this process, eight at a time, as fast as
they are answered: alerts of all nodes under twenty names, each told again and again. One name
fires in the Alertmanagers, too. Then the leader is killed (SIGKILL), and the successor is asked,
by its status, for how many nodes the policy of that name holds: `lost` are the others.

`alerts_per_s` counts alerts in calls that were answered with 200; `p99_ms` is of those answers.
`python -m tests.bench.webhook [nodes [seconds]]`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import aiohttp

from testbed.monitoring import Pair
from testbed.processes import Child, free_port
from tests.bench.figures import finish, percentile, say, say_machine
from tests.bench.site import Site


NODES: Final = 2000
SECONDS: Final = 10.0
NAMES: Final = 20
PER_CALL: Final = 10
IN_FLIGHT: Final = 8
TOKEN: Final = "bench"
FIRING: Final = "Bench0"
STATUS: Final = "gpu-remediator-status"
LEASE: Final = ("--lease-duration=3s", "--renew-deadline=2s", "--retry-period=500ms")
PATIENCE: Final = 120.0


class Replica:
    """One `remediator run`."""

    def __init__(self, site: Site, name: str, config: Path, policies: Path) -> None:
        self.name, self.port = name, free_port()
        kubeconfig = site.cluster.kubeconfig_for(site.controller_token)
        argv = [
            str(Path(sys.executable).with_name("remediator")),
            "run",
            f"--identity={name}",
            f"--policies={policies}",
            f"--config={config}",
            f"--kubeconfig={kubeconfig}",
            "--listen=127.0.0.1:0",
            f"--webhook-listen=127.0.0.1:{self.port}",
            "--log-format=json",
            *LEASE,
        ]
        self.process = Child(name, argv, log=site.plane.folder / f"{name}.log")

    @property
    def log(self) -> str:
        return self.process.log.read_text("utf-8", errors="replace")

    def start(self, event: str) -> None:
        """Start it, and wait until it logs this."""
        self.process.start()
        self.process.wait_until(lambda: f'"{event}"' in self.log, timeout=PATIENCE)


def bodies(nodes: list[str]) -> list[bytes]:
    """Every call there is: ten alerts each."""
    alerts = [
        {
            "status": "firing",
            "labels": {"alertname": f"Bench{number}", "node": node, "severity": "warning"},
            "annotations": {"summary": "an alert of the usual length, with a sentence for people"},
            "startsAt": "2099-01-01T00:00:00.123456789Z",
            "endsAt": "0001-01-01T00:00:00Z",
            "generatorURL": "http://prometheus.monitoring.svc:9090/graph?g0.expr=up",
            "fingerprint": "5d41402abc4b2a76",
        }
        for number in range(NAMES)
        for node in nodes
    ]
    groups = [alerts[at : at + PER_CALL] for at in range(0, len(alerts), PER_CALL)]
    return [
        json.dumps({"version": "4", "status": "firing", "groupKey": "{}", "alerts": group}).encode()
        for group in groups
    ]


async def load(port: int, calls: list[bytes], seconds: float) -> tuple[int, float, list[float]]:
    """Call for so long, and at least once each; calls that were accepted, time, and how long."""
    times: list[float] = []
    begun = time.monotonic()
    at = 0

    async def caller(session: aiohttp.ClientSession) -> None:
        nonlocal at
        while at < len(calls) or time.monotonic() < begun + seconds:
            body = calls[at % len(calls)]
            at += 1
            sent = time.monotonic()
            async with session.post(f"http://127.0.0.1:{port}/alertmanager", data=body) as answer:
                if answer.status == 200:
                    times.append(time.monotonic() - sent)

    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(headers=headers) as session, asyncio.TaskGroup() as tasks:
        for _ in range(IN_FLIGHT):
            tasks.create_task(caller(session))
    return len(times), time.monotonic() - begun, times


def matching(site: Site, leader: str) -> int:
    """For how many nodes the policy holds, by the status of this leader."""
    data = site.cluster.configmap(STATUS)
    status: dict[str, Any] = json.loads(data["status.json"]) if data else {}
    if status.get("leader") != leader:
        return -1
    return sum(one.get("matching", 0) for one in status.get("policies", ()))


def wait_matching(site: Site, leader: str, count: int) -> int:
    """Wait until it holds for all, or until patience ends."""
    found, deadline = -1, time.monotonic() + PATIENCE
    while found < count and time.monotonic() < deadline:
        found = matching(site, leader)
        time.sleep(0.2)
    return found


def run(nodes: int, seconds: float) -> dict[str, float]:
    """Measure."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Pair(Path(folder)) as pair,
        Site(controllers=False) as site,
    ):
        (site.plane.folder / "token").write_text(TOKEN, encoding="utf-8")
        sources = [{"name": "main", "urls": pair.urls, "interval": "5s"}]
        spec = {"alertmanagers": sources, "webhook": {"bearerTokenFile": "token"}}
        config = site.write("config.yaml", "RemediatorConfig", spec)
        policy = {"when": [{"alert": {"name": FIRING}}], "steps": [{"cordon": {}}]}
        policies = site.write("policies/bench.yaml", "RemediationPolicy", policy).parent
        say(f"creating {nodes} nodes")
        names = site.cluster.create_nodes(nodes)
        calls = bodies(names)
        leader, follower = (Replica(site, one, config, policies) for one in ("one", "two"))
        try:
            leader.start("policies_in_force")
            follower.start("synced")
            say(f"{IN_FLIGHT} callers, {len(calls)} different calls of {PER_CALL} alerts")
            accepted, took, times = asyncio.run(load(leader.port, calls, seconds))
            for peer in pair.both:
                for at in range(0, nodes, 500):
                    some = names[at : at + 500]
                    peer.fire_many([{"alertname": FIRING, "node": one} for one in some])
            known = wait_matching(site, leader.name, nodes)
            say(f"the leader knows {known} of {nodes}; killing it")
            leader.process.stop(grace=0)
            killed = time.monotonic()
            found = wait_matching(site, follower.name, nodes)
            say(f"its successor knows {found} after {time.monotonic() - killed:.1f} s")
        finally:
            leader.process.close()
            follower.process.close()
        return {
            "alerts_per_s": accepted * PER_CALL / took,
            "lost": nodes - max(found, 0),
            "p50_ms": percentile(times, 50) * 1000,
            "p99_ms": percentile(times, 99) * 1000,
            "nodes": nodes,
            "distinct_alerts": nodes * NAMES,
        }


def main() -> None:
    """Run with the sizes of the command line."""
    given = sys.argv[1:]
    say_machine()
    nodes = int(given[0]) if given else NODES
    finish(run(nodes, float(given[1]) if len(given) > 1 else SECONDS))


if __name__ == "__main__":
    main()
