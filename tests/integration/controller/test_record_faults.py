"""What the program writes of itself meets each kind of trouble once: the end is that of a calm run.

Its record of a session, its word on a policy that is an object, and its address as the leader.
They are written behind what it does to nodes, which is not to wait for any of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from testbed import manifests
from testbed.api import ApiError, Json
from testbed.controlplane import ControlPlane
from testbed.faultproxy import Action
from testbed.processes import free_port
from testbed.receiver import Receiver
from tests.integration.controller.conftest import Site
from tests.integration.controller.journeys import End, Marks
from tests.integration.controller.test_write_faults import (
    FAULTS,
    Place,
    add_rules,
    missed,
    somewhere,
)


pytestmark = pytest.mark.cluster

OWN: Final = "/apis/gpu-remediator.io/v1alpha1"
PLACES: Final[Mapping[str, Place]] = {
    "record": Place("POST", r"/remediations(\?|$)"),
    "what became of it": Place("PATCH", r"/remediations/[^/]+/status", b'"Ended"'),
    "policy": Place("PATCH", r"/remediationpolicies/watched/status"),
    "address": Place("PATCH", r"/endpointslices/"),
}


class Outcome(NamedTuple):
    end: End
    records: list[Json]
    policy: list[tuple[str, str]]
    addresses: list[str]


@pytest.fixture(scope="module")
def calm(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return _travel(control_plane, tmp_path_factory.mktemp("calm"), None)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_on_what_it_writes_of_itself_changes_nothing(
    control_plane: ControlPlane, tmp_path: Path, calm: Outcome, fault: str
) -> None:
    assert [one["phase"] for one in calm.records] == ["Ended"]
    assert (calm.policy, calm.addresses) == ([("Accepted", "True")], ["10.9.8.7"])
    assert _travel(control_plane, tmp_path, FAULTS[fault]) == calm


def _travel(plane: ControlPlane, folder: Path, fault: Action | None) -> Outcome:
    with somewhere(plane, folder) as (site, proxy), Receiver() as receiver:
        look = partial(_look, site)
        manifests.install_crds(site.cluster.api)
        site.wait(lambda: _served(look), "the kinds")
        journey = Marks(site, receiver)
        port = free_port()
        _configure(site)
        rules = {} if fault is None else add_rules(proxy, PLACES, fault)
        replica = site.replica(
            server=proxy.url,
            policies_from="both",
            webhook_listen=f"127.0.0.1:{port}",
            pod_ip="10.9.8.7",
        ).start()
        try:
            journey.travel(lambda: None)
            with suppress(TimeoutError):  # the test says which
                site.cluster.wait_for(lambda: _settled(site), what="the records", timeout=30.0)
        finally:
            replica.stop()
        assert replica.error is None
        assert not missed(rules), "a path that no request went"
        return Outcome(
            journey.end(),
            [_record(one["status"]) for one in look("remediations")],
            [(one["type"], one["status"]) for one in _policy(look).get("conditions", [])],
            _addresses(site),
        )


def _configure(site: Site) -> None:
    """Have a webhook, and beside the journey's policy one that is an object."""
    file = site.folder / "config.yaml"
    config = json.loads(file.read_text(encoding="utf-8"))
    (site.folder / "token").write_text("word", encoding="utf-8")
    config["spec"] |= {
        "webhook": {"bearerTokenFile": "token"},
        "alertmanagers": [{"name": "main", "webhookOnly": True}],
    }
    file.write_text(json.dumps(config), encoding="utf-8")
    policy = {
        "apiVersion": "gpu-remediator.io/v1alpha1",
        "kind": "RemediationPolicy",
        "metadata": {"name": "watched"},
        "spec": {"when": [{"xid": {"codes": [48]}}], "steps": [{"cordon": {}}]},
    }
    path = f"{OWN}/namespaces/{site.cluster.namespace}/remediationpolicies"
    site.cluster.api.create(path, policy)


def _look(site: Site, kind: str) -> list[Json]:
    found: list[Json] = site.cluster.api.get(f"{OWN}/namespaces/{site.cluster.namespace}/{kind}")[
        "items"
    ]
    return found


Look = Callable[[str], list[Json]]


def _served(look: Look) -> bool:
    with suppress(ApiError):
        return all(look(kind) == [] for kind in ("remediations", "remediationpolicies"))
    return False


def _settled(site: Site) -> bool:
    look = partial(_look, site)
    records = [one.get("status", {}).get("phase") for one in look("remediations")]
    return records == ["Ended"] and bool(_policy(look)) and bool(_addresses(site))


def _policy(look: Look) -> Json:
    (found,) = look("remediationpolicies")
    status: Json = found.get("status", {})
    return status


def _record(status: Json) -> Json:
    """Return what a record says, without names and times of its run."""
    steps = [(one["action"], one["state"]) for one in status.get("steps", [])]
    return {"phase": status["phase"], "result": status["result"], "steps": steps}


def _addresses(site: Site) -> list[str]:
    path = f"/apis/discovery.k8s.io/v1/namespaces/{site.cluster.namespace}/endpointslices"
    return [
        address
        for one in site.cluster.api.get(path)["items"]
        for endpoint in one["endpoints"]
        for address in endpoint["addresses"]
    ]
