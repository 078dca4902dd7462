"""Server dry-run: what dry-run decided is asked of the API server, with ``dryRun=All``.

    dry-run's effects --> one queue a node --> patch or probe --> API server
                                                    |
              message, with what was refused  <-----+----> status, audit, metrics

The virtual world does not wait for it, and does not depend on it: the plan is that of a
server that permits everything, and beside it stands what this one says. Messages wait
until the requests before them are answered, so that they can tell of it.

Invariants:
- Nothing is stored, and nothing is sent at all while everything is paused or the lease is
  not fresh.
- One request of a node at a time, in the order of the decisions; a work is asked about once
  in its session.
- No answer is not a refusal; both are said.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

import structlog

from remediator.act.probes import NO_DRY_RUN, Answer, Probe, Said, answer_of
from remediator.act.writes import NodeWriter, Verdict, WriteObserver, Written, write
from remediator.decide.decision import Effect, PatchNode, SendMessage, Work
from remediator.decide.facts import NodeFacts
from remediator.decide.session import Session
from remediator.kube.errors import ApiError, Transient
from remediator.kube.lease import NotLeading
from remediator.kube.objects import Node


_log = structlog.get_logger(__name__)

AT_ONCE: Final = 8
"""Nodes that are asked about at the same time."""
TRIES: Final = 3
"""Of a request that got no answer, or whose node changed meanwhile."""
AGAIN_AFTER: Final = 0.5
"""Seconds: for the watch to bring the newer node, for the server to come to itself."""
_PASSING: Final = frozenset({Verdict.CHANGED, Verdict.DOUBTFUL, Verdict.LATER})
_VERDICTS: Final = {Verdict.DONE: Said.ACCEPTED, Verdict.REFUSED: Said.REFUSED}
_WORDS: Final = {
    Said.HELD: "would be held",
    Said.REFUSED: "would be refused",
    Said.UNKNOWN: "cannot be told",
}


class Nodes(Protocol):
    """The latest version of every node."""

    def node(self, name: str) -> Node | None:
        """Return it."""


class Answers(Protocol):
    """Counts answers; never waits, never fails."""

    def dry_run_answered(self, action: str, result: str) -> None:
        """One was given."""


class _Item(NamedTuple):
    effect: Effect
    facts: NodeFacts


@dataclass(slots=True)
class _Asked:
    """What was asked about one node, in its present session."""

    session: str = ""
    waiting: deque[_Item] = field(default_factory=deque)
    works: set[str] = field(default_factory=set)
    notes: dict[str, str] = field(default_factory=dict)
    """By action, where the answer was not a plain yes."""
    over: bool = False


class ServerDryRun:
    """Asks the API server. Begin it with :meth:`run`.

    Args:
        writer: sends patches with ``dryRun=All``.
        probes: by action; a work without one is not asked about.
        nodes: the latest versions.
        silent: whether nothing may be sent now.
        tell: passes a message or Event on.
        observer: told of patches.
        counts: counts answers.
        news: called when there is something new to show.
    """

    def __init__(
        self,
        *,
        writer: NodeWriter,
        probes: Mapping[str, Probe],
        nodes: Nodes,
        silent: Callable[[], bool],
        tell: Callable[[Effect, str], None],
        observer: WriteObserver,
        counts: Answers,
        news: Callable[[], None],
    ) -> None:
        self._writer = writer
        self._probes = probes
        self._nodes = nodes
        self._silent = silent
        self._tell = tell
        self._observer = observer
        self._counts = counts
        self._news = news
        self._asked: dict[str, _Asked] = {}
        self._ready: asyncio.Queue[str] = asyncio.Queue()

    @property
    def notes(self) -> Mapping[str, tuple[str, ...]]:
        """By node UID, what the server did not simply accept."""
        return {uid: tuple(one.notes.values()) for uid, one in self._asked.items() if one.notes}

    def take(self, effect: Effect, facts: NodeFacts) -> None:
        """Ask about an effect of dry-run, or tell it behind what is asked before it. No waiting.

        Args:
            effect: of a patch, one that changes the virtual node.
            facts: the node as dry-run sees it, before the effect.
        """
        one = self._asked.setdefault(facts.uid, _Asked())
        if isinstance(effect, Work):
            if effect.suspended or effect.key in one.works or effect.action not in self._probes:
                return
            one.works.add(effect.key)
        elif not isinstance(effect, PatchNode):
            if not one.waiting:
                self._pass_on(one, effect, facts.name)
                return
            if any(item.effect == effect for item in one.waiting):
                return
        one.waiting.append(_Item(effect, facts))
        if len(one.waiting) == 1:
            self._ready.put_nowait(facts.uid)

    def forget(self, uid: str) -> None:
        """Drop all about a node that is gone."""
        self._asked.pop(uid, None)

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            uid = await self._ready.get()
            one = self._asked.get(uid)
            while one is not None and one.waiting:
                effect, facts = one.waiting[0]
                try:
                    await self._do(one, effect, facts)
                except Exception as error:  # noqa: BLE001 - a bug with one node must not stop the others
                    _log.error("dry_run_not_asked", node=facts.name, exc_info=error)
                finally:
                    one.waiting.popleft()
            if one is not None and one.over:
                self.forget(uid)

    async def _do(self, one: _Asked, effect: Effect, facts: NodeFacts) -> None:
        if isinstance(effect, PatchNode):
            self._enter(one, effect)
            await self._patch(one, effect, facts)
        elif isinstance(effect, Work):
            await self._probe(one, effect)
        else:
            self._pass_on(one, effect, facts.name)

    @staticmethod
    def _enter(one: _Asked, patch: PatchNode) -> None:
        """Begin anew with a new session."""
        if isinstance(patch.session, Session) and patch.session.id != one.session:
            one.session = patch.session.id
            one.notes.clear()
        one.over = patch.session is None

    async def _patch(self, one: _Asked, patch: PatchNode, facts: NodeFacts) -> None:
        verdict, reason = await self._sent(patch)
        self._observer.written(patch, facts=facts, verdict=verdict, dry_run=True, reason=reason)
        if verdict is Verdict.NOT_LEADING:
            return
        said = Said.UNKNOWN if NO_DRY_RUN in reason else _VERDICTS.get(verdict, Said.UNKNOWN)
        self._note(one, patch.action, patch.name, Answer(said, reason))

    async def _sent(self, patch: PatchNode) -> tuple[Verdict, str]:
        """Send it, resting on the node as it really is now."""
        written = Written(Verdict.NOT_LEADING)
        for _ in range(TRIES):
            base = self._nodes.node(patch.name)
            if base is None or base.uid != patch.uid:
                return Verdict.GONE, "the node is gone"
            if self._silent():
                return Verdict.NOT_LEADING, "not asked: everything is paused"
            now = replace(patch, resource_version=base.resource_version)
            written = await write(now, base=base, writer=self._writer)
            if written.verdict not in _PASSING:
                break
            await asyncio.sleep(AGAIN_AFTER)
        return written.verdict, written.error

    async def _probe(self, one: _Asked, work: Work) -> None:
        answer = Answer(Said.UNKNOWN)
        for _ in range(TRIES):
            if self._silent():
                one.works.discard(work.key)
                return
            try:
                answer = await self._probes[work.action](work)
            except NotLeading:
                return
            except ApiError as error:
                answer = answer_of(error)
                if isinstance(error, Transient):
                    await asyncio.sleep(AGAIN_AFTER)
                    continue
            break
        self._note(one, work.action, work.node, answer)

    def _note(self, one: _Asked, action: str, node: str, answer: Answer) -> None:
        self._counts.dry_run_answered(action, answer.said.value)
        if answer.said is Said.ACCEPTED:
            one.notes.pop(action, None)
            _log.info("dry_run_accepted", node=node, action=action, note=answer.note)
        else:
            one.notes[action] = f"{action} {_WORDS[answer.said]}: {answer.note}"
            _log.warning(
                "dry_run_answer", node=node, action=action, said=answer.said.value, why=answer.note
            )
        self._news()

    def _pass_on(self, one: _Asked, effect: Effect, name: str) -> None:
        """Tell it, a message with what the server did not simply accept."""
        if isinstance(effect, SendMessage) and one.notes:
            lines = "\n".join(f"Server dry-run: {note}" for note in one.notes.values())
            effect = replace(effect, text=f"{effect.text}\n{lines}")
        self._tell(effect, name)
