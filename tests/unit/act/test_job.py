"""From a template to the Job, and what its end means."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remediator.act.job import REBOOT_GRACE, JobWorker, ending, job_of, pod_state, tail
from remediator.act.made import (
    NotMadeError,
    Templates,
    is_of,
    make,
    name_of,
    object_of,
    parse_template,
)
from remediator.decide.decision import Work
from remediator.kube.access import access_of
from remediator.kube.errors import AlreadyExists, Invalid, Unreachable
from remediator.policy.problems import PolicyError
from remediator.policy.steps import Step
from remediator.policy.templates import Template, TemplateError, check_template, fill


JOB: dict[str, Any] = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "mine", "generateName": "x-", "labels": {"team": "gpu"}},
    "spec": {
        "backoffLimit": 6,
        "parallelism": 3,
        "suspend": True,
        "podFailurePolicy": {},
        "template": {
            "metadata": {"labels": {"app": "reset"}},
            "spec": {
                "restartPolicy": "OnFailure",
                "nodeSelector": {"other": "node"},
                "affinity": {},
                "tolerations": [{"key": "a"}],
                "hostPID": True,
                "containers": [{"name": "c", "image": "i", "args": ["{node}", "{x}", "${HOME}"]}],
            },
        },
    },
}
ACCESS = access_of("POST", "/apis/batch/v1/namespaces/x/jobs")


def work(attempt: int = 1, *, step: dict[str, Any] | None = None, **other: Any) -> Work:
    given: dict[str, Any] = {
        "key": f"s1/p/2/{attempt}",
        "node": "gpu-1",
        "uid": "uid-1",
        "policy": "p",
        "step": 2,
        "action": "job",
        "spec": Step.model_validate(step or {"job": {"template": "reset"}}),
        "session": "s1",
        "attempt": attempt,
        "since": 0.0,
        "deadline": 100.0,
    }
    return Work(**{**given, **other})


def made(**options: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"template_name": "reset", "seconds": 59.2, "home": "home"}
    return job_of(JOB, options.pop("work", work()), **{**given, **options})


def test_a_job_runs_once_on_its_node_past_every_taint_until_its_deadline() -> None:
    job = made()
    spec = job["spec"]
    pod = spec["template"]["spec"]
    assert (spec["backoffLimit"], spec["parallelism"], spec["completions"]) == (0, 1, 1)
    assert spec["activeDeadlineSeconds"] == 60
    assert "suspend" not in spec
    assert pod["nodeName"] == "gpu-1"
    assert pod["restartPolicy"] == "Never"
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["hostPID"] is True
    assert {"nodeSelector", "affinity"}.isdisjoint(pod)
    assert pod["containers"][0]["args"] == ["gpu-1", "{x}", "${HOME}"]
    labels = spec["template"]["metadata"]["labels"]
    assert labels["app"] == "reset"
    assert labels["gpu-remediator.io/made"] == job["metadata"]["name"]
    assert job["metadata"]["namespace"] == "home"
    assert job["metadata"]["labels"]["team"] == "gpu"
    assert "generateName" not in job["metadata"]
    assert JOB["spec"]["backoffLimit"] == 6, "the template is not touched"


def test_a_job_always_has_a_deadline_of_its_own() -> None:
    assert made(seconds=-5.0)["spec"]["activeDeadlineSeconds"] == 1


def test_the_name_is_the_same_for_the_same_attempt_only() -> None:
    first = name_of(work(), "reset")
    assert first == name_of(work(since=7.0, deadline=9.0), "reset")
    others = [name_of(work(2), "reset"), name_of(work(uid="uid-2"), "reset")]
    assert len({first, *others}) == 3
    assert len(name_of(work(), "x" * 42)) <= 53


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kind": "CronJob"}, "no Job of batch/v1"),
        ({"spec": None}, "has no spec"),
        ({"spec": {"template": {}}}, "has no spec"),
        ({"spec": {"template": {"spec": {}}}}, "has no containers"),
        (
            {"spec": {"template": {"spec": {"containers": [{}]}, "metadata": "x"}}},
            "metadata of its pods is no mapping",
        ),
    ],
)
def test_what_is_no_job_says_why(change: dict[str, Any], why: str) -> None:
    with pytest.raises(TemplateError, match=why):
        job_of({**JOB, **change}, work(), template_name="reset", seconds=1.0, home="home")


def test_words_are_filled_into_values_and_never_into_keys() -> None:
    words = {"node": "n", "uid": "{session}", "session": "s", "attempt": "1", "policy": "p"}
    value = {"{node}": ["{node}-{attempt}", 3, {"a": "{uid} {other}"}], "b": None}
    assert fill(value, words) == {"{node}": ["n-1", 3, {"a": "{session} {other}"}], "b": None}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ([], "one object"),
        ({"kind": "Job"}, "no apiVersion"),
        ({"apiVersion": "v1", "kind": ""}, "no kind"),
        ({"apiVersion": "v1", "kind": "A", "metadata": []}, "no mapping"),
        ({"apiVersion": "v1", "kind": "A", "metadata": {"labels": []}}, "labels is no mapping"),
        ({"apiVersion": "v1", "kind": "A", "metadata": {"finalizers": []}}, "leave it out"),
        (
            {"apiVersion": "v1", "kind": "A", "metadata": {"uid": "u", "resourceVersion": "1"}},
            "metadata.uid, metadata.resourceVersion cannot be set by a template: leave them out",
        ),
    ],
)
def test_what_is_no_template_says_why(data: Any, why: str) -> None:
    with pytest.raises(TemplateError, match=why):
        check_template(data)


def test_a_template_is_read_from_its_folder_or_says_why_not(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("apiVersion: v1\nkind: Thing\n")
    (tmp_path / "b.yaml").write_text("apiVersion: v1\nkind: A\n---\nkind: B\n")
    (tmp_path / "c.yaml").write_text("kind: [\n")
    specs = {name: Template(file=f"{name}.yaml") for name in "abcd"}
    templates = Templates(specs, folder=tmp_path)
    assert templates.read("a") == {"apiVersion": "v1", "kind": "Thing"}
    for name, why in (("b", "one document"), ("c", "cannot be read"), ("d", "no such file")):
        with pytest.raises(TemplateError, match=why):
            templates.read(name)
    with pytest.raises(TemplateError, match=r"spec\.templates"):
        templates.read("e")
    with pytest.raises(PolicyError):
        parse_template("a: 1\na: 2\n", file="x")


def condition(kind: str, status: str = "True") -> dict[str, Any]:
    return {"status": {"conditions": [{"type": kind, "status": status, "reason": "Why"}]}}


def test_only_complete_and_failed_end_a_job() -> None:
    assert ending({}) is None
    assert ending(condition("SuccessCriteriaMet")) is None
    assert ending(condition("Failed", "False")) is None
    assert ending(condition("Complete")) == (True, "Why")
    assert ending(condition("Failed")) == (False, "Why")


def test_a_pod_says_what_keeps_it() -> None:
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff"}}}
    assert pod_state({}) == "pod Pending"
    assert (
        pod_state({"status": {"phase": "Pending", "containerStatuses": [waiting]}})
        == "pod Pending, ImagePullBackOff"
    )
    assert pod_state({"status": {"phase": "Running"}}) == "pod Running"


def test_the_end_of_a_log_is_one_short_line() -> None:
    assert tail("a\n\n  b \n") == "a | b"
    assert tail("x" * 400, limit=10) == "..." + "x" * 10


class Objects:
    """Objects in memory."""

    def __init__(self) -> None:
        self.all: dict[str, dict[str, Any]] = {}
        self.creations = 0
        self.deleted: list[str] = []
        self.error: Exception | None = None
        self.pod_spec: dict[str, Any] = {"containers": [{"name": "c"}]}
        self.pod_status: dict[str, Any] = {}
        self.logs: dict[str, str | Exception] = {}

    async def create(self, obj: dict[str, Any]) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        name = obj["metadata"]["name"]
        if name in self.all:
            raise AlreadyExists(ACCESS)
        self.creations += 1
        self.all[name] = {**obj, "metadata": {**obj["metadata"], "uid": f"uid-of-{name}"}}
        return self.all[name]

    async def read(self, _kind: Any, _namespace: str, name: str) -> dict[str, Any] | None:
        if self.error is not None:
            raise self.error
        return self.all.get(name)

    async def delete(self, _kind: Any, _namespace: str, name: str, *, uid: str) -> None:
        assert self.all[name]["metadata"]["uid"] == uid
        self.deleted.append(name)
        del self.all[name]

    async def select(self, kind: Any, _namespace: str, labels: Any) -> list[dict[str, Any]]:
        assert kind.kind == "Pod"
        (name,) = labels.values()
        pod = {"metadata": {"name": f"{name}-x"}, "spec": self.pod_spec}
        return [{**pod, "status": {"phase": "Running", **self.pod_status}}]

    async def log_end(self, _namespace: str, _pod: str, container: str, *, lines: int) -> str:
        said = self.logs.get(container, f"the last\nof {lines}")
        if isinstance(said, Exception):
            raise said
        return said

    def end(self, kind: str) -> None:
        for one in self.all.values():
            one.update(condition(kind))


class Bench:
    def __init__(self, tmp_path: Path, step: dict[str, Any] | None = None) -> None:
        import json  # noqa: PLC0415 - of this bench only

        (tmp_path / "reset.yaml").write_text(json.dumps(JOB))
        self.objects = Objects()
        self.said: list[str] = []
        self.work = work(step=step)
        self.worker = JobWorker(
            objects=self.objects,  # type: ignore[arg-type]
            templates=Templates({"reset": Template(file="reset.yaml")}, folder=tmp_path),
            namespace="home",
            clock=self,
        )

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def run(self) -> asyncio.Task[Any]:
        return asyncio.create_task(self.worker.run(self.work, say=self.said.append))


@pytest.mark.looptime
async def test_a_complete_job_is_done_and_brings_its_last_words(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    running = bench.run()
    await asyncio.sleep(5.0)
    assert bench.said[-1].endswith("pod Running")
    bench.objects.end("Complete")
    outcome = await running
    assert outcome.delivered
    assert outcome.note.endswith("is complete: the last | of 20")


WAITING = {"state": {"waiting": {"reason": "PodInitializing"}}}


def ended(name: str, code: int) -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": code}}}


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("inits", "mains", "logs", "said"),
    [
        ([ended("check", 1)], [{"name": "c", **WAITING}], {"check": "no GPU"}, "check: no GPU"),
        ([ended("check", 0)], [ended("c", 0), ended("d", 7)], {"d": "bad"}, "d: bad"),
        ([ended("check", 0)], [ended("c", 1), ended("d", 0)], {"c": "bad"}, "c: bad"),
        ([ended("check", 0)], [ended("c", 0), ended("d", 0)], {"c": "fine"}, "c: fine"),
        ([ended("check", 0)], [ended("c", 1)], {"c": " ", "d": "", "check": "x"}, "check: x"),
        (
            [ended("check", 1)],
            [],
            {"check": Unreachable(ACCESS, message="away"), "c": "", "d": ""},
            "its log cannot be read: cannot create jobs.batch in namespace x: away",
        ),
    ],
)
async def test_the_last_words_are_of_the_container_that_failed(
    tmp_path: Path,
    inits: list[Any],
    mains: list[Any],
    logs: dict[str, str | Exception],
    said: str,
) -> None:
    bench = Bench(tmp_path)
    bench.objects.pod_spec = {
        "initContainers": [{"name": "check"}],
        "containers": [{"name": "c"}, {"name": "d"}],
    }
    bench.objects.pod_status = {"initContainerStatuses": inits, "containerStatuses": mains}
    bench.objects.logs = logs
    running = bench.run()
    await asyncio.sleep(5.0)
    bench.objects.end("Failed")
    assert (await running).note.partition("): ")[2] == said


@pytest.mark.parametrize(
    ("said", "kept"),
    [(None, 86400), (0, 600), (599, 600), (7200, 7200), ("{odd}", "{odd}")],
)
def test_a_finished_job_is_kept_until_somebody_has_looked(said: Any, kept: Any) -> None:
    template = {**JOB, "spec": {**JOB["spec"], "ttlSecondsAfterFinished": said}}
    job = job_of(template, work(), template_name="reset", seconds=1.0, home="home")
    assert job["spec"]["ttlSecondsAfterFinished"] == kept
    assert made()["spec"]["ttlSecondsAfterFinished"] == 86400


@pytest.mark.looptime
async def test_a_second_run_finds_the_job_of_the_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    first = bench.run()
    await asyncio.sleep(5.0)
    first.cancel()
    second = bench.run()
    await asyncio.sleep(5.0)
    bench.objects.end("Failed")
    assert not (await second).delivered
    assert bench.objects.creations == 1


@pytest.mark.looptime
async def test_a_job_that_was_deleted_failed_and_is_not_made_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    running = bench.run()
    await asyncio.sleep(5.0)
    bench.objects.all.clear()
    outcome = await running
    assert not outcome.delivered
    assert "deleted by somebody else" in outcome.note
    assert bench.objects.creations == 1


@pytest.mark.looptime
async def test_trouble_while_it_is_followed_makes_nothing_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    running = bench.run()
    await asyncio.sleep(5.0)
    bench.objects.error = Unreachable(ACCESS, message="gone")
    await asyncio.sleep(20.0)
    assert "cannot be followed" in bench.said[-1]
    bench.objects.error = None
    bench.objects.end("Complete")
    assert (await running).delivered
    assert bench.objects.creations == 1


@pytest.mark.looptime
@pytest.mark.parametrize("known", ["Complete", "Failed", "runs", "none"])
async def test_behind_the_deadline_it_is_looked_once_and_nothing_made(
    tmp_path: Path, known: str
) -> None:
    bench = Bench(tmp_path)
    if known != "none":
        before = bench.run()
        await asyncio.sleep(5.0)
        before.cancel()
        if known != "runs":
            bench.objects.end(known)
    await asyncio.sleep(bench.work.deadline)
    outcome = await asyncio.wait_for(bench.run(), 1.0)
    assert outcome.delivered is (known == "Complete")
    assert outcome.late is (known in {"runs", "none"})
    said = {"runs": "did not end in time", "none": "there is no Job"}
    assert said.get(known, "the last | of 20") in outcome.note
    assert bench.objects.creations == (known != "none")


@pytest.mark.looptime
async def test_a_reboot_may_still_come_behind_the_deadline(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"job": {"template": "reset", "success": "reboot"}})
    running = bench.run()
    await asyncio.sleep(bench.work.deadline + 30.0)
    assert not running.done(), "decide sees the new boot id, and judges"
    running.cancel()


@pytest.mark.looptime
async def test_a_job_that_kubernetes_ended_at_its_deadline_is_late(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    running = bench.run()
    await asyncio.sleep(5.0)
    for one in bench.objects.all.values():
        failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}
        one["status"] = {"conditions": [failed]}
    outcome = await running
    assert (outcome.delivered, outcome.late) == (False, True)


@pytest.mark.looptime
async def test_a_reboot_job_is_given_up_only_when_it_failed_and_nothing_went_down(
    tmp_path: Path,
) -> None:
    step = {"job": {"template": "reset", "success": "reboot"}}
    bench = Bench(tmp_path, step)
    bench.work = replace(bench.work, deadline=20 * REBOOT_GRACE)
    complete = bench.run()
    await asyncio.sleep(5.0)
    bench.objects.end("Complete")
    await asyncio.sleep(10 * REBOOT_GRACE)
    assert not complete.done()
    complete.cancel()
    bench.objects.all.clear()
    failed = bench.run()
    await asyncio.sleep(5.0)
    bench.objects.end("Failed")
    await asyncio.sleep(REBOOT_GRACE - 10.0)
    assert not failed.done()
    assert not (await failed).delivered


@pytest.mark.looptime
async def test_stop_deletes_the_job_while_it_runs_and_only_then(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.worker.stop(bench.work)
    running = bench.run()
    await asyncio.sleep(5.0)
    running.cancel()
    await bench.worker.stop(bench.work)
    assert len(bench.objects.deleted) == 1
    running = bench.run()
    await asyncio.sleep(5.0)
    running.cancel()
    bench.objects.end("Complete")
    await bench.worker.stop(bench.work)
    assert len(bench.objects.deleted) == 1


async def test_what_the_server_refuses_is_a_failure_that_says_why() -> None:
    objects = Objects()
    objects.error = Invalid(ACCESS, message="spec.template: Required value")
    obj = object_of(JOB, work(), name="a", namespace="home")
    with pytest.raises(NotMadeError, match="Required value"):
        await make(objects, obj, work(), now=0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other", [work(2), work(session="s2"), work(uid="uid-2")], ids=["try", "session", "node"]
)
async def test_an_object_of_another_attempt_session_or_node_is_not_taken_over(other: Work) -> None:
    objects = Objects()
    theirs = object_of(JOB, other, name="a", namespace="home")
    await objects.create(theirs)
    assert is_of(theirs, other)
    assert not is_of(theirs, work())
    obj = object_of(JOB, work(), name="a", namespace="home")
    with pytest.raises(NotMadeError, match="not of this session"):
        await make(objects, obj, work(), now=0.0)  # type: ignore[arg-type]
