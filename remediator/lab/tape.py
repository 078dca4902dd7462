"""Recordings: the facts of a cluster's nodes as JSON lines, changes only.

    {"gpuRemediatorRecording": 2, "start": 1767614400.0, "nodes": 32}
    {"t": 0.0, "node": "gpu-1", "set": {"uid": ..., "labels": ..., "conditions": {...}, ...}}
    {"t": 61.2, "node": "gpu-1", "set": {"conditions": {"GPULost": ["True", "FallenOffBus", ""]}}}
    {"t": 300.4, "node": "gpu-1", "beats": ["GPULost", "GPUXidError"]}
    {"t": 400.0, "node": "gpu-1", "gone": true}
    {"t": 500.0, "blind": 42.0}
    {"t": 510.0, "said": {...}}

``t``: seconds since the start, by the recorder's clock. A first line of a node holds all of
it, a later one what changed; ``conditions`` and texts merge, null removes one. ``beats`` are
conditions whose heartbeat was renewed and nothing else. ``blind``: seconds in which the
recorder saw nothing. ``said``: what changed of alerts and queries, see :mod:`remediator.lab.said`;
version 1 has no such lines. Everything a decision about nodes rests on is in it, and no secret; of
pods and addresses only what labels of alerts say. A line is written whole, so that a recording
that was cut off is short and not broken.

A first line within is that of a recorder that was begun again: recordings of one cluster, one
after the other in one file, are one. What was between them nobody saw (``blind``), each node is
described anew, and one that is not is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from remediator.kube.objects import Condition, Node, Taint
from remediator.lab.nodes import stamp
from remediator.lab.said import Said


VERSION: Final = 2
OLDEST: Final = 1
MAX_MESSAGE: Final = 200
"""Characters kept of a condition's message: policies do not read them."""
LISTED_SECONDS: Final = 60.0
"""A node that a recorder has not described by then was not there when it began."""

_HEADER: Final = '{"gpuRemediatorRecording":'

_UNKNOWN: Final = "unknown field"
_NEWER: Final = ": take the program that recorded it, or a newer one"

_T = TypeVar("_T")


class TapeError(Exception):
    """A recording that cannot be used. ``str()`` names the line and says why."""


class Header(msgspec.Struct, frozen=True, rename="camel"):
    """The first line."""

    gpu_remediator_recording: int
    start: float
    nodes: int = 0


