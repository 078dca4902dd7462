"""What lives longer than a term: the process's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from remediator.clock import Clock
from remediator.kube.client import ApiClient
from remediator.kube.codec import WireNode
from remediator.kube.lease import Elector
from remediator.kube.objects import ConfigMap, Node
from remediator.kube.reflector import Reflector
from remediator.kube.store import Store
from remediator.policy.cluster import ClusterSpec
from remediator.policy.reload import PolicyWatcher
from remediator.record.metrics import Metrics
from remediator.record.policysource import PolicyObjects
from remediator.signals.board import Board
from remediator.signals.fleet import Fleet


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a term is given."""

    api: ApiClient
    drains: ApiClient
    """For what drains send, and for the watches of their pods."""
    fleet: Fleet
    control: Store[ConfigMap]
    watcher: PolicyWatcher
    metrics: Metrics
    clock: Clock
    cluster: ClusterSpec
    elector: Elector
    folder: Path
    """Where relative names of files in RemediatorConfig begin."""
    namespace: str
    workers: int
    board: Board
    nodes: Reflector[WireNode, Node] | None = None
    """What mirrors the nodes: whether they are seen now, and which cannot be read."""
    policy_objects: PolicyObjects | None = None
    """Policies that are objects; None where only files count."""
    config_problem: Callable[[], str] = str
    """Why the newest RemediatorConfig is not in force; "" if it is."""
    announce: Callable[[], Awaitable[None]] | None = None
    """Makes this replica the one that the webhook's Service leads to. Raises ApiError."""
