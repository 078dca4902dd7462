"""Written behind: when, how often, what after a failure. Virtual time."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random

import msgspec
import pytest

from remediator.decide.ledger import Ledger, LedgerState
from remediator.decide.storms import OpenBreaker, Recent
from remediator.kube.access import access_of
from remediator.kube.errors import ApiError, Conflict, NotFound, ServerError
from remediator.kube.lease import NotLeading
from remediator.kube.objects import ConfigMap
from remediator.policy.cluster import ClusterSpec
from remediator.policy.quantities import Rate
from remediator.record.publish import StatusPublisher
from remediator.record.state import (
    DRY_RUN_KEY,
    MAX_BYTES,
    MAX_KEPT,
    STATE_KEY,
    UNREADABLE_KEY,
    LedgerMemory,
    Loaded,
    fitted,
    restore,
)
from remediator.record.status import Status, decode_status
from remediator.record.writebehind import Document, WriteBehind


pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


class FakeConfigMaps:
    """One ConfigMap with a version, and failures to come."""

    def __init__(self, data: dict[str, str] | None = None) -> None:
        self.data = data
        self.version = 1
        self.failures: list[Exception] = []
        self.writes: list[tuple[float, Mapping[str, str | None]]] = []

    async def read(self, name: str) -> ConfigMap | None:
        if self.failures:
            raise self.failures.pop(0)
        if self.data is None:
            return None
        return ConfigMap(name, "ns", "uid", str(self.version), dict(self.data))

    async def write(
        self, name: str, data: Mapping[str, str | None], *, known: ConfigMap | None
    ) -> ConfigMap:
        await asyncio.sleep(0.1)
        if self.failures:
            raise self.failures.pop(0)
        if known is None and self.data is not None:
            raise Conflict(access_of("POST", "/api/v1/x"))
        if known is not None and self.data is None:
            raise NotFound(access_of("PATCH", "/api/v1/x"))
        if known is not None and known.resource_version != str(self.version):
            raise Conflict(access_of("PATCH", "/api/v1/x"))
        self.writes.append((asyncio.get_running_loop().time(), dict(data)))
        self.version += 1
        merged = {**(self.data or {}), **data}
        self.data = {key: value for key, value in merged.items() if value is not None}
        return ConfigMap(name, "ns", "uid", str(self.version), dict(self.data))


def broken() -> ApiError:
    return ServerError(access_of("PATCH", "/api/v1/x"), status=500, message="etcd is away")


@asynccontextmanager
async def running(one: WriteBehind[int] | StatusPublisher | LedgerMemory) -> AsyncIterator[None]:
    task = asyncio.create_task(one.run())
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


class Number:
    """The value that is kept."""

    def __init__(self, maps: FakeConfigMaps, refresh: float | None = None) -> None:
        self.value = 0
        self.behind: WriteBehind[int] = WriteBehind(
            document=Document(maps, "cm"),
            snapshot=lambda: self.value,
            encode=lambda value: {"v": str(value)},
            interval=2.0,
            refresh=refresh,
            rng=Random(1),  # noqa: S311 - jitter
        )

    def set(self, value: int) -> None:
        self.value = value
        self.behind.touch()


def gaps(maps: FakeConfigMaps) -> list[float]:
    times = [at for at, _ in maps.writes]
    return [later - sooner for sooner, later in pairwise(times)]


async def test_changes_are_written_soon_coalesced_and_the_newest_wins() -> None:
    maps = FakeConfigMaps()
    number = Number(maps)
    async with running(number.behind):
        for value in range(1, 101):
            number.set(value)
            await asyncio.sleep(0.1)
        await asyncio.sleep(5)

    assert maps.writes[0][1] == {"v": "1"}
    assert maps.data == {"v": "100"}
    assert len(maps.writes) <= 7
    assert min(gaps(maps)) >= 2.0


async def test_what_did_not_change_is_not_written() -> None:
    maps = FakeConfigMaps()
    number = Number(maps)
    async with running(number.behind):
        number.set(1)
        await asyncio.sleep(5)
        number.set(1)
        await asyncio.sleep(500)

    assert len(maps.writes) == 1


async def test_unless_a_refresh_is_due() -> None:
    maps = FakeConfigMaps()
    number = Number(maps, refresh=60.0)
    async with running(number.behind):
        number.set(1)
        await asyncio.sleep(200)

    assert len(maps.writes) == 4
    assert all(60.0 <= gap < 63.0 for gap in gaps(maps))


async def test_a_failure_is_repeated_later_and_later_with_the_newest_value_and_said_once() -> None:
    maps = FakeConfigMaps()
    maps.failures = [broken() for _ in range(5)]
    number = Number(maps)
    async with running(number.behind):
        number.set(1)
        await asyncio.sleep(1)
        assert "etcd is away" in number.behind.problem
        number.set(2)
        await asyncio.sleep(300)

    assert [data for _, data in maps.writes] == [{"v": "2"}]
    assert number.behind.failed == 5
    assert number.behind.problem == ""


async def test_without_the_lease_nothing_is_written_and_nothing_breaks() -> None:
    maps = FakeConfigMaps()
    maps.failures = [NotLeading("not fresh")] * 1000
    number = Number(maps)
    async with running(number.behind):
        number.set(1)
        await asyncio.sleep(100)

    assert maps.writes == []


async def test_an_edit_by_others_is_overruled_for_our_key_only() -> None:
    maps = FakeConfigMaps()
    number = Number(maps)
    async with running(number.behind):
        number.set(1)
        await asyncio.sleep(3)
        maps.version, maps.data = 70, {"v": "edited", "theirs": "stays"}
        number.set(2)
        await asyncio.sleep(3)
        assert maps.data == {"v": "2", "theirs": "stays"}
        maps.data = None  # deleted
        number.set(3)
        await asyncio.sleep(3)

    assert maps.data == {"v": "3"}


async def test_flush_writes_the_last_value_and_gives_up_in_time() -> None:
    maps = FakeConfigMaps()
    number = Number(maps)
    number.set(7)
    assert await number.behind.flush(2.0)
    assert maps.data == {"v": "7"}
    number.set(8)

    assert not await number.behind.flush(0.05)


async def test_the_status_is_published_when_it_changes_and_once_a_minute() -> None:
    maps = FakeConfigMaps()
    now = asyncio.get_running_loop().time
    leader = ["a"]
    publisher = StatusPublisher(
        configmaps=maps,
        build=lambda: Status(version=1, time=now(), leader=leader[0], mode="DryRun"),
    )
    async with running(publisher):
        publisher.touch()
        await asyncio.sleep(5)
        publisher.touch()
        await asyncio.sleep(5)
        assert len(maps.writes) == 1
        leader[0] = "b"
        publisher.touch()
        await asyncio.sleep(0.2)
        assert len(maps.writes) == 2
        await asyncio.sleep(130)

    assert len(maps.writes) == 4
    assert maps.data is not None
    assert decode_status(maps.data["status.json"]).leader == "b"


def make_ledger() -> Ledger:
    return Ledger(cluster=ClusterSpec(), started=0.0)


async def test_the_ledgers_memory_survives_a_restart() -> None:
    maps, before = FakeConfigMaps(), make_ledger()
    memory = LedgerMemory(configmaps=maps)
    assert await memory.load() == Loaded(None)
    memory.keep(before)
    async with running(memory):
        before.start("cordon", "", ("", "bus"), "u1", 100.0)
        before.open_breaker("bus", "storm", 100.0)
        memory.touch()
        await asyncio.sleep(3)
        memory.touch()
        await asyncio.sleep(3)
    assert len(maps.writes) == 1

    after = make_ledger()
    restore(after, await LedgerMemory(configmaps=maps).load(), now=200.0)

    assert after.state() == before.state()


async def test_the_breakers_of_dry_run_survive_a_restart_its_rates_do_not() -> None:
    maps, before, dry_run = FakeConfigMaps(), make_ledger(), make_ledger()
    memory = LedgerMemory(configmaps=maps)
    memory.keep(before, dry_run)
    async with running(memory):
        dry_run.start("cordon", "", ("",), "u1", 100.0)
        dry_run.open_breaker("bus", "storm", 100.0)
        memory.touch()
        await asyncio.sleep(3)

    after, virtual = make_ledger(), make_ledger()
    loaded = await LedgerMemory(configmaps=maps).load()
    restore(after, loaded, dry_run=virtual, now=200.0)
    assert after.breakers == {}
    assert virtual.breakers == dry_run.breakers
    assert virtual.state().starts == {}


async def test_an_unreadable_state_of_dry_run_stops_nobody() -> None:
    maps, before = FakeConfigMaps({STATE_KEY: "{}", DRY_RUN_KEY: "{damaged"}), make_ledger()
    loaded = await LedgerMemory(configmaps=maps).load()
    assert (loaded.problem, loaded.dry_run) == ("", None)
    restore(before, loaded, dry_run=make_ledger(), now=200.0)
    assert before.room("cordon", "", "", Rate(3, 600.0), 200.0) is None


async def test_of_a_storm_without_room_for_all_what_people_dropped_and_what_is_open_stays() -> None:
    uids = [f"{n:08d}-98cc-499d-bb85-dacfc254be65" for n in range(5000)]
    recent = {"bus": {uid: Recent(float(n), ("agents/all",)) for n, uid in enumerate(uids)}}
    real = LedgerState(
        starts={"cordon a ": (1.0,)},
        breakers={"agents/all": OpenBreaker(1.0, "storm")},
        dropped={policy: tuple(uids) for policy in ("bus", "heat", "link", "memory")},
        recent=recent,
    )
    dry_run = LedgerState(recent=recent)

    kept, *others = fitted((real, dry_run))

    assert others == []
    assert (kept.starts, kept.breakers, kept.dropped) == (real.starts, real.breakers, real.dropped)
    assert 0 < len(kept.recent["bus"]) < 5000
    assert max(one.at for one in kept.recent["bus"].values()) == 4999.0
    assert len(msgspec.json.encode(kept)) <= MAX_BYTES
    assert fitted((dry_run, dry_run)) == (dry_run, dry_run), "what fits is kept whole"


async def test_what_dry_run_remembered_goes_out_of_a_document_that_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    maps, real, dry_run = FakeConfigMaps(), make_ledger(), make_ledger()
    memory = LedgerMemory(configmaps=maps)
    memory.keep(real, dry_run)
    async with running(memory):
        dry_run.open_breaker("bus", "storm", 100.0)
        memory.touch()
        await asyncio.sleep(3)
        assert maps.data is not None
        assert "storm" in maps.data[DRY_RUN_KEY]
        monkeypatch.setattr("remediator.record.state.fitted", lambda states: states[:1])
        real.open_breaker("bus", "storm", 100.0)
        memory.touch()
        await asyncio.sleep(3)

    assert DRY_RUN_KEY not in maps.data
    assert "storm" in maps.data[STATE_KEY]


async def test_counts_of_a_clock_that_ran_ahead_are_of_now() -> None:
    before, after = make_ledger(), make_ledger()
    before.storms.count(before.storms.watch("bus", 0.0), "u", Recent(1e12, ("agents/all",)))
    restore(after, Loaded(before.state()), now=1000.0)
    assert after.storms.watch("bus", 0.0).recent == {"u": Recent(1000.0, ("agents/all",))}


@pytest.mark.parametrize("text", ['{"version": 1, "starts"', '{"version": 9}', "[]", ""])
async def test_an_unreadable_state_is_kept_and_rates_count_as_used_up_for_one_window(
    text: str,
) -> None:
    maps, ledger = FakeConfigMaps({STATE_KEY: text}), make_ledger()
    memory = LedgerMemory(configmaps=maps)
    loaded = await memory.load()
    assert loaded.problem
    restore(ledger, loaded, now=1000.0)
    memory.keep(ledger)
    async with running(memory):
        await asyncio.sleep(2)

    assert maps.data is not None
    assert maps.data[UNREADABLE_KEY] == text
    assert maps.data[STATE_KEY] != text
    rate = Rate(3, 600.0)
    for pool in ("", "a"):
        assert ledger.room("cordon", pool, "", rate, 1001.0) == 1600.0
        assert ledger.room("cordon", pool, "", rate, 1600.5) is None
    assert ledger.room("job", "new", "young", Rate(1, 60.0), 1001.0) == 1060.0
    assert len(maps.data[STATE_KEY]) < 100, "however many rates and pools there are"

    again = make_ledger()  # another controller takes over within that window
    restore(again, await LedgerMemory(configmaps=maps).load(), now=1200.0)
    assert again.room("cordon", "a", "", rate, 1201.0) == 1600.0


@pytest.mark.parametrize("letter", ["x", "ä", "€", "😀"])
async def test_an_unreadable_state_leaves_room_for_the_new_one_whatever_its_letters(
    letter: str,
) -> None:
    """Limits are in bytes, and a ConfigMap beyond its own is not written at all."""
    maps = FakeConfigMaps({STATE_KEY: letter * 200_000})
    memory = LedgerMemory(configmaps=maps)
    loaded = await memory.load()
    memory.keep(make_ledger())
    await memory.flush()
    assert loaded.problem
    assert maps.data is not None
    kept = maps.data[UNREADABLE_KEY]
    assert set(kept) == {letter}
    assert MAX_KEPT - 4 < len(kept.encode()) <= MAX_KEPT


async def test_no_state_at_all_means_that_nothing_was_started() -> None:
    ledger = make_ledger()
    restore(ledger, Loaded(None), now=1000.0)

    assert ledger.room("cordon", "", "", Rate(3, 600.0), 1000.0) is None


async def test_starts_of_a_clock_that_ran_ahead_do_not_block_for_ever() -> None:
    maps, ledger = FakeConfigMaps(), make_ledger()
    for _ in range(3):
        ledger.start("cordon", "", ("",), "u", 1e12)
    restored = make_ledger()
    restore(restored, Loaded(ledger.state()), now=1000.0)

    assert restored.room("cordon", "", "", Rate(3, 600.0), 1000.0) == 1600.0
    assert maps.writes == []


async def test_loading_waits_for_a_server_that_is_away() -> None:
    maps = FakeConfigMaps()
    maps.failures = [broken() for _ in range(4)]

    assert await LedgerMemory(configmaps=maps).load() == Loaded(None)
