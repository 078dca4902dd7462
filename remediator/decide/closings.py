"""What is still open at a receiver though its reason has gone: the message that closes it.

An incident, alert or thread that a session opened is closed by the session's own last word. All
that is about no session (a step that is held, a frozen node, a reminder, an open breaker, a refused
write) has no last word: what is open is compared with what there is now, and closed where they
differ. That also closes what a session left open: its last word was lost with a process, or
went to other channels (``recover.notify``).

Nothing is remembered for it but the topics themselves, so it holds over restarts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from remediator.decide.decision import SendMessage, Urgency
from remediator.decide.topics import is_session, over_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What there is now in one world; of nodes by UID.

    Attributes:
        nodes: name by UID.
        sessions: ids of the sessions on nodes.
        decided: nodes that were decided about in this term.
        held: policy and node of what guards hold.
        frozen: nodes.
        waived: node, policy and time (whole seconds) of what people took over.
        refused: nodes to which nothing can be written.
        breakers: sources and policies whose breaker is open.
        alerts: keys of messages about alerts that are about no node.
    """

    nodes: Mapping[str, str] = field(default_factory=dict)
    sessions: Collection[str] = frozenset()
    decided: Collection[str] = frozenset()
    held: Collection[tuple[str, str]] = frozenset()
    frozen: Collection[str] = frozenset()
    waived: Collection[tuple[str, str, str]] = frozenset()
    refused: Collection[str] = frozenset()
    breakers: Collection[str] = frozenset()
    alerts: Collection[str] = frozenset()


def closing(
    conversation: str, channels: tuple[str, ...], now: Standing, *, number: int = 1
) -> SendMessage | None:
    """Return what closes a conversation at these channels; None while its reason is there.

    ``number``: of the attempt. One that was given up is a message of its own.
    """
    why = over(conversation, now)
    if not why:
        return None
    node = _node(conversation, now)
    return SendMessage(
        key=over_key(conversation, number),
        to=channels,
        title=f"{node}: over" if node else "over",
        text=why,
        node=node,
        urgency=Urgency.INFO,
        resolves=True,
        kind="over",
    )


def over(conversation: str, now: Standing) -> str:  # noqa: PLR0911 - one line a kind
    """Say why a conversation is over; "" while it is not, or if that cannot be told."""
    if is_session(conversation):
        there = conversation in now.sessions or _of_frozen(conversation, now)
        return "" if there else "The session has ended."
    kind, *rest = conversation.split("/")
    if kind == "breaker":
        return "" if "/".join(rest[:-1]) in now.breakers else "The breaker is closed."
    if kind == "alert-refused":
        return "" if conversation in now.alerts else "It fires no more, or is about a node now."
    uid = rest[0] if rest else ""
    if kind not in {"held", "still-held", "frozen", "reminder", "refused"}:
        return ""
    if uid not in now.nodes:
        return "The node is gone."
    if kind == "frozen":
        return "" if uid in now.frozen else "The node is frozen no more."
    if kind == "reminder":
        known = (uid, "/".join(rest[1:-1]), rest[-1]) in now.waived
        return "" if known else "The fault has cleared, or is the policy's again."
    if uid not in now.decided:
        return ""
    if kind == "refused":
        return "" if uid in now.refused else "The API server refuses our changes no more."
    held = ("/".join(rest[1:-1]), uid) in now.held
    return "" if held else "No guard holds it back any more."


def _of_frozen(session: str, now: Standing) -> bool:
    """Tell whether it may be that of a node whose session cannot be read."""
    return any(uid.startswith(session.rpartition("-")[0]) for uid in now.frozen)


def _node(conversation: str, now: Standing) -> str:
    """Return the name of the node that a conversation is about, "" if it is about none."""
    if is_session(conversation):
        short = conversation.rpartition("-")[0]
        return next((name for uid, name in now.nodes.items() if uid.startswith(short)), "")
    uid = conversation.split("/")[1] if "/" in conversation else ""
    return now.nodes.get(uid, "")
