"""Files of templates are read where the controller would, and judged as the steps judge them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from remediator.act.job import job_of
from remediator.cli.root import app
from remediator.decide.decision import Work
from remediator.policy.lint.templates import NOT_HEEDED, RULES, why_no_job
from remediator.policy.steps import Step
from remediator.policy.templates import TemplateError


JOBS = Path(__file__).parents[3] / "examples" / "jobs"
HEAD = "apiVersion: gpu-remediator.io/v1alpha1\nkind: "
POLICY = (
    f"{HEAD}RemediationPolicy\nmetadata: {{name: p}}\nspec:\n  when: [{{xid: {{codes: [79]}}}}]\n"
    "  steps: [{cordon: {}}, {notify: {to: [log]}}, {drain: {}}, {job: {template: reset}}]\n"
)
CONTAINERS = [{"name": "reset", "image": "reset"}]


def job(spec: dict[str, Any] | None = None, pod: dict[str, Any] | None = None) -> dict[str, Any]:
    inner = {"restartPolicy": "Never", "containers": CONTAINERS, **(pod or {})}
    spec = {"backoffLimit": 0, "template": {"spec": inner}, **(spec or {})}
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}


def exported(labels: dict[str, str]) -> dict[str, Any]:
    """Return the template of a Job's pods as a cluster gives it."""
    return {"metadata": {"labels": labels}, "spec": job()["spec"]["template"]["spec"]}


def found(folder: Path, template: str | None, *, file: str = "r.yaml") -> list[dict[str, Any]]:
    """Return what `policy check` says of a template and of those who use it."""
    (folder / "p.yaml").write_text(POLICY)
    config = f"{HEAD}RemediatorConfig\nspec:\n  templates:\n    reset: {{file: {file}}}\n"
    (folder / "config.yaml").write_text(config)
    if template is not None:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(template)
    rules = [f"--rule={one.id}" for one in RULES]
    paths = [str(folder / "p.yaml"), f"--config={folder / 'config.yaml'}"]
    result = CliRunner().invoke(app, ["policy", "check", *paths, *rules, "-o", "json"])
    problems: list[dict[str, Any]] = json.loads(result.output)["problems"]
    errors = any(one["severity"] == "error" for one in problems)
    assert result.exit_code == (2 if errors else 0)
    return problems


def rules_of(problems: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    return [(one["rule"], Path(one["file"]).name, one["line"]) for one in problems]


@pytest.mark.parametrize("file", ["r.yaml", "jobs/r.yaml"])
def test_a_job_beside_the_config_is_fine(tmp_path: Path, file: str) -> None:
    assert found(tmp_path, json.dumps(job()), file=file) == []


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_are_fine(tmp_path: Path, path: Path) -> None:
    assert found(tmp_path, path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no such file"),
        ("a: [", ""),
        ("kind: Job\nkind: Job\n", ":2:1: "),
        ("a: b\n---\nc: d\n", "it must be one document"),
        ("[]", "it must be one object"),
        ("kind: Job", "it has no apiVersion"),
        ("\xff", ""),
    ],
)
def test_a_file_that_holds_no_object_is_named(tmp_path: Path, text: str | None, said: str) -> None:
    (problem,) = found(tmp_path, text)
    assert rules_of([problem]) == [("template-file", "config.yaml", 5)]
    assert problem["message"].startswith(str(tmp_path / "r.yaml"))
    assert said in problem["message"]


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_bytes(b"\xff")
    (problem,) = found(tmp_path, None)
    assert "r.yaml: " in problem["message"]


def test_a_name_that_no_file_has_is_told(tmp_path: Path) -> None:
    (problem,) = found(tmp_path, None, file=r'"a\0b"')
    assert "this is no name of a file" in problem["message"]


