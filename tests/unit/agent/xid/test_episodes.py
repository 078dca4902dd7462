"""One fault, one count."""

import pytest

from node_agent.xid.catalogue import load_catalogue
from node_agent.xid.episodes import EpisodeCounter, Observation
from node_agent.xid.parse import XidReport, parse


CATALOGUE = load_catalogue()


def report(text: str) -> XidReport:
    parsed = parse(text, catalogue=CATALOGUE)
    assert parsed is not None
    return parsed


def xid(code: int, *, pid: int | None = None, pci: str = "0000:9b:00", tail: str = "") -> XidReport:
    process = f", pid={pid}, name=x" if pid is not None else ""
    return report(f"NVRM: Xid (PCI:{pci}): {code}{process}, text{tail}")


def opened(counter: EpisodeCounter, *lines: tuple[float, XidReport]) -> list[bool]:
    return [counter.add(r, first=at).new_episode for at, r in lines]


def test_lines_within_thirty_seconds_of_the_last_one_are_one_episode() -> None:
    counter = EpisodeCounter()
    assert opened(counter, (0, xid(119)), (29, xid(119)), (59, xid(119)), (89.5, xid(119))) == [
        True,
        False,
        False,
        True,
    ]


def test_a_sighting_of_many_lines_extends_its_episode_to_its_last_line() -> None:
    counter = EpisodeCounter()
    first = counter.add(xid(45, pid=1), first=0.0, last=20.0, lines=100_000)
    assert (first.new_episode, first.lines) == (True, 100_000)
    assert not counter.add(xid(45, pid=1), first=49.0).new_episode


def test_the_lines_of_one_faulty_kernel_are_one_fault_a_code() -> None:
    """Taken from a real GPU: the driver prints some lines of a fault without its process."""
    counter = EpisodeCounter()
    assert opened(
        counter,
        (46.331, xid(13)),
        (46.332, xid(13)),
        (46.334, xid(13)),
        (46.335, xid(13, pid=516)),
        (46.513, xid(31, pid=516)),
    ) == [True, False, False, False, True]


def test_two_processes_that_fault_are_two_faults() -> None:
    counter = EpisodeCounter()
    assert opened(counter, (0, xid(31, pid=1)), (0.1, xid(31, pid=2))) == [True, True]


def test_one_hung_gsp_is_one_fault_however_many_processes_report_it() -> None:
    counter = EpisodeCounter()
    assert opened(counter, *((n * 0.1, xid(119, pid=n)) for n in range(8))) == [True] + [False] * 7


def test_an_unknown_process_joins_the_running_episode_of_any() -> None:
    counter = EpisodeCounter()
    assert opened(counter, (0, xid(13, pid=5)), (1, xid(13)), (2, xid(13, pid=5))) == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "other",
    [
        xid(79, pci="0000:9c:00"),
        xid(95),
        report("NVRM: Xid (PCI:0000:9b:00 GPU-I:05): 79, x"),
    ],
    ids=["device", "code", "instance"],
)
def test_device_code_and_instance_tell_faults_apart(other: XidReport) -> None:
    assert opened(EpisodeCounter(), (0, xid(79)), (0, other)) == [True, True]


def test_units_of_an_nvlink_fault_are_told_apart() -> None:
    one = report("NVRM: Xid (PCI:0000:9b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 1 (0x0 0x0)")
    two = report("NVRM: Xid (PCI:0000:9b:00): 149, NETIR_MFDE_EVENT Fatal XC0 i0 Link 1 (0x0 0x1)")
    assert opened(EpisodeCounter(), (0, one), (0, two)) == [True, True]


def test_the_text_beside_xid_79_is_the_same_fault() -> None:
    counter = EpisodeCounter()
    counter.add(xid(79), first=0)
    lost = counter.add(report("NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus."), first=0.1)
    assert not lost.new_episode
    assert lost.key.code == 79


def cause(counter: EpisodeCounter, at: float, r: XidReport) -> int | None:
    return counter.add(r, first=at).root_cause


def test_the_root_cause_is_the_drivers_word() -> None:
    follower = xid(45, pid=1, tail=" caused by previous Xid 149")
    assert cause(EpisodeCounter(), 0, follower) == 149


def test_a_code_soon_after_a_graver_one_follows_it() -> None:
    counter = EpisodeCounter()
    assert cause(counter, 0.0, xid(48)) is None
    assert cause(counter, 0.5, xid(45, pid=1)) == 48
    assert cause(counter, 0.6, xid(63)) == 48
    assert cause(counter, 0.7, xid(45, pid=1)) == 48, "kept for later lines of the episode"


def test_a_graver_code_is_nobodys_follower() -> None:
    counter = EpisodeCounter()
    assert cause(counter, 0.0, xid(45, pid=1)) is None
    assert cause(counter, 0.5, xid(79)) is None
    assert cause(counter, 0.6, xid(43, pid=2)) == 79


def test_another_device_or_a_later_time_is_no_cause() -> None:
    counter = EpisodeCounter()
    cause(counter, 0.0, xid(79))
    assert cause(counter, 0.5, xid(45, pid=1, pci="0000:9c:00")) is None
    assert cause(counter, 60.0, xid(45, pid=1)) is None


def test_memory_is_bounded_and_what_was_forgotten_is_counted() -> None:
    counter = EpisodeCounter(capacity=100)
    seen: list[Observation] = [counter.add(xid(31, pid=n), first=n) for n in range(1000)]
    assert all(o.new_episode for o in seen)
    assert len(counter) == 100
    assert counter.evicted == 900
