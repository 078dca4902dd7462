"""A plain log, with real files and real inotify."""

# ruff: noqa: ASYNC240 -- small files in a temporary directory do not block

from __future__ import annotations

import gzip
import os
from typing import TYPE_CHECKING

import pytest

from node_agent.sources.kernel_log import Mode, Position


if TYPE_CHECKING:
    from pathlib import Path

    from conftest import FixedClock, Follow  # type: ignore[import-not-found]


def line(code: int, *, at: float | None = 100.0, pci: str = "0000:9b:00") -> bytes:
    stamp = f"[{at:12.6f}] " if at is not None else ""
    return f"{stamp}NVRM: Xid (PCI:{pci}): {code}, pid=1, name=x, text\n".encode()


def banner(prefix: str = "") -> bytes:
    return f"{prefix}[    0.000000] Linux version 6.8.0-45-generic (buildd@x) #45\n".encode()


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    directory = tmp_path / "log"
    directory.mkdir()
    return directory / "kern.log"


async def test_the_current_boot_is_replayed_and_then_followed(follow: Follow, path: Path) -> None:
    path.write_bytes(
        banner() + line(48) + banner("Dec  2 09:20:01 node kernel: ") + b"[ 1.0] usb\n" + line(79)
    )
    async with follow(Mode.FILE, path) as log:
        await log.until(lambda: log.caught_up)
        assert log.codes == [79], "the earlier boot is left out"
        append(path, line(119))
        await log.until_codes(79, 119)
        assert log.log.state.working


async def test_a_far_banner_is_found(follow: Follow, path: Path) -> None:
    filler = b"[    1.000000] something the kernel said\n" * 30_000
    path.write_bytes(line(48) + filler + banner() + filler + line(79))
    async with follow(Mode.FILE, path) as log:
        await log.until(lambda: log.caught_up)
        assert log.codes == [79]


async def test_a_program_that_names_the_kernel_version_is_no_banner(
    follow: Follow, path: Path
) -> None:
    path.write_bytes(banner() + line(79) + b"Dec  2 09:20:01 node app[1]: Linux version 6.8.0\n")
    async with follow(Mode.FILE, path) as log:
        await log.until(lambda: log.caught_up)
        assert log.codes == [79]


async def test_without_a_banner_lines_stamped_before_this_boot_are_left_out(
    follow: Follow, path: Path
) -> None:
    # NOW is 2027-01-15T08:00:00Z, the machine is up for 50,000 s (since 18:06 the day before).
    old = b"2027-01-14T17:00:00.123456+00:00 node kernel: " + line(48, at=None)
    new = b"2027-01-14T19:00:00.123456+00:00 node kernel: " + line(79, at=None)
    path.write_bytes(old + new)
    async with follow(Mode.FILE, path) as log:
        await log.until(lambda: log.caught_up)
        assert log.codes == [79]
        assert log.log.counters.earlier_boot == 1
        (sighting,) = log.batches[0].sightings
        assert sighting.first_wall == pytest.approx(1_799_953_200.123456)
        assert sighting.first == pytest.approx(50_000 - 46_799.876544)


@pytest.mark.parametrize("repeats", [1, 3], ids=["once", "storm"])
@pytest.mark.parametrize(
    "old",
    [
        b"2027-01-14T17:00:00.123456+00:00 node kernel: " + line(48),
        b"2027-01-14T17:00:00.123456+00:00 node kernel: " + line(48, at=None),
        line(48, at=50_100.0),
    ],
    ids=["stamped", "stamp only", "kernel time ahead of this boot's"],
)
async def test_behind_the_banner_of_an_earlier_boot_too(
    follow: Follow, path: Path, old: bytes, repeats: int
) -> None:
    path.write_bytes(banner() + old * repeats + line(79))
    async with follow(Mode.FILE, path) as log:
        await log.until(lambda: log.caught_up)
        assert log.codes == [79]
        assert log.log.counters.earlier_boot == repeats


async def test_a_log_that_appears_later(follow: Follow, path: Path) -> None:
    path.parent.rmdir()
    async with follow(Mode.FILE, path) as log:
        await log.until_state(lambda state: "does not exist" in state.reason)
        assert not log.batches, "a source that cannot read has not caught up"
        path.parent.mkdir()
        path.write_bytes(line(79))
        await log.until_codes(79)
        assert log.log.state.working


async def test_a_line_counts_when_its_newline_is_there(follow: Follow, path: Path) -> None:
    path.write_bytes(b"")
    text = line(79)
    async with follow(Mode.FILE, path) as log:
        await log.until(lambda: log.caught_up)
        append(path, text[:30])
        append(path, text[30:] + text[:50])
        await log.until_codes(79)
        assert log.position.offset == len(text), "the position is in front of the partial line"


async def test_rotation_by_rename(follow: Follow, path: Path) -> None:
    path.write_bytes(b"")
    async with follow(Mode.FILE, path) as log:
        await log.until(lambda: log.caught_up)
        with path.open("ab", buffering=0) as daemon:
            daemon.write(line(48))
            path.rename(path.with_suffix(".log.1"))
            path.touch()
            await log.until_state(lambda _: log.log.counters.rotations == 1)
            daemon.write(line(62))  # the daemon has not been told yet
            await log.until_codes(48, 62)
            daemon.write(line(64))
            append(path, line(79))
            await log.until_codes(48, 62, 64, 79)
        append(path, line(119))
        await log.until_codes(48, 62, 64, 79, 119)
        assert log.log.counters.rotations == 1


