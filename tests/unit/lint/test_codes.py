"""Lint of codes that are asked for by how bad they are."""

from __future__ import annotations

from typing import Any

import pytest

from remediator.policy.lint import lint
from remediator.policy.lint.shadow import covers
from remediator.policy.model import RemediationPolicy
from remediator.policy.when import When


CORDON: dict[str, Any] = {"cordon": {}}
EVENT: dict[str, Any] = {"event": {"reason": "Seen"}}


def found(severity: str, *steps: dict[str, Any], kind: str = "xid") -> set[str]:
    policy = RemediationPolicy.model_validate(
        {
            "apiVersion": "gpu-remediator.io/v1alpha1",
            "kind": "RemediationPolicy",
            "metadata": {"name": "one"},
            "spec": {"when": [{kind: {"minSeverity": severity}}], "steps": list(steps)},
        }
    )
    return {one.rule.id for one in lint([policy])}


def test_every_application_error_is_no_reason_to_take_a_node() -> None:
    assert "application-error" in found("info", CORDON)
    assert "application-error" not in found("warning", CORDON)
    assert "application-error" not in found("info", EVENT)
    assert "application-error" in found("info", CORDON, kind="sxid")


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ({"codes": [79]}, {"minSeverity": "fatal"}),
        ({"minSeverity": "info"}, {"codes": [79]}),
    ],
)
def test_what_only_the_agent_can_tell_shadows_nothing(
    wide: dict[str, Any], narrow: dict[str, Any]
) -> None:
    assert not covers(When.model_validate({"xid": wide}), When.model_validate({"xid": narrow}))
