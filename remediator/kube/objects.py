"""What the controller knows of Kubernetes objects: few fields, immutable.

A Node of a GPU cluster is about 25 KiB of JSON, most of it image names and
managed fields. Only what a decision can rest on is kept here, and strings that
recur from node to node are shared, so that 5,000 nodes fit in some 30 MB.

Times stay the RFC 3339 strings of the server: ages are measured by our own clock
from the moment a value changed, so most are only ever compared for equality.
`epoch_seconds` is there for the rest.
"""

from __future__ import annotations

from datetime import datetime

import msgspec


class Condition(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """One entry of `status.conditions`."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_heartbeat_time: str | None = None
    last_transition_time: str | None = None


class Taint(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One entry of `spec.taints`; all fields, because the list is written back whole."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class Address(msgspec.Struct, frozen=True, gc=False):
    """One entry of `status.addresses`."""

    type: str = ""
    address: str = ""


class Node(msgspec.Struct, frozen=True, gc=False):
    """A node as the controller sees it.

    Attributes:
        annotations: only those whose key has a kept prefix (see `codec.NodeNarrower`).
        dropped_annotations: how many others there were.
        created, deleted: RFC 3339, `deleted` None unless deletion has begun.
        boot_id: `status.nodeInfo.bootID`, as the kubelet last reported it.
        cordoned_by_others: somebody else set `spec.unschedulable` last, by the managed fields.
    """

    name: str
    uid: str
    resource_version: str
    labels: dict[str, str]
    annotations: dict[str, str]
    dropped_annotations: int
    created: str | None
    deleted: str | None
    unschedulable: bool
    taints: tuple[Taint, ...]
    conditions: tuple[Condition, ...]
    addresses: tuple[Address, ...]
    boot_id: str
    cordoned_by_others: bool = False

    @property
    def own_cordon(self) -> bool:
        """Whether it is cordoned, and it may have been us."""
        return self.unschedulable and not self.cordoned_by_others

    def condition(self, kind: str) -> Condition | None:
        """The condition of type `kind`, None when the node has none."""
        return next((c for c in self.conditions if c.type == kind), None)


class ConfigMap(msgspec.Struct, frozen=True):
    """A ConfigMap: names and text values."""

    name: str
    namespace: str
    uid: str
    resource_version: str
    data: dict[str, str]


class Lease(msgspec.Struct, frozen=True):
    """A coordination Lease; `holder` is empty when it was released.

    `duration` is in seconds, `renewed` and `acquired` are RFC 3339.
    """

    name: str
    namespace: str
    uid: str
    resource_version: str
    holder: str
    duration: float
    transitions: int
    acquired: str | None
    renewed: str | None


class Cause(msgspec.Struct, frozen=True):
    """One cause in the details of a Status."""

    reason: str = ""
    field: str = ""
    message: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """The details of a Status."""

    causes: tuple[Cause, ...] = ()
    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True):
    """The server's answer when it refuses, and the object of a watch ERROR event."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Why, one by one."""
        return self.details.causes if self.details else ()

    @property
    def retry_after_seconds(self) -> int:
        """Seconds that the server asks us to wait, 0 when it does not say."""
        return self.details.retry_after_seconds if self.details else 0


def epoch_seconds(timestamp: str | None) -> float | None:
    """Seconds since 1970 of an RFC 3339 time; None when absent or unreadable."""
    if not timestamp:
        return None
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return None
