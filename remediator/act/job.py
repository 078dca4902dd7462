"""The step `job`: a Job of the SRE's own, on the node that is at fault.

Made once for each attempt (see :mod:`remediator.act.made`), never retried by Kubernetes
(``backoffLimit: 0``, ``restartPolicy: Never``), pinned to the node past the scheduler (a
cordon does not keep it away) and tolerating every taint. Kubernetes ends it by itself at the
step's deadline, even if no controller runs then. Behind the deadline none is made: one that an
earlier process made is looked at once, and its end, or that it has none yet, is said.

For a reboot its end proves nothing: a Job that reboots its node dies with it. Success is what
decide sees on the node, a new boot id and Ready; here it is only followed, and given up when
it has failed and the node has not gone down for a while.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final

from remediator.act.made import (
    MADE_LABEL,
    LateError,
    NotMadeError,
    Templates,
    is_of,
    labels_of,
    make,
    name_of,
    object_of,
)
from remediator.clock import Clock
from remediator.decide.decision import Outcome, Work
from remediator.kube.dynamic import Json, Kind, ObjectApi
from remediator.kube.errors import ApiError
from remediator.policy.steps import JobSuccess
from remediator.policy.templates import TemplateError


JOB: Final = Kind("batch/v1", "Job")
POD: Final = Kind("v1", "Pod")
POLL: Final = 2.0
SLOW_POLL: Final = 10.0
"""Seconds between two looks at a Job that has run for longer than a minute."""
REBOOT_GRACE: Final = 180.0
"""Seconds for a node to go down whose reboot Job has failed: mostly it failed because of that."""
KEPT_AFTER: Final = 86400
"""Seconds that a finished Job is kept where its template says nothing."""
KEPT_AT_LEAST: Final = 600
"""Seconds that it is kept whatever its template says: one that is gone before we, or the next
controller, have looked counts as deleted by somebody else."""
LOG_LINES: Final = 20
_NOT_OF_THE_JOB: Final = (
    *("podFailurePolicy", "successPolicy", "completionMode"),
    *("backoffLimitPerIndex", "maxFailedIndexes", "suspend", "managedBy"),
    *("selector", "manualSelector"),
)
"""Keys by which a Job would be tried again, wait, be nobody's, or be refused beside what we set."""
_OF_ANOTHER_JOB: Final = (
    *("controller-uid", "job-name"),
    *("batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"),
)
"""Labels that Kubernetes puts on a Job's pods: of a template that was exported from a cluster they
name the Job of that time, and the server refuses the new one."""
_NOT_OF_THE_POD: Final = ("nodeSelector", "affinity", "schedulingGates")
_MINUTE: Final = 60.0
_OVERDUE: Final = "DeadlineExceeded"
"""Reason of a Job that Kubernetes ended at its ``activeDeadlineSeconds``: the step's deadline.
https://kubernetes.io/docs/concepts/workloads/controllers/job/#job-termination-and-cleanup"""


