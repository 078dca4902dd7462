"""The work queue in virtual time: each key once, nothing lost, exact alarms."""

import asyncio

import pytest

from remediator.kube.workqueue import ShutDown, WorkQueue
from tests.unit.held import held


pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_key_added_often_is_handed_out_once() -> None:
    queue = WorkQueue()
    queue.add_all(["a", "b", "a", "a"])

    assert await queue.get_batch() == ["a", "b"]


async def test_batch_is_bounded_and_oldest_first() -> None:
    queue = WorkQueue()
    queue.add_all(["a", "b", "c"])

    assert await queue.get_batch(2) == ["a", "b"]
    assert await queue.get() == "c"


async def test_change_during_work_comes_after_it_and_only_once() -> None:
    queue = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")

    assert len(queue) == 0
    queue.done("a")

    assert await queue.get_batch() == ["a"]
    queue.done("a")
    assert len(queue) == 0


async def test_alarm_rings_at_its_time() -> None:
    queue = WorkQueue()
    start = now()
    queue.add_at("late", start + 3600)
    queue.add_after("early", 10)

    assert await queue.get() == "early"
    assert now() - start == pytest.approx(10)
    assert await queue.get() == "late"
    assert now() - start == pytest.approx(3600)


async def test_earliest_alarm_wins() -> None:
    queue = WorkQueue()
    start = now()
    queue.add_after("a", 50)
    queue.add_after("a", 5)
    queue.add_after("a", 500)

    assert await queue.get() == "a"
    assert now() - start == pytest.approx(5)
    assert queue.alarm("a") is None


async def test_handing_out_a_key_clears_its_alarm() -> None:
    queue = WorkQueue()
    queue.add_after("a", 5)
    queue.add("a")
    await queue.get()
    queue.done("a")
    queue.add_after("b", 100)

    assert await queue.get() == "b"


async def test_past_alarm_is_due_now() -> None:
    queue = WorkQueue()
    queue.add_at("a", now() - 1)

    assert len(queue) == 1


async def test_failures_back_off_by_key_until_success() -> None:
    queue = WorkQueue(retry_base=1, retry_cap=5)

    assert [queue.retry("a") for _ in range(5)] == [1, 2, 4, 5, 5]
    assert queue.retry("b") == 1
    queue.forget("a")
    assert queue.retry("a") == 1
    assert queue.retry("a", at_least=30) == 30


async def test_many_failures_do_not_overflow() -> None:
    queue = WorkQueue(retry_base=1, retry_cap=5)

    assert {queue.retry("a") for _ in range(3000)} <= {1, 2, 4, 5}


async def test_alarm_during_work_waits_for_its_end() -> None:
    queue = WorkQueue()
    queue.add("a")
    await queue.get()
    queue.add_after("a", 1)
    await asyncio.sleep(2)

    assert len(queue) == 0
    queue.done("a")
    assert await queue.get() == "a"


async def test_shut_down_hands_out_what_is_ready_then_ends() -> None:
    queue = WorkQueue()
    queue.add("a")
    queue.add_after("b", 1)
    queue.shut_down()
    queue.add("c")

    assert await queue.get() == "a"
    with pytest.raises(ShutDown):
        await queue.get()


async def test_shut_down_wakes_all_waiters() -> None:
    queue = WorkQueue()
    waiters = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.shut_down()

    results = await asyncio.gather(*waiters, return_exceptions=True)

    assert all(isinstance(result, ShutDown) for result in results)


async def test_cancelled_waiter_does_not_swallow_the_call() -> None:
    queue = WorkQueue()
    first = asyncio.create_task(queue.get())
    second = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()

    assert await asyncio.wait_for(second, 1) == "a"


async def test_dropped_key_rings_no_more() -> None:
    queue = WorkQueue()
    queue.add_after("gone", 1)
    queue.add_after("stays", 2)
    queue.drop("gone")

    assert await queue.get() == "stays"


async def test_looks_that_each_ask_for_another_far_away_pile_nothing_up() -> None:
    """A window that opens on Saturday, and an agent that has news every ten seconds."""
    queue = WorkQueue()
    saturday = now() + 86400
    queue.add_at("sooner", now() + 3600)
    for _ in range(3000):
        for key in ("a", "b"):
            queue.add(key)
        for key in await queue.get_batch():
            queue.add_at(key, saturday)
            queue.done(key)
    assert held(queue) < 500
    for at, keys in ((now() + 3600, {"sooner"}), (saturday, {"a", "b"})):
        await asyncio.sleep(at - now() - 0.1)
        assert len(queue) == 0
        await asyncio.sleep(0.2)
        assert set(await queue.get_batch()) == keys
