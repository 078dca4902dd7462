"""Who decides and acts in a term, put together: each is told of the others' news.

Engine --decisions--> Executor --> node patches
                         |-------> Outbox --> channels --outcomes-->|
                         |-------> Works  --> workers  --outcomes-->| next decision
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aiohttp

from remediator.act.channels import make_channels
from remediator.act.drain.rate import EvictionRate
from remediator.act.envelope import Channel
from remediator.act.executor import Executor, Observer
from remediator.act.made import Templates
from remediator.act.outbox import Outbox
from remediator.act.probes import make_probes
from remediator.act.server_dry_run import ServerDryRun
from remediator.act.side import Side
from remediator.act.work import Worker, Works
from remediator.act.workers import make_workers
from remediator.decide.decision import Effect, Work
from remediator.decide.facts import MAX_ANNOTATION
from remediator.decide.topics import Topics
from remediator.engine import Engine
from remediator.kube.dynamic import ObjectApi
from remediator.kube.patch import ApiNodeWriter
from remediator.kube.pods import ApiPods
from remediator.kube.read import ApiNodeReader
from remediator.kube.workqueue import WorkQueue
from remediator.policy.cluster import DryRun
from remediator.record.audited import AuditedObjects, audit_call
from remediator.term.resources import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What runs. ``works`` is closed by its owner in the end."""

    channels: Mapping[str, Channel]
    outbox: Outbox
    works: Works
    executor: Executor
    engine: Engine
    server: ServerDryRun | None
    """Asks the API server about what dry-run decides, if that is wanted."""


def make_parts(
    has: Resources,
    *,
    real: Side,
    virtual: Side,
    session: aiohttp.ClientSession,
    drains: Worker,
    topics: Topics,
    observer: Observer,
    messages_changed: Callable[[], None],
    news: Callable[[], None],
    silent: Callable[[], bool],
) -> Parts:
    """Return the parts of one term.

    Args:
        has: what the term is given.
        real: the world of Enforce policies.
        virtual: the world of dry-run.
        session: for channels and webhooks; owned by the caller.
        drains: the worker of the step `drain`.
        topics: threads of messages.
        observer: told of all that is decided and written.
        messages_changed: called when a message is to be remembered, or no longer.
        news: called when there is something new to show.
        silent: whether nothing may be sent to the API server now.
    """
    channels = make_channels(
        has.cluster.channels,
        session=session,
        folder=has.folder,
        topics=topics,
        template_failed=has.metrics.template_failed,
    )
    outbox = Outbox(
        channels=channels,
        report=lambda report: executor.reported(report),  # noqa: PLW0108 - made below
        observer=has.metrics,
        changed=messages_changed,
        waits={name: spec.group_wait for name, spec in has.cluster.channels.items()},
        now=has.clock.now,
    )

    def said(work: Work, line: str) -> None:
        executor.work_stands(work, line)
        news()

    works = Works(
        workers={"drain": drains}
        | make_workers(
            cluster=has.cluster,
            folder=has.folder,
            namespace=has.namespace,
            objects=AuditedObjects(api=has.api, check=has.elector.check),
            session=session,
            clock=has.clock,
            called=audit_call,
        ),
        ended=lambda work, outcome: executor.work_ended(work, outcome),  # noqa: PLW0108 - as above
        said=said,
    )
    server = None
    if has.cluster.dry_run is DryRun.SERVER:
        server = _server_dry_run(
            has,
            silent=silent,
            tell=lambda effect, name: executor.told(effect, name),  # noqa: PLW0108 - as above
            observer=observer,
            news=news,
        )
    queue = WorkQueue()
    executor = Executor(
        fleet=has.fleet,
        queue=queue,
        real=real,
        virtual=virtual,
        writer=ApiNodeWriter(api=has.api, check=has.elector.check),
        reader=ApiNodeReader(api=has.api, other_annotations=MAX_ANNOTATION + 1),
        outbox=outbox,
        observer=observer,
        works=works,
        workers=has.workers,
        asks=server,
    )
    engine = Engine(
        fleet=has.fleet,
        queue=queue,
        real=real,
        virtual=virtual,
        executor=executor,
        observer=observer,
        clock=has.clock,
        alerts_to=has.cluster.alerts_to,
    )
    return Parts(
        channels=channels,
        outbox=outbox,
        works=works,
        executor=executor,
        engine=engine,
        server=server,
    )


def _server_dry_run(
    has: Resources,
    *,
    silent: Callable[[], bool],
    tell: Callable[[Effect, str], None],
    observer: Observer,
    news: Callable[[], None],
) -> ServerDryRun:
    check, evictions = has.elector.check, has.cluster.evictions
    return ServerDryRun(
        writer=ApiNodeWriter(api=has.api, check=check, server_dry_run=True),
        probes=make_probes(
            objects=ObjectApi(api=has.api, check=check, server_dry_run=True),
            pods=ApiPods(api=has.drains, check=check, server_dry_run=True),
            rate=EvictionRate(per_second=evictions.per_second, burst=evictions.burst),
            templates=Templates(has.cluster.templates, folder=has.folder),
            namespace=has.namespace,
            clock=has.clock,
        ),
        nodes=has.fleet,
        silent=silent,
        tell=tell,
        observer=observer,
        counts=has.metrics,
        news=news,
    )
