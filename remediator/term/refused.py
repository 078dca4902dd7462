"""What people are told of a signal that a policy asks for, and that nothing is done about."""

from __future__ import annotations

from remediator.decide.decision import SendMessage, Urgency
from remediator.decide.signal_clauses import ALERTMANAGER
from remediator.signals.refused import OUTSIDE, RefusedSignal


def names_no_node(one: RefusedSignal) -> bool:
    """Tell whether it is an alert that ought to name a node and does not: worth a message.

    Alerts about nodes that are none of ours may well be meant for others, too.
    """
    return bool(one.alert) and one.reason != OUTSIDE


def refused_message(one: RefusedSignal, *, to: tuple[str, ...]) -> SendMessage:
    """Return the message that an alert is about no node."""
    return SendMessage(
        key=refused_key(one),
        to=to,
        title=f"alert {one.alert} is about no node",
        text=f"{_source(one)} has it firing, and a policy asks for it, but {one.why}."
        " Nothing is done. `remediator status` names all such alerts.",
        urgency=Urgency.WARNING,
        kind="alert-refused",
    )


def refused_key(one: RefusedSignal) -> str:
    """Return the key of that message."""
    return f"alert-refused/{_source(one)}/{one.alert}/{one.reason}"


def _source(one: RefusedSignal) -> str:
    return one.source.removeprefix(ALERTMANAGER)
