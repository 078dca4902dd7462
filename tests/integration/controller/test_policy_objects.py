"""Policies as objects, with a real controller: in force, edited, invalid, twice, deleted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest

from remediator.decide.session import MODE_KEY
from testbed import manifests
from testbed.api import MERGE_PATCH, ApiError, Json


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site

pytestmark = pytest.mark.cluster


class Objects:
    """The RemediationPolicy objects of a site."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.path = (
            f"/apis/gpu-remediator.io/v1alpha1/namespaces/{site.cluster.namespace}"
            "/remediationpolicies"
        )

    def served(self) -> bool:
        try:
            self.site.cluster.api.get(self.path)
        except ApiError:
            return False
        return True

    def create(self, name: str = "xid-79", mode: str = "Enforce", **spec: Any) -> None:
        whole = {
            "mode": mode,
            "when": [{"xid": {"codes": [79]}}],
            "steps": [{"cordon": {}}],
            "recover": {"for": "0s"},
            **spec,
        }
        document = {
            "apiVersion": "gpu-remediator.io/v1alpha1",
            "kind": "RemediationPolicy",
            "metadata": {"name": name},
            "spec": whole,
        }
        self.site.cluster.api.create(self.path, document)

    def edit(self, name: str = "xid-79", **spec: Any) -> None:
        self.site.cluster.api.patch(f"{self.path}/{name}", {"spec": spec}, content_type=MERGE_PATCH)

    def delete(self, name: str = "xid-79") -> None:
        self.site.cluster.api.delete(f"{self.path}/{name}")

    def status(self, name: str = "xid-79") -> Json:
        found: Json = self.site.cluster.api.get(f"{self.path}/{name}")
        status: Json = found.get("status", {})
        return status if status.get("observedGeneration") == found["metadata"]["generation"] else {}

    def accepted(self, name: str = "xid-79") -> str:
        """Status and reason of the condition about the newest version, "" before there is one."""
        conditions = self.status(name).get("conditions", [])
        return "".join(f"{one['status']} {one['reason']}" for one in conditions)

    def says(self, name: str = "xid-79") -> str:
        return str(self.status(name)["conditions"][0]["message"])


@pytest.fixture
def objects(site: Site) -> Objects:
    """No policy file, and the kind is there."""
    shutil.rmtree(site.policies)
    manifests.install_crds(site.cluster.api)
    made = Objects(site)
    site.wait(made.served, "the kind")
    return made


def gone(site: Site, path: str) -> bool:
    return site.cluster.api.raw("GET", path)[0] == HTTPStatus.NOT_FOUND


def in_force(site: Site) -> dict[str, str]:
    """Name and version of each policy, by the status document."""
    return {one["name"]: one["version"] for one in site.status().get("policies", [])}


def test_a_policy_that_is_an_object(objects: Objects, run: Callable[..., Replica]) -> None:
    site, node = objects.site, objects.site.node()
    objects.create()
    run(policies_from="crds")
    site.says(node, 79)
    site.wait(lambda: site.cordoned(node), "cordon")
    site.wait(lambda: objects.status().get("matchedNodes") == 1, "the status")
    status = objects.status()
    assert objects.accepted() == "True InForce"
    assert status["effectiveMode"] == "Enforce"
    assert [one["node"] for one in status["nodes"]] == [node]
    assert status["nodes"][0]["sentence"]

    second = site.node()
    site.cluster.annotate(second, {MODE_KEY: "notify-only"})
    site.says(second, 79)
    site.wait(lambda: objects.status().get("heldBy") == "opt-out", "the hold of the second one")
    (held,) = [one for one in objects.status()["nodes"] if one["node"] == second]
    assert held["heldBy"] == "opt-out"
    assert held["whyHeld"] == f"opt-out: the node says {MODE_KEY}: notify-only"

    objects.edit(mode="Disabled")  # its session goes on; no new one begins
    site.wait(lambda: objects.status().get("effectiveMode") == "Disabled", "the edit")


def test_an_invalid_edit_keeps_what_is_in_force_and_says_so(
    objects: Objects, run: Callable[..., Replica]
) -> None:
    site = objects.site
    objects.create()
    run(policies_from="crds")
    site.wait(lambda: objects.accepted() == "True InForce", "the policy")
    before = in_force(site)

    # The API server cannot know which channels there are.
    objects.edit(steps=[{"cordon": {}}, {"notify": {"to": ["nowhere"]}}])
    site.wait(lambda: objects.accepted() == "False Stale", "the verdict")
    assert "spec.steps[1].notify.to[0]: nowhere is no channel" in objects.says()
    assert "the version before stays in force" in objects.says()
    assert in_force(site) == before
    assert any("nowhere" in one["message"] for one in site.status()["policyProblems"])
    node = site.node()
    site.says(node, 79)
    site.wait(lambda: site.cordoned(node), "cordon by the version before")

    objects.edit(steps=[{"cordon": {}}, {"notify": {"to": ["log"]}}])
    site.wait(lambda: objects.accepted() == "True InForce", "the good edit")
    assert in_force(site) != before


