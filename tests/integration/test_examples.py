"""The kustomization that users copy builds, and what it mounts is what the controller reads."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from remediator.act.job import job_of
from remediator.act.made import parse_template
from remediator.decide.decision import Work
from remediator.policy.load import load_config
from remediator.policy.steps import Step
from testbed.binaries import provide
from testbed.cluster import Cluster


EXAMPLES = Path(__file__).parents[2] / "examples"


def work_of(template: str, node: str) -> Work:
    return Work(
        key="s1/p/2",
        node=node,
        uid="uid-1",
        policy="p",
        step=2,
        action="job",
        spec=Step.model_validate({"job": {"template": template}}),
        session="s1",
        attempt=1,
        since=0.0,
        deadline=600.0,
    )


@pytest.mark.cluster
def test_the_example_kustomization_gives_the_controller_its_config(tmp_path: Path) -> None:
    built = subprocess.run(  # noqa: S603 - kubectl of the test's control plane
        [provide("kubectl"), "kustomize", str(EXAMPLES)], capture_output=True, text=True, check=True
    ).stdout
    objects: list[dict[str, Any]] = list(YAML(typ="safe").load_all(built))
    (pod,) = (one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Deployment")
    (container,) = pod["containers"]
    (file,) = (Path(one["value"]) for one in container["env"] if one["name"] == "REMEDIATOR_CONFIG")
    (volume,) = (
        one["name"] for one in container["volumeMounts"] if one["mountPath"] == str(file.parent)
    )
    (mounted,) = (one["configMap"]["name"] for one in pod["volumes"] if one["name"] == volume)
    (data,) = (
        one["data"]
        for one in objects
        if one["kind"] == "ConfigMap" and one["metadata"]["name"] == mounted
    )
    copy = tmp_path / file.name
    copy.write_text(data[file.name], "utf-8")

    cluster = load_config(copy)

    for channel in cluster.channels.values():
        assert channel.webhook is not None
        assert channel.webhook.url_file is not None
        folder = str(Path(channel.webhook.url_file).parent)
        assert folder in {one["mountPath"] for one in container["volumeMounts"]}


@pytest.mark.cluster
@pytest.mark.parametrize("path", sorted((EXAMPLES / "jobs").glob("*.yaml")), ids=lambda p: p.stem)
def test_an_example_of_a_job_is_one_that_the_server_takes(path: Path, cluster: Cluster) -> None:
    work = work_of(path.stem, cluster.create_node())
    template = parse_template(path.read_text("utf-8"), file=str(path))
    template["metadata"]["namespace"] = cluster.namespace
    job = job_of(template, work, template_name=path.stem, seconds=600.0, home=cluster.namespace)
    made = cluster.api.create(
        f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs",
        job,
        dryRun="All",
        fieldValidation="Strict",
    )
    for container in job["spec"]["template"]["spec"]["containers"]:
        assert "{" not in "".join(container.get("args", [])).replace("${", "")
    assert made["metadata"]["name"] == job["metadata"]["name"]


@pytest.mark.cluster
def test_a_job_that_was_exported_from_a_cluster_is_taken(tmp_path: Path, cluster: Cluster) -> None:
    """What `kubectl get job -o yaml` gives, less what a template may not have."""
    jobs = f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs"
    pod = {"restartPolicy": "Never", "containers": [{"name": "reset", "image": "reset"}]}
    given = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "old"}}
    there = cluster.api.create(jobs, given | {"spec": {"template": {"spec": pod}}})
    kept = {key: there["metadata"].get(key) for key in ("name", "namespace", "labels")}
    path = tmp_path / "old.yaml"
    path.write_text(json.dumps(there | {"metadata": kept}))
    assert "controller-uid" in there["spec"]["template"]["metadata"]["labels"]

    work = work_of("old", cluster.create_node())
    job = job_of(
        parse_template(path.read_text(), file=str(path)),
        work,
        template_name="old",
        seconds=600.0,
        home=cluster.namespace,
    )
    made = cluster.api.create(jobs, job, dryRun="All", fieldValidation="Strict")

    assert made["metadata"]["name"] == job["metadata"]["name"]


def test_the_page_beside_the_examples_of_jobs_names_them_all() -> None:
    text = (EXAMPLES / "jobs" / "README.md").read_text("utf-8")
    (block,) = (part.split("```")[0] for part in text.split("```yaml\n")[1:])
    templates = YAML(typ="safe").load(block)["spec"]["templates"]

    assert {name: given["file"] for name, given in templates.items()} == {
        path.stem: path.name for path in (EXAMPLES / "jobs").glob("*.yaml")
    }
