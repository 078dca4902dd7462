"""The metrics page: rendered when what it shows changes, kept as bytes, served without work.

Every representation that somebody asks for (classic text or OpenMetrics, plain or gzip) is
made with the page and kept; a scrape hands out bytes. New values of NVML show at the next
tick, at most :attr:`MetricsPage.interval` later; a new fault shows in the very next scrape.

Nothing here waits: a hanging driver means an older view with its timestamps, not a slow page.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from node_agent.publish.dcgm import History
from node_agent.publish.device_metrics import DeviceMetrics
from node_agent.publish.exposition import Block, Family, Format, block, merged, text_of
from node_agent.publish.history import ClockEvents, XidHistory
from node_agent.publish.metrics import state_blocks


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from node_agent.attribution.model import PodMap
    from node_agent.contract import Condition
    from node_agent.health.conditions import View, ViewState
    from node_agent.health.state import NodeHealth
    from node_agent.nvml.model import NvmlView
    from node_agent.publish.dcgm import DcgmMetrics
    from node_agent.sources.kernel_log import Counters, SourceState
    from node_agent.sources.pci_sysfs import Device

RENDER_SECONDS: Final = Family(
    "gpu_agent_page_render_seconds", "gauge", "Time that making the page before this one took."
)
SERIES: Final = Family("gpu_agent_page_series", "gauge", "Series on the page before this one.")
REPEATED: Final = Family(
    "gpu_agent_page_repeated_series_total",
    "counter",
    "Series left out because they stood on the page already.",
)
PAGE_FAMILIES: Final = (RENDER_SECONDS, SERIES, REPEATED)
_GZIP_LEVEL: Final = 1
_GZIP_WINDOW: Final = 31
_MAX_ACCEPTS: Final = 64
_OPENMETRICS: Final = "application/openmetrics-text"


class Snapshot(NamedTuple):
    """Everything that the page shows, as it is now.

    ``counters`` is the kernel log's own object, which goes on counting.
    """

    health: NodeHealth
    devices: tuple[Device, ...]
    conditions: tuple[Condition, ...]
    views: Mapping[View, ViewState]
    counters: Counters
    source: SourceState
    nvml: NvmlView
    pods: PodMap


class Served(NamedTuple):
    """One answer: its body and its headers."""

    body: bytes
    headers: Mapping[str, str]


class MetricsPage:
    """Makes the page and hands it out.

    Args:
        read: everything to show.
        dcgm: the compatible families.
        extra: more blocks, such as those about the agent itself.
        interval: seconds between two renderings while only values change.
        wall: seconds since the epoch.
        clock: a clock that only goes forward.
    """

    def __init__(
        self,
        *,
        read: Callable[[], Snapshot],
        dcgm: DcgmMetrics,
        extra: Callable[[], Iterable[Block]],
        interval: float,
        wall: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._read = read
        self._dcgm = dcgm
        self._own = DeviceMetrics()
        self._extra = extra
        self.interval = interval
        self._wall = wall
        self._clock = clock
        self._xids = XidHistory()
        self._clocks = ClockEvents()
        self._blocks: list[Block] = []
        self._kept: dict[tuple[Format, bool], Served] = {}
        self._shown: tuple[object, ...] | None = None
        self._accepts: dict[tuple[str, str], tuple[Format, bool]] = {}
        self._took, self._series, self._repeated = 0.0, 0, 0

    def touch(self) -> None:
        """Pods have changed: the next scrape shows it."""
        self._shown = None

    def take_nvml(self, view: NvmlView) -> None:
        """Take each new view: what happens between two renderings counts too."""
        self._clocks.observe(view.readings.values())

    def serve(self, accept: str, accept_encoding: str) -> Served:
        """The page as these two request headers want it."""
        if self._state(self._read()) != self._shown:
            self.render()
        key = self._wanted(accept, accept_encoding)
        found = self._kept.get(key)
        if found is None:  # somebody wants this representation for the first time
            found = self._kept[key] = _represented(self._blocks, *key)
        return found

    def render(self) -> None:
        """Make the page anew, in every representation that was ever asked for."""
        begun = self._clock()
        snapshot = self._read()
        now = self._wall()
        self._shown = self._state(snapshot)
        self._xids.observe(snapshot.health, now=now)
        history = History(snapshot.health, self._xids, self._clocks, now)
        self._blocks, repeated = merged(
            (
                *state_blocks(
                    snapshot.health,
                    devices=snapshot.devices,
                    conditions=snapshot.conditions,
                    views=snapshot.views,
                    counters=snapshot.counters,
                    source=snapshot.source,
                ),
                *self._dcgm.blocks(snapshot.nvml, snapshot.pods, history),
                *self._own.blocks(snapshot.nvml, snapshot.pods, history),
                *self._extra(),
                *self._about_itself(),
            )
        )
        self._kept = {key: _represented(self._blocks, *key) for key in self._kept}
        self._repeated += repeated
        self._series = sum(len(each.samples) for each in self._blocks)
        self._took = self._clock() - begun

    async def run(self) -> None:
        """Render each interval, for ever."""
        while True:
            self.render()
            await asyncio.sleep(self.interval)

    def _about_itself(self) -> Iterable[Block]:
        yield block(RENDER_SECONDS, [({}, self._took)])
        yield block(SERIES, [({}, self._series)])
        yield block(REPEATED, [({}, self._repeated)])

    @staticmethod
    def _state(snapshot: Snapshot) -> tuple[object, ...]:
        """What shows in the very next scrape. Unchanged parts are the same objects: cheap."""
        return (
            snapshot.health,
            snapshot.devices,
            snapshot.conditions,
            tuple(snapshot.views.values()),
            snapshot.source,
            snapshot.nvml.state,
            snapshot.nvml.lost,
            snapshot.counters.lines,
        )

    def _wanted(self, accept: str, accept_encoding: str) -> tuple[Format, bool]:
        asked = (accept, accept_encoding)
        known = self._accepts.get(asked)
        if known is None:
            if len(self._accepts) >= _MAX_ACCEPTS:
                self._accepts.clear()
            known = self._accepts[asked] = negotiated(accept, accept_encoding)
        return known


def negotiated(accept: str, accept_encoding: str) -> tuple[Format, bool]:
    """Format, and whether gzip, that a client wants most; classic text where it does not say."""
    weights = _weights(accept)
    open_metrics = weights.get(_OPENMETRICS, 0.0)
    text = max(weights.get(name, 0.0) for name in ("text/plain", "text/*"))
    encodings = _weights(accept_encoding)
    gzip = encodings.get("gzip", encodings.get("*", 0.0)) > 0
    return (Format.OPENMETRICS if open_metrics > 0 and open_metrics >= text else Format.TEXT), gzip


def _weights(header: str) -> dict[str, float]:
    """The best weight of each value of such a header."""
    weights: dict[str, float] = {}
    for part in header.split(","):
        name, *parameters = (text.strip().lower() for text in part.split(";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    weight = float(parameter[2:])
                except ValueError:
                    weight = 0.0
        if name:
            weights[name] = max(weight, weights.get(name, 0.0))
    return weights


def _represented(blocks: Iterable[Block], form: Format, gzip: bool) -> Served:  # noqa: FBT001
    body = text_of(blocks, form).encode()
    headers = {"Content-Type": form.value, "Vary": "Accept, Accept-Encoding"}
    if gzip:
        packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
        body = packer.compress(body) + packer.flush()
        headers["Content-Encoding"] = "gzip"
    return Served(body, headers)
