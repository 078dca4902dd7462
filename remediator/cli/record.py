"""`record`: the facts of the live cluster's nodes into a file, for `replay`. Reads only.

What alerts and queries say is recorded as the controller's own code makes it of their sources.
"""

from __future__ import annotations

import asyncio
import fcntl
import gzip
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Final, NamedTuple, Self, TextIO

from remediator.cli.cluster import Target, on_cluster
from remediator.cli.failure import Failure
from remediator.cli.policysource import Found, PolicySource, policy_source
from remediator.cli.replay import read_cluster
from remediator.cli.terminal import counted, say
from remediator.clock import BootClock, Clock
from remediator.kube.client import ApiClient, node_reflector
from remediator.kube.objects import Node
from remediator.kube.podplace import PodFinder
from remediator.kube.read import ApiNodeReader
from remediator.kube.store import Store
from remediator.lab.said import TICK_SECONDS, Said, Writer
from remediator.lab.tape import encode_blind, encode_change, encode_header, encode_said
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import Mode, RemediationPolicy
from remediator.replica import sources_of
from remediator.settings import PoliciesFrom
from remediator.signals.board import Board
from remediator.signals.feeds import Feeds
from remediator.signals.fleet import Fleet
from remediator.signals.glance import Nobody, sighted
from remediator.signals.resolve import NodeIndex


FLUSH_SECONDS: Final = 5.0
_GZIP: Final = ".gz"


class Given(NamedTuple):
    """Where what is recorded beside the nodes comes from: files and flags, as of `simulate`."""

    config: Path | None
    policies: Sequence[Path]
    policies_from: str


class Sources(NamedTuple):
    """What is recorded beside the nodes.

    ``cluster``: RemediatorConfig, names of files as this process sees them. ``policies``: whose
    queries are asked; None: none.
    """

    cluster: ClusterSpec
    policies: PolicySource | None


def record(target: Target, out: Path, given: Given, *, seconds: float, overwrite: bool) -> None:
    """Record until the time is over, Ctrl-C or SIGTERM: what was recorded until then is whole.

    A file that is overwritten keeps what is in it until there is a first line to put there.

    Raises:
        Failure: the file is there already, or another process writes it (2), a policy is wrong
            (2), or nodes may not be read.
    """
    if out.exists() and not overwrite:
        raise Failure(f"error: {out} exists; --force overwrites it", code=2)
    sources = _sources(given)
    clock, notes, there = BootClock(), list[str](), out.exists()
    try:
        with _Out(out) as file:
            tape = Tape(file.empty, now=clock.now)
            recorder = Recorder(tape, sources, clock=clock, notes=notes)
            try:
                with suppress(KeyboardInterrupt):
                    on_cluster(target, lambda api: recorder.run(api, target.namespace, seconds))
            finally:
                if not tape.lines and not there:
                    out.unlink()  # nothing is in it, and it would stop the next attempt
    except OSError as error:
        raise Failure(f"error: {out}: {error.strerror or error}", code=2) from error
    last = f"{out}: {counted(tape.lines, 'line')} of {counted(len(tape.names), 'node')}"
    say(*(f"note: {note}" for note in notes), last)


def _sources(given: Given) -> Sources:
    """Read the files. Raises Failure."""
    cluster = read_cluster(given.config)
    folder = Path() if given.config is None else given.config.parent
    source = None
    if given.policies or given.policies_from != PoliciesFrom.FILES:
        checked = None if given.config is None else cluster
        source = policy_source(given.policies, given.policies_from, cluster=checked)
        source.from_files()  # what is wrong there is said before anything is written
    return Sources(sources_of(cluster, folder), source)


class _Out:
    """The file that is written: opened at once, so that a bad path is told before all else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        """Open it for us alone. Raises OSError, Failure."""
        # To append: what is in it stays until `empty`, and "w" would have taken it away here.
        with ExitStack() as closing:
            self._file = closing.enter_context(self._path.open("ab"))
            if self._path.is_file():
                self._lock()
            self._closing = closing.pop_all()
        return self

    def _lock(self) -> None:
        """Keep others from writing here: lines of two recorders, mixed, could not be read."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Failure(
                f"error: {self._path}: another process records into it; name another file",
                code=2,
            ) from error
        except OSError:
            return  # a file system without locks

    def __exit__(self, *_: object) -> None:
        """Write what is left. Raises OSError."""
        self._closing.close()

    def empty(self) -> TextIO:
        """Take away what was in it, and return where to write. Raises OSError."""
        if self._path.is_file():  # and no pipe or terminal
            self._file.truncate(0)
        packed = self._path.name.endswith(_GZIP)
        binary = gzip.open(self._file, "wb") if packed else self._file  # noqa: SIM115 - as entered
        return self._closing.enter_context(TextIOWrapper(binary, encoding="utf-8"))


