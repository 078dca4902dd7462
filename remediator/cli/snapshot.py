"""A look at the cluster, live or recorded: nodes, and what the controller's guards remember."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from remediator.cli.cluster import Target, on_cluster
from remediator.cli.failure import Failure
from remediator.cli.replay import BAD_INPUT, read_lines
from remediator.decide.ledger import LedgerState, Pause
from remediator.kube.client import ApiClient
from remediator.kube.configmap import ConfigMaps
from remediator.kube.errors import ApiError
from remediator.kube.objects import Node
from remediator.kube.read import ApiNodeReader
from remediator.lab.foreign import cleaned
from remediator.lab.tape import TapeError, decode
from remediator.record.control import CONTROL_CONFIGMAP, read_control
from remediator.record.state import STATE_CONFIGMAP, STATE_KEY, decode_state


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was seen, and when. ``notes``: what could not be seen, in words."""

    now: float
    nodes: tuple[Node, ...]
    state: LedgerState | None = None
    pause: Pause | None = None
    notes: tuple[str, ...] = ()


_NOT_ASKED: Final = "alerts and queries are not asked here: clauses on them cannot be told"


def take_snapshot(target: Target, tape: Path | None, *, at: float | None) -> Snapshot:
    """Look at the live cluster, or at a recording (``at``: seconds after its start; its end).

    Raises:
        Failure: it cannot be seen.
    """
    if tape is not None:
        return _recorded(tape, at)
    return on_cluster(target, lambda api: _live(api, target.namespace))


def _recorded(tape: Path, at: float | None) -> Snapshot:
    nodes: dict[str, Node] = {}
    now = start = None
    try:
        for change in decode(read_lines(tape)):
            start = change.at if start is None else start
            if at is not None and change.at > start + at:
                break
            now = change.at
            if change.node is not None:
                nodes[change.name] = cleaned(change.node)
            elif not change.blind:
                nodes.pop(change.name, None)
    except TapeError as error:
        raise Failure(f"error: {tape}: {error}", code=BAD_INPUT) from error
    if now is None or start is None:
        raise Failure(f"error: {tape}: the recording holds no node", code=BAD_INPUT)
    now = now if at is None else start + at
    return Snapshot(now, tuple(nodes.values()), notes=(_NOT_ASKED,))


async def _live(api: ApiClient, namespace: str) -> Snapshot:
    nodes = await ApiNodeReader(api=api).list_nodes()
    configmaps = ConfigMaps(api=api, namespace=namespace)
    notes = [_NOT_ASKED]
    state = pause = None
    try:
        found = await configmaps.read(STATE_CONFIGMAP)
        if found is not None and STATE_KEY in found.data:
            state = decode_state(found.data[STATE_KEY]).state
        control = await configmaps.read(CONTROL_CONFIGMAP)
        pause = read_control(control.data if control is not None else {}).pause
    except ApiError as error:
        notes.append(f"rates, breakers and pause are not known: {error}")
    return Snapshot(time.time(), tuple(nodes), state, pause, tuple(notes))
