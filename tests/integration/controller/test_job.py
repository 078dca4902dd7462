"""Jobs and created objects on the real API server: made once, followed, deleted when unwanted."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from testbed.api import MERGE_PATCH, ApiError, Json
from testbed.manifests import DEPLOY, apply, read, relocated


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site, Succession

pytestmark = pytest.mark.cluster

PLUGIN = "nvidia.com/gpu.deploy.device-plugin"
JOB = {"job": {"template": "reset"}, "timeout": "10m"}
TEMPLATE: Json = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"labels": {"team": "gpu"}},
    "spec": {
        "template": {
            "spec": {
                "containers": [
                    {"name": "reset", "image": "example/reset", "args": ["{node}", "{attempt}"]}
                ],
                "nodeName": "another",
                "schedulingGates": [{"name": "example.com/gate"}],
            },
            "metadata": {"labels": {"mine": "yes"}},
        },
        "backoffLimit": 6,
        "completionMode": "Indexed",
        "managedBy": "example.com/queue",
        "manualSelector": True,
        "selector": {"matchLabels": {"mine": "yes"}},
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
    },
}
"""With all that would have it wait, be tried again, be nobody's, or be refused."""
REQUEST: Json = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"annotations": {"example.com/for": "{node}"}},
    "data": {"uid": "{uid}", "shell": "${HOME} {session}"},
}


