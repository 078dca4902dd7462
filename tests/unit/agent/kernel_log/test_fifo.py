"""A real FIFO, whose writers come and go."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from node_agent.sources.kernel_log import Mode


if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Follow  # type: ignore[import-not-found]

LINE = b"NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=x, text\n"


async def test_writers_may_come_and_go(follow: Follow, tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    async with follow(Mode.FIFO, path) as log:
        await log.until(lambda: log.caught_up)
        for n in range(1, 4):
            await asyncio.to_thread(path.write_bytes, LINE)
            await log.until(lambda n=n: len(log.codes) == n)
        assert log.codes == [79, 79, 79]
        assert log.position is None


async def test_a_missing_fifo_is_said_and_tried_again(follow: Follow, tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    async with follow(Mode.FIFO, path, retry_seconds=0.01) as log:
        await log.until_state(lambda state: "No such file" in state.reason)
        os.mkfifo(path)
        await log.until_state(lambda state: state.working)
        await asyncio.to_thread(path.write_bytes, LINE)
        await log.until_codes(79)
