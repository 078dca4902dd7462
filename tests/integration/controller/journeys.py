"""What happens to one node from its fault to its return, for each kind of step, to be disturbed.

A `Journey` is a policy, a node with what it needs, and the rest of the cluster: it answers a
Job as its controller would, ends pods as a kubelet, reboots, approves. Whoever disturbs it (kills
the program, breaks its requests) asks afterwards for its `end`, which is to be that of an
undisturbed one, and for the `effects` of the program's writes, each to be there as often.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from remediator.decide.requests import APPROVAL_ANNOTATION, Approval, encode_approvals
from testbed.api import Json
from testbed.faultproxy import Write
from testbed.manifests import DEPLOY, apply, read, relocated
from testbed.receiver import Receiver


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Site

PATIENCE = 60.0
_LOOK = 0.05
_HEARTBEAT = 0.5
_OWN = "gpu-remediator"
_OWN_KEYS = frozenset(
    f"{_OWN}.io/{name}" for name in ("session", "history", "approval", "request", "gpu-faults")
)
_JOB: Json = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {},
    "spec": {"template": {"spec": {"containers": [{"name": "main", "image": "example/image"}]}}},
}
_REQUEST: Json = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {},
    "data": {"for": "{node}"},
}


@dataclass(frozen=True)
class End:
    """How it all came out, with what differs from run to run taken out."""

    results: tuple[tuple[str, str], ...]
    """Of the steps, as the session had them before the fault was over."""
    node: str
    objects: tuple[str, ...]
    told: frozenset[str]
    """Messages, by the keys under which they were sent."""
    called: tuple[str, ...]
    """Keys of the calls of the step `webhook`."""


class Journey:
    """One node under one policy.

    Args:
        site: where; its own namespace, which is the journey's from here on.
        receiver: of messages, and of the step `webhook`.
    """

    steps: ClassVar[list[Json]]

    def __init__(self, site: Site, receiver: Receiver) -> None:
        self.site, self.receiver = site, receiver
        self.api, self.namespace = site.cluster.api, site.cluster.namespace
        self._said = 0.0
        self._session = ""
        self._results: tuple[tuple[str, str], ...] = ()
        self._configure()
        self.node = site.node(labels={"example.com/state": "good"})
        self._uid = site.cluster.node(self.node)["metadata"]["uid"]
        self._boot = site.boots[self.node]
        self.prepare()

    def prepare(self) -> None:
        """Put what it needs on the node."""

    def live(self) -> None:
        """Do once more what the rest of the cluster does."""

    def travel(self, tend: Callable[[], None]) -> None:
        """Have the fault, its remediation and recovery; `tend` is called all the time."""
        self._wait(tend, self._done, "the end of the steps", 79)
        self._wait(tend, lambda: self.site.session(self.node) is None, "the end of the session")
        self._wait(tend, self._told_of_the_end, "the message of the end")

    def end(self) -> End:
        """Return how it came out."""
        names = [key for one in self.receiver.of("/hook") for key in keys_of(one)]
        calls = {one.key for one in tuple(self.receiver.got) if one.path == "/service"}
        return End(
            results=self._results,
            node=self._plain(json.dumps(self._node(), sort_keys=True)),
            objects=tuple(sorted(self._objects())),
            told=frozenset(map(self._plain, names)),
            called=tuple(sorted(map(self._plain, calls))),
        )

    def effects(self, writes: Iterable[Write]) -> Counter[str]:
        """Return what the program's writes changed outside its own records, and how often."""
        return Counter(
            self._plain(f"{one.method} {what}")
            for one in writes
            if one.status < 300
            for what in _effect(one)
        )

    # -- the journey ------------------------------------------------------------------------

    def _configure(self) -> None:
        for name, template in (("reset", _JOB), ("reboot", _JOB), ("request", _REQUEST)):
            (self.site.folder / f"{name}.yaml").write_text(json.dumps(template), encoding="utf-8")
        (self.site.folder / "secret").write_text("word", encoding="utf-8")
        url = self.receiver.url
        endpoint = {"url": f"{url}/service", "secretFile": str(self.site.folder / "secret")}
        names = ("reset", "reboot", "request")
        self.site.config(
            channels={"hook": {"webhook": {"url": f"{url}/hook"}}},
            templates={name: {"file": f"{name}.yaml"} for name in names},
            endpoints={"service": endpoint},
        )
        self.site.policy(steps=self.steps)
        jobs = read(DEPLOY / "controller" / "optional" / "jobs.yaml")
        apply(self.api, relocated(jobs, self.namespace))
        self._grant("configmaps", "create", "get")

    def _grant(self, resource: str, *verbs: str) -> None:
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.namespace}"
        meta: Json = {"metadata": {"name": f"for-{resource}"}}
        rule = {"apiGroups": [""], "resources": [resource], "verbs": list(verbs)}
        self.api.create(f"{path}/roles", {**meta, "rules": [rule]})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", **meta["metadata"]}
        who = {"kind": "ServiceAccount", "name": "gpu-remediator", "namespace": self.namespace}
        self.api.create(f"{path}/rolebindings", {**meta, "roleRef": role, "subjects": [who]})

    def _wait(
        self, tend: Callable[[], None], found: Callable[[], bool], what: str, *codes: int
    ) -> None:
        deadline = time.monotonic() + PATIENCE
        self._said = 0.0
        while True:
            tend()
            if time.monotonic() > self._said + _HEARTBEAT:
                self.site.says(self.node, *codes)
                self._said = time.monotonic()
            self.live()
            if found():
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: {json.dumps(self.site.session(self.node))}")
            time.sleep(_LOOK)

    def hold(self) -> Json:
        """Return the policy's hold of the node; empty if there is none."""
        session = self.site.session(self.node)
        if session is None:
            return {}
        self._session = session["id"]
        return dict(session["holds"][0])

    def at(self, action: str) -> bool:
        """Tell whether this is the step that runs."""
        hold = self.hold()
        step = hold.get("step", 0)
        return (
            hold.get("state", "running") == "running"
            and bool(hold)
            and step < len(self.steps)
            and action in self.steps[step]
        )

    def _done(self) -> bool:
        hold = self.hold()
        results = hold.get("results", [])
        self._results = tuple((one["action"], one["result"]) for one in results)
        return hold.get("state") == "done"

    def _told_of_the_end(self) -> bool:
        return any(one["resolves"] for one in self.receiver.of("/hook"))

    # -- how it came out --------------------------------------------------------------------

    def _node(self) -> Json:
        found = self.site.cluster.node(self.node)
        metadata, history = found["metadata"], self.site.history(self.node)
        kinds = {
            one["type"]: one["status"]
            for one in found["status"]["conditions"]
            if not one["type"].startswith("Drain")  # looked at now and then; they go by themselves
        }
        return {
            "labels": metadata["labels"],
            "annotations": {
                key: value
                for key, value in metadata.get("annotations", {}).items()
                if key not in _OWN_KEYS
            },
            "unschedulable": found["spec"].get("unschedulable", False),
            "taints": _ours(found["spec"].get("taints", [])),
            "conditions": kinds,
            "attempts": len(history.get("attempts", [])),
            "waivers": len(history.get("waivers", [])),
        }

    def _objects(self) -> Iterable[str]:
        for one in self.api.get(f"/apis/batch/v1/namespaces/{self.namespace}/jobs")["items"]:
            yield f"job {one['metadata']['name'].rpartition('-')[0]}"
        for name in self.site.cluster.pods():
            if name.startswith("work-"):
                yield f"pod {name}"
        path = f"/api/v1/namespaces/{self.namespace}/configmaps"
        for one in self.api.get(path)["items"]:
            if one["metadata"]["name"].startswith("request-"):
                yield "configmap request"

    def _plain(self, text: str) -> str:
        for name, word in (
            (self._session, "SESSION"),
            (self.node, "NODE"),
            (self._uid, "UID"),
            (self.namespace, "NAMESPACE"),
        ):
            text = text.replace(name, word) if name else text
        return text


