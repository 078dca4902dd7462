"""Evictions keep to one rate, and to the server's wish for patience."""

import asyncio

import pytest

from remediator.act.drain.rate import EvictionRate


pytestmark = pytest.mark.looptime


async def taken(rate: EvictionRate, count: int) -> float:
    """Seconds until so many requests were let through, by several at once."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.gather(*(rate.take() for _ in range(count)))
    return loop.time() - began


async def test_a_burst_and_then_the_rate() -> None:
    rate = EvictionRate(per_second=20, burst=50)

    assert await taken(rate, 50) == 0.0
    assert await taken(rate, 40) == pytest.approx(2.0, abs=0.1)


async def test_a_pause_stops_everybody() -> None:
    rate = EvictionRate(per_second=20, burst=50)
    rate.pause(10.0)

    assert await taken(rate, 1) == pytest.approx(10.0, abs=0.01)


async def test_a_pause_during_a_wait_counts() -> None:
    rate = EvictionRate(per_second=1, burst=1)
    await rate.take()
    waiting = asyncio.create_task(taken(rate, 1))
    await asyncio.sleep(0.5)
    rate.pause(10.0)

    assert await waiting == pytest.approx(10.5, abs=0.01)