class JobWorker:
    """Runs Jobs.

    Args:
        objects: the way to the API server.
        templates: of RemediatorConfig.
        namespace: where Jobs go whose template names none.
        clock: the controller's.
    """

    def __init__(
        self, *, objects: ObjectApi, templates: Templates, namespace: str, clock: Clock
    ) -> None:
        self._objects = objects
        self._templates = templates
        self._namespace = namespace
        self._clock = clock

    async def run(self, work: Work, *, say: Callable[[str], None]) -> Outcome:
        """Make the Job, or find it, and follow it to its end. See :class:`Worker`."""
        try:
            template = await self._job(work)
            job = await make(self._objects, template, work, now=self._clock.now())
        except LateError as error:
            return Outcome(key=work.key, delivered=False, late=True, note=str(error))
        except (TemplateError, NotMadeError) as error:
            return Outcome(key=work.key, delivered=False, note=str(error))
        return await self._follow(work, job["metadata"], say)

    async def stop(self, work: Work) -> None:
        """Delete the Job if it still runs: nobody wants what it does any more."""
        try:
            metadata = (await self._job(work))["metadata"]
        except TemplateError:
            return  # it cannot be told where it was made; its own deadline ends it
        found = await self._objects.read(JOB, metadata["namespace"], metadata["name"])
        if found is None or not is_of(found, work) or ending(found) is not None:
            return
        uid = found["metadata"]["uid"]
        await self._objects.delete(JOB, metadata["namespace"], metadata["name"], uid=uid)

    async def _job(self, work: Work) -> Json:
        name = work.spec.job.template if work.spec.job is not None else ""
        template = await self._templates.load(name)
        seconds = work.deadline - self._clock.now()
        return job_of(template, work, template_name=name, seconds=seconds, home=self._namespace)

    async def _follow(self, work: Work, made: Json, say: Callable[[str], None]) -> Outcome:
        name, namespace = made["name"], made["namespace"]
        began = self._clock.now()
        reboots = work.spec.job is not None and work.spec.job.success is JobSuccess.REBOOT
        while True:
            try:
                job = await self._objects.read(JOB, namespace, name)
                if job is None:
                    note = f"Job {namespace}/{name} was deleted by somebody else"
                    return Outcome(key=work.key, delivered=False, note=note)
                end = ending(job)
                if end is None:
                    say(await self._progress(namespace, name))
            except ApiError as error:
                end = None
                say(f"Job {namespace}/{name} cannot be followed: {error}")
            else:
                if end is None and not reboots and self._clock.now() >= work.deadline:
                    note = f"Job {namespace}/{name} did not end in time"
                    return Outcome(key=work.key, delivered=False, late=True, note=note)
            if end is not None:
                return await self._ended(work, made, end=end, reboots=reboots, say=say)
            slow = self._clock.now() - began > _MINUTE
            await asyncio.sleep(SLOW_POLL if slow else POLL)

    async def _ended(
        self,
        work: Work,
        made: Json,
        *,
        end: tuple[bool, str],
        reboots: bool,
        say: Callable[[str], None],
    ) -> Outcome:
        well, why = end
        name, namespace = made["name"], made["namespace"]
        if reboots:
            say(f"Job {namespace}/{name} has ended; waits for the node to come back rebooted")
            if well:  # a reboot may take its time; decide has the deadline
                await asyncio.Event().wait()
            await asyncio.sleep(REBOOT_GRACE)
        said = await self._last_words(namespace, name)
        note = f"Job {namespace}/{name} {'is complete' if well else f'failed ({why})'}"
        note = f"{note}: {said}" if said else note
        return Outcome(key=work.key, delivered=well, late=why == _OVERDUE, note=note)

    async def _progress(self, namespace: str, name: str) -> str:
        """Say what its pod does."""
        pods = await self._objects.select(POD, namespace, {MADE_LABEL: name})
        none = f"no pod yet (`kubectl describe job {name} -n {namespace}` says why)"
        states = [pod_state(pod) for pod in pods] or [none]
        return f"Job {namespace}/{name}: {', '.join(states)}"

    async def _last_words(self, namespace: str, name: str) -> str:
        """Return in one line the end of the log of the container that its end is due to."""
        trouble = ""
        try:
            pods = await self._objects.select(POD, namespace, {MADE_LABEL: name})
        except ApiError as error:
            return f"its log cannot be read: {error}"
        for pod, container in [(one, name) for one in pods for name in speakers(one)]:
            try:
                text = await self._objects.log_end(
                    namespace, pod["metadata"]["name"], container, lines=LOG_LINES
                )
            except ApiError as error:  # of one that never ran there is none
                trouble = trouble or f"its log cannot be read: {error}"
                continue
            if text.strip():
                alone = len(containers_of(pod)) == 1
                return tail(text) if alone else f"{container}: {tail(text)}"
        return trouble


