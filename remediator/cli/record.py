"""`record`: the facts of the live cluster's nodes into a file, for `replay`. Reads only."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO

import structlog
import typer

from remediator.cli.cluster import Target, on_cluster
from remediator.cli.failure import Failure
from remediator.kube.client import ApiClient, node_reflector
from remediator.kube.objects import Node
from remediator.kube.read import ApiNodeReader
from remediator.kube.store import Store
from remediator.lab.tape import encode_blind, encode_change, encode_header


FLUSH_SECONDS: Final = 5.0
_GZIP: Final = ".gz"


def record(target: Target, out: Path, *, seconds: float, overwrite: bool) -> None:
    """Record until the time is over, or Ctrl-C: what was recorded until then is whole.

    Raises:
        Failure: the file is there already (2), or nodes may not be read.
    """
    if out.exists() and not overwrite:
        raise Failure(f"error: {out} exists; --force overwrites it", code=2)
    # The reflector tells of every hiccup; here the last line says what counts.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    try:
        with _open(out) as stream:
            tape = Tape(stream, now=time.time)
            with suppress(KeyboardInterrupt):
                on_cluster(target, lambda api: _record(api, tape, seconds))
    except OSError as error:
        raise Failure(f"error: {out}: {error.strerror or error}", code=2) from error
    typer.echo(f"{out}: {tape.lines} lines of {len(tape.names)} nodes")


class Tape:
    """Writes what happens to nodes. ``now``: seconds since the epoch."""

    def __init__(self, stream: TextIO, *, now: Callable[[], float]) -> None:
        self.lines = 0
        self.names: set[str] = set()
        self._stream = stream
        self._now = now
        self._start = now()

    def begin(self, nodes: int) -> None:
        """Write the first line."""
        self._start = self._now()
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

    def flush(self) -> None:
        """Bring to disk what was written."""
        self._stream.flush()

    def _write(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self.lines += 1


async def _record(api: ApiClient, tape: Tape, seconds: float) -> None:
    """Mirror the nodes into the tape until the time is over."""
    known = await ApiNodeReader(api=api).list_nodes()  # says what is missing, if we may not
    store: Store[Node] = Store()
    tape.begin(len(known))
    store.on_event(tape.changed)
    reflector = node_reflector(api, store, on_gap=tape.blind)
    mirror = asyncio.create_task(reflector.run())
    try:
        async with asyncio.timeout(seconds):
            while not mirror.done():
                await asyncio.sleep(FLUSH_SECONDS)
                tape.flush()
    except TimeoutError:
        pass
    finally:
        mirror.cancel()
        with suppress(asyncio.CancelledError):
            await mirror


def _open(path: Path) -> TextIO:
    if path.name.endswith(_GZIP):
        return gzip.open(path, "wt", encoding="utf-8")
    return path.open("w", encoding="utf-8")
