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
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from testbed.cluster import Cluster
from testbed.controlplane import ControlPlane
from testbed.faultproxy import Answer, FaultProxy, Strike
from testbed.receiver import Receiver
from testbed.zygote import Zygote
from tests.integration.controller.conftest import Site, proxy_of
from tests.integration.controller.journeys import JOURNEYS, End, Journey, keys_of


pytestmark = pytest.mark.cluster

COUNTED = r"^(?!.*(/leases|/remediations|/configmaps/gpu-remediator-status))"
"""All writes but those of the lease and of two views that nothing reads again."""
TRIES = 2
"""To take back, before the program is killed."""
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


def test_killed_amid_its_tries_to_take_a_job_back_the_next_one_deletes_it(
    control_plane: ControlPlane, zygote: Zygote, tmp_path: Path
) -> None:
    """The session is over by then, and has no word of the Job: it is found by itself."""
    with setting(control_plane, zygote, tmp_path, JOURNEYS["stopped"]) as (journey, program, proxy):
        failing = Answer(500, reason="InternalError")
        refused = proxy.add(failing, method="DELETE", path=r"/jobs/")

        def tend() -> None:
            if refused.hits >= TRIES and not program.deaths:
                assert journey.site.session(journey.node) is None
                program.kill()
                proxy.clear()
            program.tend()

        journey.travel(tend)
        assert program.deaths == 1
        assert journey.end().objects == ()
        assert journey.effects(proxy.writes)["DELETE jobs reset"] == 1
        assert "job_swept" in (tmp_path / "remediator.log").read_text("utf-8")


def travel(
    plane: ControlPlane, zygote: Zygote, folder: Path, kind: type[Journey], killed_at: int | None
) -> Run:
    """Make a journey, with the program killed at its n-th write."""
    with setting(plane, zygote, folder, kind) as (journey, program, proxy):
        rule = proxy.add(
            Strike(program.kill),
            method="POST|PUT|PATCH|DELETE",
            path=COUNTED,
            skip=10_000 if killed_at is None else killed_at - 1,
            times=1,
        )
        journey.travel(program.tend)
        deaths = program.deaths
        program.kill()
        keys: dict[str, set[str]] = {}
        for told in journey.receiver.got:
            names = [told.body["key"]] if told.path == "/service" else keys_of(told.body)
            for name in names:
                keys.setdefault(name, set()).add(told.key)
        return Run(journey.end(), journey.effects(proxy.writes), rule.seen, deaths, keys)


@contextmanager
def setting(
    plane: ControlPlane, zygote: Zygote, folder: Path, kind: type[Journey]
) -> Iterator[tuple[Journey, Program, FaultProxy]]:
    """A journey in a namespace of its own, and the program behind a proxy; it does not run yet."""
    unique = f"killed-{uuid.uuid4().hex[:8]}"
    cluster = Cluster(plane, namespace=unique, prefix=f"{unique}-")
    cluster.install()
    try:
        with Receiver() as receiver, proxy_of(cluster) as proxy:
            journey = kind(Site(cluster, folder, cluster.controller_token()), receiver)
            program = Program(zygote, journey.site, proxy.url)
            try:
                yield journey, program, proxy
            finally:
                program.kill()
    finally:
        cluster.close()
