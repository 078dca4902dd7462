"""The exact bytes that are sent to the API server."""

import pytest

from remediator.kube.objects import Taint
from remediator.kube.patch import NodePatch


BASE = '{"metadata":{"resourceVersion":"7","uid":"u1"'


@pytest.mark.parametrize(
    ("changes", "body"),
    [
        pytest.param({}, BASE + "}}", id="nothing"),
        pytest.param(
            {"unschedulable": True}, BASE + '},"spec":{"unschedulable":true}}', id="cordon"
        ),
        pytest.param(
            {"unschedulable": False}, BASE + '},"spec":{"unschedulable":null}}', id="uncordon"
        ),
        pytest.param(
            {"annotations": {"gpu-remediator.io/session": "{}", "gone": None}},
            BASE + ',"annotations":{"gpu-remediator.io/session":"{}","gone":null}}}',
            id="annotations",
        ),
        pytest.param(
            {"labels": {"a": "b"}, "unschedulable": True},
            BASE + ',"labels":{"a":"b"}},"spec":{"unschedulable":true}}',
            id="label-and-cordon",
        ),
        pytest.param(
            {"taints": (Taint("k", "v", "NoSchedule"), Taint("t", "", "NoExecute", "then"))},
            BASE + '},"spec":{"taints":[{"key":"k","value":"v","effect":"NoSchedule"},'
            '{"key":"t","effect":"NoExecute","timeAdded":"then"}]}}',
            id="taints-whole-list",
        ),
        pytest.param({"taints": ()}, BASE + '},"spec":{"taints":null}}', id="last-taint-removed"),
    ],
)
def test_patch_body(changes: dict[str, object], body: str) -> None:
    patch = NodePatch(name="n1", uid="u1", resource_version="7", **changes)  # type: ignore[arg-type]

    assert patch.body().decode() == body
    assert patch.is_empty == (not changes)
