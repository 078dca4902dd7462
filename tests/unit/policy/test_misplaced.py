"""A key one level too deep or too high: where it belongs is said, for the place where it stands."""

import pytest

from remediator.policy.load import parse_policies
from remediator.policy.problems import PolicyError


HEAD = "apiVersion: gpu-remediator.io/v1alpha1\nkind: RemediationPolicy\nmetadata: {name: p}\n"
WHEN = "  when: [{xid: {codes: [79]}}]\n"
STEPS = "  steps: [{cordon: {}}]\n"

# spec, from line 5 on: (line, column, path, fix)
MISPLACED = {
    "a step's deadline within its action": (
        WHEN + "  steps: [{cordon: {}}, {drain: {timeout: 5m}}]\n",
        (6, 34, "spec.steps[1].drain.timeout", "write timeout beside drain, not in it"),
    ),
    "what follows a deadline, as others call it, within the action": (
        WHEN + "  steps: [{cordon: {}}, {drain: {onTimeout: continue}}]\n",
        (6, 34, "spec.steps[1].drain.onTimeout", "write onFailure beside drain, not in it"),
    ),
    "what follows a deadline, as others call it": (
        WHEN + "  steps: [{cordon: {}}, {drain: {}, onTimeout: continue}]\n",
        (6, 37, "spec.steps[1].onTimeout", "did you mean onFailure?"),
    ),
    "what follows a failure within the Job": (
        WHEN + "  steps: [{job: {template: a, on_failure: hold}}]\n",
        (6, 31, "spec.steps[0].job.on_failure", "write onFailure beside job, not in it"),
    ),
    "a key of the Job beside it": (
        WHEN + "  steps: [{job: {template: a}, maxAttempts: 2}]\n",
        (6, 32, "spec.steps[0].maxAttempts", "it belongs in job: `job: {maxAttempts: ...}`"),
    ),
    "a key of the Job, as others call it, beside it": (
        WHEN + "  steps: [{job: {template: a}, retries: 2}]\n",
        (6, 32, "spec.steps[0].retries", "it belongs in job: `job: {maxAttempts: ...}`"),
    ),
    "a key of the clause beside it": (
        "  when: [{condition: {type: GPULost}, for: 5m}]\n" + STEPS,
        (5, 39, "spec.when[0].for", "it belongs in condition: `condition: {for: ...}`"),
    ),
    "a key of spec within a step": (
        WHEN + "  steps:\n    - cordon: {}\n      recover: {for: 1m}\n",
        (8, 7, "spec.steps[0].recover", "write recover beside steps, not in it"),
    ),
    "a key of spec beside it": (
        WHEN + STEPS + "mode: Enforce\n",
        (7, 1, "mode", "it belongs in spec: `spec: {mode: ...}`"),
    ),
    "a key that is nowhere near": (
        WHEN + "  steps: [{drain: {forceDelete: {after: 1m, timeout: 5m}}}]\n",
        (
            *(6, 45, "spec.steps[0].drain.forceDelete.timeout"),
            "it belongs in spec.steps[] or spec.steps[].drain.pods[].deleteAfter",
        ),
    ),
}


@pytest.mark.parametrize("case", MISPLACED)
def test_a_key_beside_its_place_is_told_its_place(case: str) -> None:
    text, expected = MISPLACED[case]
    with pytest.raises(PolicyError) as caught:
        parse_policies(f"{HEAD}spec:\n{text}".encode(), file="p.yaml")
    (problem,) = caught.value.problems
    assert (problem.line, problem.column, problem.path, problem.fix) == expected