class Marks(Journey):
    """All that is written on the node itself, what is told, and a wait."""

    steps: ClassVar = [
        {"cordon": {}},
        {"taint": {"key": "gpu-remediator.io/faulty"}},
        {"label": {"set": {"example.com/state": "bad"}}},
        {"annotate": {"set": {"example.com/note": "bad"}}},
        {"event": {"message": "faulty"}},
        {"notify": {"to": ["hook"]}, "onFailure": "hold"},
        {"wait": {"for": "200ms"}},
        {"untaint": {"key": "gpu-remediator.io/faulty"}},
        {"uncordon": {}},
    ]


class Drain(Journey):
    """Two pods leave, a service is called, somebody repairs the node."""

    steps: ClassVar = [
        {"cordon": {}},
        {"notify": {"to": ["hook"]}},
        {"drain": {"despite": ["unmanaged"]}},
        {"webhook": {"to": "service", "data": {"for": "{node}"}}},
        {"wait": {"condition": {"type": "Repaired"}}},
    ]

    def prepare(self) -> None:
        """Begin the pods: one ends at once, one when its kubelet says so."""
        cluster = self.site.cluster
        cluster.create_pod("work-a", node=self.node, running=True)
        cluster.create_pod("work-b", node=self.node, running=True, grace=30)

    def live(self) -> None:
        """Be the kubelet, and whoever repairs."""
        pods = self.site.cluster.pods()
        if "deletionTimestamp" in pods.get("work-b", {"metadata": {}})["metadata"]:
            self.site.cluster.delete_pod("work-b")
        if self.at("wait"):
            self.site.cluster.set_condition(self.node, "Repaired", "True")