class Jobs:
    """What the cluster's people and its Job controller see and do."""

    def __init__(self, site: Site) -> None:
        self.site, self.api, self.namespace = site, site.cluster.api, site.cluster.namespace

    @property
    def path(self) -> str:
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs"

    def template(self, name: str, document: Json) -> None:
        (self.site.folder / f"{name}.yaml").write_text(json.dumps(document), encoding="utf-8")

    def grant(self, file: str = "jobs.yaml") -> None:
        documents = read(DEPLOY / "controller" / "optional" / file)
        apply(self.api, relocated(documents, self.namespace))

    def let(self, verb: str, resource: str, *, group: str = "") -> None:
        """Give the controller one more right in its namespace."""
        meta: Json = {"metadata": {"name": f"{verb}-{resource}"}}
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.namespace}"
        rule = {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
        self.api.create(f"{path}/roles", {**meta, "rules": [rule]})
        rbac = "rbac.authorization.k8s.io"
        role = {"apiGroup": rbac, "kind": "Role", "name": f"{verb}-{resource}"}
        who = {"kind": "ServiceAccount", "name": "gpu-remediator", "namespace": self.namespace}
        self.api.create(f"{path}/rolebindings", {**meta, "roleRef": role, "subjects": [who]})

    def of(self, node: str) -> list[Json]:
        return [
            one
            for one in self.api.get(self.path)["items"]
            if one["metadata"].get("annotations", {}).get("gpu-remediator.io/node") == node
        ]

    def the(self, node: str) -> Json | None:
        return next(iter(self.of(node)), None)

    def ends(self, job: Json, *, well: bool = True) -> None:
        """Say it as the Job controller would."""
        now = job["metadata"]["creationTimestamp"]
        kinds = ("SuccessCriteriaMet", "Complete") if well else ("FailureTarget", "Failed")
        conditions = [
            {"type": kind, "status": "True", "lastTransitionTime": now, "reason": "Test"}
            for kind in kinds
        ]
        status: Json = {"startTime": now, "conditions": conditions}
        if well:
            status |= {"completionTime": now, "succeeded": 1}
        name = job["metadata"]["name"]
        self.api.patch(f"{self.path}/{name}/status", {"status": status})

    def created(self, node: str, resource: str) -> list[str]:
        """Names of all such objects that were ever made for this node."""
        return [
            entry["objectRef"].get("name") or entry["requestObject"]["metadata"]["name"]
            for entry in self.site.cluster.plane.audit_entries()
            if entry["verb"] == "create"
            and entry["objectRef"]["resource"] == resource
            and entry.get("responseStatus", {}).get("code") == 201
            and self._node_of(entry) == node
        ]

    @staticmethod
    def _node_of(entry: Json) -> str:
        metadata = entry.get("requestObject", {}).get("metadata", {})
        return str(metadata.get("annotations", {}).get("gpu-remediator.io/node", ""))


@pytest.fixture
def jobs(site: Site) -> Jobs:
    """Templates and rights for Jobs and ConfigMaps."""
    made = Jobs(site)
    made.template("reset", TEMPLATE)
    made.template("request", REQUEST)
    templates = {"reset": {"file": "reset.yaml"}, "request": {"file": "request.yaml"}}
    site.config(templates=templates, rates={"job": "9/1m"})
    made.grant()
    return made


def hold(site: Site, node: str) -> Json:
    session = site.session(node)
    return {} if session is None else dict(session["holds"][0])


def results(site: Site, node: str) -> list[tuple[str, str]]:
    return [(one["action"], one["result"]) for one in hold(site, node).get("results", [])]


def started(site: Site, jobs: Jobs, run: Callable[..., Replica], *steps: Json) -> tuple[str, Json]:
    site.policy(steps=[{"cordon": {}}, *(steps or (JOB,))])
    node = site.node()
    run()
    site.says(node, 79)
    return node, site.wait(lambda: jobs.the(node), "Job")


def test_a_job_is_pinned_followed_and_its_end_leads_on(
    site: Site, jobs: Jobs, run: Callable[..., Replica]
) -> None:
    node, job = started(site, jobs, run)
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    assert pod["nodeName"] == node
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["containers"][0]["args"] == [node, "1"]
    assert 500 < spec["activeDeadlineSeconds"] <= 600
    assert job["metadata"]["labels"]["team"] == "gpu"
    (owner,) = job["metadata"]["ownerReferences"]
    assert owner["uid"] == site.cluster.node(node)["metadata"]["uid"]
    assert hold(site, node)["workSince"]

    def progress() -> bool:
        known = site.status_of(node) or {}
        return any(
            f"describe job {job['metadata']['name']} -n " in one.get("progress", "")
            for one in known.get("work", [])
        )

    site.wait(progress, "progress line in the status")
    jobs.ends(job)
    site.wait(lambda: hold(site, node).get("state") == "done", "end of the step")
    assert results(site, node) == [("cordon", "done"), ("job", "done")]
    site.says(node)
    site.wait(lambda: not site.cordoned(node), "uncordon")
    assert len(jobs.created(node, "jobs")) == 1


def test_a_failed_job_is_tried_as_often_as_it_may_then_people_decide(
    site: Site, jobs: Jobs, run: Callable[..., Replica]
) -> None:
    site.config(templates={"reset": {"file": "reset.yaml"}}, rates={"job": "9/1m"})
    step = {"job": {"template": "reset", "maxAttempts": 2}}
    node, job = started(site, jobs, run, step)
    jobs.ends(job, well=False)
    site.wait(lambda: len(jobs.of(node)) == 2, "second Job")
    (second,) = [one for one in jobs.of(node) if one["metadata"]["name"] != job["metadata"]["name"]]
    assert second["spec"]["template"]["spec"]["containers"][0]["args"] == [node, "2"]
    jobs.ends(second, well=False)
    site.wait(lambda: hold(site, node).get("state") == "held", "held")
    assert results(site, node)[1:] == [("job", "failed"), ("job", "failed")]
    assert site.cordoned(node)


def test_a_reboot_is_the_new_boot_id(site: Site, jobs: Jobs, run: Callable[..., Replica]) -> None:
    step = {"job": {"template": "reset", "success": "reboot"}}
    node, job = started(site, jobs, run, step)
    jobs.ends(job)
    site.cluster.set_ready(node, "False")
    site.boots[node] = str(uuid.uuid4())
    site.cluster.set_boot_id(node, site.boots[node])
    site.says(node, 79)
    assert results(site, node) == [("cordon", "done")]
    site.cluster.set_ready(node, "True")
    site.wait(lambda: results(site, node)[-1] == ("job", "done"), "reboot seen")


def test_at_the_deadline_the_job_is_deleted(
    site: Site, jobs: Jobs, run: Callable[..., Replica]
) -> None:
    node, _ = started(site, jobs, run, {"job": {"template": "reset"}, "timeout": "3s"})
    site.wait(lambda: hold(site, node).get("state") == "held", "held")
    assert results(site, node)[-1] == ("job", "timed-out")
    site.wait(lambda: not jobs.of(node), "deletion")


@pytest.mark.parametrize("known", ["done", "failed", "timed-out", "gone"])
def test_a_job_whose_deadline_passed_while_no_controller_ran_is_what_it_came_to(
    site: Site, jobs: Jobs, run: Callable[..., Replica], known: str
) -> None:
    site.policy(steps=[{"cordon": {}}, JOB])
    node = site.node()
    first = run()
    site.says(node, 79)
    job = site.wait(lambda: jobs.the(node), "Job")
    first.stop()
    if known in {"done", "failed"}:
        jobs.ends(job, well=known == "done")
    elif known == "gone":
        jobs.api.delete(f"{jobs.path}/{job['metadata']['name']}")
    site.overdue(node)
    run()
    site.wait(lambda: len(results(site, node)) > 1, "end of the step")
    assert results(site, node)[-1] == ("job", "timed-out" if known == "gone" else known)
    assert len(jobs.created(node, "jobs")) == 1


def test_no_object_is_made_behind_the_deadline(
    site: Site, jobs: Jobs, run: Callable[..., Replica]
) -> None:
    site.policy(steps=[{"cordon": {}}, JOB, {"create": {"template": "request"}}])
    node = site.node()
    first = run()
    site.says(node, 79)
    job = site.wait(lambda: jobs.the(node), "Job")
    first.stop()
    jobs.ends(job)
    session = site.session(node)
    assert session is not None
    (known,) = session["holds"]
    ended = {"step": 1, "action": "job", "result": "done", "at": known["workSince"]}
    known |= {"step": 2, "results": [*known["results"], ended]}
    text = json.dumps(session)
    site.cluster.annotate(node, {"gpu-remediator.io/session": text})  # it died before the object
    site.overdue(node)
    jobs.let("get", "configmaps")
    run()
    site.wait(lambda: results(site, node)[-1:] == [("create", "timed-out")], "end of the step")
    assert jobs.created(node, "configmaps") == []


def test_a_person_who_uncordons_stops_the_job(
    site: Site, jobs: Jobs, run: Callable[..., Replica]
) -> None:
    node, _ = started(site, jobs, run)
    site.cluster.uncordon(node)
    site.wait(lambda: site.session(node) is None, "end of the session")
    site.wait(lambda: not jobs.of(node), "deletion")
    assert site.history(node)["waivers"]


def test_a_job_of_somebody_else_is_not_taken_over(
    site: Site, jobs: Jobs, run: Callable[..., Replica]
) -> None:
    site.policy(steps=[{"cordon": {}}, JOB])
    node = site.node()
    first = run()
    site.says(node, 79)
    job = site.wait(lambda: jobs.the(node), "Job")
    name = job["metadata"]["name"]
    first.stop()
    foreign = {"metadata": {"annotations": {"gpu-remediator.io/work": "other"}}}
    jobs.api.patch(f"{jobs.path}/{name}", foreign)
    run()
    site.wait(lambda: hold(site, node).get("state") == "held", "held")
    assert "not of this session" in hold(site, node)["results"][-1]["note"]
    assert jobs.the(node) is not None


def test_missing_rights_are_named_and_mended_while_it_waits(
    site: Site, run: Callable[..., Replica]
) -> None:
    jobs = Jobs(site)
    jobs.template("reset", TEMPLATE)
    site.config(templates={"reset": {"file": "reset.yaml"}})
    site.policy(steps=[{"cordon": {}}, JOB])
    node = site.node()
    run()
    site.says(node, 79)

    def said() -> str:
        work = (site.status_of(node) or {}).get("work", [])
        return "\n".join(one.get("progress", "") for one in work)

    site.wait(
        lambda: 'resources: ["jobs"], verbs: ["create"]' in said(), "the rule that is missing"
    )
    jobs.grant()
    site.wait(lambda: jobs.the(node), "Job")


def test_an_object_is_created_and_its_status_waited_for(
    site: Site, jobs: Jobs, run: Callable[..., Replica]
) -> None:
    site.policy(steps=[{"cordon": {}}, {"create": {"template": "request"}}])
    node = site.node()
    run()
    site.says(node, 79)
    site.wait(lambda: results(site, node)[-1:] == [("create", "done")], "end of the step")
    (name,) = jobs.created(node, "configmaps")
    found = jobs.api.get(f"/api/v1/namespaces/{jobs.namespace}/configmaps/{name}")
    assert found["metadata"]["annotations"]["example.com/for"] == node
    session = site.session(node)
    assert session is not None
    assert found["data"] == {
        "uid": site.cluster.node(node)["metadata"]["uid"],
        "shell": f"${{HOME}} {session['id']}",
    }


class Requests:
    """A kind of another operator, with conditions in its status, as people may bring it along."""

    def __init__(self, jobs: Jobs) -> None:
        self.api, self.group = jobs.api, f"{jobs.namespace}.example.com"
        self.path = f"/apis/{self.group}/v1/namespaces/{jobs.namespace}/reboots"
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version: Json = {
            "name": "v1",
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}},
        }
        self.crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        self.name = f"reboots.{self.group}"
        self.api.create(
            self.crds,
            {
                "metadata": {"name": self.name},
                "spec": {
                    "group": self.group,
                    "scope": "Namespaced",
                    "names": {"plural": "reboots", "kind": "Reboot"},
                    "versions": [version],
                },
            },
        )
        jobs.site.wait(self._served, "kind Reboot")
        jobs.template("request", {"apiVersion": f"{self.group}/v1", "kind": "Reboot"})
        for verb in ("create", "get"):
            jobs.let(verb, "reboots", group=self.group)

    def _served(self) -> bool:
        try:
            return not self.all()
        except ApiError:
            return False

    def all(self) -> list[Json]:
        return list(self.api.get(self.path)["items"])

    def say(self, name: str, kind: str, **more: str) -> None:
        condition = {"type": kind, "status": "True", **more}
        body: Json = {"status": {"conditions": [condition]}}
        self.api.patch(f"{self.path}/{name}/status", body, content_type=MERGE_PATCH)

    def close(self) -> None:
        self.api.delete(f"{self.crds}/{self.name}")


