"""The state file: one small JSON document on a hostPath, replaced atomically.

It holds the faults *and* how far the log was read, in one write: whatever the moment at
which the agent dies, no line is counted twice and no open fault is lost. A file that
cannot be read is kept beside as ``.corrupt`` and said aloud; it is never trusted halfway.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

import msgspec

from node_agent.health.state import VERSION, NodeHealth


class StoreError(Exception):
    """The state file cannot be written. The agent goes on, but would forget at a restart."""


class Loaded(NamedTuple):
    """What was found. ``note`` says in words what is wrong; empty if nothing is.

    ``fresh``: there was no usable file, so the state begins anew. ``lost``: there was one,
    and what it said is lost.
    """

    health: NodeHealth
    fresh: bool = False
    lost: bool = False
    note: str = ""


class _VersionOnly(msgspec.Struct):
    version: int = 0


def load(path: Path) -> Loaded:
    """Read the state file. Never raises: no file is a first start, a bad one a lost memory."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return Loaded(NodeHealth(), fresh=True)
    except OSError as error:
        note = f"cannot read the state file {path}: {error.strerror or error}"
        return Loaded(NodeHealth(forgotten=True), fresh=True, lost=True, note=note)
    try:
        version = msgspec.json.decode(raw, type=_VersionOnly).version
        if version != VERSION:
            return _set_aside(path, f"it is of version {version}, this agent reads {VERSION}")
        health = msgspec.json.decode(raw, type=NodeHealth)
        for fault in health.faults.values():
            fault.published()  # a time beyond the calendar would end every agent that reads it
        for one in health.past.values():
            one.published()
        return Loaded(health)
    except (msgspec.DecodeError, ValueError, OverflowError, OSError, RecursionError) as error:
        return _set_aside(path, str(error))


def save(path: Path, health: NodeHealth) -> None:
    """Replace the state file so that either the old or the new one survives a power cut.

    Raises:
        StoreError: with path and cause; the file is then as it was.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(health))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StoreError(
            f"cannot write the state file {path}: {error.strerror or error}; "
            "open faults would be forgotten at a restart"
        ) from error


def _set_aside(path: Path, why: str) -> Loaded:
    corrupt = path.with_name(f"{path.name}.corrupt")
    try:
        path.replace(corrupt)
        kept = f"kept as {corrupt}"
    except OSError as error:
        kept = f"cannot be kept as {corrupt}: {error.strerror or error}"
    note = f"the state file {path} cannot be used ({why}); {kept}; starting anew"
    return Loaded(NodeHealth(forgotten=True), fresh=True, lost=True, note=note)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