class Jobs(Journey):
    """A reset, another operator's object, a person's yes, a reboot."""

    steps: ClassVar = [
        {"cordon": {}},
        {"notify": {"to": ["hook"]}},
        {"job": {"template": "reset"}},
        {"create": {"template": "request"}},
        {"approve": {"to": ["hook"]}},
        {"job": {"template": "reboot", "success": "reboot"}},
    ]

    def live(self) -> None:
        """Be the Job controller, the person who approves, and the machine."""
        jobs = f"/apis/batch/v1/namespaces/{self.namespace}/jobs"
        for job in self.api.get(jobs)["items"]:
            if not (job.get("status") or {}).get("conditions"):
                self.api.patch(f"{jobs}/{job['metadata']['name']}/status", _complete(job))
            if job["metadata"]["name"].startswith("reboot-"):
                self._reboot()
        if self.at("approve") and self._asked():
            self._approve()

    def _asked(self) -> bool:
        bodies = self.receiver.of("/hook")
        return any(key.endswith("/approval") for body in bodies for key in keys_of(body))

    def _reboot(self) -> None:
        if self.site.boots[self.node] == self._boot:
            self.site.boots[self.node] = str(uuid.uuid4())
            self.site.cluster.set_boot_id(self.node, self.site.boots[self.node])
            self._said = 0.0  # the agent begins anew

    def _approve(self) -> None:
        hold = self.hold()
        if not hold:
            return
        given = Approval(
            session=self._session,
            policy=hold["policy"],
            step=hold["step"],
            by="ann",
            at="now",
            expires="2999-01-01T00:00:00Z",
        )
        known = self.site.cluster.node(self.node)["metadata"]["annotations"]
        if APPROVAL_ANNOTATION not in known:
            text = encode_approvals([given])
            self.site.cluster.annotate(self.node, {APPROVAL_ANNOTATION: text})


class Stopped(Journey):
    """A Job that does not end, and a person who takes the node back: it is deleted."""

    steps: ClassVar = [
        {"cordon": {}},
        {"notify": {"to": ["hook"]}},
        {"job": {"template": "reset"}},
    ]

    def travel(self, tend: Callable[[], None]) -> None:
        """Have the fault and the Job; uncordon; see both end."""
        jobs = f"/apis/batch/v1/namespaces/{self.namespace}/jobs"
        told = partial(self.receiver.of, "/hook")
        self._wait(tend, lambda: bool(self.api.get(jobs)["items"] and told()), "the Job", 79)
        self.hold()
        self.site.cluster.uncordon(self.node)
        self._wait(tend, lambda: self.site.session(self.node) is None, "the end", 79)
        self._wait(tend, lambda: not self.api.get(jobs)["items"], "the deletion", 79)
        self._wait(tend, self._told_of_the_end, "the message of the end", 79)


JOURNEYS: dict[str, type[Journey]] = {
    "marks": Marks,
    "drain": Drain,
    "jobs": Jobs,
    "stopped": Stopped,
}


def keys_of(body: Json) -> list[str]:
    """Return the keys of the messages that a webhook's body carries."""
    return [one["key"] for one in body["messages"]]


def _complete(job: Json) -> Json:
    now = job["metadata"]["creationTimestamp"]
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": now, "reason": "Test"}
        for kind in ("SuccessCriteriaMet", "Complete")
    ]
    times = {"startTime": now, "completionTime": now, "succeeded": 1}
    return {"status": {**times, "conditions": conditions}}


def _effect(write: Write) -> Iterable[str]:
    """Say what a write changed, if it is not about the program's own records."""
    parts = write.target.partition("?")[0].strip("/").split("/")
    body = json.loads(write.body or b"{}")
    if parts[-2] == "nodes":
        yield from _change(body)
    elif parts[-1] == "eviction":
        yield f"eviction of {parts[-2]}"
    elif write.method == "DELETE":
        yield f"{parts[-2]} {parts[-1].rpartition('-')[0]}"
    elif parts[-1] in {"jobs", "configmaps"} and not _of_its_own(body):
        yield f"{parts[-1]} {body['metadata']['name'].rpartition('-')[0]}"


def _change(body: Json) -> Iterable[str]:
    metadata: dict[str, Any] = body.get("metadata", {})
    for what in ("labels", "annotations"):
        for key, text in (metadata.get(what) or {}).items():
            if key not in _OWN_KEYS:
                yield f"{what} {key}={text}"
    spec = body.get("spec") or {}
    if "unschedulable" in spec:
        yield f"unschedulable={spec['unschedulable']}"
    if "taints" in spec:
        yield f"taints={_ours(spec['taints'] or [])}"


def _ours(taints: list[Json]) -> list[str]:
    """Leave out those that the node lifecycle controller sets and takes away, in its own time."""
    return [one["key"] for one in taints if one["key"].startswith(_OWN)]


def _of_its_own(body: Json) -> bool:
    return str(body.get("metadata", {}).get("name", "")).startswith(_OWN)
