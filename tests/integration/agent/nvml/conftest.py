"""A supervisor with real children over the fake driver."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from testbed.fake_nvml import FakeNvml
from tests.integration.agent.nvml.watching import Watched


@pytest.fixture
def driver(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "nvml", gpus=2)


@pytest.fixture
async def watched(driver: FakeNvml) -> AsyncIterator[Watched]:
    watched = Watched(driver)
    yield watched
    await watched.close()
