"""Work that takes time: one task for each piece that decisions want, none for any other.

    decision --wanted--> Works --one task a key--> Worker --outcome--> next decision

Level-triggered: every decision says what is wanted. A piece that is in none any more is
stopped, at once and whatever becomes of the decision's patch; a new one begins behind
that patch only, since its beginning has to be on the node before its first effect.

A worker may be started again for work that an earlier process began, and must find out
what was done. Who judges deadlines is decide; behind one, a worker begins nothing new (no Job, no
object, no call, no eviction), looks how the work stands, and says whether it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

import structlog

from remediator.decide.decision import Outcome, Work
from remediator.kube.errors import ApiError
from remediator.kube.lease import NotLeading


_log = structlog.get_logger(__name__)

FIRST_RETRY: Final = 1.0
LAST_RETRY: Final = 60.0
TAKE_BACK_TRIES: Final = 6
"""Half a minute and what the requests take; of a Job that is there then, the sweep takes care."""
MAX_PROGRESS: Final = 700
"""Characters of a progress line: it is repeated in the status."""


class Worker(Protocol):
    """Does one action's work."""

    async def run(self, work: Work, *, say: Callable[[str], None]) -> Outcome:
        """Do it, or go on with it, until it ends.

        Cancelled when it is not wanted any more, or when the process ends. An exception is
        taken for a passing trouble: it is logged, shown, and the work is run again.

        Args:
            work: what is wanted.
            say: takes a line on the progress, for people.
        """


@runtime_checkable
class Stops(Worker, Protocol):
    """A worker that has something to take back when its work is not wanted any more."""

    async def stop(self, work: Work) -> None:
        """Take back what must not go on by itself.

        Called after ``run`` was cancelled because nobody wants the work any more; not when the
        process ends or the work is suspended.
        """


def context_of(work: Work) -> dict[str, str | int]:
    """Return what every line says, in the log, of what is done for a piece of work."""
    return {
        "node": work.node,
        "uid": work.uid,
        "policy": work.policy,
        "session": work.session,
        "step": work.step + 1,
        "key": work.key,
    }


class Works:
    """The work under way, of all nodes.

    Args:
        workers: by action.
        ended: told of an outcome.
        said: told of each new progress line.
    """

    def __init__(
        self,
        *,
        workers: Mapping[str, Worker],
        ended: Callable[[Work, Outcome], None],
        said: Callable[[Work, str], None] = lambda _work, _line: None,
    ) -> None:
        self._workers = workers
        self._ended = ended
        self._said = said
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wanted: dict[str, dict[str, Work]] = {}
        self._finished: set[str] = set()
        self._progress: dict[str, str] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        """What is being stopped or taken back, by key."""

    @property
    def progress(self) -> Mapping[str, str]:
        """The latest line of each piece of work, by key."""
        return self._progress

    def keep(self, node: str, works: Sequence[Work], *, take_back: bool = True) -> None:
        """Stop all work on a node but this; begin none. ``take_back``: what it began, too."""
        wanted = {work.key: work for work in works}
        known = self._wanted.get(node, {})
        for key in [key for key in known if key not in wanted or wanted[key].suspended]:
            work = known.pop(key)
            self._end(work, take_back=take_back and key not in wanted)
        if not known:
            self._wanted.pop(node, None)

    def want(self, node: str, works: Sequence[Work]) -> None:
        """Have exactly this work done on a node: begin what is new, stop all else."""
        self.keep(node, works)
        for work in works:
            known = self._wanted.setdefault(node, {})
            if work.suspended or work.key in known:
                continue
            known[work.key] = work
            run = self._run(work, behind=self._ending.get(work.key))
            self._tasks[work.key] = asyncio.create_task(run, name=work.key)
        if not self._wanted.get(node):
            self._wanted.pop(node, None)

    async def close(self) -> None:
        """End all tasks and leave the work as it is: the next leader goes on with it."""
        tasks = [*self._tasks.values(), *self._ending.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        self._wanted.clear()

    def _end(self, work: Work, *, take_back: bool) -> None:
        task = self._tasks.pop(work.key, None)
        finished = work.key in self._finished
        self._finished.discard(work.key)
        self._progress.pop(work.key, None)
        if task is None or (finished and task.done()):
            return
        task.cancel()
        worker = self._workers.get(work.action)
        stops = worker if take_back and isinstance(worker, Stops) else None
        if stops is not None:
            _log.info("work_stopped", key=work.key, node=work.node, action=work.action)
        runs = {one for one in (task, self._ending.get(work.key)) if one is not None}
        ending = asyncio.create_task(self._come_to_rest(runs, stops, work))
        self._ending[work.key] = ending
        ending.add_done_callback(lambda done: self._came_to_rest(work.key, done))

    async def _come_to_rest(
        self, runs: set[asyncio.Task[None]], stops: Stops | None, work: Work
    ) -> None:
        """Wait for what was cancelled, then take back what must not go on."""
        await asyncio.wait(runs)
        if stops is None:
            return
        structlog.contextvars.bind_contextvars(**context_of(work))
        for tried in range(1, TAKE_BACK_TRIES + 1):
            try:
                await stops.stop(work)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
                last = tried == TAKE_BACK_TRIES or isinstance(error, NotLeading)
                say = _log.error if last else _log.warning
                say("work_not_taken_back", key=work.key, node=work.node, error=str(error))
                if last:
                    return
                await asyncio.sleep(FIRST_RETRY * 2 ** (tried - 1))
            else:
                return

    def _came_to_rest(self, key: str, ending: asyncio.Task[None]) -> None:
        if self._ending.get(key) is ending:
            del self._ending[key]

    async def _run(self, work: Work, *, behind: asyncio.Task[None] | None = None) -> None:
        """Run the worker until it has an outcome; not before its last run has come to rest."""
        wait = FIRST_RETRY
        if behind is not None:
            await asyncio.wait({behind})
        structlog.contextvars.bind_contextvars(**context_of(work))  # of this task only
        _log.info("work_runs", key=work.key, node=work.node, action=work.action)
        while True:
            try:
                outcome = await self._outcome(work)
            except Exception as error:  # noqa: BLE001 - trouble with one must not stop the others
                bug = None if isinstance(error, ApiError | NotLeading) else error
                _log.warning(
                    "work_troubled", key=work.key, node=work.node, error=str(error), exc_info=bug
                )
                self._say(work, f"in trouble, tried again in {wait:g} s: {error}")
                await asyncio.sleep(wait)
                wait = min(2 * wait, LAST_RETRY)
            else:
                self._finished.add(work.key)
                _log.info("work_ended", key=work.key, done=outcome.delivered, note=outcome.note)
                self._ended(work, outcome)
                return

    async def _outcome(self, work: Work) -> Outcome:
        worker = self._workers.get(work.action)
        if worker is None:
            note = f"this controller has nothing that does {work.action}"
            return Outcome(key=work.key, delivered=False, note=note)
        return await worker.run(work, say=lambda line: self._say(work, line))

    def _say(self, work: Work, line: str) -> None:
        line = line[:MAX_PROGRESS]
        if work.key in self._tasks and self._progress.get(work.key) != line:
            self._progress[work.key] = line
            self._said(work, line)
