"""One write to one node, and what its answer means for what comes next.

The fence (is the lease fresh?) is asked right before the request leaves, by the
writer. An answer that never came is *doubtful*: the write may have happened. It is
then neither repeated nor given up, but the node is read first.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from remediator.act.patch import node_patch, patched
from remediator.decide.decision import PatchNode
from remediator.decide.facts import NodeFacts
from remediator.kube.errors import ApiError, Conflict, Denied, Invalid, NotFound, Throttled
from remediator.kube.lease import NotLeading
from remediator.kube.objects import Node
from remediator.kube.patch import NodePatch


PEOPLE_NEEDED: Final = 30.0
"""Seconds until a refused write is tried again: only people can change that answer."""


class Verdict(StrEnum):
    """What became of a write."""

    DONE = "done"
    CHANGED = "changed"
    """The node changed meanwhile: decide again on the newer one."""
    GONE = "gone"
    """The node is no more."""
    LATER = "later"
    """Nothing happened; the server asks for patience."""
    DOUBTFUL = "doubtful"
    """No answer: read the node before anything else."""
    REFUSED = "refused"
    """Not allowed, or not valid. People must help."""
    NOT_LEADING = "not-leading"
    """The lease is not fresh: nothing was sent, and nothing must be."""


class Written(NamedTuple):
    """The answer: ``node`` as it is now if the write is done, else ``error`` in words."""

    verdict: Verdict
    node: Node | None = None
    retry_after: float = 0.0
    error: str = ""


class NodeWriter(Protocol):
    """Sends patches; see :class:`remediator.kube.patch.NodeWriter`."""

    async def patch_node(self, patch: NodePatch) -> str:
        """Carry out a patch and return the new resourceVersion."""


class NodeReader(Protocol):
    """Reads one node past the watch."""

    async def read_node(self, name: str) -> Node | None:
        """Return the node as it is on the server now."""


class WriteObserver(Protocol):
    """Told what became of each change of a node. Never waits, never fails."""

    def written(
        self,
        patch: PatchNode,
        *,
        facts: NodeFacts,
        verdict: Verdict,
        dry_run: bool,
        reason: str = "",
    ) -> None:
        """One change of a node was tried; ``facts`` are from before it."""


async def write(effect: PatchNode, *, base: Node, writer: NodeWriter) -> Written:
    """Send one patch; never raises for what the API server or the network does.

    Args:
        effect: what was decided, for exactly the version ``effect.resource_version``.
        base: that version of the node.
        writer: sends it, if we still lead.
    """
    patch = node_patch(effect, base)
    try:
        version = await writer.patch_node(patch)
    except NotLeading as error:
        return Written(Verdict.NOT_LEADING, error=str(error))
    except ApiError as error:
        return _meaning(error)
    return Written(Verdict.DONE, patched(base, patch, version))


def _meaning(error: ApiError) -> Written:
    """Say by the kind of error what is to be done."""
    text = str(error)
    match error:
        case Conflict():
            return Written(Verdict.CHANGED, error=text)
        case NotFound():
            return Written(Verdict.GONE, error=text)
        case Throttled():
            return Written(Verdict.LATER, retry_after=error.retry_after, error=text)
        case Denied() | Invalid():
            return Written(Verdict.REFUSED, retry_after=PEOPLE_NEEDED, error=text)
        case _:
            after = float(getattr(error, "retry_after", 0.0))
            return Written(Verdict.DOUBTFUL, retry_after=after, error=text)