def job_of(template: Json, work: Work, *, template_name: str, seconds: float, home: str) -> Json:
    """Return the Job to create.

    ``seconds``: until Kubernetes ends it; ``home``: its namespace where the template names none.

    Raises:
        TemplateError: the template is no Job.
    """
    if (template.get("apiVersion"), template.get("kind")) != JOB:
        raise TemplateError(f"template {template_name} is no Job of batch/v1: use `create`")
    name = name_of(work, template_name)
    job = object_of(template, work, name=name, namespace=home)
    spec = _mapping(job, "spec", template_name)
    pod = _mapping(spec, "template", template_name)
    inner = _mapping(pod, "spec", template_name)
    if not inner.get("containers"):
        raise TemplateError(f"template {template_name} has no containers")
    metadata = _optional(pod, "metadata", template_name)
    labels = _optional(metadata, "labels", template_name)
    own = {key: value for key, value in labels.items() if key not in _OF_ANOTHER_JOB}
    metadata["labels"] = {**own, **labels_of(work, name)}
    for key in _NOT_OF_THE_POD:
        inner.pop(key, None)
    inner |= {
        "nodeName": work.node,
        "restartPolicy": "Never",
        "tolerations": [{"operator": "Exists"}],
    }
    spec |= {
        "backoffLimit": 0,
        "completions": 1,
        "parallelism": 1,
        "activeDeadlineSeconds": max(1, math.ceil(seconds)),
        "ttlSecondsAfterFinished": kept_for(spec.get("ttlSecondsAfterFinished")),
        "template": {**pod, "metadata": metadata, "spec": inner},
    }
    for key in _NOT_OF_THE_JOB:
        spec.pop(key, None)
    return {**job, "spec": spec}


def kept_for(said: Any) -> Any:
    """Return for how many seconds a finished Job is kept. The server refuses what is no number."""
    if said is None:
        return KEPT_AFTER
    return max(said, KEPT_AT_LEAST) if isinstance(said, int) else said


def containers_of(pod: Json) -> list[str]:
    """Return the names of a pod's containers, those that run first before the others."""
    spec = pod["spec"]
    return [one["name"] for one in [*(spec.get("initContainers") or []), *spec["containers"]]]


def speakers(pod: Json) -> list[str]:
    """Return whose log says how a pod ended: who failed first, what ran before the others last."""
    status = pod.get("status") or {}
    keys = ("initContainerStatuses", "containerStatuses")
    states = [one for key in keys for one in status.get(key) or []]
    failed = [
        one["name"]
        for one in states
        if ((one.get("state") or {}).get("terminated") or {}).get("exitCode", 0) != 0
    ]
    own = [one["name"] for one in pod["spec"]["containers"]]
    return list(dict.fromkeys([*failed, *own, *containers_of(pod)]))


def ending(job: Json) -> tuple[bool, str] | None:
    """Return whether a Job ended well, and why not; None while it runs."""
    for one in (job.get("status") or {}).get("conditions") or []:
        if one.get("status") == "True" and one.get("type") in {"Complete", "Failed"}:
            return one["type"] == "Complete", one.get("reason", "")
    return None


def pod_state(pod: Json) -> str:
    """Say in a few words where a pod stands, and what keeps it."""
    status = pod.get("status") or {}
    for one in [*(status.get("initContainerStatuses") or []), *status.get("containerStatuses", [])]:
        waiting = (one.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in {None, "PodInitializing"}:
            return f"pod {status.get('phase', 'Pending')}, {waiting['reason']}"
    return f"pod {status.get('phase', 'Pending')}"


def tail(text: str, limit: int = 250) -> str:
    """Return the end of a log in one line."""
    joined = " | ".join(line.strip() for line in text.splitlines() if line.strip())
    return joined if len(joined) <= limit else f"...{joined[-limit:]}"


def _optional(value: Json, key: str, template: str) -> dict[str, Any]:
    found = value.get(key) or {}
    if not isinstance(found, dict):
        raise TemplateError(f"template {template}: {key} of its pods is no mapping")
    return dict(found)


def _mapping(value: Json, key: str, template: str) -> dict[str, Any]:
    found = value.get(key)
    if not isinstance(found, dict):
        raise TemplateError(f"template {template} has no {key}")
    return dict(found)
