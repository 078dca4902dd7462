"""Which worker does which action."""

from __future__ import annotations

from pathlib import Path

import aiohttp

from remediator.act.create import CreateWorker
from remediator.act.job import JobWorker
from remediator.act.made import Templates
from remediator.act.webhook_step import Called, WebhookWorker
from remediator.act.work import Worker
from remediator.clock import Clock
from remediator.kube.dynamic import ObjectApi
from remediator.policy.cluster import ClusterSpec


def make_workers(
    *,
    cluster: ClusterSpec,
    folder: Path,
    namespace: str,
    objects: ObjectApi,
    session: aiohttp.ClientSession,
    clock: Clock,
    called: Called,
) -> dict[str, Worker]:
    """Return the workers by action.

    Args:
        cluster: templates and endpoints.
        folder: where relative names of templates' files begin.
        namespace: where Jobs and objects go whose template names none.
        objects: the way to the API server.
        session: for webhooks; owned by the caller.
        clock: the controller's.
        called: told of each call of a webhook.
    """
    templates = Templates(cluster.templates, folder=folder)
    return {
        "job": JobWorker(objects=objects, templates=templates, namespace=namespace, clock=clock),
        "create": CreateWorker(
            objects=objects, templates=templates, namespace=namespace, clock=clock
        ),
        "webhook": WebhookWorker(
            endpoints=cluster.endpoints, session=session, clock=clock, called=called
        ),
    }
