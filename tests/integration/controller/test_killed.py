"""The program, in a process of its own, is killed at each of its writes; the next one goes on.

SIGKILL in place of the answer: the server has carried the write out, and the program never
learns that. Each journey is made once undisturbed; then once for each write, killed there. Its
end is the same, what it changed in the cluster was changed as often, and people are told at least
once, under one key.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from testbed.cluster import Cluster
from testbed.controlplane import ControlPlane
from testbed.faultproxy import Strike
from testbed.receiver import Receiver
from testbed.zygote import Zygote
from tests.integration.controller.conftest import Site, proxy_of
from tests.integration.controller.journeys import JOURNEYS, End, Journey, keys_of


pytestmark = pytest.mark.cluster

COUNTED = r"^(?!.*(/leases|/remediations|/configmaps/gpu-remediator-status))"
"""All writes but those of the lease and of two views that nothing reads again."""
IMPORTS = "import remediator.app, remediator.cli, remediator.term.lead, remediator.kube.client"
CODE = "from remediator.cli import main; main()"


class Program:
    """``remediator run``, killed and begun again under the same name."""

    def __init__(self, zygote: Zygote, site: Site, server: str) -> None:
        self._zygote = zygote
        self._lock = threading.Lock()
        self._log = site.folder / "remediator.log"
        kubeconfig = site.cluster.kubeconfig_for(site.token)
        text = kubeconfig.read_text("utf-8").replace(site.cluster.plane.url, server)
        kubeconfig.write_text(text, "utf-8")
        self._argv = [
            "remediator",
            "run",
            f"--policies={site.policies}",
            f"--config={site.folder / 'config.yaml'}",
            f"--kubeconfig={kubeconfig}",
            f"--namespace={site.cluster.namespace}",
            "--identity=one",
            "--listen=127.0.0.1:0",
            "--lease-duration=2m",
            "--renew-deadline=1m",
            "--retry-period=500ms",
            "--log-format=json",
        ]
        self._pid: int | None = None
        self.deaths = 0

    def tend(self) -> None:
        """Begin it if it does not run; it must not have ended by itself."""
        with self._lock:
            if self._pid is None:
                self._pid = self._zygote.start(self._argv, log=self._log)
            status = self._zygote.status(self._pid)
        assert status is None, f"it ended ({status}): {self._log.read_text()[-3000:]}"

    def kill(self) -> None:
        """End it at once."""
        with self._lock:
            if self._pid is not None:
                pid, self._pid = self._pid, None
                self._zygote.kill(pid)
                self.deaths += 1


class Run(NamedTuple):
    """What one journey came to; `writes`: those that were counted."""

    end: End
    effects: Counter[str]
    writes: int
    deaths: int
    keys: dict[str, set[str]]
    """By message, the keys under which it was sent."""


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote(IMPORTS, CODE) as made:
        yield made


@pytest.mark.parametrize("name", JOURNEYS)
def test_killed_at_any_write_it_comes_to_the_same_end(
    control_plane: ControlPlane, zygote: Zygote, tmp_path: Path, name: str
) -> None:
    def run(killed_at: int | None) -> Run:
        folder = tmp_path / str(killed_at)
        folder.mkdir()
        return travel(control_plane, zygote, folder, JOURNEYS[name], killed_at)

    calm = run(None)
    assert calm.deaths == 0
    assert max(calm.effects.values()) == 1, calm.effects
    runs = [run(at) for at in range(1, calm.writes + 1)]
    for at, one in enumerate(runs, start=1):
        assert one.end == calm.end, at
        assert one.effects == calm.effects, at
        assert all(len(keys) == 1 for keys in one.keys.values()), (at, one.keys)
    died = sum(one.deaths for one in runs)
    assert died >= 0.8 * len(runs), "some writes are joined, by time; most are not"


def travel(
    plane: ControlPlane, zygote: Zygote, folder: Path, kind: type[Journey], killed_at: int | None
) -> Run:
    """Make a journey in a namespace of its own, with the program killed at its n-th write."""
    unique = f"killed-{uuid.uuid4().hex[:8]}"
    cluster = Cluster(plane, namespace=unique, prefix=f"{unique}-")
    cluster.install()
    try:
        with Receiver() as receiver, proxy_of(cluster) as proxy:
            journey = kind(Site(cluster, folder, cluster.controller_token()), receiver)
            program = Program(zygote, journey.site, proxy.url)
            rule = proxy.add(
                Strike(program.kill),
                method="POST|PUT|PATCH|DELETE",
                path=COUNTED,
                skip=10_000 if killed_at is None else killed_at - 1,
                times=1,
            )
            try:
                journey.travel(program.tend)
            finally:
                deaths = program.deaths
                program.kill()
            keys: dict[str, set[str]] = {}
            for told in receiver.got:
                names = [told.body["key"]] if told.path == "/service" else keys_of(told.body)
                for name in names:
                    keys.setdefault(name, set()).add(told.key)
            return Run(journey.end(), journey.effects(proxy.writes), rule.seen, deaths, keys)
    finally:
        cluster.close()
