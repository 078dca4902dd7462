"""What the API server says to the requests of a step that takes time, with nothing done.

One probe an action, for server dry-run. The requests are those that the step's worker
would begin with: the Job or object is created, each pod that would be evicted first is
evicted, all with ``dryRun=All``. What comes later (pods of later orders, the pod that a Job
makes) nobody can ask about beforehand.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from remediator.act.drain.plan import STUCK, Cause, Past, plan
from remediator.act.drain.rate import EvictionRate
from remediator.act.drain.replies import Attempt, Reply, attempt, meaning
from remediator.act.drain.report import trial
from remediator.act.job import job_of
from remediator.act.made import Templates, kind_of, name_of, object_of
from remediator.clock import Clock
from remediator.decide.decision import Work
from remediator.kube.dynamic import Json, ObjectApi
from remediator.kube.errors import AlreadyExists, ApiError, Denied, Invalid, NotFound
from remediator.kube.pods import Pod
from remediator.policy.drain import Drain
from remediator.policy.templates import TemplateError


NO_DRY_RUN: Final = "does not support dry run"
"""An admission webhook with side effects makes the server refuse the question itself.
https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#side-effects"""


class Said(StrEnum):
    """What the server said to a request that it was only asked about."""

    ACCEPTED = "accepted"
    HELD = "held"
    """Some of it, for now: by a PodDisruptionBudget, by a pod's protection."""
    REFUSED = "refused"
    UNKNOWN = "unknown"
    """No answer, or none that says anything about the real request."""


class Answer(NamedTuple):
    """The answer, and for people why, or how far."""

    said: Said
    note: str = ""


class Probe(Protocol):
    """Asks about one action's work."""

    async def __call__(self, work: Work) -> Answer:
        """Ask. Raises ApiError and NotLeading: nothing was found out."""


class Pods(Protocol):
    """Asks about pods; see :class:`remediator.kube.pods.ApiPods`."""

    async def list_pods(self, node: str) -> tuple[list[Pod], dict[str, str]]:
        """Return the pods of a node; and those that cannot be read, with what is odd."""

    async def evict(self, pod: Pod, *, grace: float | None = None) -> None:
        """Ask whether a pod can be evicted."""

    async def delete(self, pod: Pod, *, grace: float | None = None) -> None:
        """Ask whether a pod can be deleted."""


class DrainProbe:
    """Asks for the evictions that a drain would begin with.

    Each is answered by itself: of a budget that lets one pod go, two are told yes.
    """

    def __init__(self, *, pods: Pods, rate: EvictionRate, clock: Clock) -> None:
        self._pods = pods
        self._rate = rate
        self._clock = clock

    async def __call__(self, work: Work) -> Answer:
        """See :class:`Probe`."""
        drain = work.spec.drain or Drain()
        pods, unreadable = await self._pods.list_pods(work.node)
        now = self._clock.now()
        first = plan(pods, drain, Past(since=now, unreadable=unreadable), now)
        attempts: dict[str, Attempt] = {}
        for send, these in ((self._pods.evict, first.evict), (self._pods.delete, first.delete)):
            for pod in these:
                await self._rate.take()
                reply, message = await _reply(send, pod, drain.grace_period)
                attempts[pod.uid] = attempt(None, reply, message, now=now)
        past = Past(since=now, attempts=attempts, unreadable=unreadable)
        left = plan(pods, drain, past, now).left
        causes = {one.cause for one in left}
        held = Said.HELD if causes & STUCK else Said.ACCEPTED
        return Answer(Said.REFUSED if Cause.REFUSED in causes else held, trial(left, now))


class JobProbe:
    """Asks for the Job of a step."""

    def __init__(
        self, *, objects: ObjectApi, templates: Templates, namespace: str, clock: Clock
    ) -> None:
        self._objects = objects
        self._templates = templates
        self._namespace = namespace
        self._clock = clock

    async def __call__(self, work: Work) -> Answer:
        """See :class:`Probe`."""
        name = work.spec.job.template if work.spec.job is not None else ""
        try:
            template = await self._templates.load(name)
            seconds = work.deadline - self._clock.now()
            home = self._namespace
            job = job_of(template, work, template_name=name, seconds=seconds, home=home)
        except TemplateError as error:
            return Answer(Said.REFUSED, str(error))
        return await _create(self._objects, job)


class CreateProbe:
    """Asks for the object of a step."""

    def __init__(self, *, objects: ObjectApi, templates: Templates, namespace: str) -> None:
        self._objects = objects
        self._templates = templates
        self._namespace = namespace

    async def __call__(self, work: Work) -> Answer:
        """See :class:`Probe`."""
        template_name = work.spec.create.template if work.spec.create is not None else ""
        try:
            template = await self._templates.load(template_name)
        except TemplateError as error:
            return Answer(Said.REFUSED, str(error))
        home = self._namespace if await self._objects.namespaced(kind_of(template)) else ""
        name = name_of(work, template_name)
        return await _create(self._objects, object_of(template, work, name=name, namespace=home))


def make_probes(
    *,
    objects: ObjectApi,
    pods: Pods,
    rate: EvictionRate,
    templates: Templates,
    namespace: str,
    clock: Clock,
) -> Mapping[str, Probe]:
    """Return the probes by action; a webhook has none: it is not the API server's to answer.

    Args:
        objects: sends with ``dryRun=All``.
        pods: sends with ``dryRun=All``.
        rate: how fast pods are asked about.
        templates: of RemediatorConfig.
        namespace: where Jobs and objects go whose template names none.
        clock: the controller's.
    """
    return {
        "drain": DrainProbe(pods=pods, rate=rate, clock=clock),
        "job": JobProbe(objects=objects, templates=templates, namespace=namespace, clock=clock),
        "create": CreateProbe(objects=objects, templates=templates, namespace=namespace),
    }


def answer_of(error: ApiError) -> Answer:
    """Return what an error says about the real request."""
    text = str(error)
    match error:
        case _ if NO_DRY_RUN in text:
            return Answer(Said.UNKNOWN, text)
        case Denied() | Invalid() | NotFound():
            return Answer(Said.REFUSED, text)
        case _:
            return Answer(Said.UNKNOWN, text)


async def _create(objects: ObjectApi, obj: Json) -> Answer:
    what = f"{obj['kind']} {obj['metadata']['name']}"
    try:
        await objects.create(obj)
    except AlreadyExists:
        return Answer(Said.UNKNOWN, f"a {what} is there already")
    return Answer(Said.ACCEPTED, f"{what} would be created")


async def _reply(
    send: Callable[..., Awaitable[None]], pod: Pod, grace: float | None
) -> tuple[Reply, str]:
    try:
        await send(pod, grace=grace)
    except ApiError as error:
        return meaning(error)
    return Reply.ACCEPTED, ""
