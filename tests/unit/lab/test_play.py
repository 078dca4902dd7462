"""What a timeline can say, played in the lab: each entry does what it says, and tests can fail."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from remediator.cli.testing import run_file
from remediator.decide.decision import HELD_BY_NO_GUARD
from remediator.decide.guards import GUARD_NAMES
from remediator.decide.guards.silence import SILENCE
from remediator.decide.refusals import REFUSED
from remediator.lab.file import TestFile, parse_tests, policy_name
from remediator.lab.given import ON_ALL, ON_NODES, Happens
from remediator.lab.report import Result, failed_lines, junit
from remediator.policy.load import parse_policies
from remediator.policy.model import RemediationPolicy
from remediator.policy.problems import PolicyError


BUS = "when: [{xid: {codes: [79]}}]\n  steps: [{cordon: {}}, {notify: {to: [log]}}]"
XID = "{at: 5m, xid: {code: 79}}"


def policy(spec: str, name: str = "bus") -> RemediationPolicy:
    text = (
        "apiVersion: gpu-remediator.io/v1alpha1\nkind: RemediationPolicy\n"
        f"metadata: {{name: {name}}}\nspec:\n  {spec}\n"
    )
    return parse_policies(text.encode(), file="p.yaml").policies[0].policy


def file(cases: str, **spec: str) -> TestFile:
    head = "apiVersion: gpu-remediator.io/v1alpha1\nkind: PolicyTest\nspec:\n"
    more = "".join(f"  {key}: {value}\n" for key, value in spec.items())
    body = textwrap.indent(textwrap.dedent(cases).strip("\n"), "    ")
    text = f"{head}{more}  tests:\n{body}\n"
    return parse_tests(text.encode(), file="p.test.yaml")


def play(cases: str, *policies: RemediationPolicy, **spec: str) -> list[Result]:
    return run_file(file(cases, **spec), policies or (policy(BUS),))


PASSING: dict[str, tuple[str, str]] = {
    "a place that becomes free is taken at that instant": (
        BUS,
        """
        - name: t
          nodes: [{name: gpu, count: 2, pool: a}]
          timeline:
            - {at: 5m, xid: {code: 79}}
            - {at: 20m, node: gpu-1, clear: {}}
          expect:
            steps:
              - {node: gpu-1, step: cordon, at: 5m}
              - {node: gpu-1, step: uncordon, at: 30m}
              - {node: gpu-2, step: cordon, at: 30m}
            holds: [{node: gpu-2, guard: budget, at: 6m}]
        """,
    ),
    "a drain takes its time, and a Job after it": (
        (
            "when: [{xid: {codes: [79]}}]\n"
            "  steps: [{cordon: {}}, {drain: {}}, {job: {template: reset}}]"
        ),
        """
        - name: t
          timeline:
            - {at: 0s, work: {step: drain, takes: 7m}}
            - {at: 0s, work: {step: job, takes: 3m}}
            - {at: 5m, xid: {code: 79}}
          expect:
            steps:
              - {step: cordon, at: 5m}
              - {step: drain, at: 12m}
              - {step: job, at: 15m}
        """,
    ),
    "a drain that fails is recorded as failed, and nothing follows": (
        "when: [{xid: {codes: [79]}}]\n  steps: [{cordon: {}}, {drain: {}}, {event: {}}]",
        """
        - name: t
          timeline:
            - {at: 0s, work: {step: drain, takes: 1m, fails: a budget forbids it}}
            - {at: 5m, xid: {code: 79}}
          expect:
            steps: [{step: drain, result: failed, at: 6m}, {step: drain, result: failed, count: 1}]
            messages: [{contains: a budget forbids it}]
            nodes: [{at: 30m, phase: held, cordoned: true}]
          expectNot: {steps: [{step: event}]}
        """,
    ),
    "a drain that never ends runs out of time": (
        "when: [{xid: {codes: [79]}}]\n  steps: [{cordon: {}}, {drain: {}, timeout: 10m}]",
        """
        - name: t
          timeline:
            - {at: 0s, work: {step: drain, never: true}}
            - {at: 5m, xid: {code: 79}}
          expect: {steps: [{step: drain, result: timed-out, at: 15m}]}
        """,
    ),
    "an uncordon stops a drain": (
        "when: [{xid: {codes: [79]}}]\n  steps: [{cordon: {}}, {drain: {}}, {event: {}}]",
        """
        - name: t
          timeline:
            - {at: 0s, work: {step: drain, takes: 10m}}
            - {at: 5m, xid: {code: 79}}
            - {at: 6m, uncordon: {}}
          expect: {nodes: [{at: 30m, session: false, cordoned: false, phase: waived}]}
          expectNot: {steps: [{step: drain}, {step: event}]}
        """,
    ),
    "a pause holds, and its end lets go": (
        BUS,
        """
        - name: t
          timeline:
            - {at: 1m, pause: {by: ann, reason: upgrade}}
            - {at: 5m, xid: {code: 79}}
            - {at: 9m, resume: {}}
          expect:
            holds: [{guard: pause, at: 6m, reason: upgrade}]
            steps: [{step: cordon, at: 9m}]
        """,
    ),
    "a pause of all suspends a drain: the time until it is over does not count": (
        "when: [{xid: {codes: [79]}}]\n  steps: [{cordon: {}}, {drain: {}, timeout: 15m}]",
        """
        - name: t
          timeline:
            - {at: 0s, work: {step: drain, takes: 10m}}
            - {at: 5m, xid: {code: 79}}
            - {at: 8m, pause: {all: true}}
            - {at: 30m, resume: {}}
          expect:
            holds: [{guard: pause, at: 20m}]
            steps: [{step: drain, at: 37m, result: done}]
        """,
    ),
    "a Job goes on while everything is paused: its end is seen when that is over": (
        "when: [{xid: {codes: [79]}}]\n  steps: [{cordon: {}}, {job: {template: reset}}]",
        """
        - name: t
          timeline:
            - {at: 0s, work: {step: job, takes: 10m}}
            - {at: 5m, xid: {code: 79}}
            - {at: 8m, pause: {all: true}}
            - {at: 30m, resume: {}}
          expect: {steps: [{step: job, at: 30m, result: done}]}
        """,
    ),
    "a Job that is paused for a moment ends as though it had not been": (
        "when: [{xid: {codes: [79]}}]\n  steps: [{cordon: {}}, {job: {template: reset}}]",
        """
        - name: t
          timeline:
            - {at: 0s, work: {step: job, takes: 10m}}
            - {at: 5m, xid: {code: 79}}
            - {at: 8m, pause: {all: true}}
            - {at: 9m, resume: {}}
            - {at: 10m, restart: {}}
          expect: {steps: [{step: job, at: 15m, result: done}]}
        """,
    ),
    "a Job is ended at the deadline that it was made with": (
        (
            "when: [{xid: {codes: [79]}}]\n"
            "  steps: [{cordon: {}}, {job: {template: reset}, timeout: 15m}]"
        ),
        """
        - name: t
          timeline:
            - {at: 0s, work: {step: job, takes: 40m}}
            - {at: 5m, xid: {code: 79}}
            - {at: 8m, pause: {all: true}}
            - {at: 30m, resume: {}}
          expect: {steps: [{step: job, at: 30m, result: timed-out}]}
        """,
    ),
    "a policy that is set to dry-run does nothing more where it has begun": (
        ("when: [{xid: {codes: [79]}}]\n  steps: [{cordon: {}}, {wait: {for: 10m}}, {taint: {}}]"),
        """
        - name: t
          timeline:
            - {at: 5m, xid: {code: 79}}
            - {at: 10m, policy: {policy: bus, mode: DryRun}}
          expect:
            messages: [{contains: policy bus is gone}]
            nodes: [{at: 30m, cordoned: true, untainted: gpu-remediator.io/unhealthy}]
          expectNot: {steps: [{step: taint}]}
        """,
    ),
    "another controller goes on where the first one stood": (
        BUS,
        """
        - name: t
          timeline:
            - {at: 5m, xid: {code: 79}}
            - {at: 10m, restart: {}}
            - {at: 20m, clear: {}}
          expect:
            steps: [{step: cordon, count: 1}, {step: uncordon, count: 1}]
            nodes: [{at: 50m, cordoned: false, session: false}]
        """,
    ),
    "a breaker that opens stops the drain that is under way": (
        (
            "when: [{xid: {codes: [79]}}]\n  steps: [{cordon: {}}, {drain: {}, timeout: 10m}]\n"
            "  limits: {breaker: {minNodes: 1, percent: 1, window: 30m}}"
        ),
        """
        - name: t
          nodes: [{name: gpu, count: 3}]
          timeline:
            - {at: 0s, work: {step: drain, takes: 23h}}
            - {at: 5m, node: gpu-1, xid: {code: 79}}
            - {at: 8m, node: gpu-2, xid: {code: 79}}
          expect:
            steps: [{node: gpu-1, step: cordon, at: 5m}]
            holds: [{node: gpu-1, guard: breaker, at: 30m}, {node: gpu-2, guard: breaker, at: 9m}]
        """,
    ),
    "a status that comes and goes lasts, where the policy says so": (
        ("when: [{condition: {type: Hot, for: 5m, clearFor: 1m}}]\n  steps: [{cordon: {}}]"),
        """
        - name: t
          timeline:
            - {at: 5m, condition: {type: Hot}}
            - {at: 8m, condition: {type: Hot, status: "False"}}
            - {at: 8m30s, condition: {type: Hot}}
          expect: {steps: [{step: cordon, at: 10m}]}
        """,
    ),
    "what a step takes back is counted once": (
        (
            "when: [{xid: {codes: [79]}}]\n"
            "  steps: [{cordon: {}}, {taint: {}}, {wait: {for: 1m}}, {uncordon: {}}, {untaint: {}}]"
        ),
        """
        - name: t
          timeline:
            - {at: 5m, xid: {code: 79}}
            - {at: 10m, clear: {}}
          expect:
            steps:
              - {step: uncordon, at: 6m, count: 1}
              - {step: untaint, at: 6m, count: 1}
        """,
    ),
    "a drain that says so waits for the next window": (
        (
            "when: [{xid: {codes: [79]}}]\n"
            '  windows: [{start: "12:00", end: "13:00"}]\n'
            "  steps: [{cordon: {}}, {drain: {onWindowEnd: pause}, timeout: 1h}]"
        ),
        """
        - name: t
          until: 25h
          timeline:
            - {at: 0s, work: {step: drain, takes: 30m}}
            - {at: 50m, xid: {code: 79}}
          expect:
            holds: [{guard: windows, at: 2h, reason: "no further eviction, outside its windows"}]
            steps: [{step: drain, at: 24h20m, result: done}]
        """,
    ),
    "work that one controller began takes the next no longer": (
        "when: [{xid: {codes: [79]}}]\n  steps: [{cordon: {}}, {drain: {}, timeout: 12m}]",
        """
        - name: t
          timeline:
            - {at: 0s, work: {step: drain, takes: 10m}}
            - {at: 5m, xid: {code: 79}}
            - {at: 12m, restart: {}}
          expect: {steps: [{step: drain, at: 15m, result: done}]}
        """,
    ),
    "a breaker that is reset with keep lets the nodes be handled": (
        BUS,
        """
        - name: t
          nodes: [{name: gpu, count: 8}]
          timeline:
            - {at: 5m, nodes: [gpu-1, gpu-2, gpu-3, gpu-4], xid: {code: 79}}
            - {at: 20m, breakerReset: {policy: bus, keep: true}}
          expect:
            holds: [{guard: breaker, at: 10m}]
            steps: [{step: cordon, at: 20m}]
        """,
    ),
    "requests of people are answered": (
        BUS,
        """
        - name: t
          timeline:
            - {at: 5m, xid: {code: 79}}
            - {at: 7m, request: {verb: cancel, by: bob, reason: mine}}
          expect:
            messages: [{contains: cancelled by bob}]
            nodes: [{at: 8m, cordoned: false, session: false}]
        """,
    ),
    "a channel that fails, fails the step that waits for it": (
        (
            "when: [{xid: {codes: [79]}}]\n"
            "  steps: [{notify: {to: [log]}, onFailure: escalate}, {cordon: {}}]"
        ),
        """
        - name: t
          timeline:
            - {at: 0s, channel: {name: log, fails: no disk}}
            - {at: 5m, xid: {code: 79}}
          expect:
            steps: [{step: notify, result: failed}]
            nodes: [{at: 10m, phase: escalated}]
          expectNot: {steps: [{step: cordon}]}
        """,
    ),
    "a deleted node closes its session": (
        BUS,
        """
        - name: t
          timeline:
            - {at: 5m, xid: {code: 79}}
            - {at: 6m, delete: {}}
          expect: {steps: [{step: cordon, at: 5m}]}
          expectNot: {steps: [{step: uncordon}]}
        """,
    ),
    "a policy that is switched to DryRun does nothing further": (
        BUS,
        """
        - name: t
          timeline:
            - {at: 4m, policy: {policy: bus, mode: DryRun}}
            - {at: 5m, xid: {code: 79}}
          expect: {nodes: [{at: 10m, cordoned: false, session: false}]}
          expectNot: {steps: [{step: cordon}]}
        """,
    ),
    "a silent agent proves nothing": (
        BUS,
        """
        - name: t
          timeline:
            - {at: 5m, xid: {code: 79}}
            - {at: 6m, agent: silent}
          expect: {messages: [{contains: its agent is silent, after: 20m}]}
        """,
    ),
    "an alert fires, is silenced, and ends": (
        "when: [{alert: {name: Bad}}]\n  steps: [{cordon: {}}]\n  recover: {for: 1m}",
        """
        - name: t
          nodes: [{name: a}, {name: b}]
          timeline:
            - {at: 5m, node: a, alert: {name: Bad}}
            - {at: 10m, node: a, alert: {name: Bad, firing: false}}
          expect:
            steps: [{node: a, step: cordon, at: 5m}, {node: a, step: uncordon, at: 11m}]
          expectNot: {steps: [{node: b, step: cordon}]}
        - name: silenced
          timeline: [{at: 5m, node: gpu-1, alert: {name: Bad, suppressed: true}}]
          expect: {holds: [{guard: silence}]}
          expectNot: {steps: [{step: cordon}]}
        - name: the end of an alert proves nothing while its source is dead
          timeline:
            - {at: 5m, node: gpu-1, alert: {name: Bad}}
            - {at: 9m, source: {name: alertmanager/main, alive: false}}
            - {at: 10m, node: gpu-1, alert: {name: Bad, firing: false}}
          expect: {nodes: [{at: 3h, cordoned: true}]}
        """,
    ),
    "a query names a node, and another one clears it": (
        (
            "when: [{query: {promql: bad == 1, clearedBy: bad == 0, for: 1m}}]\n"
            "  steps: [{cordon: {}}]\n  recover: {for: 2m}"
        ),
        """
        - name: t
          timeline:
            - {at: 5m, query: {promql: bad == 1}}
            - {at: 10m, query: {promql: bad == 1, says: nothing}}
            - {at: 60m, query: {promql: bad == 1, says: well}}
          expect:
            steps: [{step: cordon, at: 6m}, {step: uncordon, at: 62m}]
        """,
    ),
    "labels and annotations of people": (
        BUS,
        """
        - name: t
          timeline:
            - {at: 1m, annotations: {gpu-remediator.io/mode: disabled}}
            - {at: 5m, xid: {code: 79}}
            - {at: 9m, annotations: {gpu-remediator.io/mode: ""}}
          expect:
            steps: [{step: cordon, at: 9m}]
            nodes: [{at: 6m, phase: left-alone}]
        """,
    ),
    "a step that waits for a person goes on when one says yes": (
        "when: [{xid: {codes: [79]}}]\n  steps: [{cordon: {}}, {approve: {}}, {event: {}}]",
        """
        - name: t
          timeline: [{at: 5m, xid: {code: 79}}, {at: 9m, approve: {by: ann}}]
          expect:
            holds: [{guard: approval, at: 6m}]
            steps: [{step: approve, at: 9m}, {step: event, at: 9m}]
        """,
    ),
    "times of day for windows": (
        BUS + '\n  windows: [{start: "22:00", end: "23:00"}]',
        """
        - name: t
          timeline: [{at: 5m, xid: {code: 79}}]
          expect:
            holds: [{guard: windows, at: 1h}]
            steps: [{step: cordon, at: 10h}]
        """,
    ),
}


@pytest.mark.parametrize("name", PASSING)
def test_a_timeline_does_what_it_says(name: str) -> None:
    spec, cases = PASSING[name]
    failed = [
        line for one in play(cases, policy(spec)) for line in failed_lines(one) if not one.passed
    ]
    assert not failed, "\n".join(failed)


FAILING: dict[str, tuple[str, str]] = {
    "a step that does not come": ("steps: [{step: drain}]", "no such step; there was cordon on"),
    "a step too early": ("steps: [{step: cordon, by: 4m}]", "cordon on gpu-1 at 5m"),
    "steps in another order": ("steps: [{step: notify}, {step: cordon}]", "only before the step"),
    "too many steps": ("steps: [{step: cordon, count: 2}]", "1 of them"),
    "another result": ("steps: [{step: cordon, result: failed}]", "no such step"),
    "a hold that is none": ("holds: [{guard: budget}]", "nothing was ever held"),
    "a message that is not sent": ("messages: [{contains: xyz}]", "0; sent were: gpu-1: Xid 79"),
    "a message of other words": ("messages: [{to: log, contains: Xid 94}]", "0; sent were"),
    "an Event that is not written": ("events: [{reason: X}]", "there was no Event"),
    "a node that is otherwise": ("nodes: [{at: 6m, cordoned: false}]", "got       cordoned"),
    "a taint that is not there": ("nodes: [{at: 6m, tainted: a/b}]", "no taint"),
    "a phase that is another": ("nodes: [{at: 6m, phase: well}]", "phase in-session"),
    "a label that is not there": ("nodes: [{at: 6m, labels: {a: b}}]", "a: (none)"),
}


@pytest.mark.parametrize("name", FAILING)
def test_an_expectation_that_is_not_met_says_what_came_instead(name: str) -> None:
    expect, said = FAILING[name]
    (result,) = play(f"- name: t\n  timeline: [{XID}]\n  expect:\n    {expect}")
    assert not result.passed
    text = "\n".join(failed_lines(result))
    assert said in text
    assert "p.test.yaml:8" in text  # the line of the expectation
    assert "5m  gpu-1       step cordon done (bus)" in text  # and what happened


@pytest.mark.parametrize(
    "never",
    [
        "steps: [{step: cordon}]",
        "messages: [{contains: Xid 79}]",
        "holds: [{guard: recovery}]",
    ],
)
def test_what_must_not_come_fails_where_it_comes(never: str) -> None:
    (result,) = play(
        f"- name: t\n  timeline: [{XID}, {{at: 9m, clear: {{}}}}]\n  expectNot: {{{never}}}"
    )
    assert not result.passed


def test_quiet_is_an_expectation() -> None:
    assert not play(f"- name: t\n  timeline: [{XID}]\n  quiet: true")[0].passed
    assert play("- name: t\n  quiet: true")[0].passed


def test_dry_run_writes_to_no_node() -> None:
    (result,) = play(
        f"- name: t\n  mode: DryRun\n  timeline: [{XID}]\n"
        "  expect: {steps: [{step: cordon, at: 5m}], nodes: [{at: 6m, cordoned: true}]}"
    )
    assert result.passed
    assert result.played is not None
    assert all(one.dry_run for one in result.played.timeline.happenings if one.policy)


BAD: dict[str, tuple[str, str]] = {
    "two things at once": ("timeline: [{at: 5m, xid: {code: 79}, cordon: {}}]", "exactly one of"),
    "nothing at all": ("timeline: [{at: 5m}]", "exactly one of"),
    "an unknown key": ("timeline: [{at: 5m, cordn: {}}]", "did you mean cordon?"),
    "a bare number": ("timeline: [{at: 5, cordon: {}}]", "is no duration"),
    "every without until": ("timeline: [{at: 5m, every: 1m, cordon: {}}]", "needs `until`"),
    "no expectation": ("timeline: [{at: 5m, cordon: {}}]", "cannot fail"),
    "quiet and loud": ("quiet: true\n  expect: {steps: [{step: cordon}]}", "nothing happens"),
    "a step that is none": ("expect: {steps: [{step: tains}]}", "write taint"),
    "a step that is none, not": ("expectNot: {steps: [{step: evict}]}", "one of: cordon,"),
    "a guard that is none": ("expectNot: {holds: [{guard: window}]}", "write windows"),
    "a phase that is none": ("expect: {nodes: [{at: 1m, phase: insession}]}", "in-session"),
    "an empty expectation": ("expect: {nodes: [{at: 5m}]}", "say what the node is like"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named_to_the_line(name: str) -> None:
    text, said = BAD[name]
    with pytest.raises(PolicyError) as caught:
        file(f"- name: t\n  {text}")
    problem = caught.value.problems[0]
    assert said in str(problem)
    assert problem.line >= 5


@pytest.mark.parametrize(
    ("case", "said", "line"),
    [
        ("timeline: [{at: 1m, node: gpu-9, cordon: {}}]", "gpu-9 is none of the nodes", 6),
        ("timeline: [{at: 1m, policy: {policy: x, mode: DryRun}}]", "no policy x", 6),
        ("timeline: [{at: 1m, query: {promql: up}}]", "no policy here asks this query", 6),
        ("nodes: [{name: a}, {name: a}]", "two nodes are called a", 6),
    ],
)
def test_a_case_that_names_what_is_not_there_fails_with_its_line(
    case: str, said: str, line: int
) -> None:
    (result,) = play(f"- name: t\n  {case}\n  expect: {{steps: [{{step: cordon}}]}}")
    assert said in result.error
    assert result.line == line


@pytest.mark.parametrize(
    ("never", "said"),
    [
        ("steps: [{node: gpu-2, step: cordon}]", "gpu-2 is none of the nodes; did you mean gpu-1?"),
        ("steps: [{policy: bsu, step: cordon}]", "bsu is none of the policies; there are: bus"),
        ("messages: [{to: oncall}]", "oncall is no channel that anything is told to"),
        ("events: [{node: a, reason: X}]", "a is none of the nodes"),
    ],
)
def test_an_expectation_of_what_is_not_there_is_no_test(never: str, said: str) -> None:
    """Under `expectNot` it would pass for ever."""
    (result,) = play(f"- name: t\n  timeline: [{XID}]\n  expectNot: {{{never}}}")
    assert said in result.error
    assert result.line == 7


def test_whatever_can_hold_can_be_expected() -> None:
    room = Path(__file__).parents[3] / "remediator" / "decide"
    source = "\n".join(one.read_text(encoding="utf-8") for one in room.rglob("*.py"))
    named = set(re.findall(r"\bHold\([^\n\"]*\"([a-z-]+)\"", source)) | {REFUSED, SILENCE}
    assert named == {*GUARD_NAMES, *HELD_BY_NO_GUARD}


@pytest.mark.parametrize("start", ["Saturday", '"12:00"', '"2026-13-05T12:00:00Z"'])
def test_a_beginning_that_is_no_time_is_named_to_its_place(start: str) -> None:
    with pytest.raises(PolicyError, match=r"p.test.yaml:4:10: .*is no time") as caught:
        file("- name: t\n  quiet: true", start=start)
    assert "2026-01-05T12:00:00Z" in caught.value.problems[0].fix


def test_a_bad_config_is_named_to_its_place() -> None:
    with pytest.raises(PolicyError) as caught:
        file("- name: t\n  quiet: true", config="{settling: 5}")
    assert "spec.config.settling" in str(caught.value)


def test_the_report_for_ci_is_xml_and_counts_failures() -> None:
    cases = f"- name: good\n  quiet: true\n- name: 'bad < & \"'\n  timeline: [{XID}]\n  quiet: true"
    results = play(cases)
    root = ET.fromstring(junit(results))  # noqa: S314 - our own text
    assert (root.get("tests"), root.get("failures")) == ("2", "1")
    suite = root.find("testsuite")
    assert suite is not None
    assert [one.get("name") for one in suite.findall("testcase")] == ["good", 'bad < & "']
    failure = suite.findall("testcase")[1].find("failure")
    assert failure is not None
    assert "what happened" in str(failure.text)


def test_the_keys_of_a_timeline_are_all_known() -> None:
    about = {"at", "node", "nodes", "every", "until"}
    keys = {info.alias or name for name, info in Happens.model_fields.items()} - about
    assert keys == {*ON_NODES, *ON_ALL}


@pytest.mark.parametrize(
    ("given", "named"),
    [("a.test.yaml", "a.yaml"), ("a.test.yml", "a.yml"), ("other.yaml", "other.yaml")],
)
def test_a_test_file_is_about_the_policy_of_its_name(given: str, named: str) -> None:
    assert policy_name(given) == named


def test_the_same_test_gives_the_same_timeline() -> None:
    cases = f"- name: t\n  timeline: [{XID}, {{at: 9m, clear: {{}}}}]\n  quiet: true"

    def lines(results: list[Result]) -> list[Any]:
        return [line for one in results for line in failed_lines(one)]

    assert lines(play(cases)) == lines(play(cases))
