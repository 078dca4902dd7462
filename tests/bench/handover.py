"""How long nobody acts when the leader ends in order: a rolling update, a drained node.

Two real controllers with the default times of their lease. A node turns bad at the moment at
which the leader gets SIGTERM; a watch of this process sees when the other one has cordoned it.
So the figure has the release of the lease, the follower's next look at it, its start as leader
and one cordon in it. A new follower is warm before the next round.

The last line: `p50_s`, `p99_s`, and `n` rounds; `python -m tests.bench.handover [rounds]`.
"""

from __future__ import annotations

import json
import signal
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
    "steps": [{"cordon": {}}],
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


def measure(site: Site, rounds: int) -> list[float]:
    config = site.write("config.yaml", "RemediatorConfig", NEVER_BINDING)
    policies = site.write("policies/bench.yaml", "RemediationPolicy", POLICY).parent
    boots = {f"n-{number}": f"boot-{number}" for number in range(rounds)}
    nodes = {site.cluster.create_node(name, boot_id=boot): boot for name, boot in boots.items()}
    replicas = [Replica(site, "r-0", policies, config)]
    taken = []
    try:
        replicas[0].says("policies_in_force")
        for number, (node, boot) in enumerate(nodes.items(), start=1):
            replicas.append(Replica(site, f"r-{number}", policies, config))
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
    with Site() as site:
        taken = measure(site, rounds)
    say("seconds: " + ", ".join(f"{one:.2f}" for one in taken))
    finish({"p50_s": percentile(taken, 50), "p99_s": percentile(taken, 99), "n": len(taken)})


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]))