async def test_a_restart_in_the_middle_of_a_rotation_loses_nothing(
    follow: Follow, path: Path
) -> None:
    path.write_bytes(b"")
    async with follow(Mode.FILE, path) as log:
        await log.until(lambda: log.caught_up)
        path.rename(path.with_name("kern.log.1"))
        path.touch()
        await log.until_state(lambda _: log.log.counters.rotations == 1)
        append(path.with_name("kern.log.1"), line(48))
        await log.until_codes(48)
        saved = log.position
    append(path.with_name("kern.log.1"), line(62))
    append(path, line(79))
    async with follow(Mode.FILE, path, resume=saved) as log:
        await log.until(lambda: log.caught_up)
        assert log.codes == [62, 79]


async def test_a_log_that_was_rotated_more_than_once_is_read_in_its_order(
    follow: Follow, path: Path
) -> None:
    path.write_bytes(banner() + line(48))
    async with follow(Mode.FILE, path) as log:
        await log.until(lambda: log.caught_up)
        saved = log.position
    first, second, third = (path.with_name(f"kern.log.{at}") for at in (3, 2, 1))
    append(path, line(62))
    path.rename(first)
    second.write_bytes(line(79))
    third.write_bytes(b"")
    path.with_name("kern.log.bak").write_bytes(banner() + line(48))  # somebody's copy
    path.write_bytes(line(119))
    for at, file in enumerate((first, second, third)):
        os.utime(file, ns=(at, 10 + at))
    async with follow(Mode.FILE, path, resume=saved) as log:
        await log.until(lambda: log.caught_up)
        assert log.codes == [62, 79, 119]
        append(path, line(64))
        await log.until_codes(62, 79, 119, 64)


async def test_rotation_by_copy_and_truncate(follow: Follow, path: Path) -> None:
    path.write_bytes(b"")
    async with follow(Mode.FILE, path) as log:
        append(path, line(48) * 3)
        await log.until_codes(48, 48, 48)
        os.truncate(path, 0)
        append(path, line(79))
        await log.until_codes(48, 48, 48, 79)
        assert log.log.counters.truncations == 1


async def test_a_hole_of_nul_bytes_does_not_hide_a_line(follow: Follow, path: Path) -> None:
    path.write_bytes(b"\0" * 100_000 + line(79))
    async with follow(Mode.FILE, path) as log:
        await log.until_codes(79)


async def test_a_line_of_a_megabyte_costs_a_line(follow: Follow, path: Path) -> None:
    long = line(79).rstrip() + b"x" * 1_000_000 + b"\n"
    path.write_bytes(b"y" * 1_000_000 + b"\n" + long + line(48))
    async with follow(Mode.FILE, path) as log:
        await log.until_codes(79, 48)
        assert log.log.counters.oversized == 1


async def test_only_the_kernels_own_lines_count(follow: Follow, path: Path) -> None:
    xid = line(79, at=None)
    path.write_bytes(
        b"Dec  2 09:20:01 node gpud[12]: found " + xid
        + b"Dec  2 09:20:01 node gpud[12]: kernel: " + xid
        + b"2027-01-15T07:59:00Z node monitor: " + xid
        + b"Dec  2 09:20:01 node kernel: [  12.345678] " + line(48, at=None)
        + b"2027-01-15T07:59:00Z node kernel: " + line(62, at=None)
        + b"<4>[  13.000000][ T1234] " + line(64, at=None)
        + b"[Fri Jan 15 07:59:00 2027] " + line(95, at=None)
        + line(119, at=None)
    )  # fmt: skip
    async with follow(Mode.FILE, path) as log:
        await log.until(lambda: log.caught_up)
        assert log.codes == [48, 62, 64, 95, 119]


async def test_unreadable_lines_are_counted_and_skipped(follow: Follow, path: Path) -> None:
    path.write_bytes(b"[ 1.0] NVRM: Xid (PCI:0000:01:00): abc\n\xff\xfeNVRM: Xid\n" + line(79))
    async with follow(Mode.FILE, path) as log:
        await log.until_codes(79)
        assert log.log.counters.malformed == 1


@pytest.mark.parametrize("rotated", [False, True], ids=["same file", "rotated meanwhile"])
async def test_a_saved_position_counts_nothing_twice_and_misses_nothing(
    follow: Follow,
    path: Path,
    rotated: bool,  # noqa: FBT001 -- parametrized
) -> None:
    path.write_bytes(banner() + line(48))
    async with follow(Mode.FILE, path) as log:
        await log.until(lambda: log.caught_up)
        saved = log.position
    append(path, line(62))
    if rotated:
        path.rename(path.with_name("kern.log.1"))
        path.write_bytes(line(79))
    async with follow(Mode.FILE, path, resume=saved) as log:
        await log.until(lambda: log.caught_up)
        assert log.codes == ([62, 79] if rotated else [62])
        append(path, line(119))
        await log.until(lambda: 119 in log.codes)