@pytest.fixture
def requests(jobs: Jobs) -> Iterator[Requests]:
    made = Requests(jobs)
    yield made
    made.close()


WAITING = {"template": "request", "waitFor": {"type": "NodeReady"}, "failOn": {"type": "Failed"}}


@pytest.mark.parametrize("well", [True, False])
def test_an_object_s_conditions_end_the_step(
    site: Site, requests: Requests, run: Callable[..., Replica], *, well: bool
) -> None:
    site.policy(steps=[{"cordon": {}}, {"create": WAITING}])
    node = site.node()
    run()
    site.says(node, 79)
    (made,) = site.wait(requests.all, "object")
    name = made["metadata"]["name"]

    def said() -> bool:
        work = (site.status_of(node) or {}).get("work", [])
        return any("to say NodeReady=True" in one.get("progress", "") for one in work)

    site.wait(said, "what it waits for")
    requests.say(name, "Accepted")
    requests.say(name, "NodeReady" if well else "Failed", reason="Bmc", message="it is off")
    end = ("create", "done" if well else "failed")
    site.wait(lambda: results(site, node)[-1:] == [end], "end of the step")
    said_by = f"Reboot {name} says {'NodeReady' if well else 'Failed'}=True (Bmc: it is off)"
    assert hold(site, node)["results"][-1]["note"] == said_by
    assert len(requests.all()) == 1, "it stays"


