"""Steps that began and ended are counted once each, and those that people care for are Events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from remediator.act.writes import Verdict
from remediator.decide.decision import Decision, NodePhase, Outcome
from remediator.decide.requests import Request, Verb
from remediator.record.events import Events
from remediator.record.metrics import Metrics
from remediator.witness import Witness
from tests.unit.decide.build import Bench, condition, ledger, node, patch_of, policy, xid


STEPS: list[dict[str, Any]] = [
    {"cordon": {}},
    {"taint": {}},
    {"drain": {}},
    {"job": {"template": "reset", "maxAttempts": 2}},
]


class Recorder:
    def __init__(self) -> None:
        self.notes: list[dict[str, Any]] = []

    def record(self, **note: Any) -> None:
        self.notes.append(note)


class Clock:
    def now(self) -> float:
        return 0.0


class Watched(Bench):
    """A bench whose decisions and writes are seen by a witness."""

    def __init__(self, *given: Any, dry_run: bool = False) -> None:
        guards = ledger(
            budgets=[{"maxUnavailable": "100%", "per": "cluster"}],
            rates=dict.fromkeys(("cordon", "drain", "job"), "100/1m"),
        )
        super().__init__(*given, guards=guards)
        self.registry, self.recorder, self.dry_run = CollectorRegistry(), Recorder(), dry_run
        self.witness = Witness(
            events=Events(recorder=self.recorder),
            metrics=Metrics(registry=self.registry),
            clock=Clock(),
            news=lambda: None,
        )
        self.see(node(faults=(xid(),)))

    def turn(self, seconds: float = 1.0, *, verdict: Verdict = Verdict.DONE) -> None:
        self.now += seconds
        before = dict(self.nodes)
        for one in self.decide(write=verdict is Verdict.DONE):
            self.witness.decided(None, one, dry_run=self.dry_run)
            patch = patch_of(one)
            if patch is not None:
                self.witness.written(
                    patch, facts=before[one.node], verdict=verdict, dry_run=self.dry_run
                )

    def until(self, action: str) -> None:
        while action not in self.works:
            self.turn()

    def ends(self, action: str, *, well: bool, note: str = "") -> None:
        key = self.works[action].key
        self.outcomes[key] = Outcome(key=key, delivered=well, note=note)
        self.turn()

    def count(self, action: str, result: str, *, policy: str = "bus") -> float:
        mode = "dry_run" if self.dry_run else "enforce"
        labels = {"policy": policy, "action": action, "mode": mode, "result": result}
        return self.registry.get_sample_value("remediation_steps_total", labels) or 0.0

    @property
    def reasons(self) -> list[str]:
        found = (one["reason"].removeprefix("GPURemediation") for one in self.recorder.notes)
        return [one for one in found if one != "Held"]

    def said(self, reason: str) -> list[str]:
        found = (one for one in self.recorder.notes if one["reason"].endswith(reason))
        return [one["message"] for one in found]


def test_each_step_is_counted_once_as_it_begins_and_ends() -> None:
    made = Watched(policy(steps=STEPS))
    made.until("drain")
    made.ends("drain", well=True, note="3 pods")
    made.until("job")
    made.ends("job", well=False, note="exit code 3")
    made.until("job")
    made.ends("job", well=False)
    for _ in range(3):
        made.turn()
    counted = {
        (action, result): made.count(action, result)
        for action in ("cordon", "taint", "drain", "job")
        for result in ("started", "done", "failed")
    }
    assert {key: value for key, value in counted.items() if value} == {
        ("cordon", "done"): 1, ("taint", "done"): 1, ("drain", "started"): 1,
        ("drain", "done"): 1, ("job", "started"): 2, ("job", "failed"): 2,
    }  # fmt: skip
    assert made.reasons == [
        "Cordoned", "Tainted", "StepStarted", "StepDone", "StepStarted", "StepFailed",
        "StepStarted", "StepFailed",
    ]  # fmt: skip
    assert made.said("StepDone") == ["step 3 (drain) of bus done: 3 pods"]
    assert made.said("StepFailed")[0] == "step 4 (job) of bus failed: exit code 3"
    keys = [one["key"] for one in made.recorder.notes if "Held" not in one["reason"]]
    assert len(set(keys)) == len(keys)


def test_what_ends_with_its_session_is_counted_and_taints_that_go_are_told() -> None:
    made = Watched(policy(steps=STEPS))
    made.until("drain")
    made.change(request=Request(verb=Verb.CANCEL, by="ann", at="now"))
    made.turn()
    assert made.count("drain", "cancelled") == 1
    assert made.reasons[-3:] == ["Cancelled", "Untainted", "StepCancelled"]


def test_what_ends_while_another_policy_holds_the_node_is_counted() -> None:
    when, recover = [{"condition": {"type": "Hot"}}], {"for": "0s"}
    steps: list[dict[str, Any]] = [{"cordon": {}}, {"drain": {}}]
    made = Watched(
        policy(steps=[{"cordon": {}}]), policy("hot", when=when, steps=steps, recover=recover)
    )
    known = made.nodes["n1"].conditions
    made.change(conditions={**known, "Hot": condition("Hot", "True", now=made.now)})
    made.until("drain")
    made.now += 10.0
    made.change(conditions={**known, "Hot": condition("Hot", "False", now=made.now)})
    made.turn()
    assert made.session().hold("hot") is None
    assert made.session().hold("bus") is not None
    assert made.count("drain", "cancelled", policy="hot") == 1
    assert made.count("cordon", "done") == 1


def test_a_write_that_was_not_done_counts_nothing() -> None:
    made = Watched(policy(steps=STEPS))
    made.turn(verdict=Verdict.CHANGED)
    assert made.count("cordon", "done") == 0
    assert not made.reasons


def test_dry_run_is_counted_by_itself_and_is_no_event() -> None:
    made = Watched(policy(steps=STEPS), dry_run=True)
    made.until("drain")
    assert made.count("cordon", "done") == 1
    assert made.count("drain", "started") == 1
    assert not made.reasons


def test_an_expression_that_begins_to_fail_on_a_well_node_is_seen() -> None:
    bench = Watched(policy())
    well = Decision(node="n1", uid="u", phase=NodePhase.WELL)
    bench.witness.decided(well, replace(well, failed=(("bus", "no key"),)), dry_run=False)
    count = bench.registry.get_sample_value(
        "remediation_expression_failures_total", {"policy": "bus"}
    )
    assert count == 1.0
