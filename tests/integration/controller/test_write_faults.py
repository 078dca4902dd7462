"""Each kind of write meets each kind of trouble once: the end is that of a calm run.

A fault falls on every write path of a journey, on its first request there; the rule's count
proves that it did. What the program changed in the cluster it changed as often as without: what
is repeated after a lost answer meets what is there already.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from testbed.cluster import Cluster
from testbed.controlplane import ControlPlane
from testbed.faultproxy import Action, Answer, Drop, FaultProxy, Hang, Rule
from testbed.receiver import Receiver
from tests.integration.controller.conftest import Site, proxy_of
from tests.integration.controller.journeys import JOURNEYS, End


pytestmark = pytest.mark.cluster

FAULTS: Final[Mapping[str, Action]] = {
    "409": Answer(409, reason="Conflict"),
    "429": Answer(429, reason="TooManyRequests", retry_after=1),
    "500": Answer(500, reason="InternalError"),
    "dropped": Drop(),
    "answer-lost": Drop(forwarded=True),
    "hung": Hang(),
}


class Place(NamedTuple):
    """Where a kind of write goes."""

    method: str
    target: str
    body: bytes = b""


NODE: Final = r"^/api/v1/nodes/[^/?]+(\?|$)"
CONFIGMAPS: Final = r"/configmaps(\?|$)"
COMMON: Final[Mapping[str, Place]] = {
    "begin": Place("PATCH", NODE, b'"unschedulable":true'),
    "end": Place("PATCH", NODE, b'"gpu-remediator.io/session":null'),
    "event": Place("POST", r"/events(\?|$)"),
}
DOCUMENTS: Final = tuple(f"gpu-remediator-{name}" for name in ("state", "messages", "status"))
THEY_EXIST: Final = frozenset({"drain", "stopped"})
"""Journeys where somebody made the ConfigMaps before: they are patched, elsewhere created."""
OF_A_JOURNEY: Final[Mapping[str, Mapping[str, Place]]] = {
    "marks": {"undo": Place("PATCH", NODE, b'"taints":[{"key":"node.')},
    "drain": {
        "eviction": Place("POST", r"/pods/work-a/eviction"),
        "conditions": Place("PATCH", r"^/api/v1/nodes/[^/]+/status"),
    },
    "jobs": {
        "job": Place("POST", r"/jobs(\?|$)", b'"reset-'),
        "reboot": Place("POST", r"/jobs(\?|$)", b'"reboot-'),
        "object": Place("POST", CONFIGMAPS, b'"request-'),
        "approval": Place("PATCH", NODE, b'"gpu-remediator.io/approval":null'),
    },
    "stopped": {"job": Place("POST", r"/jobs(\?|$)"), "deletion": Place("DELETE", r"/jobs/")},
}


@dataclass
class Outcome:
    end: End
    effects: Counter[str]
    rules: dict[str, Rule] = field(default_factory=dict)


Travel = Callable[..., Outcome]


@pytest.fixture
def travel(control_plane: ControlPlane, tmp_path: Path) -> Travel:
    """Make a journey, with a fault on the first request of some paths."""
    return partial(_travel, control_plane, tmp_path)


@pytest.fixture(scope="module")
def calm(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Travel:
    """Return what an undisturbed journey comes to; it is made once."""
    known: dict[str, Outcome] = {}

    def of(name: str) -> Outcome:
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            known[name] = _travel(control_plane, folder, name)
        return known[name]

    return of


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", JOURNEYS)
def test_a_fault_on_every_write_path_changes_nothing(
    travel: Travel, calm: Travel, name: str, fault: str
) -> None:
    expected = calm(name)
    documents = {
        one: Place("PATCH", rf"/configmaps/{one}")
        if name in THEY_EXIST
        else Place("POST", CONFIGMAPS, f'"{one}"'.encode())
        for one in DOCUMENTS
    }
    found = travel(name, {**COMMON, **OF_A_JOURNEY[name], **documents}, FAULTS[fault])
    assert not missed(found.rules), "a path that no request went"
    assert found.end == expected.end
    assert found.effects == expected.effects


def _travel(
    plane: ControlPlane,
    folder: Path,
    name: str,
    paths: Mapping[str, Place] | None = None,
    fault: Action | None = None,
) -> Outcome:
    with somewhere(plane, folder) as (site, proxy), Receiver() as receiver:
        journey = JOURNEYS[name](site, receiver)
        if name in THEY_EXIST:
            path = f"/api/v1/namespaces/{site.cluster.namespace}/configmaps"
            for one in DOCUMENTS:
                site.cluster.api.create(path, {"metadata": {"name": one}})
        rules = {} if fault is None else add_rules(proxy, paths or {}, fault)
        replica = site.replica(server=proxy.url).start()
        try:
            journey.travel(lambda: None)
            with suppress(TimeoutError):  # the test says which
                site.cluster.wait_for(
                    lambda: not missed(rules), what="a request on each path", timeout=20.0
                )
        finally:
            replica.stop()
        assert replica.error is None
        return Outcome(journey.end(), journey.effects(proxy.writes), rules)


@contextmanager
def somewhere(plane: ControlPlane, folder: Path) -> Iterator[tuple[Site, FaultProxy]]:
    """A namespace of its own, and a proxy before the server."""
    unique = f"faults-{uuid.uuid4().hex[:8]}"
    cluster = Cluster(plane, namespace=unique, prefix=f"{unique}-")
    cluster.install()
    try:
        with proxy_of(cluster) as proxy:
            yield Site(cluster, folder, cluster.controller_token()), proxy
    finally:
        cluster.close()


def add_rules(proxy: FaultProxy, paths: Mapping[str, Place], fault: Action) -> dict[str, Rule]:
    return {
        name: proxy.add(fault, method=path.method, path=path.target, body=path.body, times=1)
        for name, path in paths.items()
    }


def missed(rules: Mapping[str, Rule]) -> list[str]:
    """Return the paths that no request went."""
    return [name for name, rule in rules.items() if not rule.hits]
