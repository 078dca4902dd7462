"""The API server takes the CRDs, takes every shipped policy, and refuses what the model refuses."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from ruamel.yaml import YAML

from testbed import manifests
from testbed.api import ApiError, Json
from testbed.cluster import Cluster


pytestmark = pytest.mark.cluster

POLICIES = manifests.DEPLOY.parent / "policies"
EXAMPLES = manifests.DEPLOY.parent / "examples" / "policies"
SHIPPED = sorted(
    one
    for folder in (POLICIES, EXAMPLES)
    for one in folder.glob("*.yaml")
    if ".test." not in one.name
)


@pytest.fixture
def create(cluster: Cluster) -> Callable[[Json], Json]:
    manifests.install_crds(cluster.api)
    path = f"/apis/gpu-remediator.io/v1alpha1/namespaces/{cluster.namespace}/remediationpolicies"
    cluster.wait_for(lambda: _served(cluster, path), what="the kind to be served")

    def made(document: Json) -> Json:
        return cluster.api.create(path, document, fieldValidation="Strict")

    return made


def _served(cluster: Cluster, path: str) -> bool:
    try:
        cluster.api.get(path)
    except ApiError:
        return False
    return True


def policy(**spec: Any) -> Json:
    return {
        "apiVersion": "gpu-remediator.io/v1alpha1",
        "kind": "RemediationPolicy",
        "metadata": {"name": "p"},
        "spec": {"when": [{"xid": {"codes": [79]}}], "steps": [{"cordon": {}}], **spec},
    }


def test_every_shipped_policy_is_taken_unchanged(create: Callable[[Json], Json]) -> None:
    for file in SHIPPED:
        document = YAML(typ="safe", pure=True).load(file.read_text())
        made = create(copy.deepcopy(document))
        assert made["spec"] == document["spec"], file.name


def test_the_default_mode_is_dry_run(create: Callable[[Json], Json]) -> None:
    assert create(policy())["spec"]["mode"] == "DryRun"


REFUSED: dict[str, tuple[Json, str]] = {
    "no step": ({"steps": []}, "at least 1 items"),
    "two actions": ({"steps": [{"cordon": {}, "event": {}}]}, "a step is exactly one of"),
    "no action": ({"steps": [{"timeout": "5m"}]}, "a step is exactly one of"),
    "unknown action": ({"steps": [{"dance": {}}]}, "unknown field"),
    "NoExecute": ({"steps": [{"taint": {"effect": "NoExecute"}}]}, "evicts daemons"),
    "failOn alone": (
        {"steps": [{"create": {"template": "x", "failOn": {"type": "Failed"}}}]},
        "failOn is looked at while the step waits",
    ),
    "clearFor alone": (
        {"when": [{"condition": {"type": "Hot", "clearFor": "1m"}}]},
        "clearFor says when `for` begins anew",
    ),
    "wait for nothing": ({"steps": [{"wait": {}}]}, "exactly one of: condition, for"),
    "approve and go on": (
        {"steps": [{"approve": {}, "onFailure": "continue"}]},
        "does not go on without",
    ),
    "pod rule": (
        {"steps": [{"drain": {"pods": [{"evict": {}, "skip": {}}]}}]},
        "a pod rule is exactly one of",
    ),
    "no fault": ({"when": [{"attempts": {"atLeast": 2}}]}, "an entry needs at least one of"),
    "no fault within": (
        {"when": [{"any": [{"all": [{"cel": "true"}]}]}]},
        "an entry needs at least one of",
    ),
    "any alert": ({"when": [{"alert": {}}]}, "every alert is meant"),
    "two counts": (
        {"when": [{"count": {"xid": [1], "sxid": [2], "atLeast": 2}}]},
        "exactly one of: xid, sxid",
    ),
    "selector": (
        {"nodes": {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}},
        "at least one value",
    ),
    "window of no length": ({"windows": [{"end": "00:00"}]}, "needs a length"),
    "window back in time": (
        {"windows": [{"from": "2026-02-01", "until": "2026-01-01"}]},
        "before it begins",
    ),
    "codes and how bad": (
        {"when": [{"xid": {"codes": [79], "minSeverity": "fatal"}}]},
        "exactly one of: codes, minSeverity",
    ),
    "except of codes": (
        {"when": [{"xid": {"codes": [79], "except": [63]}}]},
        "except narrows minSeverity",
    ),
    "bare duration": ({"recover": {"for": 600}}, "must be of type string"),
    "percent": ({"limits": {"budget": {"maxUnavailable": "110%"}}}, "should match"),
    "negative": ({"limits": {"budget": {"maxUnavailable": -1}}}, "greater than or equal to 0"),
    "mode": ({"mode": "dryrun"}, "supported values"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_model_refuses_the_server_refuses(
    create: Callable[[Json], Json], name: str
) -> None:
    spec, words = REFUSED[name]
    with pytest.raises(ApiError) as refusal:
        create(policy(**spec))
    assert refusal.value.status in {400, 422}
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    "spec",
    [
        {"limits": {"budget": {"maxUnavailable": 3}, "rate": {"cordon": "010/1h30m"}}},
        {"limits": {"budget": {"maxUnavailable": "10%"}}},
        {"steps": [{"wait": {"for": "5m"}}, {"approve": {"to": ["log"]}}]},
        {"windows": [{"days": ["Mon"], "start": "22:00", "end": "05:00", "from": "2026-01-01"}]},
        {"when": [{"any": [{"all": [{"xid": {"codes": [79]}}]}], "cel": "true"}]},
        {"when": [{"xid": {"minSeverity": "warning", "except": [63, 94]}}]},
    ],
)
def test_what_the_model_takes_the_server_takes(create: Callable[[Json], Json], spec: Json) -> None:
    create(policy(**spec))