def test_an_object_that_somebody_deletes_has_failed(
    site: Site, requests: Requests, run: Callable[..., Replica]
) -> None:
    site.policy(steps=[{"cordon": {}}, {"create": WAITING}])
    node = site.node()
    first = run()
    site.says(node, 79)
    (made,) = site.wait(requests.all, "object")
    first.stop()
    last = site.status()["time"]
    run()  # who goes on finds it, and makes no second one

    def said() -> bool:
        if site.status()["time"] <= last:
            return False  # the first one's last words
        work = (site.status_of(node) or {}).get("work", [])
        return any("to say NodeReady=True" in one.get("progress", "") for one in work)

    site.wait(said, "what it waits for")
    assert len(requests.all()) == 1
    requests.api.delete(f"{requests.path}/{made['metadata']['name']}")
    site.wait(lambda: results(site, node)[-1:] == [("create", "failed")], "end of the step")
    assert "deleted by somebody else" in hold(site, node)["results"][-1]["note"]


def test_what_the_server_does_not_know_fails_at_once(
    site: Site, jobs: Jobs, run: Callable[..., Replica]
) -> None:
    jobs.template("request", {"apiVersion": "example.com/v1", "kind": "Reboot"})
    site.policy(steps=[{"cordon": {}}, {"create": {"template": "request"}}])
    node = site.node()
    run()
    site.says(node, 79)
    site.wait(lambda: hold(site, node).get("state") == "held", "held")
    assert "knows no Reboot of example.com/v1" in hold(site, node)["results"][-1]["note"]


