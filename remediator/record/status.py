"""The status document: what ``remediator status`` shows, as one JSON text.

The leader keeps it in ConfigMap ``gpu-remediator-status`` under ``status.json``, so
that whoever may read that ConfigMap can see why a node is, or is not, out of
service, without reaching the controller. The document is for people and scripts:
fields are only ever added within a version, and readers ignore unknown ones.

Times are seconds since the epoch on the controller's clock. Built by
:func:`remediator.record.report.build_status`, written by
:class:`remediator.record.publish.StatusPublisher`.
"""

from __future__ import annotations

from typing import Final

import msgspec


STATUS_CONFIGMAP: Final = "gpu-remediator-status"
STATUS_KEY: Final = "status.json"
STATUS_VERSION: Final = 1
REFRESH_SECONDS: Final = 60.0
"""The document is written at least this often: an older one has no living writer."""

MAX_STATUS_BYTES: Final = 900 * 1024
"""Of the text as a JSON string, quotes escaped: both the ConfigMap's value and the request
that carries it then stay below 1 MiB, where the API server, and our HTTP library, draw a line."""


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Base of all parts: camelCase names, empty fields left out."""


class HoldStatus(_Part, frozen=True, kw_only=True):
    """A guard that holds a policy's next step. ``look_again`` None: when facts change."""

    policy: str
    guard: str
    reason: str
    look_again: float | None = None


class DueStatus(_Part, frozen=True, kw_only=True):
    """What a policy does by itself, and when."""

    policy: str
    what: str
    at: float


class WorkStatus(_Part, frozen=True, kw_only=True):
    """A step that takes time: since when, until when, and its latest line on the progress."""

    policy: str
    action: str
    since: float
    deadline: float
    attempt: int = 1
    suspended: bool = False
    progress: str = ""


class NodeStatus(_Part, frozen=True, kw_only=True):
    """One node that is not simply well.

    ``phase`` is a ``decide.decision.NodePhase``. ``dry_run``: nothing was done to the
    node; this is what would have been. A node can appear twice, once per world.
    ``faults`` are the clauses that match, such as ``Xid 79 on 0000:9b:00.0``;
    ``steps`` are ``policy: step n/m action state``.
    """

    node: str
    phase: str
    sentence: str
    dry_run: bool = False
    faults: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    work: tuple[WorkStatus, ...] = ()
    holds: tuple[HoldStatus, ...] = ()
    dues: tuple[DueStatus, ...] = ()
    """What comes by itself; of ``holds`` and ``work`` their own times say when they end."""
    next_look: float | None = None
    pool: str = ""
    zone: str = ""
    unschedulable: bool = False
    session: str = ""
    """Id of the session, if there is one."""
    since: float | None = None
    """When the session began."""
    server: tuple[str, ...] = ()
    """What the API server said to server dry-run, where it was not a plain yes."""


class BudgetStatus(_Part, frozen=True, kw_only=True):
    """One budget group: ``scope`` is ``pool/a100``, ``zone/eu-1a`` or ``cluster``.

    ``policy`` "" is the cluster's own budget, or the default. ``holders`` are nodes that
    use it (at most 50 are named), the escalated ones, which only people can free, also in
    ``escalated``.
    """

    scope: str
    used: int
    limit: int
    total: int = 0
    policy: str = ""
    dry_run: bool = False
    holders: tuple[str, ...] = ()
    escalated: tuple[str, ...] = ()


class RateStatus(_Part, frozen=True, kw_only=True):
    """One rate: how many starts of ``limit`` (``10/10m``) are used, and when one comes free."""

    scope: str
    action: str
    used: int
    limit: str
    policy: str = ""
    dry_run: bool = False
    next_at: float | None = None


class BreakerStatus(_Part, frozen=True, kw_only=True):
    """One breaker. ``source`` is what ``remediator breaker reset SOURCE`` takes."""

    source: str
    open: bool
    since: float | None = None
    seen: int = 0
    limit: int = 0
    reason: str = ""
    dry_run: bool = False
    nodes: tuple[str, ...] = ()
    closes_at: float | None = None
    """When it closes by itself if nothing more happens; None: only people close it."""
    backlog: int = 0
    """Nodes that match and were faulty when somebody first looked: no storm, and not counted."""
    backlog_nodes: tuple[str, ...] = ()


class PolicyStatus(_Part, frozen=True, kw_only=True):
    """One policy in force. ``effective_mode`` is the stricter of its own and the cluster's."""

    name: str
    version: str
    mode: str
    effective_mode: str
    loaded_at: float
    source: str = ""
    """File it came from."""
    matching: int = 0
    """Nodes that it matches now."""
    expression_failures: int = 0
    """Nodes on which its expression fails now, so that nobody knows whether it matches."""
    expression_error: str = ""
    """How it fails, on one of them."""


class PolicyProblem(_Part, frozen=True, kw_only=True):
    """A policy file that is not in force, or whose earlier version still is."""

    source: str
    message: str


class PauseStatus(_Part, frozen=True, kw_only=True):
    """A pause that people asked for. ``everything``: no write at all, not even undo."""

    everything: bool = False
    reason: str = ""
    by: str = ""
    since: str = ""


class OutboxStatus(_Part, frozen=True, kw_only=True):
    """Messages under way, and those given up since the leader started."""

    pending: int = 0
    trouble: tuple[str, ...] = ()
    """Channels that do not take what is pending, and why: ``oncall: HTTP 503``."""
    failed: int = 0
    last_failure: str = ""


class Status(_Part, frozen=True, kw_only=True, omit_defaults=False):
    """The whole document. ``phases`` counts nodes by phase, also those not listed.

    One that is well where policies act may be faulty in dry-run: ``well`` counts those that are
    well in both worlds; None in a document of an older program.
    """

    version: int = STATUS_VERSION
    time: float
    leader: str
    program: str = ""
    mode: str
    started: float = 0.0
    settling_until: float | None = None
    synced: bool = True
    pause: PauseStatus | None = None
    nodes_total: int = 0
    gpu_nodes: int = 0
    phases: dict[str, int] = {}
    phases_dry_run: dict[str, int] = {}
    well: int | None = None
    nodes: tuple[NodeStatus, ...] = ()
    nodes_left_out: int = 0
    """Nodes that are not listed because the document would have grown too large."""
    budgets: tuple[BudgetStatus, ...] = ()
    rates: tuple[RateStatus, ...] = ()
    breakers: tuple[BreakerStatus, ...] = ()
    policies: tuple[PolicyStatus, ...] = ()
    policy_problems: tuple[PolicyProblem, ...] = ()
    outbox: OutboxStatus | None = None
    notes: tuple[str, ...] = ()
    """What else people should know, such as that saved state could not be read."""


class StatusUnreadableError(ValueError):
    """A status document that this program cannot read; ``str()`` says why."""


def encode_status(status: Status) -> str:
    """Return the JSON text."""
    return msgspec.json.encode(status).decode()


def decode_status(text: str) -> Status:
    """Read the JSON text.

    Raises:
        StatusUnreadableError: it is damaged, or of a newer version than this program.
    """
    try:
        version = msgspec.json.decode(text, type=_Versioned).version
        if version != STATUS_VERSION:
            raise StatusUnreadableError(
                f"the status is of version {version} and this program reads {STATUS_VERSION}:"
                " use the program version that the controller runs",
            )
        return msgspec.json.decode(text, type=Status)
    except (msgspec.DecodeError, RecursionError) as error:
        raise StatusUnreadableError(f"the status is damaged: {error}") from error


class _Versioned(msgspec.Struct):
    version: int = STATUS_VERSION
