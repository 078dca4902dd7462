"""Lines in the order of the log to reports: the little that needs more than one line.

Three things span lines: the GPU's UUID (printed once, before its first Xid), the
three-line "fallen off the bus" text (its lines may arrive as separate records with
others in between), and the detail lines behind an SXid (which must count nothing,
unless the line they belong to was lost in an overrun).

Bounded by construction: a few pending texts, one UUID a GPU, a few SXids.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from node_agent.contract import FaultKind
from node_agent.xid.catalogue import Catalogue
from node_agent.xid.parse import (
    XidReport,
    is_report_like,
    lost_report,
    normalize_pci,
    parse,
    parse_identity,
)


_FIRST: Final = "NVRM: The NVIDIA GPU "
_SECOND: Final = "installed in this system"
_SECOND_LOST: Final = "installed in this system has"
_THIRD: Final = "NVRM: fallen off the bus"
_MAX_PENDING: Final = 16
_MAX_GAP_LINES: Final = 64
"""A pending first line is forgotten after so many lines of the driver."""
_MAX_DEVICES: Final = 256


@dataclass(slots=True)
class _Pending:
    pci: str
    line: int
    confirmed: bool = False


class LineAssembler:
    """Feed it every line of the driver, in order; it answers with the reports.

    ``malformed`` counts lines that claim to be an Xid and cannot be read.
    ``identities`` maps PCI address to GPU UUID as far as the log told.
    """

    def __init__(self, *, catalogue: Catalogue) -> None:
        """Start with nothing pending."""
        self._catalogue = catalogue
        self._pending: list[_Pending] = []
        self._lines = 0
        self._switch_faults: dict[tuple[str, int | None], None] = {}
        self.identities: dict[str, str] = {}
        self.malformed = 0

    def feed(self, text: str) -> XidReport | None:
        """One line to its report, if it completes one. Never raises."""
        self._lines += 1
        report = parse(text, catalogue=self._catalogue)
        if report is not None:
            return self._admit(report)
        if is_report_like(text):
            self.malformed += 1
            return None
        return self._other(text)

    def with_identity(self, report: XidReport) -> XidReport:
        """The report with the UUID of its GPU, if the log has named it by now."""
        uuid = self.identities.get(report.pci, "")
        return replace(report, gpu_uuid=uuid) if uuid and not report.gpu_uuid else report

    def _admit(self, report: XidReport) -> XidReport | None:
        if report.kind is not FaultKind.SXID:
            return self.with_identity(report)
        key = (report.pci, report.code)
        known = key in self._switch_faults
        if report.continuation and (known or report.fatal is None):
            return None
        if not known:
            if len(self._switch_faults) >= _MAX_DEVICES:
                self._switch_faults.clear()
            self._switch_faults[key] = None
        return replace(report, continuation=False)

    def _other(self, text: str) -> XidReport | None:
        identity = parse_identity(text)
        if identity is not None:
            if len(self.identities) < _MAX_DEVICES:
                self.identities[identity[0]] = identity[1]
            return None
        return self._fallen_off_bus(text)

    def _fallen_off_bus(self, text: str) -> XidReport | None:
        """Advance the three-line text. The oldest pending GPU takes each next line."""
        if _FIRST in text:
            self._begin(normalize_pci(text))
        elif _SECOND in text:
            waiting = next((p for p in self._pending if not p.confirmed), None)
            if waiting is None:
                return None
            if text.rstrip(" .\n").endswith(_SECOND_LOST):
                waiting.confirmed = True
            else:  # the same opening serves other messages, such as an unsupported GPU
                self._pending.remove(waiting)
        elif _THIRD in text:
            return self._complete(text)
        return None

    def _begin(self, pci: str) -> None:
        oldest = self._lines - _MAX_GAP_LINES
        self._pending = [p for p in self._pending if p.line >= oldest][-(_MAX_PENDING - 1) :]
        if pci:
            self._pending.append(_Pending(pci, self._lines))

    def _complete(self, text: str) -> XidReport:
        """The third line. Without its first one (lost, or garbled) the device is unknown."""
        ready = next((p for p in self._pending if p.confirmed), None)
        ready = ready or next(iter(self._pending), None)
        if ready is not None:
            self._pending.remove(ready)
        message = text[text.find(_THIRD) + len("NVRM: ") :].strip()[:120]
        report = lost_report(
            ready.pci if ready else "", f"GPU has {message}", catalogue=self._catalogue
        )
        return self.with_identity(report)
