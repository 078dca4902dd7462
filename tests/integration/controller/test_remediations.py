"""Remediation objects of a real controller on the real API server, and `remediator history`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from remediator.cli.cluster import Target
from remediator.cli.history import show_history
from testbed import manifests
from testbed.api import ApiError, Json


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site

pytestmark = pytest.mark.cluster


def path(site: Site) -> str:
    return f"/apis/gpu-remediator.io/v1alpha1/namespaces/{site.cluster.namespace}/remediations"


def record(site: Site, node: str) -> Json | None:
    try:
        found = site.cluster.api.get(path(site))["items"]
    except ApiError:
        return None
    return next((one for one in found if one["spec"]["node"] == node), None)


def phase(site: Site, node: str) -> str:
    found = record(site, node)
    return "" if found is None else found.get("status", {}).get("phase", "")


@pytest.fixture
def recorded(site: Site) -> Site:
    manifests.install_crds(site.cluster.api)

    def served() -> bool:
        try:
            site.cluster.api.get(path(site))
        except ApiError:
            return False
        return True

    site.wait(served, "the kind")
    return site


def history(
    site: Site, capsys: pytest.CaptureFixture[str], node: str = "", output: str = "table"
) -> str:
    capsys.readouterr()
    kubeconfig = str(site.cluster.kubeconfig_for(site.cluster.plane.admin_token))
    show_history(Target(kubeconfig, None, site.cluster.namespace), node, output=output)
    return capsys.readouterr().out


def test_a_session_leaves_its_record(
    recorded: Site, run: Callable[..., Replica], capsys: pytest.CaptureFixture[str]
) -> None:
    site = recorded
    node = site.node()
    run()
    site.says(node, 79)
    site.wait(lambda: phase(site, node) == "Done", "the record")
    session = site.session(node)
    found = record(site, node)
    assert session is not None
    assert found is not None
    assert found["metadata"]["name"] == session["id"]
    assert found["spec"]["policy"] == "xid-79"
    assert [one["action"] for one in found["status"]["steps"]] == ["cordon"]
    assert found["status"]["added"] == ["cordon"]

    site.says(node)
    site.wait(lambda: phase(site, node) == "Ended", "the end of the record")
    found = record(site, node)
    assert found is not None
    assert (found["status"]["result"], found["status"]["undone"]) == ("Recovered", ["cordon"])

    text = history(site, capsys, node)
    assert "Recovered, xid-79" in text
    assert "step 1 cordon done" in text
    assert "on the node: 1 attempts in the last 24h" in text
    assert node in history(site, capsys)
    document = json.loads(history(site, capsys, node, output="json"))
    assert document["remediations"][0]["status"]["result"] == "Recovered"
    assert document["node"]["history"]["attempts"]


def test_what_a_session_is_about_never_changes(recorded: Site, run: Callable[..., Replica]) -> None:
    site = recorded
    node = site.node()
    run()
    site.says(node, 79)
    site.wait(lambda: phase(site, node) == "Done", "the record")
    found = record(site, node)
    assert found is not None
    with pytest.raises(ApiError, match="never change"):
        site.cluster.api.patch(
            f"{path(site)}/{found['metadata']['name']}",
            {"spec": {"node": "another"}},
            content_type="application/merge-patch+json",
        )


def test_without_the_permission_remediation_goes_on(
    recorded: Site, run: Callable[..., Replica], capsys: pytest.CaptureFixture[str]
) -> None:
    site = recorded
    role = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{site.cluster.namespace}/roles"
    rules = site.cluster.api.get(f"{role}/gpu-remediator")["rules"]
    kept = [one for one in rules if "remediations" not in one["resources"]]
    assert len(kept) < len(rules)
    site.cluster.api.patch(
        f"{role}/gpu-remediator", {"rules": kept}, content_type="application/merge-patch+json"
    )
    node = site.node()
    run()
    site.says(node, 79)
    site.wait(lambda: site.cordoned(node), "cordon")
    site.says(node)
    site.wait(lambda: not site.cordoned(node), "uncordon")
    assert record(site, node) is None
    assert "no record of a session" in history(site, capsys, node)


def test_the_next_controller_goes_on_with_the_record(
    recorded: Site, run: Callable[..., Replica]
) -> None:
    site = recorded
    node = site.node()
    first = run()
    site.says(node, 79)
    site.wait(lambda: phase(site, node) == "Done", "the record")
    first.stop()
    run()

    def ended() -> bool:
        site.says(node)  # the agent's heartbeat
        return phase(site, node) == "Ended"

    site.wait(ended, "the end of the record")
    found = record(site, node)
    assert found is not None
    assert found["status"]["result"] == "Recovered"
    assert len(site.cluster.api.get(path(site))["items"]) == 1