def test_one_that_was_never_right_is_not_in_force(
    objects: Objects, run: Callable[..., Replica]
) -> None:
    site = objects.site
    objects.create(windows=[{"timeZone": "Europe/Nowhere"}])
    run(policies_from="crds")
    site.wait(lambda: objects.accepted() == "False Invalid", "the verdict")
    assert "is no time zone" in objects.says()
    assert in_force(site) == {}


def test_what_is_deleted_is_no_longer_in_force(
    objects: Objects, run: Callable[..., Replica]
) -> None:
    site = objects.site
    run(policies_from="crds")
    objects.create()
    site.wait(lambda: "xid-79" in in_force(site), "the policy")
    objects.delete()
    site.wait(lambda: in_force(site) == {}, "its end")


def test_a_name_in_both_homes_is_an_error_that_names_both(
    objects: Objects, run: Callable[..., Replica]
) -> None:
    site = objects.site
    site.policy()
    objects.create()
    objects.create("other")
    run(policies_from="both")
    site.wait(lambda: objects.accepted() == "False Invalid", "the verdict")
    assert "a policy named xid-79 is in" in objects.says()
    assert "xid-79.yaml already" in objects.says()
    site.wait(lambda: objects.accepted("other") == "True InForce", "the other")
    (problem,) = site.status()["policyProblems"]
    assert problem["source"] == "remediationpolicies.gpu-remediator.io/xid-79"
    assert sorted(in_force(site)) == ["other", "xid-79"]

    (site.policies / "xid-79.yaml").unlink()
    site.wait(lambda: objects.accepted() == "True InForce", "the object in its place")


def test_files_alone_never_ask_for_objects(objects: Objects, run: Callable[..., Replica]) -> None:
    site = objects.site
    site.policy("of-a-file")
    objects.create()
    run()
    site.wait(lambda: in_force(site), "the policies")
    assert list(in_force(site)) == ["of-a-file"]


def test_without_the_permission_files_go_on_and_it_is_said(
    objects: Objects, run: Callable[..., Replica]
) -> None:
    site = objects.site
    role = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{site.cluster.namespace}/roles"
    rules = site.cluster.api.get(f"{role}/gpu-remediator")["rules"]
    kept = [one for one in rules if "remediationpolicies" not in one["resources"]]
    site.cluster.api.patch(f"{role}/gpu-remediator", {"rules": kept}, content_type=MERGE_PATCH)
    site.policy()
    node = site.node()
    run(policies_from="both")
    site.says(node, 79)
    site.wait(lambda: site.cordoned(node), "cordon")
    site.wait(lambda: site.status().get("notes"), "the note")
    assert any("policies as objects: not allowed to list" in one for one in site.status()["notes"])


def test_a_kind_that_is_deleted_takes_its_policies_and_nothing_else(
    objects: Objects, run: Callable[..., Replica]
) -> None:
    site = objects.site
    site.policy("of-a-file")
    objects.create("of-an-object", when=[{"xid": {"codes": [48]}}])
    run(policies_from="both")
    site.wait(lambda: len(in_force(site)) == 2, "both policies")
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for kind in ("remediationpolicies", "remediations"):
        site.cluster.api.delete(f"{crds}/{kind}.gpu-remediator.io")
    site.wait(lambda: list(in_force(site)) == ["of-a-file"], "the end of the object")

    node = site.node()
    site.says(node, 79)
    site.wait(lambda: site.cordoned(node), "cordon")

    for kind in ("remediationpolicies", "remediations"):
        site.wait(partial(gone, site, f"{crds}/{kind}.gpu-remediator.io"), "the end")
    manifests.install_crds(site.cluster.api)
    site.wait(objects.served, "the kind")
    objects.create("of-an-object", when=[{"xid": {"codes": [48]}}])
    site.wait(lambda: len(in_force(site)) == 2, "the new object")


def test_an_expression_that_fails_is_a_condition_while_it_does(
    objects: Objects, run: Callable[..., Replica]
) -> None:
    site, node = objects.site, objects.site.node()
    objects.create(when=[{"xid": {"codes": [79]}, "cel": 'labels["tier"] == "prod"'}])
    run(policies_from="crds")
    site.wait(lambda: objects.accepted() == "True InForce", "the policy")
    site.says(node, 79)

    def failure() -> Json | None:
        known = objects.status().get("conditions", [])
        return next((one for one in known if one["type"] == "ExpressionFailed"), None)

    found = site.wait(failure, "the condition")
    assert found["status"] == "True"
    assert node in found["message"]
    assert "tier" in found["message"]
    assert any("its expression fails on 1 nodes" in one for one in site.status()["notes"])

    site.cluster.api.patch(
        f"/api/v1/nodes/{node}",
        {"metadata": {"labels": {"tier": "prod"}}},
        content_type=MERGE_PATCH,
    )
    site.wait(lambda: site.cordoned(node), "cordon")
    site.wait(lambda: objects.accepted() == "True InForce" and not failure(), "its end")
