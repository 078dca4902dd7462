"""Evidence in, new state out. Pure; times and boot ids come as arguments.

Invariants:

- A fault is in the state from its first line until evidence of the kind that its rule
  names; no other road leads out (but the bound per device, where information goes first).
- Lines older than an operator's ``set-healthy`` open nothing: a replay of the log never
  brings a cleared fault back. Lines already counted are not delivered again, because the
  log's position is part of the same state.
- Counts and totals never fall.
- The times of an Xid or SXid that ends are kept apart (:mod:`~node_agent.health.past`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from node_agent.contract import FaultKind, FaultReport, Severity
from node_agent.health.faults import OpenFault, Seen, opened, restored, seen_again
from node_agent.health.past import (
    next_end,
    of_these_devices,
    remembered,
    restored_past,
    within_a_day,
)
from node_agent.health.rules import ABSENT, NO_ANSWER, PCI_SUBCODES, TOO_FEW, Clear
from node_agent.health.state import MAX_DEVICES, NodeHealth, Total
from node_agent.sources.pci_sysfs import Device, DeviceClass
from node_agent.xid.catalogue import Action
from node_agent.xid.episodes import EPISODE_WINDOW_SECONDS
from node_agent.xid.parse import RECOVERY_ACTION_CHANGED


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_TOTALS: Final = 2048


class Evidence(NamedTuple):
    """What is known about the present, apart from lines.

    ``boot_id`` is this kernel's, ``kubelet_boot_id`` the one of ``status.nodeInfo``.
    ``replayed``: the log of this boot has been read up to its end. ``all_present``: every
    expected device is there and answers; None where that cannot be checked.
    """

    boot_id: str
    kubelet_boot_id: str
    replayed: bool
    all_present: bool | None


def observe(health: NodeHealth, seen: Iterable[Seen], *, boot_id: str) -> NodeHealth:
    """Add reports of boot ``boot_id``, in the order in which they came."""
    faults = dict(health.faults)
    totals = dict(health.totals)
    uuids = health.uuids
    past = health.past
    for one in seen:
        report = one.report
        if _takes_action_back(one):
            # A verified reset: everything on this device that a reset mends.
            for key, fault in list(faults.items()):
                same = fault.pci == report.pci and fault.first_seen <= one.last
                if same and fault.is_cleared_by(Clear.RESET):
                    past = remembered(past, (faults.pop(key),))
            continue
        if report.gpu_uuid and uuids.get(report.pci) != report.gpu_uuid:
            uuids = named(uuids, ((report.pci, report.gpu_uuid),))
        fresh = opened(one, boot_id=boot_id)
        before = faults.get(fresh.key)
        _count(totals, before if before is not None and one.vague else fresh, one)
        if one.last < health.cleared_before:
            continue
        faults[fresh.key] = (
            fresh
            if before is None
            else seen_again(before, one, boot_id=boot_id, window=EPISODE_WINDOW_SECONDS)
        )
    past = of_these_devices(past, health.uuids, uuids)
    return health.with_faults(faults, totals=totals, uuids=uuids, past=past)


def identify(health: NodeHealth, identities: Iterable[tuple[str, str]]) -> NodeHealth:
    """Add ``(pci, uuid)`` pairs that the log named, also to faults that are open already."""
    uuids = named(health.uuids, identities)
    if uuids == health.uuids:
        return health
    faults = {
        key: msgspec.structs.replace(fault, gpu=uuids[fault.pci])
        if not fault.gpu and fault.pci in uuids
        else fault
        for key, fault in health.faults.items()
    }
    past = of_these_devices(health.past, health.uuids, uuids)
    return msgspec.structs.replace(health, faults=faults, uuids=uuids, past=past)


def scanned(
    health: NodeHealth, devices: Iterable[Device], *, expected_gpus: int, now: float
) -> NodeHealth:
    """Compare what is on PCI with what is expected there. A level: it raises and clears.

    Args:
        health: the state so far.
        devices: everything of the vendor on PCI now.
        expected_gpus: how many GPUs this node is said to have; 0: as many as were ever seen.
        now: epoch seconds.
    """
    found = {device.pci: device for device in devices}
    expected = dict(health.expected)
    for device in found.values():
        if len(expected) < MAX_DEVICES:
            expected.setdefault(device.pci, device.kind)
    trouble = {
        fault.key: fault for fault in _pci_faults(health, found, expected, expected_gpus, now)
    }
    faults = {key: f for key, f in health.faults.items() if not is_pci_level(f)}
    for key, fault in trouble.items():
        before = health.faults.get(key)
        faults[key] = before if before and before.message == fault.message else fault
    if faults == health.faults and expected == health.expected:
        return health
    return msgspec.structs.replace(health, faults=faults, expected=expected)


def settle(health: NodeHealth, evidence: Evidence, *, now: float, info_age: float) -> NodeHealth:
    """Clear what a confirmed reboot or mere age clears.

    A reboot counts only when the kernel's boot id is the one that the kubelet reports (so
    that the Node object and this agent speak of the same boot), the log of this boot has
    been read to its end, and every expected device is there and answers. A fault that was
    seen again carries the new boot id and stays. What is over and further than a day away is
    forgotten.
    """
    rebooted = (
        evidence.replayed
        and evidence.all_present is True
        and evidence.boot_id != ""
        and evidence.boot_id == evidence.kubelet_boot_id
    )

    def is_over(fault: OpenFault) -> bool:
        if fault.is_cleared_by(Clear.AGE) and now - fault.last_seen >= info_age:
            return True
        earlier = fault.boot_id not in {"", evidence.boot_id}
        return rebooted and earlier and fault.is_cleared_by(Clear.REBOOT)

    faults = {key: fault for key, fault in health.faults.items() if not is_over(fault)}
    over = (fault for key, fault in health.faults.items() if key not in faults)
    past = within_a_day(remembered(health.past, over), now)
    if len(faults) == len(health.faults) and past is health.past:
        return health
    return msgspec.structs.replace(health, faults=faults, past=past)


def restore(health: NodeHealth, report: FaultReport) -> NodeHealth:
    """Take over the faults that our own annotation still shows after the state was lost.

    What the replay of this boot's log has found by itself stays as it is.
    """
    known = {fault.key: fault for fault in map(restored, report.faults)}
    complete = report.truncated is None or not report.truncated.warning
    faults = {**known, **health.faults}
    return health.with_faults(
        faults,
        forgotten=health.forgotten and not complete,
        past=restored_past(health.past, report.past, faults.values()),
    )


def next_look(health: NodeHealth, *, info_age: float) -> float | None:
    """When mere age next clears something (epoch seconds)."""
    ages = [f.last_seen + info_age for f in health.faults.values() if f.is_cleared_by(Clear.AGE)]
    forgotten = next_end(health.past)
    return min(ages if forgotten is None else (*ages, forgotten), default=None)


def missing_devices(health: NodeHealth) -> list[OpenFault]:
    """The faults that the last scan of PCI raised."""
    return [fault for fault in health.faults.values() if is_pci_level(fault)]


def named(uuids: Mapping[str, str], identities: Iterable[tuple[str, str]]) -> dict[str, str]:
    """UUIDs by PCI address with these added, bounded."""
    merged = {**uuids, **{pci: uuid for pci, uuid in identities if pci and uuid}}
    return dict(list(merged.items())[-MAX_DEVICES:])


def _takes_action_back(seen: Seen) -> bool:
    """An Xid 154 whose text could be read and says that nothing is asked for any more."""
    recovery = seen.report.recovery
    return (
        seen.report.code == RECOVERY_ACTION_CHANGED
        and recovery is not None
        and recovery.reason is None
    )


def _count(totals: dict[str, Total], fault: OpenFault, seen: Seen) -> None:
    key = f"{fault.kind}|{fault.pci}|{'' if fault.code is None else fault.code}|{fault.severity}"
    before = totals.get(key)
    if before is None:
        if len(totals) >= MAX_TOTALS:
            return
        before = Total(fault.kind, fault.pci, fault.code, fault.severity, fault.application)
    totals[key] = msgspec.structs.replace(
        before,
        episodes=before.episodes + seen.new_episode,
        lines=before.lines + seen.lines,
    )


def is_pci_level(fault: OpenFault) -> bool:
    """Whether a scan of PCI raised it, and the next one will clear it."""
    return fault.kind is FaultKind.LOST and fault.subcode in PCI_SUBCODES


def _pci_faults(
    health: NodeHealth,
    found: Mapping[str, Device],
    expected: Mapping[str, DeviceClass],
    expected_gpus: int,
    now: float,
) -> Iterable[OpenFault]:
    for pci, kind in expected.items():
        device = found.get(pci)
        if device is None:
            text = f"the {kind.value} at {pci} was there and is gone from PCI"
            yield _lost(health, pci, ABSENT, text, now)
        elif not device.answers:
            text = f"the {kind.value} at {pci} does not answer: its PCI registers read as all ones"
            yield _lost(health, pci, NO_ANSWER, text, now)
    gpus = sum(device.kind is DeviceClass.GPU for device in found.values())
    if gpus < expected_gpus:
        yield _lost(health, "", TOO_FEW, f"{gpus} of {expected_gpus} GPUs are on PCI", now)


def _lost(health: NodeHealth, pci: str, subcode: str, message: str, now: float) -> OpenFault:
    return OpenFault(
        kind=FaultKind.LOST,
        severity=Severity.FATAL,
        first_seen=now,
        last_seen=now,
        pci=pci,
        gpu=health.uuids.get(pci, ""),
        subcode=subcode,
        action=str(Action.RESTART_BM),
        times=(now,),
        boot_id=health.boot_id,
        message=message,
    )
