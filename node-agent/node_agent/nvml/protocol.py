"""What the agent and its NVML child say to each other, and the page that they share.

Frames on a socket pair: four bytes of length, big-endian, then msgpack. Requests carry an id
that the last message of their answer repeats; events come at any time, between the others.

Beside the socket there is one page of shared memory with a *slot* for each thread of the
child. A thread writes the name and the start of an NVML call there before it makes it, and
clears the start after. So the agent sees which call has not returned without asking a child
that cannot answer, also when the kernel holds it in a sleep that no signal ends (state D).

Imports nothing but msgspec and the standard library: the child lives on it too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from enum import StrEnum
from mmap import mmap
from typing import Final, TypeAlias

import msgspec

from node_agent.nvml.model import Device, Driver, NvmlState, Process


MAX_FRAME: Final = 8 * 1024 * 1024
_LENGTH: Final = struct.Struct(">I")
_NAME_BYTES: Final = 72
_SLOT: Final = struct.Struct(f"=d{_NAME_BYTES}s")
_STARTED: Final = struct.Struct("=d")
PAGE_BYTES: Final = 4096
EVENT_WAIT_SECONDS: Final = 1.0
"""How long the child's event thread waits at a time, and so how long ending it may take."""


class Slot(StrEnum):
    """The threads of the child, in the order of their slots."""

    POLL = "poll"
    EVENTS = "events"


class Group(StrEnum):
    """Quantities that are read together, at one cadence."""

    FAST = "fast"
    SLOW = "slow"
    RARE = "rare"
    GPM = "gpm"
    PROCESSES = "processes"


class ProtocolError(Exception):
    """The other side sent what is no frame of ours. It has to be ended."""


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message; arrays are shorter than maps and both sides are of one version."""


class Enumerate(_Message, frozen=True):
    """(Re-)initialize NVML and list the devices. Answer: Enumerated or Failed."""

    id: int


class Poll(_Message, frozen=True):
    """Read these groups of every device. Answer: Values and Processes, then Done.

    ``last``: UUIDs to read after all the others, since they are known to hang.
    """

    id: int
    groups: tuple[Group, ...]
    last: tuple[str, ...] = ()


class Stop(_Message, frozen=True):
    """Close every handle and exit. Answer: the end of the stream."""

    id: int


class Enumerated(_Message, frozen=True):
    """The devices now. ``unanswered``: indexes that gave an error, with NVML's text.

    ``any_lost``: one of those errors was GPU_IS_LOST. ``bound``: how many GPUs the driver has
    by ``/proc/driver/nvidia/gpus``, None unknown.
    """

    id: int
    driver: Driver
    devices: tuple[Device, ...]
    unanswered: dict[int, str]
    any_lost: bool
    bound: int | None


class Failed(_Message, frozen=True):
    """NVML cannot be used; the child exits after this."""

    id: int
    state: NvmlState
    why: str


class Values(_Message, frozen=True):
    """One group of one device or MIG instance. ``lost``: the device answered GPU_IS_LOST."""

    uuid: str
    group: Group
    values: dict[str, float]
    errors: dict[str, str]
    lost: bool


class Processes(_Message, frozen=True):
    """Every process on every device that could be asked."""

    processes: tuple[Process, ...]


class Calls(msgspec.Struct, frozen=True, array_like=True):
    """What one NVML function cost since the last report."""

    count: int
    errors: int
    total_seconds: float
    last_seconds: float


class Done(_Message, frozen=True):
    """The request with this id is answered.

    ``changed``: why the devices should be enumerated again; empty when they should not.
    """

    id: int
    calls: dict[str, Calls]
    changed: str


class Event(_Message, frozen=True):
    """The driver reported an event. ``uuid`` is empty when the device is not known."""

    uuid: str
    bits: int
    data: int
    gi: int | None
    ci: int | None


class EventsFailed(_Message, frozen=True):
    """Events cannot be waited for; it is tried again by itself."""

    why: str


Request: TypeAlias = Enumerate | Poll | Stop
Answer: TypeAlias = Enumerated | Failed | Values | Processes | Done | Event | EventsFailed

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_request: Final = msgspec.msgpack.Decoder(Request).decode
_decode_answer: Final = msgspec.msgpack.Decoder(Answer).decode


def frame(message: Request | Answer) -> bytes:
    """One message as it goes over the socket."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


def read_request(body: bytes) -> Request:
    """Decode the body of a frame, in the child.

    Raises:
        ProtocolError: it is no request.
    """
    try:
        return _decode_request(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"no request of the agent: {error}") from error


def read_answer(body: bytes) -> Answer:
    """Decode the body of a frame, in the agent.

    Raises:
        ProtocolError: it is no answer.
    """
    try:
        return _decode_answer(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"no answer of the NVML child: {error}") from error


class Unframer:
    """Cuts a stream of bytes into the bodies of frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, received: bytes) -> Iterator[bytes]:
        """The bodies that these bytes complete.

        Raises:
            ProtocolError: a frame claims to be larger than :data:`MAX_FRAME`.
        """
        self._rest += received
        while len(self._rest) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest)
            if length > MAX_FRAME:
                raise ProtocolError(f"a frame of {length} bytes; {MAX_FRAME} is the limit")
            end = _LENGTH.size + length
            if len(self._rest) < end:
                return
            body = bytes(self._rest[_LENGTH.size : end])
            del self._rest[:end]
            yield body


Page: TypeAlias = mmap | bytearray

_OFFSETS: Final[Mapping[Slot, int]] = {
    slot: number * _SLOT.size for number, slot in enumerate(Slot)
}


def begin_call(page: Page, slot: Slot, name: str, started: float) -> None:
    """Say that a thread enters a call. ``started`` by CLOCK_MONOTONIC, alike in both processes."""
    at = _OFFSETS[slot]
    _SLOT.pack_into(page, at, started, name.encode("ascii", "replace")[:_NAME_BYTES])


def end_call(page: Page, slot: Slot) -> None:
    """Say that it returned. The name stays, for whoever looks at a dead child."""
    at = _OFFSETS[slot]
    _STARTED.pack_into(page, at, 0.0)


class InFlight(msgspec.Struct, frozen=True):
    """A call that has not returned."""

    slot: Slot
    name: str
    started: float


def in_flight(page: Page) -> tuple[InFlight, ...]:
    """The calls that have not returned, at most one a slot."""
    calls = []
    for slot, at in _OFFSETS.items():
        started, name = _SLOT.unpack_from(page, at)
        if started:
            text = name.rstrip(b"\0").decode("ascii", "replace")
            calls.append(InFlight(slot, text, started))
    return tuple(calls)
