"""The annotation: what is written can be read, it stays small, and the fatal is never lost."""

import json
from collections import Counter
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.contract import (
    MAX_BYTES,
    MAX_TIMES,
    VERSION,
    Fault,
    FaultKind,
    Instance,
    MalformedReportError,
    Past,
    Severity,
    Truncated,
    UnsupportedVersionError,
    decode_report,
    encode_report,
    worst_first,
)
from tests.property.cases import cases


TIMES = st.datetimes(
    min_value=datetime(2020, 1, 1),  # noqa: DTZ001 - hypothesis adds the zone
    max_value=datetime(2100, 1, 1),  # noqa: DTZ001
    timezones=st.just(UTC),
)
TEXT = st.text(max_size=120)
FAULTS = st.builds(
    Fault,
    kind=st.sampled_from(FaultKind),
    severity=st.sampled_from(Severity),
    first_seen=TIMES,
    last_seen=TIMES,
    pci=TEXT,
    gpu=TEXT,
    index=st.none() | st.integers(0, 64),
    code=st.none() | st.integers(0, 100_000),
    subcode=TEXT,
    action=TEXT,
    count=st.integers(1, 10**6),
    lines=st.integers(1, 10**9),
    times=st.lists(TIMES, max_size=MAX_TIMES).map(tuple),
    boot_id=TEXT,
    mig=st.none() | st.builds(Instance, gi=st.integers(0, 14), ci=st.none() | st.integers(0, 7)),
    pods=st.lists(TEXT, max_size=4).map(tuple),
    message=TEXT,
)
PAST = st.builds(
    Past,
    kind=st.sampled_from((FaultKind.XID, FaultKind.SXID)),
    code=st.integers(0, 100_000),
    pci=TEXT,
    times=st.lists(TIMES, min_size=1, max_size=MAX_TIMES).map(lambda times: tuple(sorted(times))),
)
OVER = st.lists(PAST, max_size=40).map(tuple)
MANY = st.lists(FAULTS, max_size=60).map(tuple)


@given(st.lists(FAULTS, max_size=6).map(tuple))
def test_what_fits_comes_back_whole(faults: tuple[Fault, ...]) -> None:
    report = decode_report(encode_report(faults, boot_id="b", limit=10**6))
    assert report.faults == tuple(sorted(faults, key=worst_first))
    assert report.truncated is None
    assert report.boot_id == "b"


@settings(max_examples=cases(40))
@given(MANY)
def test_it_stays_small_and_says_what_is_missing(faults: tuple[Fault, ...]) -> None:
    text = encode_report(faults, boot_id="b")
    report = decode_report(text)
    truncated = report.truncated or Truncated()
    by_severity = Counter(fault.severity for fault in report.faults)
    assert by_severity[Severity.FATAL] == sum(f.severity is Severity.FATAL for f in faults)
    for severity, missing in (
        (Severity.WARNING, truncated.warning),
        (Severity.INFO, truncated.info),
    ):
        assert by_severity[severity] + missing == sum(f.severity is severity for f in faults)
    assert len(text.encode()) <= MAX_BYTES or by_severity.keys() <= {Severity.FATAL}


@settings(max_examples=cases(40))
@given(MANY, OVER)
def test_the_past_takes_no_room_from_what_is(
    faults: tuple[Fault, ...], past: tuple[Past, ...]
) -> None:
    without = decode_report(encode_report(faults, boot_id="b"))
    text = encode_report(faults, boot_id="b", past=past)
    report = decode_report(text)
    truncated = report.truncated or Truncated()
    assert len(report.past) + truncated.past == len(past)
    assert set(report.past) <= set(past)
    assert len(text.encode()) <= MAX_BYTES or all(
        fault.severity is Severity.FATAL for fault in report.faults
    )
    if report.past:
        assert report.faults == without.faults
        assert without.truncated is None
        kept, newest = min(one.times[-1] for one in report.past), max(one.times[-1] for one in past)
        assert newest in {one.times[-1] for one in report.past}
        gone = sorted(one.times[-1] for one in past)[: truncated.past]
        assert all(time <= kept for time in gone)


@settings(max_examples=cases(40))
@given(MANY)
def test_information_goes_before_warnings(faults: tuple[Fault, ...]) -> None:
    report = decode_report(encode_report(faults, boot_id=""))
    if report.truncated and report.truncated.warning:
        assert all(fault.severity is not Severity.INFO for fault in report.faults)


@given(st.text() | st.binary().map(lambda raw: raw.decode("latin-1")))
def test_garbage_is_a_clear_error_and_never_another(text: str) -> None:
    with pytest.raises((MalformedReportError, UnsupportedVersionError)):
        decode_report(text)


@given(st.integers(VERSION + 1, 10**6))
def test_a_newer_version_is_told_apart(version: int) -> None:
    with pytest.raises(UnsupportedVersionError):
        decode_report(json.dumps({"version": version, "faults": "of another kind"}))


def test_unknown_keys_of_the_same_version_are_left_alone() -> None:
    assert decode_report('{"version":1,"faults":[],"added":{"later":true}}').faults == ()
