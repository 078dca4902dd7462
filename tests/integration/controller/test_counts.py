"""Counts and codes by severity, from what stands on the Node to the cordon, on a real cluster."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from node_agent.contract import (
    FAULTS_ANNOTATION,
    Fault,
    FaultKind,
    Past,
    Severity,
    encode_report,
)
from tests.integration.controller.conftest import Replica, Site


pytestmark = pytest.mark.cluster

PCI = "0000:9b:00.0"


def states(
    site: Site, node: str, *, there: int = 0, over: int = 0, severity: str = "warning"
) -> None:
    """Say what an agent says: perhaps one fault, and two of Xid 94 that a reset has cleared."""
    now = datetime.now(tz=UTC)
    faults = (
        Fault(
            kind=FaultKind.XID,
            severity=Severity(severity),
            first_seen=now,
            last_seen=now,
            times=(now,),
            pci=PCI,
            code=there,
            boot_id=site.boots[node],
        ),
    )
    times = tuple(now - timedelta(hours=hours) for hours in range(over, 0, -1))
    past = (Past(kind=FaultKind.XID, code=94, pci=PCI, times=times),) if over else ()
    text = encode_report(faults if there else (), boot_id=site.boots[node], past=past)
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {
        "type": "GPUXidError",
        "status": "True" if there else "False",
        "reason": f"Xid{there}" if there else "NoFault",
        "message": uuid.uuid4().hex[:8],
        "lastHeartbeatTime": stamp,
        "lastTransitionTime": stamp,
    }
    site.cluster.patch_node_status(
        node,
        {
            "metadata": {"annotations": {FAULTS_ANNOTATION: text}},
            "status": {"conditions": [condition]},
        },
    )


def test_the_third_time_is_the_third_also_after_a_reset(
    site: Site, run: Callable[..., Replica]
) -> None:
    site.policy("thrice", when=[{"count": {"xid": [94], "atLeast": 3, "within": "24h"}}])
    well, second, third = site.node(), site.node(), site.node()
    states(site, well, over=5)
    states(site, second, there=94, over=1)
    run()
    states(site, third, there=94, over=2)
    site.wait(lambda: site.cordoned(third), "the cordon")
    assert not site.cordoned(well), "nothing is wrong with it now"
    assert not site.cordoned(second), "twice is not three times"
    states(site, third, over=3)
    site.wait(lambda: site.session(third) is None, "the recovery, as the fault itself is gone")
    assert not site.cordoned(third)


def test_a_code_that_nobody_knows_is_asked_for_by_how_bad_it_is(
    site: Site, run: Callable[..., Replica]
) -> None:
    site.policy("other", when=[{"xid": {"minSeverity": "warning", "except": [63]}}])
    unknown, owned, harmless = site.node(), site.node(), site.node()
    states(site, owned, there=63)
    states(site, harmless, there=31, severity="info")
    run()
    states(site, unknown, there=901)
    site.wait(lambda: site.cordoned(unknown), "the cordon")
    assert not site.cordoned(owned)
    assert not site.cordoned(harmless)
