"""How long nobody acts when the leader ends in order: a rolling update, a drained node.

Two real controllers with the default times of their lease. A node turns bad at the moment at
which the leader gets SIGTERM; a watch of this process sees when the other one has cordoned it.
So the figure has the release of the lease, the follower's next look at it, its start as leader
and one cordon in it. A new follower is warm before the next round. Then once more, while the
receiver of people's messages takes calls and never answers: the leader has messages under way.

The last line: `p50_s`, `p99_s`, and `n` rounds of each kind; `hung_p50_s` and `hung_p99_s` with
that receiver; `python -m tests.bench.handover [rounds]`.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Final

from testbed.processes import Child
from tests.bench.figures import finish, percentile, say, say_machine
from tests.bench.site import NEVER_BINDING, Site, status_patch


ROUNDS: Final = 20
POLICY: Final = {
    "mode": "Enforce",
    "when": [{"xid": {"codes": [79]}}],
    "steps": [{"cordon": {}}, {"notify": {"to": ["people"]}}],
}


class Replica:
    """`remediator run` in a pod of its own."""

    def __init__(self, site: Site, name: str, policies: Path, config: Path) -> None:
        token = site.cluster.controller_token()
        self._log = site.plane.folder / f"{name}.log"
        program = Path(sys.executable).with_name("remediator")
        argv = [str(program), "run", f"--identity={name}", f"--policies={policies}"]
        argv += [f"--config={config}", f"--kubeconfig={site.cluster.kubeconfig_for(token)}"]
        argv += ["--listen=127.0.0.1:0", "--log-format=json"]
        self.process = Child(name, argv, log=self._log)
        self.process.start()

    def says(self, event: str) -> None:
        """Wait for a line of its log."""
        self.process.wait_until(lambda: f'"event": "{event}"' in self.log, timeout=120)

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", errors="replace") if self._log.exists() else ""


def measure(site: Site, rounds: int, kind: str, receiver: str) -> list[float]:
    """Hand over so many times; `receiver`: where messages go, "" for the log."""
    channels = {"people": {"webhook": {"url": receiver}} if receiver else {"log": {}}}
    spec = {**NEVER_BINDING, "channels": channels}
    config = site.write(f"{kind}.yaml", "RemediatorConfig", spec)
    policies = site.write(f"policies-{kind}/bench.yaml", "RemediationPolicy", POLICY).parent
    boots = {f"{kind}-{number}": f"boot-{number}" for number in range(rounds + 1)}
    nodes = {site.cluster.create_node(name, boot_id=boot): boot for name, boot in boots.items()}
    replicas = [Replica(site, f"{kind}-0", policies, config)]
    taken = []
    try:
        replicas[0].says("policies_in_force")
        first, boot = nodes.popitem()
        site.cluster.patch_node_status(first, json.loads(status_patch(bad=True, boot_id=boot)))
        site.cluster.wait_for(
            lambda: site.cluster.is_unschedulable(first), what="the first cordon", timeout=60
        )
        for number, (node, boot) in enumerate(nodes.items(), start=1):
            replicas.append(Replica(site, f"{kind}-{number}", policies, config))
            replicas[-1].says("synced")
            taken.append(hand_over(site, replicas[-2], node, status_patch(bad=True, boot_id=boot)))
            replicas[-2].process.close()
    finally:
        for one in replicas:
            one.process.stop()
            one.process.close()
    return taken


def hand_over(site: Site, leader: Replica, node: str, body: bytes) -> float:
    """Seconds from SIGTERM, and a fault, to the cordon by the other one."""
    started = time.perf_counter()
    leader.process.signal(signal.SIGTERM)
    site.cluster.patch_node_status(node, json.loads(body))
    while not site.cluster.is_unschedulable(node):
        if time.perf_counter() - started > 60:
            raise TimeoutError(f"{node} was not cordoned")
        time.sleep(0.005)
    return time.perf_counter() - started


def main(rounds: int = ROUNDS) -> None:
    say_machine()
    with Site() as site, socket.create_server(("127.0.0.1", 0), backlog=1000) as silent:
        taken = measure(site, rounds, "calm", "")
        say("seconds: " + ", ".join(f"{one:.2f}" for one in taken))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        hung = measure(site, rounds, "hung", url)
        say("with a receiver that hangs: " + ", ".join(f"{one:.2f}" for one in hung))
    finish(
        {
            "p50_s": percentile(taken, 50),
            "p99_s": percentile(taken, 99),
            "hung_p50_s": percentile(hung, 50),
            "hung_p99_s": percentile(hung, 99),
            "n": len(taken),
        }
    )


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]))
