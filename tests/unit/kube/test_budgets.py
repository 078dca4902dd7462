"""PodDisruptionBudgets as the API server reads them when it is asked for an eviction."""

from __future__ import annotations

import msgspec
import pytest

from remediator.kube.budgets import Budget, WireBudget, narrow_budget
from remediator.kube.pods import Pod


def budget(*, generation: int, observed: int) -> Budget:
    wire = {
        "metadata": {"name": "pg", "namespace": "db", "uid": "u", "generation": generation},
        "spec": {"selector": {}},
        "status": {"observedGeneration": observed, "disruptionsAllowed": 1},
    }
    return narrow_budget(msgspec.convert(wire, WireBudget))


@pytest.mark.parametrize(
    ("generation", "observed", "lets_go"),
    [(1, 0, False), (1, 1, True), (2, 1, False), (2, 2, True)],
    ids=["new", "counted", "edited since", "counted again"],
)
def test_one_that_was_not_counted_since_its_last_edit_lets_nobody_go(
    generation: int, observed: int, *, lets_go: bool
) -> None:
    """As the server: it refuses with 429 while ``observedGeneration`` is behind."""
    pod = Pod(name="db/pg-0", uid="p", resource_version="1", node="n", phase="Running", ready=True)
    why = budget(generation=generation, observed=observed).refusal(pod)
    assert why == (
        "" if lets_go else "the disruption budget db/pg is still being processed by the server"
    )
