"""Times of faults that are over: kept for counts, for a day, and nothing else rests on them."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from node_agent.contract import (
    PAST_SECONDS,
    ConditionStatus,
    FaultKind,
    Past,
    Truncated,
    decode_report,
    encode_report,
)
from node_agent.health.conditions import View, ViewState, desired
from node_agent.health.faults import Seen
from node_agent.health.fold import Evidence, identify, next_look, observe, restore, settle
from node_agent.health.operator import set_healthy
from node_agent.health.past import MAX_PAST, PastFault
from node_agent.health.state import NodeHealth
from node_agent.health.store import load, save
from tests.unit.agent.health.builders import GPU, OTHER_GPU, RESET_DONE, RESET_WANTED, sxid, xid


HOUR = 3600.0
WELL = Evidence("boot-2", "boot-2", replayed=True, all_present=True)
SAME = Evidence("boot-1", "boot-1", replayed=True, all_present=True)
UP = dict.fromkeys(View, ViewState(up=True))


def seen(*lines: Seen, before: NodeHealth | None = None) -> NodeHealth:
    return observe(before or NodeHealth(boot_id="boot-1"), lines, boot_id="boot-1")


def reset(at: float, *, pci: str = GPU) -> tuple[Seen, Seen]:
    wanted, done = xid(154, at, RESET_WANTED, pci=pci), xid(154, at + 1.0, RESET_DONE, pci=pci)
    return wanted, done


def past(health: NodeHealth) -> dict[tuple[int, str], tuple[float, ...]]:
    """What is remembered, but for the requests of the driver themselves."""
    found = health.past.values()
    return {(one.code, one.pci): one.times for one in found if one.code != 154}


def test_a_reset_ends_the_fault_and_keeps_its_times() -> None:
    health = seen(xid(94, 100.0), xid(94, 300.0), *reset(400.0), xid(94, 900.0))
    assert [(f.code, f.count, f.times) for f in health.faults.values()] == [(94, 1, (900.0,))]
    assert past(health) == {(94, GPU): (100.0, 300.0)}
    again = seen(*reset(1000.0), before=health)
    assert past(again) == {(94, GPU): (100.0, 300.0, 900.0)}


def test_a_reset_of_one_gpu_is_no_past_of_another() -> None:
    health = seen(xid(94, 100.0), xid(94, 200.0, pci=OTHER_GPU), *reset(400.0))
    assert past(health) == {(94, GPU): (100.0,)}


def test_a_reboot_and_mere_age_keep_the_times_too() -> None:
    health = seen(xid(31, 100.0), xid(79, 100.0), sxid(20034, 100.0))
    rebooted = settle(
        msgspec.structs.replace(health, boot_id="boot-2"), WELL, now=200.0, info_age=9
    )
    assert not rebooted.faults
    assert sorted(one.key for one in rebooted.past.values()) == [
        "sxid|0000:05:00.0|20034",
        f"xid|{GPU}|31",
        f"xid|{GPU}|79",
    ]


def test_they_are_forgotten_after_a_day_and_someone_looks_then() -> None:
    health = seen(xid(94, 100.0), xid(94, 300.0), *reset(400.0))
    ends = 100.0 + PAST_SECONDS
    assert next_look(health, info_age=HOUR) == ends
    assert settle(health, SAME, now=ends, info_age=HOUR) is health
    later = settle(health, SAME, now=ends + 1, info_age=HOUR)
    assert past(later) == {(94, GPU): (300.0,)}
    assert not settle(later, SAME, now=ends + 400, info_age=HOUR).past


def test_times_of_a_clock_that_was_years_ahead_do_not_hide_those_of_now() -> None:
    year = 365 * PAST_SECONDS
    health = NodeHealth(boot_id="boot-1")
    for at in range(0, 1000, 100):
        health = seen(xid(94, year + at), *reset(year + at + 1.0), before=health)
    for now in (2000.0, 2100.0):
        health = settle(health, SAME, now=now, info_age=HOUR)
        health = seen(xid(94, now), *reset(now + 1.0), before=health)
    assert past(health) == {(94, GPU): (2000.0, 2100.0)}


def test_a_clock_that_was_some_hours_ahead_forgets_nothing() -> None:
    health = seen(xid(94, 6 * HOUR), *reset(6 * HOUR + 1.0))
    assert past(settle(health, SAME, now=100.0, info_age=HOUR)) == {(94, GPU): (6 * HOUR,)}


def test_only_the_last_ten_are_kept() -> None:
    lines = [one for n in range(12) for one in (xid(94, 1000.0 * n), *reset(1000.0 * n + 100))]
    assert past(seen(*lines))[94, GPU] == tuple(1000.0 * n for n in range(2, 12))


def test_they_survive_a_restart(tmp_path: Path) -> None:
    health = seen(xid(94, 100.0), *reset(400.0))
    save(tmp_path / "state.json", health)
    assert load(tmp_path / "state.json").health == health


@pytest.mark.parametrize("times", ["[]", "[1e300]"])
def test_a_state_file_with_an_impossible_past_is_set_aside(tmp_path: Path, times: str) -> None:
    state = tmp_path / "state.json"
    one = f'{{"xid|a|94": {{"kind": "xid", "code": 94, "pci": "a", "times": {times}}}}}'
    state.write_text(f'{{"version": 1, "past": {one}}}')
    assert load(state).lost


def test_a_state_file_of_an_older_agent_has_none(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"version": 1}')
    assert load(tmp_path / "state.json").health.past == {}


def test_what_an_operator_declares_well_is_not_counted_on() -> None:
    health = seen(xid(94, 100.0), *reset(400.0), xid(94, 500.0), *reset(600.0), xid(94, 700.0))
    answer = set_healthy(health, 450.0, now=2000.0)
    assert past(answer.health) == {(94, GPU): (500.0,)}
    assert answer.cleared == ()
    answer = set_healthy(answer.health, 1000.0, now=2000.0)
    assert [fault.code for fault in answer.cleared] == [94]
    assert past(answer.health) == {}


@pytest.mark.parametrize("by_line", [True, False])
def test_another_gpu_in_the_same_slot_begins_anew(*, by_line: bool) -> None:
    health = seen(xid(94, 100.0), *reset(400.0), xid(94, 100.0, pci=OTHER_GPU))
    health = seen(*reset(400.0, pci=OTHER_GPU), before=health)
    health = identify(health, [(GPU, "GPU-1"), (OTHER_GPU, "GPU-2")])
    assert past(health).keys() == {(94, GPU), (94, OTHER_GPU)}
    if by_line:
        line = xid(13, 500.0)
        named = replace(line.report, gpu_uuid="GPU-3")
        health = seen(msgspec.structs.replace(line, report=named), before=health)
    else:
        health = identify(health, [(GPU, "GPU-3"), (OTHER_GPU, "GPU-2")])
    assert past(health).keys() == {(94, OTHER_GPU)}


def test_they_raise_nothing_and_stand_in_the_annotation() -> None:
    health = msgspec.structs.replace(seen(xid(94, 100.0), *reset(400.0)), expected={GPU: "gpu"})
    wanted = desired(health, UP, written=(), indexes={})
    assert {one.status for one in wanted.conditions} == {ConditionStatus.FALSE}
    report = decode_report(wanted.annotation)
    assert report.faults == ()
    assert [(one.code, one.pci, len(one.times)) for one in report.past if one.code == 94] == [
        (94, GPU, 1)
    ]


def test_a_lost_state_takes_them_back_from_the_annotation_and_counts_none_twice() -> None:
    before = seen(*[one for n in range(3) for one in (xid(94, 100.0 * n), *reset(100.0 * n + 50))])
    published = tuple(one.published() for one in before.past.values())
    report = decode_report(encode_report((), boot_id="boot-1", past=published))
    nothing_replayed = NodeHealth(boot_id="boot-2", forgotten=True)
    assert restore(nothing_replayed, report).past == before.past
    # The log of this boot shows the second again as over, and the third as open, a little off.
    replayed = seen(xid(94, 100.4), *reset(150.0), xid(94, 199.8))
    assert past(restore(replayed, report)) == {(94, GPU): (0.0, 100.4)}


def test_there_are_never_too_many() -> None:
    lines = [one for n in range(3) for one in (xid(31, float(n)), *reset(n + 0.5))]
    health = seen(*lines)
    others = [PastFault(FaultKind.XID, 2000 + n, GPU, (n + 9.0,)) for n in range(MAX_PAST)]
    many = {one.key: one for one in others}
    full = msgspec.structs.replace(health, past=many)
    full = seen(xid(94, 5000.0), *reset(6000.0), before=full)
    assert len(full.past) == MAX_PAST
    assert (94, GPU) in past(full)
    assert (2000, GPU) not in past(full)


def test_in_the_annotation_the_past_goes_first_the_oldest_before_the_others() -> None:
    health = seen(*[xid(31, float(n), f"word {n}", pci=f"0000:{n:02x}:00.0") for n in range(20)])
    faults = tuple(one.published() for one in health.faults.values())
    over = tuple(PastFault(FaultKind.XID, 94, GPU, (60.0 * n,)).published() for n in range(90))
    assert decode_report(encode_report(faults, boot_id="b", limit=20_000)).truncated is None
    report = decode_report(encode_report(faults, boot_id="b", past=over, limit=9_000))
    assert len(report.faults) == 20
    assert 0 < len(report.past) < 90
    assert report.truncated == Truncated(past=90 - len(report.past))
    assert report.past == tuple(reversed(over))[: len(report.past)]
    none = decode_report(encode_report(faults, boot_id="b", past=over, limit=2_000))
    assert none.past == ()
    assert none.truncated is not None
    assert (none.truncated.past, none.truncated.info > 0) == (90, True)


def test_a_reader_of_before_ignores_the_past_and_one_of_now_needs_none() -> None:
    class ReportOfBefore(msgspec.Struct):
        version: int
        faults: tuple[object, ...] = ()

    over = (PastFault(FaultKind.XID, 94, GPU, (1.0,)).published(),)
    text = encode_report((), boot_id="b", past=over)
    assert msgspec.json.decode(text, type=ReportOfBefore) == ReportOfBefore(1)
    assert decode_report('{"version":1,"bootID":"b"}').past == ()
    assert isinstance(decode_report(text).past[0], Past)
