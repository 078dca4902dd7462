"""What a replay assumes: reboots and approvals that no recording knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from remediator.cli.root import app
from remediator.kube.objects import Node
from remediator.lab import nodes as on
from remediator.lab.assumed import (
    DEFAULTS,
    AssumptionError,
    assumptions,
    in_words,
    relied_on,
)
from remediator.lab.replay import HOUR, Replayed, replay
from remediator.lab.tape import Change
from remediator.lab.timeline import What
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import RemediationPolicy
from remediator.policy.quantities import format_duration
from tests.unit.lab.build import faulty


START = 1_767_614_400.0
BEAT = 300
Edit = Callable[[Node, float], Node]


def policy(*steps: Mapping[str, Any]) -> RemediationPolicy:
    return RemediationPolicy.model_validate(
        {
            "apiVersion": "gpu-remediator.io/v1alpha1",
            "kind": "RemediationPolicy",
            "metadata": {"name": "p"},
            "spec": {"when": [{"xid": {"codes": [79]}}], "steps": steps, "recover": {"for": "10m"}},
        }
    )


def tape(edits: Mapping[int, Edit]) -> list[Change]:
    """Three hours of one node, by whose agent something else is said at some seconds."""
    node = on.well_node("gpu-1", now=START, labels={"nvidia.com/gpu.present": "true"})
    found = [Change(START, "gpu-1", node)]
    for at in range(BEAT, 3 * 3600 + 1, BEAT):
        now = START + at
        node, edit = on.beaten(node, now=now), edits.get(at)
        node = node if edit is None else edit(node, now)
        found.append(Change(now, "gpu-1", node))
    return found


SICK_FOR_AN_HOUR: Mapping[int, Edit] = {
    600: faulty,
    4200: lambda node, now: on.cleared(node, now=now),
}
REBOOTS: tuple[dict[str, Any], ...] = (
    {"cordon": {}},
    {"approve": {}},
    {"job": {"template": "reboot", "success": "reboot"}},
)


def steps(found: Replayed) -> list[tuple[float, str, str]]:
    return [
        (round(one.at - found.start), one.name, one.result)
        for one in found.timeline.of(What.STEP, What.UNDONE)
    ]


def played(edits: Mapping[int, Edit], *given: str, steps: Any = REBOOTS) -> Replayed:
    made = policy(*steps)
    return replay(tape(edits), policies=[made], cluster=ClusterSpec(), assume=assumptions(given))


def test_people_say_yes_and_the_node_comes_back_after_a_while() -> None:
    found = played(SICK_FOR_AN_HOUR)
    assert steps(found) == [
        (600, "cordon", "done"),
        (600 + 900, "approve", "done"),
        (600 + 900 + 600, "job", "done"),
        (4200 + 600, "uncordon", ""),
    ]
    assert found.lost_node_hours == pytest.approx((4800 - 600) / HOUR)


def test_what_is_assumed_can_be_said() -> None:
    found = played(SICK_FOR_AN_HOUR, "approval=5m", "reboot=8m")
    assert steps(found)[1:3] == [(900, "approve", "done"), (1380, "job", "done")]


def test_a_person_who_never_answers_and_a_node_that_never_comes_back_cost_capacity() -> None:
    unasked = played(SICK_FOR_AN_HOUR, "approval=never")
    assert [one[1] for one in steps(unasked)] == ["cordon", "uncordon"]
    away = played(SICK_FOR_AN_HOUR, "reboot=never")
    assert (away.failed, steps(away)[2][1:]) == (1, ("job", "timed-out"))


def test_a_reboot_in_the_recording_counts_as_it_came() -> None:
    edits = {**SICK_FOR_AN_HOUR, 1800: lambda node, now: on.booted(node, now=now)}
    assert (1800, "job", "done") in steps(played(edits))


def test_the_fault_stays_until_the_recording_says_that_it_is_gone() -> None:
    """The recording's hardware was not rebooted: nothing says that it would have helped."""
    found = played({600: faulty})
    assert [one[1] for one in steps(found)] == ["cordon", "approve", "job"]
    assert found.failed == 0


def test_the_agent_goes_on_saying_what_it_said_after_an_assumed_reboot() -> None:
    """It has the recording's boot id still, and a second reboot is another one."""
    twice: tuple[dict[str, Any], ...] = ({"cordon": {}}, *(REBOOTS[2:] * 2))
    found = played(SICK_FOR_AN_HOUR, steps=twice)
    assert steps(found)[1:3] == [(1200, "job", "done"), (1800, "job", "done")]
    assert steps(found)[3] == (4800, "uncordon", "")


def test_a_question_that_is_asked_no_more_is_not_answered() -> None:
    edits: dict[int, Edit] = {
        600: faulty,
        900: lambda node, now: on.cleared(node, now=now),
    }
    found = played(edits, "approval=40m")
    assert [one[1] for one in steps(found)] == ["cordon", "uncordon"]
    assert not any("approves" in one.text for one in found.timeline.of(What.FACT))


def test_a_node_that_is_gone_is_not_rebooted() -> None:
    changes = [one for one in tape(SICK_FOR_AN_HOUR) if one.at <= START + 1800]
    gone = Change(START + 1810, "gpu-1", None)
    later = Change(START + 9000, "gpu-2", msgspec.structs.replace(_node(changes[0]), name="gpu-2"))
    found = replay([*changes, gone, later], policies=[policy(*REBOOTS)], cluster=ClusterSpec())
    assert [one[1] for one in steps(found)] == ["cordon", "approve"]


def _node(change: Change) -> Node:
    assert change.node is not None
    return change.node


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("reboot", "write NAME=TIME or NAME=never; names: drain, job"),
        ("coffee=5m", "names: drain, job, create, webhook, reboot, approval"),
        ("drain=5", "drain=5: "),
    ],
)
def test_an_assumption_that_cannot_be_read_says_what_to_write(text: str, said: str) -> None:
    with pytest.raises(AssumptionError) as caught:
        assumptions([text])
    assert said in str(caught.value)


def test_only_what_the_policies_rest_on_is_told() -> None:
    plain = policy({"cordon": {}}, {"drain": {}})
    assert in_words(relied_on(assumptions(["drain=1h"]), [plain])) == "drain 1h"
    asks = policy(*REBOOTS)
    assert in_words(relied_on(assumptions(["approval=never"]), [asks])) == (
        "reboot 10m, approval never"
    )
    assert in_words(relied_on(assumptions(), [policy({"cordon": {}})])) == ""


def test_the_help_names_every_default() -> None:
    said = " ".join(
        CliRunner().invoke(app, ["replay", "--help"], env={"COLUMNS": "400"}).output.split()
    )
    for name, seconds in DEFAULTS.items():
        assert f"{name} ({format_duration(seconds)})" in said
