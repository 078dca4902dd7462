"""An admission policy of the cluster refuses a step: the others go on, and it fails in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest


if TYPE_CHECKING:
    from testbed.api import Json
    from tests.integration.controller.conftest import Replica, Site

pytestmark = pytest.mark.cluster

GROUP = "/apis/admissionregistration.k8s.io/v1"
LABEL = "example.com/forbidden"
STEPS: list[dict[str, Any]] = [
    {"cordon": {}},
    {"label": {"set": {LABEL: "true"}}, "timeout": "3s"},
    {"taint": {}},
]


@pytest.fixture
def denied(site: Site) -> Iterator[str]:
    """The words with which nobody is let set that label on this test's nodes."""
    name = f"no-label-{site.cluster.namespace}"
    words = f"this label is not for you ({site.cluster.namespace})"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"]}
    ours = f"object.metadata.labels['remediator-test'] == '{site.cluster.namespace}'"
    policy: Json = {
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{**rule, "resources": ["nodes"]}]},
            "matchConditions": [
                {
                    "name": "ours",
                    "expression": f"'remediator-test' in object.metadata.labels && {ours}",
                }
            ],
            "validations": [
                {"expression": f"!('{LABEL}' in object.metadata.labels)", "message": words}
            ],
        },
    }
    binding: Json = {
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    api = site.cluster.api
    api.create(f"{GROUP}/validatingadmissionpolicies", policy)
    api.create(f"{GROUP}/validatingadmissionpolicybindings", binding)
    node = site.node()

    def refused() -> bool:
        body = {"metadata": {"labels": {LABEL: "true"}}}
        try:
            api.patch(f"/api/v1/nodes/{node}", body, dryRun="All")
        except Exception as error:  # noqa: BLE001 - whatever it is, it says so
            return words in str(error)
        return False

    site.wait(refused, "the admission policy")
    yield words
    api.delete(f"{GROUP}/validatingadmissionpolicybindings/{name}")
    api.delete(f"{GROUP}/validatingadmissionpolicies/{name}")


def results(site: Site, node: str) -> list[tuple[str, str]]:
    session = site.session(node)
    found = session["holds"][0].get("results", []) if session is not None else []
    return [(one["action"], one["result"]) for one in found]


def test_what_admission_refuses_keeps_nothing_else_away_and_fails_at_its_deadline(
    site: Site, run: Callable[..., Replica], denied: str
) -> None:
    site.policy(steps=STEPS)
    node = site.node()
    run()
    site.says(node, 79)
    site.wait(lambda: site.cordoned(node), "cordon, for itself")
    site.wait(lambda: ("label", "failed") in results(site, node), "the label's failure")
    session = site.session(node)
    assert session is not None
    (hold,) = session["holds"]
    assert hold["state"] == "held"
    assert denied in hold["results"][-1]["note"]
    assert LABEL not in site.cluster.node(node)["metadata"]["labels"]
    site.says(node)
    site.wait(lambda: site.session(node) is None, "recovery")
    assert not site.cordoned(node)


def test_the_steps_behind_it_are_done_where_the_policy_says_continue(
    site: Site, run: Callable[..., Replica], denied: str
) -> None:
    assert denied
    site.policy(steps=[STEPS[0], {**STEPS[1], "onFailure": "continue"}, STEPS[2]])
    node = site.node()
    run()
    site.says(node, 79)
    site.wait(
        lambda: results(site, node) == [("cordon", "done"), ("label", "failed"), ("taint", "done")],
        "the taint",
    )


def test_a_step_that_waits_says_who_refuses_it(
    site: Site, run: Callable[..., Replica], denied: str
) -> None:
    site.policy(steps=[STEPS[0], {**STEPS[1], "timeout": "10m"}])
    node = site.node()
    run()
    site.says(node, 79)

    def said() -> list[str]:
        holds = (site.status_of(node) or {}).get("holds", [])
        return [one["reason"] for one in holds if one["guard"] == "refused"]

    (why,) = site.wait(said, "the hold")
    assert denied in why
    assert len([one for one in site.attempts_on(node) if one["responseStatus"]["code"] > 300]) < 5
