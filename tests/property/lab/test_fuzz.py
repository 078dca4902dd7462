"""Whatever a test file says, it is played, or refused with a sentence; nothing crashes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from remediator.cli.testing import run_file
from remediator.lab.file import parse_tests
from remediator.policy.load import load_policies
from remediator.policy.problems import PolicyError
from tests.property.cases import cases


pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(3600)]
POLICIES = Path(__file__).parents[3] / "policies"
SHIPPED = load_policies([POLICIES])
TEXT = (POLICIES / "gpu-fallen-off-bus.test.yaml").read_text(encoding="utf-8")
KEYS = (
    *("gpu-remediator.io/gpu-faults", "gpu-remediator.io/session", "gpu-remediator.io/history"),
    *("gpu-remediator.io/mode", "gpu-remediator.io/request", "example.org/x"),
)

durations = st.sampled_from(["0s", "1s", "5m", "20m", "3h"])
words = st.text(max_size=12) | st.sampled_from(["{}", '{"version":1}', "disabled", "null"])
names = st.sampled_from(["gpu-1", "gpu-2"])
things = st.one_of(
    st.builds(lambda code: {"xid": {"code": code}}, st.sampled_from([13, 48, 79, 149, 999])),
    st.builds(lambda code: {"sxid": {"code": code}}, st.sampled_from([20034, 12028])),
    st.builds(
        lambda kind, status, reason: {
            "condition": {"type": kind, "status": status, "reason": reason}
        },
        st.sampled_from(["Ready", "GPULost", "Other"]),
        st.sampled_from(["True", "False", "Unknown"]),
        words,
    ),
    st.builds(lambda key, value: {"annotations": {key: value}}, st.sampled_from(KEYS), words),
    st.builds(lambda value: {"labels": {"gpu-remediator.io/pool": value}}, words),
    st.builds(
        lambda verb, by: {"request": {"verb": verb, "by": by}},
        st.sampled_from(["cancel", "release", "retry", "unfreeze"]),
        words,
    ),
    st.builds(lambda clears: {"reboot": {"clears": clears}}, st.booleans()),
    st.builds(lambda key: {"taint": {"key": key}}, st.sampled_from(["a", KEYS[-1]])),
    st.sampled_from(
        [
            {"clear": {}},
            {"cordon": {}},
            {"uncordon": {}},
            {"untaint": "gpu-remediator.io/unhealthy"},
            {"delete": {}},
            {"kubelet": "NotReady"},
            {"kubelet": "Ready"},
            {"agent": "silent"},
            {"agent": "back"},
            {"pause": {"all": True}},
            {"resume": {}},
            {"restart": {}},
            {"breakerReset": {"policy": "gpu-lost"}},
            {"channel": {"name": "log", "fails": "full"}},
            {"policy": {"policy": "gpu-lost", "removed": True}},
            {"policy": {"policy": "gpu-lost", "mode": "DryRun"}},
            {"alert": {"name": "X"}},
            {"work": {"step": "drain", "never": True}},
        ]
    ),
)
entries = st.builds(
    lambda at, thing, name: {"at": at, **thing, **({"node": name} if name else {})},
    durations,
    things,
    st.none() | names,
)


@settings(max_examples=cases(80))
@given(timeline=st.lists(entries, max_size=10), agent=st.booleans())
def test_every_timeline_is_played(timeline: list[dict[str, Any]], *, agent: bool) -> None:
    about_all = {"pause", "resume", "restart", "breakerReset", "channel", "policy", "work"}
    for entry in timeline:
        if about_all & set(entry):
            entry.pop("node", None)
    document = {
        "apiVersion": "gpu-remediator.io/v1alpha1",
        "kind": "PolicyTest",
        "spec": {
            "nodes": [{"name": "gpu", "count": 2, "agent": agent}],
            "tests": [{"name": "t", "timeline": timeline, "quiet": True}],
        },
    }
    given_file = parse_tests(json.dumps(document).encode(), file="t.test.yaml")
    with capture_logs():
        (result,) = run_file(given_file, SHIPPED)
    assert result.error == ""
    assert result.played is not None


@settings(max_examples=cases(150))
@given(
    at=st.integers(0, len(TEXT)),
    length=st.integers(0, 30),
    by=st.text(max_size=8) | st.sampled_from(["{", "}", "[", "- ", ": ", "&a", "*a", "\t", "\0"]),
)
def test_a_damaged_file_is_refused_with_a_sentence(at: int, length: int, by: str) -> None:
    text = TEXT[:at] + by + TEXT[at + length :]
    try:
        given_file = parse_tests(text.encode("utf-8", "surrogatepass"), file="t.test.yaml")
    except PolicyError as error:
        problems = error.problems
    else:
        assert run_file(given_file, SHIPPED[:1])
        return
    assert problems
    assert all(one.message for one in problems)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ({"until": "90d"}, "it lasts longer than"),
        (
            {"timeline": [{"at": "0s", "every": "1ms", "until": "1h", "cordon": {}}]},
            "more than 10000 times",
        ),
    ],
)
def test_a_test_that_would_take_for_ever_is_refused(case: dict[str, Any], said: str) -> None:
    document = {
        "apiVersion": "gpu-remediator.io/v1alpha1",
        "kind": "PolicyTest",
        "spec": {"tests": [{"name": "t", "quiet": True, **case}]},
    }
    given_file = parse_tests(json.dumps(document).encode(), file="t.test.yaml")
    (result,) = run_file(given_file, SHIPPED)
    assert said in result.error
