"""A kubelet's socket, and the whole of attribution on it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import structlog

from node_agent.attribution.model import PodMap
from node_agent.attribution.service import Attribution, Config
from testbed.podresources import KubeletSocket


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[KubeletSocket]:
    with KubeletSocket(tmp_path / "kubelet") as server:
        yield server


class Running:
    """An attribution at work; `until` waits for a map that fits."""

    def __init__(self, config: Config, **collaborators: Any) -> None:
        self.maps: list[PodMap] = []
        self.log: list[dict[str, Any]] = []
        self.now = 1000.0
        self._changed = asyncio.Event()
        given: dict[str, Any] = {
            "get": None,
            "clock": lambda: self.now,
            "wall": lambda: 5.0,
            "random": Random(1),  # noqa: S311
            "log": structlog.wrap_logger(
                structlog.ReturnLogger(), processors=[self._keep], wrapper_class=None
            ),
        }
        self.service = Attribution(
            config=config, on_change=self._take, **{**given, **collaborators}
        )

    @property
    def current(self) -> PodMap:
        return self.service.current

    async def until(self, fits: Callable[[PodMap], object]) -> PodMap:
        """The first map that fits, the present one included. A hang is the test's time-out."""
        while not fits(self.current):
            self._changed.clear()
            await self._changed.wait()
        return self.current

    def _take(self, pods: PodMap) -> None:
        self.maps.append(pods)
        self._changed.set()

    def _keep(self, _logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
        self.log.append(dict(event))
        return ""


Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run an attribution; settings of `Config` by name, collaborators by their names."""

    @asynccontextmanager
    async def running(
        *, collaborators: dict[str, Any] | None = None, **settings: Any
    ) -> AsyncIterator[Running]:
        defaults: dict[str, Any] = {
            "node": "n1",
            "socket": tmp_path / "kubelet" / "pod-resources" / "kubelet.sock",
            "proc_root": tmp_path / "proc",
            "interval": 3600.0,
            "kubelet_gap": 0.01,
            "cluster_gap": 0.01,
        }
        made = Running(Config(**{**defaults, **settings}), **(collaborators or {}))
        task = asyncio.create_task(made.service.run())
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return running
