"""Server dry-run: the real API server answers what it would do, and nothing changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from testbed.api import Json
from testbed.manifests import DEPLOY, apply, read, relocated


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site


pytestmark = pytest.mark.cluster

TEMPLATE: Json = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {},
    "spec": {
        "template": {"spec": {"containers": [{"name": "reset", "image": "example/reset"}]}},
    },
}
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


def dry(site: Site, **spec: Any) -> None:
    (site.folder / "reset.yaml").write_text(json.dumps(TEMPLATE), encoding="utf-8")
    templates = {"reset": {"file": "reset.yaml"}}
    site.config("DryRun", **{"dryRun": "Server", "templates": templates, **spec})


def server_of(site: Site, node: str) -> str:
    return "\n".join((site.status_of(node) or {}).get("server", []))


def answers(controller: Replica) -> dict[tuple[str, str], float]:
    """The counter, by action and result."""
    metrics = controller.controller._metrics
    return {
        (sample.labels["action"], sample.labels["result"]): sample.value
        for family in metrics.dry_run_answers.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    }


def dry_requests(site: Site) -> list[str]:
    """What was sent with dryRun=All, as ``verb resource``."""
    account = f"system:serviceaccount:{site.cluster.namespace}:gpu-remediator"
    found = []
    for entry in site.cluster.plane.audit_entries():
        if entry["user"]["username"] == account and "responseStatus" in entry:
            about = entry.get("objectRef", {})
            body = entry.get("requestObject", {})  # of a deletion: its options
            options = body.get("deleteOptions", body)
            if "dryRun=All" in entry["requestURI"] or options.get("dryRun") == ["All"]:
                sub = f"/{about['subresource']}" if "subresource" in about else ""
                found.append(f"{entry['verb']} {about['resource']}{sub}")
    return found


@pytest.fixture
def denies(site: Site) -> Iterator[str]:
    """An admission policy that lets nobody cordon a node with this label."""
    name = f"no-cordon-{site.cluster.namespace}"
    label = "example.com/hands-off"
    policy: Json = {
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["UPDATE"],
                        "resources": ["nodes"],
                    }
                ]
            },
            "validations": [
                {
                    "expression": f"!has(object.metadata.labels) || !('{label}' in"
                    " object.metadata.labels) || !has(object.spec.unschedulable) ||"
                    " !object.spec.unschedulable",
                    "message": "the platform team says hands off",
                }
            ],
        },
    }
    api = site.cluster.api
    api.create(POLICIES, policy)
    api.create(
        BINDINGS,
        {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}},
    )
    yield label
    api.delete(f"{BINDINGS}/{name}")
    api.delete(f"{POLICIES}/{name}")


def refuses_to_cordon(site: Site, node: str) -> bool:
    """Whether the policy is in force yet; it takes the server a second or two."""
    try:
        site.cluster.api.patch(
            f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}}, dryRun="All"
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, it says so
        return "hands off" in str(error)
    return False


def test_what_would_succeed_is_asked_and_changes_nothing(
    site: Site, run: Callable[..., Replica]
) -> None:
    apply(
        site.cluster.api,
        relocated(read(DEPLOY / "controller" / "optional" / "jobs.yaml"), site.cluster.namespace),
    )
    dry(site)
    taint = {"taint": {"key": "gpu-remediator.io/faulty", "effect": "NoSchedule"}}
    drain = {"drain": {"despite": ["unmanaged"]}}
    site.policy(steps=[{"cordon": {}}, taint, {"label": {"set": {"a": "b"}}}, drain])
    site.policy("reset", steps=[{"cordon": {}}, {"job": {"template": "reset"}}])
    node = site.node()
    site.cluster.create_pod(node=node, running=True, name="victim")
    site.says(node)
    controller = run()
    site.says(node, 79)
    before = site.cluster.resource_versions()

    def asked() -> bool:
        found = answers(controller)
        return {action for action, _ in found} >= {"cordon", "drain", "job"}

    site.wait(asked, "answers about cordon, drain and job")
    assert {result for _, result in answers(controller)} == {"accepted"}
    assert server_of(site, node) == ""
    assert site.cluster.resource_versions() == before
    jobs = site.cluster.api.get(f"/apis/batch/v1/namespaces/{site.cluster.namespace}/jobs")
    assert jobs["items"] == []
    asked_for = dry_requests(site)
    assert {"patch nodes", "create pods/eviction", "create jobs"} <= set(asked_for)
    assert not site.events(node)


def test_a_right_that_is_missing_is_named_with_its_rule(
    site: Site, run: Callable[..., Replica]
) -> None:
    dry(site)
    site.policy(steps=[{"job": {"template": "reset"}}])
    node = site.node()
    site.says(node)
    controller = run()
    site.says(node, 79)

    site.wait(lambda: "would be refused" in server_of(site, node), "the refusal")
    said = server_of(site, node)
    assert "job would be refused" in said
    assert 'resources: ["jobs"], verbs: ["create"]' in said
    assert answers(controller)["job", "refused"] == 1


def test_an_admission_policy_that_denies_is_reported(
    site: Site, run: Callable[..., Replica], denies: str
) -> None:
    dry(site)
    node = site.node(labels={denies: "true"})
    site.wait(lambda: refuses_to_cordon(site, node), "the admission policy")
    site.says(node)
    run()
    site.says(node, 79)
    before = site.cluster.resource_versions()

    site.wait(lambda: "hands off" in server_of(site, node), "the refusal")
    assert server_of(site, node).startswith("cordon would be refused: ")
    shown = site.status_of(node)
    assert shown is not None
    assert shown["phase"] == "in-session", "the plan goes on"
    assert site.cluster.resource_versions() == before


def test_a_budget_that_holds_a_pod_is_reported(site: Site, run: Callable[..., Replica]) -> None:
    dry(site)
    site.policy(steps=[{"cordon": {}}, {"drain": {"despite": ["unmanaged"]}}])
    node = site.node()
    pod = site.cluster.create_pod(node=node, running=True, labels={"app": "db"})
    path = f"/apis/policy/v1/namespaces/{site.cluster.namespace}/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "db"}}}
    site.cluster.api.create(path, {"metadata": {"name": "db-budget"}, "spec": spec})
    site.wait(
        lambda: site.cluster.api.get(f"{path}/db-budget").get("status", {}).get("currentHealthy"),
        "the budget",
    )
    site.says(node)
    run()
    site.says(node, 79)

    site.wait(lambda: "drain would be held" in server_of(site, node), "the blocker")
    said = server_of(site, node)
    assert "0 of 1 pods would be evicted; 1 held by a PodDisruptionBudget" in said
    assert pod in said
    assert "deletionTimestamp" not in site.cluster.pod(pod)["metadata"]


def test_a_pod_that_would_be_deleted_is_asked_about_and_stays(
    site: Site, run: Callable[..., Replica]
) -> None:
    apply(
        site.cluster.api,
        relocated(
            read(DEPLOY / "controller" / "optional" / "drain-delete.yaml"), site.cluster.namespace
        ),
    )
    dry(site)
    rule = {"deleteAfter": {"timeout": "0s"}, "despite": ["unmanaged"]}
    site.policy(steps=[{"cordon": {}}, {"drain": {"pods": [rule]}}])
    node = site.node()
    pod = site.cluster.create_pod(node=node, running=True)
    site.says(node)
    controller = run()
    before = site.cluster.pod(pod)
    site.says(node, 79)

    site.wait(lambda: "delete pods" in dry_requests(site), "the question")
    site.wait(lambda: answers(controller).get(("drain", "accepted")) == 2, "patch and deletion")
    assert site.cluster.pod(pod) == before


def test_the_client_dry_run_asks_nothing(site: Site, run: Callable[..., Replica]) -> None:
    dry(site, dryRun="Client")
    node = site.node()
    site.says(node)
    run()
    site.says(node, 79)
    site.wait(lambda: (site.status_of(node) or {}).get("phase") == "in-session", "the session")
    assert dry_requests(site) == []
