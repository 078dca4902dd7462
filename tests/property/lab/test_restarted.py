"""A restart at any time changes nothing but when: what stands on the nodes in the end is the same.

Ages of facts begin anew with a controller, and so do settling and the time of recovery: so events
are minutes apart. All else is on the nodes: steps, results, questions, waits, attempts, waivers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from remediator.lab import nodes as on
from remediator.lab.run import Lab
from remediator.lab.works import Assumed, Assumptions
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import RemediationPolicy
from tests.property.cases import cases
from tests.property.lab.test_agrees_with_engine import (
    NAMES,
    ROOM,
    SECONDS,
    START,
    changed,
    node_of,
    picture,
    policies,
)


APART = 150.0
HOURS = 3
BEAT = 300.0
NIGHTLY: dict[str, Any] = {
    "mode": "Enforce",
    "when": [{"condition": {"type": "GPULost"}}],
    "windows": [{"start": "14:05", "end": "14:25", "timeZone": "UTC"}],
    "steps": [{"cordon": {}}, {"wait": {"for": "40s"}}, {"drain": {}}],
    "recover": {"for": "20s"},
}
"""Of twenty minutes, from 18 minutes after the start on."""
CAPPED: dict[str, Any] = {
    "mode": "Enforce",
    "when": [{"xid": {"codes": [95]}}],
    "limits": {"maxAttempts": 1},
    "steps": [{"cordon": {}}, {"approve": {}, "timeout": "100s"}, {"event": {}}],
    "recover": {"for": "20s"},
}
EVENTS = (
    *("GPUOverheating", "GPUMemoryDegraded", "GPUInterconnectDegraded", "GPULost", "GPULost"),
    *("GPUDriverUnresponsive", "79", "48", "95", "95", "clear", "clear", "approve", "approve"),
    *("cordon", "uncordon", "taint", "untaint"),
)
scripts = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from(NAMES), st.sampled_from(EVENTS)),
    min_size=3,
    max_size=14,
)
restarts = st.lists(st.integers(1, 40 * 60 * 4).map(lambda quarter: quarter / 4), max_size=4)


def in_force() -> list[RemediationPolicy]:
    more = [
        RemediationPolicy.model_validate(
            {
                "apiVersion": "gpu-remediator.io/v1alpha1",
                "kind": "RemediationPolicy",
                "metadata": {"name": name},
                "spec": spec,
            }
        )
        for name, spec in (("nightly", NIGHTLY), ("capped", CAPPED))
    ]
    return [*(one for one in policies() if one.name != "lost"), *more]


def ends(script: list[tuple[int, str, str]], restarted: list[float]) -> list[object]:
    """Return what stands on the nodes in the end."""
    assume = Assumptions(work={name: Assumed(seconds) for name, seconds in SECONDS.items()})
    cluster = ClusterSpec.model_validate(ROOM)
    lab = Lab(policies=in_force(), cluster=cluster, start=START, assume=assume)
    for name in NAMES:
        lab.put(node_of(name))
        for beat in range(1, round(HOURS * 3600 / BEAT)):
            lab.call_at(START + beat * BEAT + 0.11, partial(_happen, lab, name, "beat"))
    at = 10.07
    for gap, name, what in script:
        at += gap * APART
        lab.call_at(START + at, partial(_happen, lab, name, what))
    for when in restarted:
        lab.call_at(START + when, lab.restart)
    lab.run(START + HOURS * 3600.0)
    return [picture(lab.facts(name)) for name in NAMES]


def _happen(lab: Lab, name: str, what: str) -> None:
    node = lab.node(name)
    lab.put(on.beaten(node, now=lab.now) if what == "beat" else changed(node, what, lab.now))


@settings(max_examples=cases(20))
@given(script=scripts, restarted=restarts)
def test_a_restart_changes_nothing_but_when(
    script: list[tuple[int, str, str]], restarted: list[float]
) -> None:
    assert ends(script, restarted) == ends(script, [])
