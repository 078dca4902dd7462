"""Two replicas as real processes: one leads, and whatever happens to it, only one acts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed.api import Json
from testbed.faultproxy import FaultProxy, Hang
from testbed.manifests import DEPLOY, apply, read, relocated


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Site

pytestmark = pytest.mark.cluster

POD = "authentication.kubernetes.io/pod-name"
MAIN = "from remediator.cli import main; main()"

TEMPLATE: Json = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {},
    "spec": {"template": {"spec": {"containers": [{"name": "reset", "image": "example/reset"}]}}},
}

Start = Callable[..., "Process"]


WALL = "import time; real = time.time; time.time = lambda: real() + {skew}; "
"""Its time of day is this many seconds off."""
LEAPS = (
    "import time; real = time.clock_gettime; began = time.monotonic(); "
    "time.clock_gettime = lambda c: real(c) + 3600 * int(time.monotonic() - began); "
)
"""Each second an hour passes by the clock of its leases."""


class Process:
    """``remediator run`` with a token, and so a pod, of its own.

    Args:
        site: what it works on.
        name: in the Lease.
        log: where its output goes.
        flags: more of ``remediator run``.
        server: another address, such as a proxy's.
        clock: Python to run first, as to skew its clocks.
    """

    def __init__(
        self, site: Site, name: str, log: Path, *flags: str, server: str = "", clock: str = ""
    ) -> None:
        pods = set(site.cluster.pods())
        token = site.cluster.controller_token()
        (self.pod,) = set(site.cluster.pods()) - pods
        kubeconfig = site.cluster.kubeconfig_for(token)
        if server:
            text = kubeconfig.read_text("utf-8")
            assert site.cluster.plane.url in text
            kubeconfig.write_text(text.replace(site.cluster.plane.url, server), "utf-8")
        self.name = name
        self.log = log
        with log.open("wb") as output:
            self.child = subprocess.Popen(  # noqa: S603 - our own program
                [
                    sys.executable,
                    "-c",
                    clock + MAIN,
                    "run",
                    f"--policies={site.policies}",
                    f"--config={site.folder / 'config.yaml'}",
                    f"--kubeconfig={kubeconfig}",
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

    def begin(name: str, *flags: str, **options: str) -> Process:
        children.append(Process(site, name, tmp_path / f"{name}.log", *flags, **options))
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
    assert process.child.poll() is None, process.log.read_text()[-2000:]
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
    # The lease lasts longer than anybody waits: only a release explains a change.
    site.wait(lambda: holder(site) == "two", "the second leader")
    site.says(second, 79)
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


@pytest.mark.parametrize("cut", ["", "/leases"], ids=["everything", "the lease alone"])
def test_a_leader_that_is_cut_off_never_writes_again(
    site: Site, start: Start, proxy: FaultProxy, cut: str
) -> None:
    lease = ("--lease-duration=6s", "--renew-deadline=4s", "--retry-period=500ms")
    one = start("one", *lease, server=proxy.url)
    site.wait(lambda: holder(site) == "one", "leader")
    two = start("two", *lease)
    site.wait(lambda: synced(two), "warm follower")
    before, nodes = site.node(), [site.node() for _ in range(3)]
    site.says(before, 79)
    site.wait(lambda: site.cordoned(before), "cordon by the first leader")

    proxy.add(Hang(), path=cut)
    site.wait(lambda: holder(site) == "two", "the other leader")
    for node in nodes:
        site.says(node, 79)
    site.wait(lambda: all(map(site.cordoned, nodes)), "cordons by the second leader")
    proxy.clear()
    for node in (before, *nodes):
        site.says(node)
    site.wait(lambda: not any(map(site.cordoned, [before, *nodes])), "uncordons")

    assert one.ended() != 0
    assert writers(site, before)[0] == one.pod
    assert {pod for node in nodes for pod in writers(site, node)} == {two.pod}
    assert_each_change_once(site, before, *nodes)


def test_clocks_that_differ_by_hours_change_nothing(site: Site, start: Start) -> None:
    """What the first leader dated in the future does not keep the second one waiting."""
    lease = ("--lease-duration=5m", "--renew-deadline=2m")
    one = start("one", *lease, clock=WALL.format(skew=7200))
    site.wait(lambda: holder(site) == "one", "leader")
    two = start("two", *lease, clock=WALL.format(skew=-7200))
    site.wait(lambda: synced(two), "warm follower")
    first, second = site.node(), site.node()
    site.says(first, 79)
    site.wait(lambda: site.cordoned(first), "cordon by the leader that is ahead")

    one.signal(signal.SIGTERM)
    site.says(second, 79)
    site.wait(lambda: site.cordoned(second), "cordon by the leader that is behind")
    for node in (first, second):
        site.says(node)
    site.wait(lambda: not site.cordoned(first) and not site.cordoned(second), "uncordons")

    assert one.ended() == 0
    assert_each_change_once(site, first, second)


def test_a_follower_whose_clock_leaps_leaves_the_leader_alone(
    site: Site, start: Start, proxy: FaultProxy
) -> None:
    lease = ("--lease-duration=30s", "--renew-deadline=20s", "--retry-period=1s")
    one = start("one", *lease)
    site.wait(lambda: holder(site) == "one", "leader")
    two = start("two", *lease, server=proxy.url, clock=LEAPS)
    site.wait(lambda: synced(two), "warm follower")
    nodes = [site.node() for _ in range(2)]
    for looks, node in enumerate(nodes, start=1):
        seen = proxy.count("GET", "/leases/") + 8 * looks
        site.wait(partial(looked, proxy, seen), "the follower's looks")
        site.says(node, 79)
        site.wait(partial(site.cordoned, node), "cordon")
        site.says(node)
        site.wait(lambda: not any(map(site.cordoned, nodes)), "uncordon")

    assert holder(site) == "one"
    assert proxy.count("PATCH") == 0
    assert {pod for node in nodes for pod in writers(site, node)} == {one.pod}
    assert_each_change_once(site, *nodes)


def test_the_next_leader_knows_a_policy_that_is_younger_than_itself(
    site: Site, start: Start
) -> None:
    """Else it would take the policy for gone, end its session and begin the work again."""
    path = f"/apis/batch/v1/namespaces/{site.cluster.namespace}/jobs"
    (site.folder / "reset.yaml").write_text(json.dumps(TEMPLATE), encoding="utf-8")
    apply(
        site.cluster.api,
        relocated(read(DEPLOY / "controller" / "optional" / "jobs.yaml"), site.cluster.namespace),
    )
    site.config(templates={"reset": {"file": "reset.yaml"}}, rates={"job": "9/1m"})
    lease = ("--lease-duration=5m", "--renew-deadline=2m")
    one = start("one", *lease)
    site.wait(lambda: holder(site) == "one", "leader")
    two = start("two", *lease)
    site.wait(lambda: synced(two), "warm follower")
    node = site.node()
    job = {"job": {"template": "reset"}, "timeout": "10m"}
    site.policy("younger", when=[{"xid": {"codes": [48]}}], steps=[{"cordon": {}}, job])
    site.says(node, 48)
    (made,) = site.wait(lambda: site.cluster.api.get(path)["items"], "the Job")
    before = site.session(node)
    assert before is not None

    one.signal(signal.SIGTERM)
    site.wait(lambda: holder(site) == "two", "the second leader")
    witness = site.node()
    site.says(witness, 79)
    site.wait(lambda: site.cordoned(witness), "cordon by the second leader")
    site.says(node, 48)  # has it look at the node once more

    def adopted() -> bool:
        shown = site.status_of(node)
        return shown is not None and "younger" in json.dumps(shown)

    site.wait(adopted, "the session in the second leader's status")
    (now,) = site.cluster.api.get(path)["items"]
    after = site.session(node)
    assert after is not None
    assert now["metadata"]["uid"] == made["metadata"]["uid"]
    assert after["id"] == before["id"]
    assert not site.history(node).get("sessions")
    assert one.ended() == 0


def test_the_next_leader_does_nothing_by_a_policy_that_is_gone(site: Site, start: Start) -> None:
    site.policy("removed", when=[{"xid": {"codes": [48]}}])
    lease = ("--lease-duration=5m", "--renew-deadline=2m")
    one = start("one", *lease)
    site.wait(lambda: holder(site) == "one", "leader")
    two = start("two", *lease)
    site.wait(lambda: synced(two), "warm follower")
    (site.policies / "removed.yaml").unlink()

    one.signal(signal.SIGTERM)
    site.wait(lambda: holder(site) == "two", "the second leader")
    asked, witness = site.node(), site.node()
    site.says(asked, 48)
    site.says(witness, 79)
    site.wait(lambda: site.cordoned(witness), "cordon by the policy that is left")

    assert not site.cordoned(asked)
    assert writers(site, asked) == []
    assert one.ended() == 0


def looked(proxy: FaultProxy, times: int) -> bool:
    return proxy.count("GET", "/leases/") >= times


def assert_each_change_once(site: Site, *nodes: str) -> None:
    """By the API server's audit log: each node was cordoned once and uncordoned once."""
    for node in nodes:
        sent = [entry["requestObject"].get("spec", {}) for entry in site.writes_to(node)]
        assert [spec["unschedulable"] for spec in sent if spec] == [True, None], node
