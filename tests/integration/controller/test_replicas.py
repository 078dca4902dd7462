"""Two replicas as real processes: one leads, and whatever happens to it, only one acts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed.api import Json


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Site

pytestmark = pytest.mark.cluster

POD = "authentication.kubernetes.io/pod-name"
MAIN = "from remediator.cli import main; main()"

Start = Callable[..., "Process"]


class Process:
    """``remediator run`` with a token, and so a pod, of its own."""

    def __init__(self, site: Site, name: str, log: Path, *flags: str) -> None:
        pods = set(site.cluster.pods())
        token = site.cluster.controller_token()
        (self.pod,) = set(site.cluster.pods()) - pods
        self.name = name
        self.log = log
        with log.open("wb") as output:
            self.child = subprocess.Popen(  # noqa: S603 - our own program
                [
                    sys.executable,
                    "-c",
                    MAIN,
                    "run",
                    f"--policies={site.policies}",
                    f"--config={site.folder / 'config.yaml'}",
                    f"--kubeconfig={site.cluster.kubeconfig_for(token)}",
                    f"--namespace={site.cluster.namespace}",
                    f"--identity={name}",
                    "--listen=127.0.0.1:0",
                    "--log-format=json",
                    *flags,
                ],
                stderr=output,
                stdout=output,
            )

    def signal(self, number: int) -> None:
        os.kill(self.child.pid, number)

    def ended(self) -> int:
        return self.child.wait(60)


@pytest.fixture
def start(site: Site, tmp_path: Path) -> Iterator[Start]:
    children: list[Process] = []

    def begin(name: str, *flags: str) -> Process:
        children.append(Process(site, name, tmp_path / f"{name}.log", *flags))
        return children[-1]

    yield begin
    for one in children:
        if one.child.poll() is None:
            one.signal(signal.SIGCONT)
            one.child.terminate()
            one.ended()


def holder(site: Site) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{site.cluster.namespace}/leases"
    items = site.cluster.api.get(path)["items"]
    return str(items[0]["spec"].get("holderIdentity") or "") if items else ""


def writers(site: Site, node: str) -> list[str]:
    """Pods that wrote to this node, in order."""
    entries: list[Json] = site.writes_to(node)
    return [entry["user"]["extra"][POD][0] for entry in entries]


def synced(process: Process) -> bool:
    return '"event": "synced"' in process.log.read_text()


def test_after_sigterm_the_other_one_goes_on_at_once(site: Site, start: Start) -> None:
    lease = ("--lease-duration=5m", "--renew-deadline=2m")
    one = start("one", *lease)
    site.wait(lambda: holder(site) == "one", "leader")
    two = start("two", *lease)
    site.wait(lambda: synced(two), "warm follower")
    first, second = site.node(), site.node()
    site.says(first, 79)
    site.wait(lambda: site.cordoned(first), "cordon by the first leader")

    one.signal(signal.SIGTERM)
    site.says(second, 79)
    # The lease lasts longer than anybody waits: only a release explains a change.
    site.wait(lambda: site.cordoned(second), "cordon by the second leader")

    assert one.ended() == 0
    assert set(writers(site, first)) == {one.pod}
    assert set(writers(site, second)) == {two.pod}


def test_a_leader_that_was_stopped_never_writes_again(site: Site, start: Start) -> None:
    lease = ("--lease-duration=6s", "--renew-deadline=4s", "--retry-period=500ms")
    one = start("one", *lease)
    site.wait(lambda: holder(site) == "one", "leader")
    two = start("two", *lease)
    site.wait(lambda: synced(two), "warm follower")
    nodes = [site.node() for _ in range(5)]

    one.signal(signal.SIGSTOP)
    for node in nodes:
        site.says(node, 79)  # waits in the stopped leader's socket
    site.wait(lambda: all(map(site.cordoned, nodes)), "cordons by the second leader")
    for node in nodes:
        site.says(node)
    one.signal(signal.SIGCONT)
    site.wait(lambda: not any(map(site.cordoned, nodes)), "uncordons by the second leader")

    assert one.ended() != 0
    assert holder(site) == "two"
    assert {pod for node in nodes for pod in writers(site, node)} == {two.pod}