@pytest.mark.parametrize("compressed", [False, True], ids=["deleted", "compressed"])
async def test_a_file_that_is_gone_with_unread_lines_is_a_loss_that_is_said(
    follow: Follow,
    path: Path,
    compressed: bool,  # noqa: FBT001 -- parametrized
) -> None:
    path.write_bytes(banner() + line(48))
    async with follow(Mode.FILE, path) as log:
        await log.until(lambda: log.caught_up)
        assert log.log.counters.lost_places == 0
        saved = log.position
    append(path, line(62))
    if compressed:
        path.with_name("kern.log.1.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.rename(path.with_name("elsewhere"))
    path.write_bytes(line(79))
    async with follow(Mode.FILE, path, resume=saved) as log:
        await log.until(lambda: log.caught_up)
        assert log.codes == [79]
        assert log.log.counters.lost_places == 1
        assert "compressed" in log.losses[0]


async def test_a_copy_of_a_truncated_file_is_read_on(follow: Follow, path: Path) -> None:
    path.write_bytes(banner() + line(48))
    async with follow(Mode.FILE, path) as log:
        await log.until(lambda: log.caught_up)
        saved = log.position
    append(path, line(62))
    path.with_name("kern.log.1").write_bytes(path.read_bytes())
    path.write_bytes(line(79))  # the same inode
    async with follow(Mode.FILE, path, resume=saved) as log:
        await log.until(lambda: log.caught_up)
        assert log.codes == [62, 79]
        assert log.losses == []


async def test_another_file_with_the_saved_inode_is_read_from_its_start(
    follow: Follow, path: Path
) -> None:
    path.write_bytes(line(48) * 4)
    async with follow(Mode.FILE, path) as log:
        await log.until(lambda: log.caught_up)
        saved = log.position
    with path.open("r+b") as file:  # same inode, other content
        file.write(line(79) * 4)
    async with follow(Mode.FILE, path, resume=saved) as log:
        await log.until_codes(79, 79, 79, 79)
        assert log.log.counters.lost_places == 1


async def test_a_position_of_another_boot_is_not_used(follow: Follow, path: Path) -> None:
    path.write_bytes(banner() + line(79))
    inode = path.stat().st_ino
    saved = Position("file", "another boot", inode=inode, offset=path.stat().st_size)
    async with follow(Mode.FILE, path, resume=saved) as log:
        await log.until(lambda: log.caught_up)
        assert log.codes == [79]


async def test_a_storm_is_one_episode_and_a_handful_of_sightings(
    follow: Follow, path: Path
) -> None:
    path.write_bytes(b"")
    storm = b"".join(line(45, at=1000 + n / 10_000) for n in range(100_000))
    async with follow(Mode.FILE, path) as log:
        await log.until(lambda: log.caught_up)
        append(path, storm)
        await log.until(lambda: len(log.codes) >= 100_000)
        assert len(log.codes) == 100_000
        assert log.episodes == 1
        assert max(len(b.sightings) for b in log.batches) <= 2
        assert log.log.counters.matched == 100_000


async def test_recovery_actions_keep_their_order(follow: Follow, path: Path) -> None:
    def changed(value: int, word: str) -> bytes:
        return (
            b"[  1.000000] NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed"
            b" from 0x0 (None) to 0x%d (%b)\n" % (value, word.encode())
        )

    reset, none = changed(1, "GPU Reset Required"), changed(0, "None")
    path.write_bytes(reset + none + reset + none)
    async with follow(Mode.FILE, path) as log:
        await log.until(lambda: log.caught_up)
        values = [s.report.recovery.value for b in log.batches for s in b.sightings]
        assert values == [1, 0, 1, 0]


async def test_a_followed_line_happened_now_and_a_replayed_one_when_it_says(
    follow: Follow, path: Path, clock: FixedClock
) -> None:
    path.write_bytes(line(48, at=40_000) + line(62, at=99_999))
    async with follow(Mode.FILE, path) as log:
        await log.until(lambda: log.caught_up)
        append(path, line(79, at=49_000))
        await log.until(lambda: 79 in log.codes)
        walls = {s.report.code: s.first_wall for b in log.batches for s in b.sightings}
    now = clock.now()
    assert walls[48] == now.wall - 10_000
    assert walls[79] == now.wall
    assert 62 not in walls, "a time ahead of this boot's clock is of an earlier boot"


async def test_the_gpu_uuid_is_handed_on(follow: Follow, path: Path) -> None:
    uuid = "GPU-991ca6af-7183-dbcc-7426-ca20a423fd21"
    path.write_bytes(
        b"[  1.000000] NVRM: GPU at PCI:0000:9b:00: " + uuid.encode() + b"\n" + line(79)
    )
    async with follow(Mode.FILE, path) as log:
        await log.until(lambda: log.caught_up)
        assert [i for b in log.batches for i in b.identities] == [("0000:9b:00.0", uuid)]
        assert log.batches[0].sightings[0].report.gpu_uuid == uuid
