"""What NVML shows, folded into the state: level signals with the time that they must hold.

A signal raises its fault after it was bad for ``hold`` seconds of readings, and ends it after it
was fine for ``release`` seconds. What a reading cannot tell changes nothing, and neither does a
view that is away: an open fault waits for positive evidence, as everywhere.

The driver's recovery action is more than a level: when it goes back to "None" after an action
was asked for, and no row remap waits any more, the GPU was reset, which also ends the faults
that a reset mends. A value that was 0 all along proves nothing.

:class:`LevelJudge` remembers what is not worth a place in the state file: since when a signal
is bad or fine, and by how much counters grew lately. No I/O, no clock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from node_agent.contract import FaultKind, Severity
from node_agent.health.faults import OpenFault
from node_agent.health.growth import Growth
from node_agent.health.past import remembered
from node_agent.health.rules import LEVEL_SUBCODES, Clear, Level
from node_agent.health.signals import (
    BETWEEN,
    FINE,
    SIGNALS,
    UNKNOWN,
    Finding,
    Judgement,
    Look,
    bad,
)
from node_agent.health.state import MAX_DEVICES
from node_agent.nvml.model import NvmlState
from node_agent.xid.catalogue import Action
from node_agent.xid.parse import RECOVERY_ACTION_CHANGED


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from node_agent.health.state import NodeHealth
    from node_agent.nvml.model import Device, NvmlView, Reading
    from node_agent.sources.pci_sysfs import Device as PciDevice
    from node_agent.xid.catalogue import Catalogue

RESET_SECONDS: Final = 10.0
"""How long the recovery action must be "None" again before that counts as a reset."""
_EXPLAINED_SECONDS: Final = 60.0
_EXPLAINING_XIDS: Final = frozenset((48, 94, 95, 140))
_ROW_REMAP: Final = 63
_NVIDIA_DRIVER: Final = "nvidia"
LINKS: Final = "nvlink_up"
_MAX_REMEMBERED: Final = 4 * MAX_DEVICES


class Row(NamedTuple):
    """What a finding becomes when it is bad for long enough."""

    level: Level
    kind: FaultKind
    severity: Severity
    action: str
    hold: float
    release: float
    latched: bool = False


@dataclass(slots=True)
class _Track:
    judgement: Judgement
    since: float


class _Place(NamedTuple):
    """The device that a fault is about; both empty: the node."""

    pci: str
    uuid: str


_NODE: Final = _Place("", "")
_LOST: Final = Row(
    Level.NVML_LOST, FaultKind.LOST, Severity.FATAL, str(Action.RESTART_BM), 5.0, 30.0
)
_UNBOUND: Final = Row(Level.UNBOUND, FaultKind.LOST, Severity.INFO, "", 5.0, 5.0)
_RECOVERY: Final = Row(
    Level.RECOVERY_ACTION, FaultKind.RECOVERY_ACTION, Severity.WARNING, "", 0.0, RESET_SECONDS
)
_DRIVER: Final = {
    NvmlState.HUNG: Row(Level.NVML_TIMEOUT, FaultKind.DRIVER, Severity.WARNING, "", 0.0, 30.0),
    NvmlState.DRIVER_NOT_LOADED: Row(
        Level.DRIVER_NOT_LOADED, FaultKind.DRIVER, Severity.WARNING, "", 60.0, 10.0
    ),
    NvmlState.VERSION_MISMATCH: Row(
        Level.VERSION_MISMATCH, FaultKind.DRIVER, Severity.WARNING, "", 10.0, 10.0
    ),
}
NODE_ROWS: Final = (*_DRIVER.values(), _LOST, _UNBOUND, _RECOVERY)
"""The rows beside :data:`~node_agent.health.signals.SIGNALS`; for documentation and tests."""
_RANK: Final = {Severity.INFO: 0, Severity.WARNING: 1, Severity.FATAL: 2}


class LevelJudge:
    """Judges views one after the other.

    Args:
        catalogue: knows the recovery actions.
    """

    def __init__(self, *, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._tracks: dict[tuple[str, Level], _Track] = {}
        self._growth = Growth()
        self._judged: dict[str, float] = {}
        self.next_due: float | None = None
        """When an unchanged view means something new: a driver that is away is no news twice."""

    def take(
        self, health: NodeHealth, view: NvmlView, *, on_pci: Iterable[PciDevice], now: float
    ) -> NodeHealth:
        """The state after this view. ``now``: epoch seconds, as the view's own times."""
        self._faults = dict(health.faults)
        self._baselines = dict(health.baselines)
        self._boot_id = health.boot_id
        self._cleared_before = health.cleared_before
        bound = {device.pci: device.driver for device in on_pci}
        self._judge_driver(view, gpus=bool(bound), now=now)
        if view.state is NvmlState.OK:
            places = {uuid: pci for pci, uuid in health.uuids.items()}
            places |= {device.uuid: device.pci for device in view.devices}
            self._judge_lost(view, places, bound, now)
            for device in view.devices:
                reading = view.readings.get(device.uuid)
                if reading is not None and reading.at > self._judged.get(device.uuid, 0.0):
                    self._judged[device.uuid] = reading.at
                    self._judge_device(view, device, reading)
        self.next_due = min(self._due(), default=None)
        return self._result(health, answered=view.state is NvmlState.OK)

    def _due(self) -> Iterable[float]:
        for row in _DRIVER.values():
            track = self._tracks.get(("", row.level))
            is_open = _key(row, _NODE) in self._faults
            if track is not None and track.judgement is Judgement.BAD and not is_open:
                yield track.since + row.hold
            elif track is not None and track.judgement is Judgement.FINE and is_open:
                yield track.since + row.release

    # -- the node --------------------------------------------------------------------------

    def _judge_driver(self, view: NvmlView, *, gpus: bool, now: float) -> None:
        for state, row in _DRIVER.items():
            if view.state is state:
                known = gpus or state is not NvmlState.DRIVER_NOT_LOADED
                finding = bad(_driver_text(view)) if known else UNKNOWN
            else:
                # That one of them holds does not prove that another one is over.
                finding = FINE if view.state is NvmlState.OK else BETWEEN
            self._apply(row, _NODE, finding, now)

    def _judge_lost(
        self,
        view: NvmlView,
        places: Mapping[str, str],
        bound: Mapping[str, str | None],
        now: float,
    ) -> None:
        for uuid, pci in places.items():
            place = _Place(pci, uuid)
            lost = uuid in view.lost
            unbound = bound.get(pci) not in {None, _NVIDIA_DRIVER}
            text = f"NVML has lost the GPU {uuid} at {pci}"
            # What nobody enumerated, and nobody calls lost, says nothing.
            other = FINE if uuid in view.readings and not lost else UNKNOWN
            self._apply(_LOST, place, bad(text) if lost and not unbound else other, now)
            text = f"the GPU at {pci} is bound to the driver {bound.get(pci)}"
            self._apply(_UNBOUND, place, bad(text) if lost and unbound else other, now)

    # -- one device ------------------------------------------------------------------------

    def _judge_device(self, view: NvmlView, device: Device, reading: Reading) -> None:
        place, at = _Place(device.pci, device.uuid), reading.at
        self._growth.note(reading, self._baselines)
        self._judge_recovery(place, reading)
        look = Look(
            device=device,
            values=reading.values,
            growth=lambda quantity, seconds: self._growth.since(
                device.uuid, quantity, max(at - seconds, self._cleared_before)
            ),
            links=self._links(view, device, reading),
            explained=self._is_explained(place),
            failed=reading.errors.keys(),
        )
        for signal in SIGNALS:
            row = Row(
                signal.level,
                signal.kind,
                signal.severity,
                str(signal.action) if signal.action is not Action.NONE else "",
                signal.hold,
                signal.release,
                signal.latched,
            )
            ended = self._apply(row, place, signal.judge(look), at)
            if ended and signal.level is Level.REMAP_PENDING:
                self._end_xid(place, _ROW_REMAP, at)

    def _judge_recovery(self, place: _Place, reading: Reading) -> None:
        value = reading.values.get("recovery_action")
        if value is None:
            return
        action = self._catalogue.recovery_action(int(value), "")
        if value and action is not None:
            finding = bad(
                f"the driver asks for: {action.text}",
                severity=action.severity,
                action=action.action,
                reason=action.reason,
            )
        elif value:
            finding = bad(f"the driver asks for an action that is not known here: {value:g}")
        else:
            finding = FINE
        asked = [f for f in self._faults.values() if f.pci == place.pci and _asks(f)]
        self._apply(_RECOVERY, place, finding, reading.at, ends=False)
        track = self._tracks.get((place.pci, Level.RECOVERY_ACTION))
        if not asked or track is None or track.judgement is not Judgement.FINE:
            return
        back_at = max(track.since, *(fault.last_seen for fault in asked))
        if reading.at - back_at >= RESET_SECONDS and reading.values.get("remap_pending") != 1:
            self._end_by_reset(place, back_at)

    def _end_by_reset(self, place: _Place, back_at: float) -> None:
        for key, fault in list(self._faults.items()):
            asks = _asks(fault)
            mended = fault.last_seen <= back_at and fault.is_cleared_by(Clear.RESET)
            if fault.pci == place.pci and (asks or mended):
                del self._faults[key]

    def _end_xid(self, place: _Place, code: int, at: float) -> None:
        for key, fault in list(self._faults.items()):
            same = fault.kind is FaultKind.XID and fault.code == code and fault.pci == place.pci
            if same and at - fault.last_seen >= RESET_SECONDS:
                del self._faults[key]

    def _is_explained(self, place: _Place) -> bool:
        """Whether an Xid tells what the newest uncorrected errors have hit."""
        grown = self._growth.newest_uncorrected(place.uuid)
        return grown is not None and any(
            fault.code in _EXPLAINING_XIDS
            and fault.pci == place.pci
            and abs(fault.last_seen - grown) <= _EXPLAINED_SECONDS
            for fault in self._faults.values()
        )

    def _links(self, view: NvmlView, device: Device, reading: Reading) -> float:
        """How many NVLinks ought to be up."""
        up = reading.values.get(LINKS)
        if up is None:
            return 0.0
        name = f"{device.uuid}|{LINKS}"
        best = self._baselines[name] = max(self._baselines.get(name, 0.0), up)
        peers = Counter(
            other.values[LINKS]
            for peer in view.devices
            if peer.name == device.name
            and (other := view.readings.get(peer.uuid)) is not None
            and LINKS in other.values
        )
        usual = max(peers, key=lambda count: (peers[count], count), default=0.0)
        return max(best, usual)

    # -- raising and ending ----------------------------------------------------------------

    def _apply(
        self, row: Row, place: _Place, finding: Finding, at: float, *, ends: bool = True
    ) -> bool:
        """Follow one finding. True if it ended an open fault."""
        name = (place.pci, row.level)
        judgement = finding.judgement
        if judgement in {Judgement.UNKNOWN, Judgement.BETWEEN}:
            self._tracks.pop(name, None)
            return False
        track = self._tracks.get(name)
        if track is None or track.judgement is not judgement:
            track = self._tracks[name] = _Track(judgement, at)
        if judgement is Judgement.BAD:
            if at - track.since >= row.hold:
                self._raise(row, place, finding, at)
            return False
        key = _key(row, place)
        fault = self._faults.get(key)
        if fault is None or not ends or at - track.since < row.release:
            return False
        if row.latched and fault.gpu in {"", place.uuid}:
            return False
        del self._faults[key]
        return True

    def _raise(self, row: Row, place: _Place, finding: Finding, at: float) -> None:
        severity = finding.severity or row.severity
        action = str(finding.action) if finding.action is not None else row.action
        before = self._faults.get(_key(row, place))
        # Its words are those of its beginning: a text that follows the value would make a
        # write of each reading.
        if before is not None and (before.action, before.gpu) == (action, place.uuid):
            if _RANK[severity] <= _RANK[before.severity]:
                return
            finding = finding._replace(text=finding.text or before.message)
        self._faults[_key(row, place)] = OpenFault(
            kind=row.kind,
            severity=severity,
            first_seen=before.first_seen if before else at,
            last_seen=at,
            pci=place.pci,
            gpu=place.uuid,
            subcode=str(row.level),
            action=action,
            reason=str(finding.reason or ""),
            times=(before.times if before else (at,)),
            lines=0,
            boot_id=self._boot_id,
            message=finding.text,
            sources=("nvml",),
        )

    def _result(self, health: NodeHealth, *, answered: bool) -> NodeHealth:
        baselines = self._baselines
        if len(baselines) > _MAX_REMEMBERED:
            baselines = dict(list(baselines.items())[-_MAX_REMEMBERED:])
        nvml = health.nvml or answered
        same = (self._faults, baselines, nvml) == (health.faults, health.baselines, health.nvml)
        if same:
            return health
        over = (fault for key, fault in health.faults.items() if key not in self._faults)
        past = remembered(health.past, over)
        return health.with_faults(self._faults, baselines=baselines, nvml=nvml, past=past)


def is_level(fault: OpenFault) -> bool:
    """Whether NVML's readings raised it, and will end it."""
    return fault.subcode in LEVEL_SUBCODES and fault.kind not in {FaultKind.XID, FaultKind.SXID}


def lost_to_nvml(health: NodeHealth) -> list[OpenFault]:
    """GPUs that NVML has lost."""
    return [f for f in health.faults.values() if f.subcode == Level.NVML_LOST]


def _key(row: Row, place: _Place) -> str:
    return f"{row.kind}|{place.pci}||{row.level}||"


def _asks(fault: OpenFault) -> bool:
    """Whether the driver asks for a recovery action by this fault."""
    return fault.kind is FaultKind.RECOVERY_ACTION or (
        fault.kind is FaultKind.XID and fault.code == RECOVERY_ACTION_CHANGED
    )


def _driver_text(view: NvmlView) -> str:
    if view.state is NvmlState.HUNG and view.hung_call:
        return f"{view.hung_call} did not return in time"
    return view.why or f"NVML: {view.state}"
