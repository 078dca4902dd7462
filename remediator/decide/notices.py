"""What people hear once about a node that stands still: nothing more will happen by itself.

The facts under its session went stale, what it rests on is gone and proves nothing, or the API
server takes none of our changes. None of it changes what is done.
"""

from __future__ import annotations

from remediator.decide.decision import Hold, Urgency
from remediator.decide.draft import Draft
from remediator.decide.recovery import silent, unproven
from remediator.decide.session import PolicyHold, Session
from remediator.policy.plan import Plan
from remediator.policy.quantities import format_duration


def tell_if_stale(draft: Draft, session: Session, hold: PolicyHold, steps: Plan) -> None:
    """Tell people once when the facts under a running session go stale."""
    why = silent(draft, hold)
    if not why:
        return
    draft.tell(
        f"{session.id}/{hold.policy}/stale",
        f"{draft.facts.name}: {why}",
        f"The facts that policy {hold.policy} rests on are stale; the node stays as it is.",
        kind="stale",
        to=draft.channels(steps),
        policy=hold.policy,
        notice=True,
    )


def tell_if_unproven(
    draft: Draft, session: Session, hold: PolicyHold, steps: Plan, *, edited: bool
) -> None:
    """Tell people once that only they can end it: its alert or query is gone, which proves nothing.

    While a source fails, that is said instead, and it may come back. A policy that was edited
    may not ask its query any more.
    """
    known, key = draft.ledger.unproven_since, (hold.policy, draft.facts.uid)
    if silent(draft, hold) or not unproven(draft, hold):
        known.pop(key, None)
        return
    name, due = draft.facts.name, known.setdefault(key, draft.now) + steps.recover.for_
    asked = ", or the edited policy asks for it no more" if edited else ""
    gone = f"its alert or query is gone{asked}, which proves nothing"
    why = f"{gone}: `remediator cancel {name}` ends it"
    draft.hold(Hold(hold.policy, "facts", why))
    if draft.now < due:
        draft.look_at(due)
        return
    draft.tell(
        f"{session.id}/{hold.policy}/unproven",
        f"{name}: ends by hand",
        f"{', '.join(hold.reasons)}: {gone} that the node is well. "
        f"Policy {hold.policy} holds it until `remediator cancel {name}`.",
        kind="unproven",
        to=draft.channels(steps),
        policy=hold.policy,
        notice=True,
    )


def tell_refused(draft: Draft) -> None:
    """Tell people once that the API server takes nothing that we write to this node."""
    name, refused = draft.facts.name, draft.ledger.refusals.of_node(draft.facts.uid, draft.now)
    if refused is None:
        return
    lasting = format_duration(float(int(draft.now - refused.since)))
    draft.tell(
        f"refused/{draft.facts.uid}/{refused.since:.0f}",
        f"{name}: the API server refuses our changes",
        f"For {lasting} nothing could be written to the node, so nothing is done or undone there: "
        f"{refused.why}",
        kind="refused",
        urgency=Urgency.CRITICAL,
        notice=True,
    )
