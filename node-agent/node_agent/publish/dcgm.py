"""The DCGM-Exporter-compatible families, from the latest view of NVML.

Names, types, help and units come from the counters file and ``dcgm_fields.json``.

Invariants:

- A value that NVML does not give is absent, never 0: no profiling families without GPM, no
  utilisation while MIG is on. A family without a value has no HELP either.
- What is measured for a whole device stands once, on that device. An instance of MIG has the
  rows that are really its own, so that sums over rows are right.
- A device that does not answer has no values; its Xid and health rows stay.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from node_agent.publish.dcgm_health import watch_rows
from node_agent.publish.dcgm_rows import LabelOptions, RowMaker
from node_agent.publish.exposition import Block, is_valid
from node_agent.publish.history import WINDOW_SECONDS, ClockEvents, XidHistory


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from node_agent.attribution.model import PodMap
    from node_agent.health.state import NodeHealth
    from node_agent.nvml.model import Device, NvmlView
    from node_agent.publish.counters import Counter, Counters, Field
    from node_agent.publish.dcgm_rows import Row


class History(NamedTuple):
    """What is not in the view: the state, and the recent past. ``now`` in epoch seconds."""

    health: NodeHealth
    xids: XidHistory
    clocks: ClockEvents
    now: float


class _Made(NamedTuple):
    """One row that the exporter makes itself, with the labels that only it has."""

    labels: Mapping[str, str]
    attributes: Mapping[str, str]
    value: int


class DcgmMetrics:
    """Renders the families that the counters file names.

    Args:
        counters: what is on.
        options: how the rows look.
        xid_text: words for the code of an Xid.
    """

    def __init__(
        self, *, counters: Counters, options: LabelOptions, xid_text: Callable[[int], str]
    ) -> None:
        self._metrics = counters.metrics
        self._rows = RowMaker(fields=counters.labels, options=options)
        self._xid_text = xid_text

    def blocks(self, view: NvmlView, pods: PodMap, history: History) -> Iterator[Block]:
        """One block for each family that has a value."""
        rows = self._rows.rows(view, pods, now=history.now)
        whole = [row for row in rows if row.gi is None]
        for counter in self._metrics:
            source = counter.field.source
            if source == "reading":
                block = _measured(counter, ((row, row.values) for row in rows))
            elif source == "limit":
                block = _measured(counter, ((row, row.device.limits) for row in whole))
            else:
                block = self._made(counter, whole, history)
            if block.samples:
                yield block

    def _made(self, counter: Counter, rows: Iterable[Row], history: History) -> Block:
        name = counter.family.name
        samples = []
        for row in rows:
            for made in self._rows_of(counter.field.quantity, row.device, history):
                braces = row.braces_with(made.labels, made.attributes)
                samples += [(name + text, str(made.value)) for text in braces]
        return Block(counter.family, samples)

    def _rows_of(self, quantity: str, device: Device, history: History) -> Iterator[_Made]:
        match quantity:
            case "last_xid":
                code = history.xids.last(device.pci)
                text = self._xid_text(code) if code else "No Error"
                yield _Made({}, {"err_code": str(code), "err_msg": text}, code)
            case "xid_window":
                yield from _window("xid", history.xids.recent(device.pci, now=history.now))
            case "xid_total":
                for code, count in history.xids.totals.get(device.pci, {}).items():
                    yield _Made({"xid": str(code)}, {}, count)
            case "clock_window":
                recent = history.clocks.recent(device.uuid, now=history.now)
                yield from _window("clock_event", recent)
            case "clock_total":
                for name, count in history.clocks.transitions.get(device.uuid, {}).items():
                    yield _Made({"clock_event": name}, {}, count)
            case "health":
                faults = history.health.faults.values()
                for labels, level in watch_rows(f for f in faults if f.pci == device.pci):
                    yield _Made(labels, {}, level)
            case _:
                raise ValueError(f"nothing makes {quantity}")


_WINDOW: dict[str, str] = {"window_size_in_ms": str(int(WINDOW_SECONDS * 1000))}


def _window(label: str, counts: Mapping[int, int] | Mapping[str, int]) -> Iterator[_Made]:
    """A row for each thing that was seen in the window, or one 0 without that label."""
    for name, count in counts.items():
        yield _Made({**_WINDOW, label: str(name)}, {}, count)
    if not counts:
        yield _Made(_WINDOW, {}, 0)


def _measured(counter: Counter, rows: Iterable[tuple[Row, Mapping[str, float]]]) -> Block:
    field, family = counter.field, counter.family
    quantity, kind, name = field.quantity, family.kind, family.name
    samples = []
    for row, values in rows:
        value = values.get(quantity)
        if value is not None and is_valid(kind, value):
            text = value_text(field, value)
            samples += [(name + braces, text) for braces in row.braces]
    return Block(family, samples)


def value_text(field: Field, value: float) -> str:
    """The value in the unit of this name, printed as DCGM-Exporter prints it."""
    scaled = value * field.times
    # Rounded first: a factor and its inverse may leave 1233.9999999 of 1234.
    return str(math.floor(round(scaled, 3))) if field.whole else f"{scaled:f}"
