"""What an expression of a policy may name: each name of `docs/policies/when.md`, and its value."""

from __future__ import annotations

from dataclasses import replace as changed

from msgspec.structs import replace

from remediator.decide.filter_clauses import variables
from remediator.decide.session import DAY, History
from remediator.policy.expression import VARIABLES
from tests.unit.decide.build import START, alert, condition, node, xid


def test_every_name_has_its_value() -> None:
    fault = replace(
        xid(),
        action="RESET_GPU",
        gpu="GPU-1",
        count=3,
        message="fallen off the bus",
    )
    facts = node(
        faults=(fault, replace(xid(), code=None)),
        pool="a",
        zone="z1",
        unschedulable=True,
        conditions={"Ready": changed(condition("Ready", "True", reason="Fine"), message="it is")},
        history=History(attempts=(START - DAY, START - DAY + 1.0, START - 1.0)),
        alerts=(alert("Hot", source="eu"), alert("Quiet", suppressed=True)),
    )

    known = variables(facts, START)

    assert known.keys() == VARIABLES.keys()
    first, second = known.pop("faults")
    assert first == {
        "kind": "xid",
        "code": 79,
        "severity": "fatal",
        "action": "RESET_GPU",
        "gpu": "GPU-1",
        "pci": "0000:9b:00.0",
        "count": 3,
        "message": "fallen off the bus",
    }
    assert second["code"] == 0
    assert known == {
        "name": "n1",
        "pool": "a",
        "zone": "z1",
        "ready": True,
        "unschedulable": True,
        "attempts": 2,
        "labels": {"nvidia.com/gpu.present": "true"},
        "conditions": {"Ready": {"status": "True", "reason": "Fine", "message": "it is"}},
        "alerts": [{"name": "Hot", "source": "eu", "labels": {"gpu": "0", "severity": "critical"}}],
    }