class NodeState(
    msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """What is recorded of a node; in a change only what changed (None: as before)."""

    uid: str | None = None
    created: str | None = None
    deleted: bool | None = None
    unschedulable: bool | None = None
    boot_id: str | None = msgspec.field(default=None, name="bootID")
    taints: tuple[tuple[str, str, str], ...] | None = None
    labels: dict[str, str | None] | None = None
    annotations: dict[str, str | None] | None = None
    conditions: dict[str, tuple[str, str, str] | None] | None = None


class Line(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One later line."""

    t: float
    node: str = ""
    set: NodeState | None = None
    beats: tuple[str, ...] = ()
    gone: bool = False
    blind: float = 0.0
    said: Said | None = None


class Change(NamedTuple):
    """One version of a node, or (None) its end; or nothing seen; or what others say.

    ``at``: epoch seconds of the recorder. ``anew``: another recorder begins, after ``blind``
    seconds: what others said to the one before is not known any more.
    """

    at: float
    name: str
    node: Node | None
    blind: float = 0.0
    said: Said | None = None
    anew: bool = False


def encode_header(start: float, nodes: int) -> str:
    """Return the first line, without its end."""
    return msgspec.json.encode(Header(VERSION, round(start, 3), nodes)).decode()


def encode_change(old: Node | None, new: Node | None, t: float) -> str | None:
    """Return the line that leads from one version to the next; None where nothing changed."""
    t = round(t, 3)
    if new is None:
        gone = Line(t, node=old.name, gone=True) if old is not None else None
        return None if gone is None else msgspec.json.encode(gone).decode()
    if old is not None and old.uid != new.uid:
        old = None
    state = _difference(old, new)
    beats = () if old is None else _beats(old, new, state)
    if state == NodeState() and not beats:
        return None
    known = None if state == NodeState() else state
    return msgspec.json.encode(Line(t, node=new.name, set=known, beats=beats)).decode()


def encode_blind(seconds: float, t: float) -> str:
    """Return the line that says that nothing was seen for so long."""
    return msgspec.json.encode(Line(round(t, 3), blind=round(seconds, 3))).decode()


def encode_said(said: Said, t: float) -> str:
    """Return the line that says what changed of alerts and queries."""
    return msgspec.json.encode(Line(round(t, 3), said=said)).decode()


def decode(lines: Iterable[str]) -> Iterator[Change]:
    """Yield the versions of nodes, in order; what follows a line that was cut off is left out.

    Raises:
        TapeError: it is no recording, of another version, or a line within is damaged.
    """
    numbered = ((at, text) for at, text in enumerate(lines, 1) if text.strip())
    tape = _Tape(read_header(next(numbered, (1, ""))[1]))
    for at, text in numbered:
        # The line before it may have been cut off: then it begins within this one.
        begins = text.find(_HEADER)
        if begins >= 0 and (again := _header_at(text[begins:], at)) is not None:
            yield tape.begin_again(again)
            continue
        try:
            line = msgspec.json.decode(text, type=Line)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            if not text.endswith("\n") and next(numbered, None) is None:
                return  # the last line was being written
            newer = _NEWER if _UNKNOWN in str(error) else ""
            raise TapeError(f"line {at}: {error}{newer}") from error
        yield from tape.take(line, at)


def read_header(text: str, number: int = 1) -> Header:
    """Read the first line of a recording, or of another one within. Raises TapeError."""
    try:
        header = msgspec.json.decode(text, type=Header)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise TapeError(
            f"line {number}: this is no recording of `remediator record`: {error}"
        ) from error
    if not OLDEST <= header.gpu_remediator_recording <= VERSION:
        raise TapeError(
            f"line {number}: a recording of version {header.gpu_remediator_recording}, this program"
            f" reads versions {OLDEST} to {VERSION}{_NEWER}"
        )
    return header


def _header_at(text: str, number: int) -> Header | None:
    """Return the first line of another recording; None: the text only looks like one."""
    try:
        msgspec.json.decode(text, type=Header)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return read_header(text, number)


class _Tape:
    """The fold of the lines: what is known of each node."""

    def __init__(self, header: Header) -> None:
        self._start = self._last = header.start
        self._nodes: dict[str, Node] = {}
        self._missing: set[str] = set()
        """Nodes that the recorder before knew, and this one has not described."""
        self._undescribed = 0

    def begin_again(self, header: Header) -> Change:
        """Take in the first line of another recorder."""
        self._start = header.start
        self._missing, self._undescribed = set(self._nodes), header.nodes
        blind = max(0.0, header.start - self._last)
        return Change(header.start, "", None, round(blind, 3), anew=True)

    def take(self, line: Line, number: int) -> Iterator[Change]:
        """Yield what a line says, and who is gone by then."""
        now = self._start + line.t
        self._last = max(self._last, now)
        if self._missing and (self._undescribed <= 0 or line.t > LISTED_SECONDS):
            gone, self._missing = sorted(self._missing - {line.node}), set()
            for name in gone:
                del self._nodes[name]
                yield Change(now, name, None)
        yield self._change(line, number, now)

    def _change(self, line: Line, number: int, now: float) -> Change:
        if line.blind:
            return Change(now, "", None, line.blind)
        if line.said is not None:
            return Change(now, "", None, said=line.said)
        known = self._nodes.get(line.node)
        if line.gone:
            self._nodes.pop(line.node, None)
            self._missing.discard(line.node)
            return Change(now, line.node, None)
        state = line.set
        if state is not None and state.uid is not None:
            known = self._described(line.node, state.uid, now)
        if known is None:
            raise TapeError(f"line {number}: node {line.node} has no first line")
        node = known if state is None else _merged(known, state, now)
        if line.beats:
            node = _beaten(node, frozenset(line.beats), now)
        self._nodes[line.node] = node
        return Change(now, line.node, node)

    def _described(self, name: str, uid: str, now: float) -> Node:
        """Return the blank node that a first line fills."""
        self._undescribed -= 1
        self._missing.discard(name)
        return _blank(name, uid, now)


def _beaten(node: Node, due: frozenset[str], now: float) -> Node:
    conditions = tuple(
        msgspec.structs.replace(one, last_heartbeat_time=stamp(now)) if one.type in due else one
        for one in node.conditions
    )
    return msgspec.structs.replace(node, conditions=conditions)


# -- differences -------------------------------------------------------------------------------


def _difference(old: Node | None, new: Node) -> NodeState:
    """Return what changed; of a new node all."""
    if old is None:
        return NodeState(
            uid=new.uid,
            created=new.created,
            deleted=new.deleted is not None or None,
            unschedulable=new.unschedulable or None,
            boot_id=new.boot_id,
            taints=_taints(new) or None,
            labels=dict(new.labels),
            annotations=dict(new.annotations),
            conditions={one.type: _said(one) for one in new.conditions},
        )
    return NodeState(
        deleted=_changed(old.deleted is not None, new.deleted is not None),
        unschedulable=_changed(old.unschedulable, new.unschedulable),
        boot_id=_changed(old.boot_id, new.boot_id),
        taints=_changed(_taints(old), _taints(new)),
        labels=_texts(old.labels, new.labels),
        annotations=_texts(old.annotations, new.annotations),
        conditions=_conditions(old, new),
    )


def _changed(old: _T, new: _T) -> _T | None:
    return None if old == new else new


def _texts(old: Mapping[str, _T], new: Mapping[str, _T]) -> dict[str, _T | None] | None:
    changes: dict[str, _T | None] = {key: new[key] for key in new if old.get(key) != new[key]}
    changes |= dict.fromkeys(key for key in old if key not in new)
    return changes or None


def _conditions(old: Node, new: Node) -> dict[str, tuple[str, str, str] | None] | None:
    before = {one.type: _said(one) for one in old.conditions}
    after = {one.type: _said(one) for one in new.conditions}
    return _texts(before, after)


def _said(condition: Condition) -> tuple[str, str, str]:
    return condition.status, condition.reason, condition.message[:MAX_MESSAGE]


def _taints(node: Node) -> tuple[tuple[str, str, str], ...]:
    return tuple((one.key, one.value, one.effect) for one in node.taints)


def _beats(old: Node, new: Node, state: NodeState) -> tuple[str, ...]:
    before = {one.type: one.last_heartbeat_time for one in old.conditions}
    written = state.conditions or {}
    return tuple(
        one.type
        for one in new.conditions
        if one.type in before
        and one.type not in written
        and one.last_heartbeat_time != before[one.type]
    )


# -- and back ----------------------------------------------------------------------------------


def _blank(name: str, uid: str, now: float) -> Node:
    return Node(
        name=name,
        uid=uid,
        resource_version="1",
        labels={},
        annotations={},
        dropped_annotations=0,
        created=stamp(now),
        deleted=None,
        unschedulable=False,
        taints=(),
        conditions=(),
        addresses=(),
        boot_id="",
    )


def _merged(node: Node, state: NodeState, now: float) -> Node:
    changes: dict[str, Any] = {}
    if state.created is not None:
        changes["created"] = state.created
    if state.deleted is not None:
        changes["deleted"] = stamp(now) if state.deleted else None
    if state.unschedulable is not None:
        changes["unschedulable"] = state.unschedulable
    if state.boot_id is not None:
        changes["boot_id"] = state.boot_id
    if state.taints is not None:
        changes["taints"] = tuple(Taint(key=k, value=v, effect=e) for k, v, e in state.taints)
    if state.labels is not None:
        changes["labels"] = _with(node.labels, state.labels)
    if state.annotations is not None:
        changes["annotations"] = _with(node.annotations, state.annotations)
    if state.conditions is not None:
        changes["conditions"] = _with_conditions(node, state.conditions, now)
    return msgspec.structs.replace(node, **changes)


def _with(known: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    kept = {key: text for key, text in known.items() if key not in changes}
    return kept | {key: text for key, text in changes.items() if text is not None}


def _with_conditions(
    node: Node, changes: Mapping[str, tuple[str, str, str] | None], now: float
) -> tuple[Condition, ...]:
    found = {one.type: one for one in node.conditions}
    for kind, said in changes.items():
        if said is None:
            found.pop(kind, None)
            continue
        status, reason, message = said
        was = found.get(kind)
        same = was is not None and was.status == status
        since = was.last_transition_time if same and was is not None else stamp(now)
        found[kind] = Condition(kind, status, reason, message, stamp(now), since)
    return tuple(found.values())
