"""A look at the cluster, live or recorded: nodes, what is said of them, and the guards' memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from remediator.cli.cluster import Target, on_cluster
from remediator.cli.failure import Failure
from remediator.cli.policysource import PolicySource
from remediator.cli.replay import BAD_INPUT, read_lines
from remediator.clock import BootClock
from remediator.decide.facts import MAX_ANNOTATION
from remediator.decide.ledger import Pause
from remediator.kube.client import ApiClient
from remediator.kube.configmap import ConfigMaps
from remediator.kube.errors import ApiError
from remediator.kube.objects import Node
from remediator.kube.podplace import PodFinder
from remediator.kube.read import ApiNodeReader
from remediator.lab.foreign import cleaned
from remediator.lab.said import Sayings
from remediator.lab.tape import Change, TapeError, decode, read_header
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import Mode, RemediationPolicy
from remediator.policy.quantities import format_duration
from remediator.record.control import CONTROL_CONFIGMAP, read_control
from remediator.record.state import NOTHING_LOADED, STATE_CONFIGMAP, Loaded, decode_states
from remediator.signals.glance import glance
from remediator.signals.sightings import NOTHING_SIGHTED, Sightings


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was seen, and when. ``notes``: what could not be seen, in words.

    ``policies``: those that are in question, as they are written, files first.
    """

    now: float
    nodes: tuple[Node, ...]
    policies: tuple[RemediationPolicy, ...]
    loaded: Loaded = NOTHING_LOADED
    pause: Pause | None = None
    sightings: Sightings = NOTHING_SIGHTED
    notes: tuple[str, ...] = ()


def take_snapshot(
    target: Target,
    source: PolicySource,
    cluster: ClusterSpec,
    *,
    tape: Path | None,
    at: float | None,
) -> Snapshot:
    """Look at the live cluster, or at a recording (``at``: seconds after its start; its end).

    Args:
        target: the cluster, and where in it the controller lives.
        source: where the policies are.
        cluster: whose Alertmanagers and Prometheus servers are asked what the policies ask.
        tape: the recording; None: the cluster.
        at: of a recording only.

    Raises:
        Failure: it cannot be seen.
    """
    if tape is not None:
        return _recorded(tape, at, source.from_files())
    return on_cluster(target, lambda api: _live(api, target.namespace, source, cluster))


def _recorded(tape: Path, at: float | None, policies: Sequence[RemediationPolicy]) -> Snapshot:
    view = _View()
    try:
        expected = read_header(next(read_lines(tape), "")).nodes
        for change in decode(read_lines(tape)):
            if not view.take(change, at):
                break
    except TapeError as error:
        raise Failure(f"error: {tape}: {error}", code=BAD_INPUT) from error
    now, start = view.now, view.start
    if now is None or start is None:
        raise Failure(f"error: {tape}: the recording holds no node", code=BAD_INPUT)
    if at is not None and view.over and start + at > now:
        raise Failure(
            f"error: --at {format_duration(at)} is past the end of {tape}: its last line is"
            f" {_length(now - start)} after its first; without --at its end is looked at",
            code=BAD_INPUT,
        )
    notes = view.sayings.unrecorded(policies)
    if view.unseen:
        notes = (*notes, "the recorder saw nothing at that time: this is what it had seen before")
    if len(view.names) < expected:
        begun = f"the recording had seen {len(view.names)} of {expected} nodes by then"
        notes = (*notes, f"{begun}: it was just beginning, look at a later time")
    return Snapshot(
        now=now if at is None else start + at,
        nodes=tuple(view.nodes.values()),
        policies=tuple(policies),
        sightings=view.sayings.sightings(),
        notes=notes,
    )


class _View:
    """What a recording holds at a time. ``unseen``: its recorder saw nothing then."""

    def __init__(self) -> None:
        self.now: float | None = None
        self.start: float | None = None
        self.nodes: dict[str, Node] = {}
        self.names: set[str] = set()
        self.sayings = Sayings()
        self.over, self.unseen = True, False

    def take(self, change: Change, at: float | None) -> bool:
        """Take in a line. False: it is of later than ``at`` seconds after the start."""
        self.start = change.at if self.start is None else self.start
        if at is not None and change.at > self.start + at:
            self.over, self.unseen = False, change.at - change.blind < self.start + at
            return False
        self.now = change.at
        if change.anew:
            self.sayings = Sayings()
        if change.said is not None:
            self.sayings.take(change.said, change.at)
        elif change.node is not None:
            self.names.add(change.name)
            self.nodes[change.name] = cleaned(change.node)
        else:
            self.nodes.pop(change.name, None)
        return True


def _length(seconds: float) -> str:
    return format_duration(float(int(seconds)))


async def _live(
    api: ApiClient, namespace: str, source: PolicySource, cluster: ClusterSpec
) -> Snapshot:
    policies, notes = await source.read(api, namespace)
    nodes = await ApiNodeReader(api=api, other_annotations=MAX_ANNOTATION + 1).list_nodes()
    configmaps = ConfigMaps(api=api, namespace=namespace)
    loaded, pause = NOTHING_LOADED, None
    try:
        found = await configmaps.read(STATE_CONFIGMAP)
        loaded = decode_states(found.data if found is not None else {})
        if loaded.problem:
            notes = (*notes, f"every rate counts as used up, its memory is lost: {loaded.problem}")
        control = await configmaps.read(CONTROL_CONFIGMAP)
        pause = read_control(control.data if control is not None else {}).pause
    except ApiError as error:
        notes = (*notes, f"rates, breakers and pause are not known: {error}")
    clock = BootClock()
    active = [one for one in policies if one.spec.mode is not Mode.DISABLED]
    seen = await glance(cluster, active, nodes, clock=clock, finder=PodFinder(api=api))
    return Snapshot(
        now=clock.now(),
        nodes=tuple(nodes),
        policies=policies,
        loaded=loaded,
        pause=pause,
        sightings=seen.sightings,
        notes=(*notes, *seen.notes),
    )
