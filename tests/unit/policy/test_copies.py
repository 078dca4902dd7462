"""Copies of models with other values."""

from __future__ import annotations

from remediator.lab.player import with_mode
from remediator.policy.model import Mode, RemediationPolicy


def test_a_copy_keeps_nothing_that_was_found_out_of_the_values_before() -> None:
    before = RemediationPolicy.model_validate(
        {
            "apiVersion": "gpu-remediator.io/v1alpha1",
            "kind": "RemediationPolicy",
            "metadata": {"name": "p"},
            "spec": {"when": [{"xid": {"codes": [79]}}], "steps": [{"cordon": {}}]},
        }
    )
    assert before.version
    after = with_mode(before, Mode.ENFORCE)
    assert after.version != before.version
    assert with_mode(after, Mode.DRY_RUN).version == before.version
    assert with_mode(after, Mode.DRY_RUN) == before