@pytest.mark.parametrize("writes", range(1, 11))
def test_a_crash_after_any_write_makes_nothing_twice(
    site: Site, jobs: Jobs, succession: Callable[[int], Succession], writes: int
) -> None:
    site.policy(
        steps=[
            {"cordon": {}},
            {"label": {"set": {PLUGIN: "false"}}},
            JOB,
            {"create": {"template": "request"}},
            {"uncordon": {}},
        ]
    )
    node = site.node(labels={PLUGIN: "true"})
    site.says(node)
    heirs = succession(writes)

    def finished() -> bool:
        for job in jobs.of(node):
            if not (job.get("status") or {}).get("conditions"):
                jobs.ends(job)
        return hold(site, node).get("state") == "done"

    heirs.reach(finished, "end of the steps", node, 79)
    assert not site.cordoned(node)
    assert site.cluster.node(node)["metadata"]["labels"][PLUGIN] == "false"
    heirs.reach(lambda: site.session(node) is None, "end of the session", node)
    assert site.cluster.node(node)["metadata"]["labels"][PLUGIN] == "true"
    assert len(site.history(node)["attempts"]) == 1
    assert len(jobs.created(node, "jobs")) == 1
    assert len(jobs.created(node, "configmaps")) == 1
    assert heirs.crashed


def test_a_job_that_a_dead_controller_could_not_delete_is_found(
    site: Site, jobs: Jobs, run: Callable[..., Replica]
) -> None:
    site.policy(steps=[{"cordon": {}}, JOB])
    node, other = site.node(), site.node()
    first = run()
    for one in (node, other):
        site.says(one, 79)
        site.wait(partial(jobs.the, one), "Job")
    first.stop()
    wanted = jobs.the(other)
    # As after a death between the end of the session and the deletion.
    site.cluster.annotate(node, {"gpu-remediator.io/session": None})
    site.cluster.uncordon(node)
    site.says(node)
    run()
    site.wait(lambda: not jobs.of(node), "deletion")
    assert jobs.the(other) == wanted


def test_dry_run_makes_nothing(site: Site, jobs: Jobs, run: Callable[..., Replica]) -> None:
    site.policy(mode="DryRun", steps=[{"cordon": {}}, {"label": {"set": {PLUGIN: "x"}}}, JOB])
    node = site.node()
    run()
    site.says(node, 79)

    def at_the_job() -> Any:
        known = site.status_of(node) or {}
        return any("3/3 job" in line for line in known.get("steps", []))

    site.wait(at_the_job, "virtual job")
    assert not site.writes_to(node)
    assert not jobs.of(node)
