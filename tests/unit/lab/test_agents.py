"""Agents that fall silent in numbers: nothing new rests on them, in tests and in a replay."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

import pytest

from remediator.cli.testing import run_file
from remediator.lab import nodes as on
from remediator.lab.file import parse_tests
from remediator.lab.replay import Replayed, replay
from remediator.lab.report import failed_lines
from remediator.lab.tape import Change
from remediator.lab.timeline import What
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import RemediationPolicy
from remediator.signals.board import AGENTS_SECONDS
from tests.unit.lab.build import faulty


START = 1_767_614_400.0
GPU = {"nvidia.com/gpu.present": "true"}
BEAT = 300
SILENT_FROM = 3600
FAULT_AT = SILENT_FROM + 1200
BACK_AT = SILENT_FROM + 3600
POLICY = RemediationPolicy.model_validate(
    {
        "apiVersion": "gpu-remediator.io/v1alpha1",
        "kind": "RemediationPolicy",
        "metadata": {"name": "p"},
        "spec": {"when": [{"xid": {"codes": [79]}}], "steps": [{"cordon": {}}]},
    }
)


def tape(silent: int, *, of: int = 8) -> Iterable[Change]:
    """Three hours of a fleet: some agents say nothing for an hour, within it another finds Xid 79.

    With no ``silent`` agents it is the same fault in a fleet that is well.
    """
    fleet = {
        name: on.well_node(name, now=START, labels=GPU)
        for name in (f"gpu-{number}" for number in range(1, of + 1))
    }
    quiet = set(list(fleet)[:silent])
    for at in range(0, 3 * 3600 + 1, BEAT):
        now = START + at
        for name, node in fleet.items():
            if name in quiet and SILENT_FROM <= at < BACK_AT:
                continue
            said = on.beaten(node, now=now)
            breaks = at == FAULT_AT and name == f"gpu-{of}"
            fleet[name] = faulty(said, now) if breaks else said
            yield Change(now, name, fleet[name])


def replayed(silent: int, **sanity: int) -> Replayed:
    cluster = ClusterSpec.model_validate({"sanity": sanity})
    return replay(tape(silent), policies=[POLICY], cluster=cluster)


def cordoned_at(found: Replayed) -> list[float]:
    return [one.at - START for one in found.timeline.of(What.STEP) if one.name == "cordon"]


def test_a_replay_believes_no_agent_while_half_of_them_are_silent() -> None:
    """Each is heard again at once, and the controller looks at that every 20 s."""
    found = replayed(4)
    assert cordoned_at(found) == [pytest.approx(BACK_AT, abs=AGENTS_SECONDS)]
    held = [span for span in found.timeline.holds if span.guard == "sources"]
    assert [span.reason for span in held] == ["agents: 4 of 8 are silent, 2 are believable"]
    assert found.holds["sources"] == 1


@pytest.mark.parametrize(
    ("silent", "sanity"),
    [(0, {}), (2, {}), (4, {"percent": 50}), (4, {"minAgents": 4})],
    ids=str,
)
def test_a_replay_believes_them_as_the_config_says(silent: int, sanity: dict[str, int]) -> None:
    found = replayed(silent, **sanity)
    assert cordoned_at(found) == [FAULT_AT]
    assert not found.holds["sources"]


def test_a_policy_test_holds_what_rests_on_silent_agents() -> None:
    text = """
        - name: t
          nodes: [{name: gpu, count: 8, pool: a}]
          timeline:
            - {at: 1m, nodes: [gpu-1, gpu-2, gpu-3, gpu-4], agent: silent}
            - {at: 20m, node: gpu-8, xid: {code: 79}}
            - {at: 40m, nodes: [gpu-1, gpu-2], agent: back}
          expect:
            holds: [{node: gpu-8, guard: sources, reason: 4 of 8 are silent, at: 30m}]
            steps: [{node: gpu-8, step: cordon, after: 40m, by: 41m}]
        - name: as many as are believable
          nodes: [{name: gpu, count: 8, pool: a}]
          timeline:
            - {at: 1m, nodes: [gpu-1, gpu-2], agent: silent}
            - {at: 20m, node: gpu-8, xid: {code: 79}}
          expect: {steps: [{node: gpu-8, step: cordon, at: 20m}]}
          expectNot: {holds: [{guard: sources}]}
        - name: another controller counts anew
          nodes: [{name: gpu, count: 8, pool: a}]
          timeline:
            - {at: 1m, nodes: [gpu-1, gpu-2, gpu-3, gpu-4], agent: silent}
            - {at: 20m, node: gpu-8, xid: {code: 79}}
            - {at: 30m, restart: {}}
          expect:
            steps: [{node: gpu-8, step: cordon, after: 30m, by: 32m}]
    """
    head = "apiVersion: gpu-remediator.io/v1alpha1\nkind: PolicyTest\nspec:\n  tests:\n"
    body = textwrap.indent(textwrap.dedent(text).strip("\n"), "    ")
    given = parse_tests(f"{head}{body}\n".encode(), file="p.test.yaml")
    results = run_file(given, (POLICY,))
    assert not [line for one in results if not one.passed for line in failed_lines(one)]
    assert len(results) == 3
