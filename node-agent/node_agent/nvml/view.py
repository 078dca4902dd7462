"""How each message of the child changes the view. Pure.

The readings of a device come in groups, each at its own cadence. A new group replaces what the
same group said before, so a quantity that is no longer there goes away and the others stay.
"""

from __future__ import annotations

import msgspec

from node_agent.nvml.model import (
    EVENT_NAMES,
    CallStats,
    Device,
    NvmlState,
    NvmlView,
    Reading,
)
from node_agent.nvml.protocol import Calls, Enumerated, Group, Processes, Values


class Parts(msgspec.Struct, frozen=True):
    """The view, and by device what each group said last."""

    view: NvmlView = NvmlView()
    groups: dict[str, dict[Group, Values]] = {}


def in_state(parts: Parts, state: NvmlState, why: str, *, now: float, call: str = "") -> Parts:
    """Another state; ``since`` moves only if it is another one. ``call``: the one that hung."""
    view = parts.view
    since = view.since if view.state is state else now
    return _with(parts, state=state, why=why, since=since, hung_call=call)


def enumerated(parts: Parts, message: Enumerated) -> Parts:
    """Other devices. One that vanished while a device answers GPU_IS_LOST is the lost one."""
    found = {device.uuid: device for device in message.devices}
    missing = [device for device in parts.view.devices if device.uuid not in found]
    lost = missing if message.any_lost else []
    devices: list[Device] = sorted([*found.values(), *lost], key=lambda device: device.index)
    kept = {device.uuid for device in devices}
    kept |= {instance.uuid for device in devices for instance in device.mig}
    parts = Parts(
        parts.view, {uuid: groups for uuid, groups in parts.groups.items() if uuid in kept}
    )
    return _with(
        parts,
        driver=message.driver,
        devices=tuple(devices),
        readings={uuid: part for uuid, part in parts.view.readings.items() if uuid in kept},
        lost=tuple(device.uuid for device in lost),
        unanswered=message.unanswered,
        bound=message.bound,
        events_error="",
    )


def read(parts: Parts, message: Values, *, now: float) -> Parts:
    """One group of one device. Of a lost device the last values stay, with their age."""
    view = parts.view
    others = tuple(uuid for uuid in view.lost if uuid != message.uuid)
    if message.lost:
        return _with(parts, lost=(*others, message.uuid))
    groups = {**parts.groups.get(message.uuid, {}), message.group: message}
    values: dict[str, float] = {}
    errors: dict[str, str] = {}
    for part in groups.values():
        values.update(part.values)
        errors.update(part.errors)
    reading = Reading(message.uuid, now, values, errors)
    parts = Parts(view, {**parts.groups, message.uuid: groups})
    return _with(parts, lost=others, readings={**view.readings, message.uuid: reading})


def listed(parts: Parts, message: Processes, *, now: float) -> Parts:
    """The processes now."""
    return _with(parts, processes=message.processes, processes_at=now)


def counted(parts: Parts, calls: dict[str, Calls]) -> Parts:
    """More calls were made."""
    total = dict(parts.view.calls)
    for name, more in calls.items():
        before = total.get(name, CallStats())
        total[name] = CallStats(
            before.count + more.count,
            before.errors + more.errors,
            before.total_seconds + more.total_seconds,
            more.last_seconds,
        )
    return _with(parts, calls=total)


def events_failed(parts: Parts, why: str) -> Parts:
    """Events are not delivered, or (with an empty text) are again."""
    return _with(parts, events_error=why)


def happened(parts: Parts, bits: int) -> Parts:
    """The driver reported an event."""
    name = EVENT_NAMES.get(bits, "other")
    events = {**parts.view.events, name: parts.view.events.get(name, 0) + 1}
    return _with(parts, events=events, events_error="")


def replaced(parts: Parts, *, abandoned: int, unplanned: bool) -> Parts:
    """A child was replaced; ``abandoned`` of them are still alive."""
    restarts = parts.view.restarts + unplanned
    return _with(parts, restarts=restarts, abandoned=abandoned)


def _with(parts: Parts, **changes: object) -> Parts:
    view = msgspec.structs.replace(parts.view, **changes)
    return Parts(view, parts.groups)
