"""What people see of a term: the status document, and the metrics that restate it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Final, Protocol

from remediator.act.executor import Executor
from remediator.act.outbox import Outbox
from remediator.act.server_dry_run import ServerDryRun
from remediator.act.side import Side
from remediator.act.work import Works
from remediator.decide.core import ActivePolicy
from remediator.decide.facts import NodeFacts
from remediator.kube.errors import ApiError
from remediator.policy.model import Mode
from remediator.policy.reload import PolicySet
from remediator.record.report import Surroundings, WorldView, build_status, session_counts
from remediator.record.status import OutboxStatus, PolicyProblem, PolicyStatus, Status
from remediator.term.parts import Parts
from remediator.term.resources import Resources


MAX_NAMED: Final = 3
"""Nodes named in a note of the status: the reason is mostly the same."""
_KEPT: Final = {"state": "rates and breakers remember", "messages": "people are to be told"}
"""Of documents that a restart reads; that the status cannot be written, it cannot say itself."""
_STRICTNESS: Final = (Mode.DISABLED, Mode.DRY_RUN, Mode.ENFORCE)


class View:
    """Builds the status document.

    Args:
        has: what the term is given.
        real, virtual: the two worlds.
        unwritten: why documents of ours cannot be written now, by their names.
    """

    def __init__(
        self,
        has: Resources,
        *,
        real: Side,
        virtual: Side,
        unwritten: Callable[[], Mapping[str, str]],
    ) -> None:
        self._has = has
        self._unwritten = unwritten
        self._real = real
        self._virtual = virtual
        self._executor: Executor | None = None
        self._outbox: Outbox | None = None
        self._works: Works | None = None
        self._server: ServerDryRun | None = None
        self._program = version("gpu-remediator")
        self.notes: tuple[str, ...] = ()
        """What the beginning of the term found amiss."""
        self.document: Status | None = None
        """The latest one."""

    def of(self, parts: Parts) -> None:
        """Show these, too, from now on."""
        self._executor, self._outbox = parts.executor, parts.outbox
        self._works, self._server = parts.works, parts.server

    def status(self) -> Status:
        """Build the document, and set the metrics that restate it."""
        has, found = self._has, self._has.watcher.current
        facts = {one.uid: one for one in has.fleet.all()}
        modes = {
            name: min(one.policy.spec.mode, has.cluster.mode, key=_STRICTNESS.index)
            for name, one in found.policies.items()
        }
        virtual = self._world(self._virtual, found, modes, Mode.DRY_RUN)
        status = build_status(
            real=self._world(self._real, found, modes, Mode.ENFORCE),
            virtual=virtual if virtual.policies or virtual.decisions else None,
            facts=facts,
            around=self._surroundings(found, modes),
            now=has.clock.now(),
        )
        has.metrics.update(
            status,
            session_counts(facts.values()) + session_counts(self._pretended(facts), dry_run=True),
        )
        has.metrics.unreadable.set(0 if has.nodes is None else len(has.nodes.unreadable))
        self.document = status
        return status

    def _pretended(self, facts: Mapping[str, NodeFacts]) -> Iterator[NodeFacts]:
        """Yield the nodes that dry-run decided about, as it sees them."""
        if self._executor is not None:
            for uid in self._virtual.decisions.keys() & facts.keys():
                yield self._executor.overlay.view(facts[uid])

    def _world(
        self, side: Side, found: PolicySet, modes: Mapping[str, Mode], mode: Mode
    ) -> WorldView:
        return WorldView(
            dry_run=side.dry_run,
            ledger=side.ledger,
            policies={
                name: ActivePolicy(one.policy, one.loaded_at)
                for name, one in found.policies.items()
                if modes[name] is mode
            },
            decisions=side.decisions,
            progress=self._works.progress if self._works is not None and not side.dry_run else {},
            server=self._server.notes if self._server is not None and side.dry_run else {},
        )

    def _surroundings(self, found: PolicySet, modes: Mapping[str, Mode]) -> Surroundings:
        outbox, nodes = self._outbox, self._has.nodes
        return Surroundings(
            leader=self._has.elector.identity,
            program=self._program,
            synced=nodes is None or nodes.sees,
            sources={name: one.file for name, one in found.policies.items()},
            idle=tuple(
                PolicyStatus(
                    name=name,
                    version=one.policy.version,
                    mode=one.policy.spec.mode.value,
                    effective_mode=modes[name].value,
                    loaded_at=one.loaded_at,
                    source=one.file,
                )
                for name, one in found.policies.items()
                if modes[name] is Mode.DISABLED
            ),
            problems=tuple(
                PolicyProblem(source=file, message=text) for file, text in found.problem_texts()
            ),
            outbox=None
            if outbox is None
            else OutboxStatus(
                pending=outbox.pending,
                trouble=outbox.trouble,
                failed=outbox.failed,
                last_failure=outbox.last_failure,
            ),
            notes=(
                *self._config(),
                *self.notes,
                *unwritten_notes(self._unwritten()),
                *self._refusals(),
                *self._sources(),
            ),
            nodes_total=len(self._has.fleet),
        )

    def _config(self) -> tuple[str, ...]:
        problem = self._has.config_problem()
        return (f"RemediatorConfig: {problem}; the version before stays",) if problem else ()

    def _refusals(self) -> tuple[str, ...]:
        """Say which writes the API server refuses, the first few by name."""
        refused = {} if self._executor is None else self._executor.refused
        return _first_few(refused, "and writes to {} more nodes are refused")

    def _sources(self) -> tuple[str, ...]:
        """Say what is amiss with what is asked and read."""
        objects, nodes = self._has.policy_objects, self._has.nodes
        return (
            *(() if nodes is None else mirror_notes(nodes)),
            *self._has.board.notes(),
            *(() if objects is None else objects.notes()),
            *_first_few(self._has.fleet.problems(), "and {} more nodes have such annotations"),
        )


class Mirror(Protocol):
    """What is asked of what mirrors the nodes (`remediator.kube.reflector.Reflector`)."""

    unreadable: dict[str, str]
    last_error: ApiError | None

    @property
    def sees(self) -> bool:
        """Whether the view is of now."""


def unwritten_notes(problems: Mapping[str, str]) -> tuple[str, ...]:
    """Say which documents of ours cannot be written, and what a restart would cost."""
    return tuple(
        f"what {_KEPT[name]} is not kept, a restart would forget it: {why}"
        for name, why in problems.items()
        if why and name in _KEPT
    )


def mirror_notes(nodes: Mirror) -> tuple[str, ...]:
    """Say what of the nodes is not seen."""
    blind = not nodes.sees and nodes.last_error is not None
    unreadable = {
        name: f"its newest version cannot be read, the one before counts: {why}"
        for name, why in nodes.unreadable.items()
    }
    return (
        *((f"the nodes are not seen now: {nodes.last_error}",) if blind else ()),
        *_first_few(unreadable, "and {} more nodes cannot be read"),
    )


def _first_few(problems: Mapping[str, str], rest: str) -> tuple[str, ...]:
    """Say by node what is amiss; of many, how many more there are."""
    more = len(problems) - MAX_NAMED
    return (
        *(f"{name}: {why}" for name, why in list(problems.items())[:MAX_NAMED]),
        *((rest.format(more),) if more > 0 else ()),
    )