def test_an_absolute_name_may_be_of_another_machine(tmp_path: Path) -> None:
    away = tmp_path / "away" / "r.yaml"
    assert rules_of(found(tmp_path, None, file=str(away))) == [
        ("template-elsewhere", "config.yaml", 5)
    ]
    away.parent.mkdir()
    away.write_text("[]")
    assert rules_of(found(tmp_path, None, file=str(away))) == [("template-file", "config.yaml", 5)]


NO_JOBS: list[dict[str, Any]] = [
    {"apiVersion": "v1", "kind": "ConfigMap"},
    {"apiVersion": "batch/v2", "kind": "Job"},
    {"apiVersion": "batch/v1", "kind": "Job"},
    job(pod={"containers": []}),
    job({"template": {}}),
    job({"template": []}),
    job({"template": {"spec": {"containers": [{"name": "a"}]}, "metadata": ["x"]}}),
    job({"template": {"spec": {"containers": [{"name": "a"}]}, "metadata": {"labels": "x"}}}),
]


WORK = Work(
    key="s1/p/2",
    node="n",
    uid="u",
    policy="p",
    step=3,
    action="job",
    spec=Step.model_validate({"job": {"template": "reset"}}),
    session="s1",
    attempt=1,
    since=0.0,
    deadline=600.0,
)


@pytest.mark.parametrize("template", [*NO_JOBS, job()])
def test_what_is_no_job_is_what_the_step_refuses(tmp_path: Path, template: dict[str, Any]) -> None:
    why = why_no_job(template)
    try:
        job_of(template, WORK, template_name="reset", seconds=600.0, home="default")
    except TemplateError:
        assert why
        assert rules_of(found(tmp_path, json.dumps(template))) == [("no-job", "p.yaml", 6)]
    else:
        assert not why


@pytest.mark.parametrize("path", NOT_HEEDED, ids=".".join)
def test_what_is_said_not_to_be_heeded_is_not(path: tuple[str, ...]) -> None:
    *above, key = path
    template = job()
    place = template["spec"]
    for one in above:
        place = place.setdefault(one, {})
    place[key] = "odd"
    made = job_of(template, WORK, template_name="reset", seconds=600.0, home="default")["spec"]
    for one in above:
        made = made[one]
    assert made.get(key) != "odd"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (job({"backoffLimit": 6}), "spec.backoffLimit is not heeded"),
        (job({"completions": 2}), "spec.completions is not heeded"),
        (job({"activeDeadlineSeconds": 60}), "the step's timeout is its deadline"),
        (job(pod={"restartPolicy": "OnFailure"}), "spec.template.spec.restartPolicy"),
        (job(pod={"nodeSelector": {"a": "b"}}), "runs on the node that is at fault"),
        (job({"managedBy": "example.com/queue"}), "Kubernetes' own controller runs it"),
        (job() | {"status": {"succeeded": 1}}, "status is not heeded: it says how another Job"),
        (
            job({"template": exported({"job-name": "old"})}),
            "spec.template.metadata.labels.job-name is not heeded: it names an earlier",
        ),
        (job({"template": exported({"app": "reset"})}), ""),
        (job(pod={"schedulingGates": [{"name": "g"}]}), "it begins at once"),
        (job({"ttlSecondsAfterFinished": 60}), ""),
        (job({"completions": 1, "parallelism": 1, "suspend": False}), ""),
    ],
)
def test_what_the_step_sets_itself_is_told(
    tmp_path: Path, template: dict[str, Any], said: str
) -> None:
    problems = found(tmp_path, json.dumps(template))
    assert rules_of(problems) == ([("not-heeded", "p.yaml", 6)] if said else [])
    assert all(said in one["message"] for one in problems)


@pytest.mark.parametrize(
    ("namespace", "good"), [("resets", True), ("{node}", False), ("Resets", False), (7, False)]
)
def test_a_namespace_is_one(tmp_path: Path, namespace: object, *, good: bool) -> None:
    template = job() | {"metadata": {"namespace": namespace}}
    said = rules_of(found(tmp_path, json.dumps(template)))
    assert said == ([] if good else [("template-namespace", "config.yaml", 5)])
