"""Limits of the policy model that protect the Node's session annotation."""

import pytest
from pydantic import ValidationError

from remediator.policy.model import MAX_STEPS_BYTES, RemediationPolicy


def test_steps_that_would_not_fit_a_session_are_refused() -> None:
    notify = {"notify": {"to": ["oncall"], "message": "x" * 1900}}
    document = {
        "apiVersion": "gpu-remediator.io/v1alpha1",
        "kind": "RemediationPolicy",
        "metadata": {"name": "wordy"},
        "spec": {"when": [{"xid": {"codes": [79]}}], "steps": [{"cordon": {}}, *[notify] * 5]},
    }

    with pytest.raises(ValidationError, match=f"at most {MAX_STEPS_BYTES}"):
        RemediationPolicy.model_validate(document)
