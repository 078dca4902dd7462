"""Frames in pieces, and the page on which a thread says what it is in."""

import mmap

import pytest

from node_agent.nvml.model import NvmlState
from node_agent.nvml.protocol import (
    PAGE_BYTES,
    Enumerate,
    Failed,
    Group,
    Poll,
    ProtocolError,
    Request,
    Slot,
    Unframer,
    begin_call,
    end_call,
    frame,
    in_flight,
    read_answer,
    read_request,
)


def test_frames_survive_being_cut_anywhere() -> None:
    requests: list[Request] = [
        Enumerate(1),
        Poll(2, (Group.FAST, Group.GPM), ("GPU-1",)),
        Enumerate(3),
    ]
    stream = b"".join(frame(request) for request in requests)
    for cut in range(len(stream) + 1):
        unframer = Unframer()
        bodies = [*unframer.feed(stream[:cut]), *unframer.feed(stream[cut:])]
        assert [read_request(body) for body in bodies] == requests


def test_an_answer_is_no_request() -> None:
    (body,) = Unframer().feed(frame(Failed(1, NvmlState.NO_LIBRARY, "none")))
    assert read_answer(body) == Failed(1, NvmlState.NO_LIBRARY, "none")
    with pytest.raises(ProtocolError, match="no request"):
        read_request(body)
    with pytest.raises(ProtocolError, match="no answer"):
        read_answer(b"\xc1")


def test_a_frame_that_claims_gigabytes_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match="limit"):
        list(Unframer().feed(b"\xff\xff\xff\xff"))


def test_the_page_names_the_calls_that_have_not_returned() -> None:
    with mmap.mmap(-1, PAGE_BYTES) as page:
        assert in_flight(page) == ()
        begin_call(page, Slot.EVENTS, "nvmlEventSetWait_v2", 5.0)
        begin_call(page, Slot.POLL, "nvmlDeviceGetPowerUsage gpu 3", 7.5)
        assert [(call.slot, call.name, call.started) for call in in_flight(page)] == [
            (Slot.POLL, "nvmlDeviceGetPowerUsage gpu 3", 7.5),
            (Slot.EVENTS, "nvmlEventSetWait_v2", 5.0),
        ]
        end_call(page, Slot.POLL)
        assert [call.slot for call in in_flight(page)] == [Slot.EVENTS]


def test_a_long_name_stays_in_its_slot() -> None:
    with mmap.mmap(-1, PAGE_BYTES) as page:
        begin_call(page, Slot.EVENTS, "e", 2.0)
        begin_call(page, Slot.POLL, "x" * 500, 1.0)
        poll, events = in_flight(page)
        assert set(poll.name) == {"x"}
        assert events.name == "e"
