"""A supervisor with real children over the fake driver."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node_agent.nvml.conversation import Deadlines
from testbed.fake_nvml import FakeNvml
from tests.integration.agent.nvml.watching import DEADLINES, Watched


@pytest.fixture
def driver(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "nvml", gpus=2)


@pytest.fixture
def deadlines() -> Deadlines:
    return DEADLINES


@pytest.fixture
async def watched(driver: FakeNvml, deadlines: Deadlines) -> AsyncIterator[Watched]:
    watched = Watched(driver, deadlines=deadlines)
    yield watched
    await watched.close()