class Tape:
    """Writes what happens to nodes, and what is said of them.

    Args:
        begin: called before the first line; returns where to write.
        now: epoch seconds.
    """

    def __init__(self, begin: Callable[[], TextIO], *, now: Callable[[], float]) -> None:
        self.lines = 0
        self.names: set[str] = set()
        self._begin = begin
        self._stream: TextIO | None = None
        self._now = now
        self._start = self._flushed = now()

    def begin(self, nodes: int) -> None:
        """Write the first line."""
        self._start = self._now()
        self._stream = self._begin()
        self._write(encode_header(self._start, nodes))

    def changed(self, old: Node | None, new: Node | None) -> None:
        """Write what leads from one version of a node to the next: a store's handler."""
        line = encode_change(old, new, self._now() - self._start)
        if line is not None:
            self.names.add(new.name if new is not None else old.name if old is not None else "")
            self._write(line)

    def blind(self, seconds: float) -> None:
        """Write that nothing was seen for so long."""
        self._write(encode_blind(seconds, self._now() - self._start))

    def said(self, said: Said | None) -> None:
        """Write what changed of alerts and queries, if anything did."""
        if said is not None:
            self._write(encode_said(said, self._now() - self._start))

    def flush(self) -> None:
        """Bring to disk what was written, now and then: a packed file grows by each flush."""
        if self._stream is not None and self._now() - self._flushed >= FLUSH_SECONDS:
            self._flushed = self._now()
            self._stream.flush()

    def _write(self, line: str) -> None:
        assert self._stream is not None, "begin comes first"  # noqa: S101 - for the type checker
        self._stream.write(f"{line}\n")
        self.lines += 1


class Recorder:
    """Mirrors the nodes, and follows alerts and queries, into a tape.

    Args:
        tape: where to.
        sources: what is recorded beside the nodes.
        clock: as the tape's.
        notes: gets what is amiss in the end.
    """

    def __init__(self, tape: Tape, sources: Sources, *, clock: Clock, notes: list[str]) -> None:
        self._tape = tape
        self._cluster, self._source = sources
        self._clock = clock
        self._notes = notes

    async def run(self, api: ApiClient, namespace: str, seconds: float) -> None:
        """Record until the time is over, or SIGTERM."""
        found = Found(()) if self._source is None else await self._source.read(api, namespace)
        known = await ApiNodeReader(api=api).list_nodes()  # says what is missing, if we may not
        store: Store[Node] = Store()
        fleet = Fleet(cluster=self._cluster, clock=self._clock)
        board = self._board(store, fleet, found.policies)
        self._tape.begin(len(known))
        store.on_event(self._tape.changed)
        mirror = node_reflector(api, store, on_gap=self._tape.blind)
        feeds = Feeds(
            cluster=self._cluster,
            board=board,
            clock=self._clock,
            finder=PodFinder(api=api),
            watch_staleness=lambda: mirror.staleness,
        )
        writer = Writer({key: one.clause.promql for key, one in board.queries.items()})
        tasks = [
            asyncio.create_task(mirror.run()),
            asyncio.create_task(_follow(feeds, mirror.synced)),
            asyncio.create_task(_terminated()),
        ]
        try:
            async with asyncio.timeout(seconds):
                while not any(task.done() for task in tasks):
                    await asyncio.sleep(TICK_SECONDS)
                    self._tape.said(
                        writer.difference(sighted(fleet, self._cluster, self._clock.now()))
                    )
                    self._tape.flush()
        except TimeoutError:
            pass
        finally:
            self._notes += [*found.notes, *sorted(board.notes())]
            await _ended(tasks)

    def _board(
        self, store: Store[Node], fleet: Fleet, policies: Sequence[RemediationPolicy]
    ) -> Board:
        index = NodeIndex()
        store.on_event(index.on_event)
        store.on_event(fleet.on_event)
        board = Board(
            cluster=self._cluster,
            fleet=fleet,
            index=index,
            clock=self._clock,
            observer=Nobody(),
        )
        board.use(one for one in policies if one.spec.mode is not Mode.DISABLED)
        return board


async def _follow(feeds: Feeds, synced: asyncio.Event) -> None:
    """Ask the sources, once it is known which nodes there are."""
    await synced.wait()
    await feeds.run()


async def _terminated() -> None:
    """Return at SIGTERM, as of whoever stops a Pod."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    try:
        await stop.wait()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    """End them. Raises what ended one before its time."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
