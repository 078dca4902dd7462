"""What becomes of a session's policy that is not in force: removed, or in another mode here.

It stops where it is: no new step, nothing undone, people are told once. But a leader that has just
taken over waits with that until it has settled: replicas do not see changed files at one time (a
kubelet brings a changed ConfigMap to its pods within a minute or so), and who stops the work
that the leader before began by a newer file begins it a second time.
"""

from __future__ import annotations

from remediator.decide.decision import Hold
from remediator.decide.draft import Draft
from remediator.decide.session import PolicyHold, Session
from remediator.decide.work import stop_work
from remediator.policy.plan import Plan


def orphaned(draft: Draft, session: Session, hold: PolicyHold, steps: Plan) -> PolicyHold:
    """Return a hold whose policy is not in force, stopped; or as it is, while we settle."""
    settled = draft.ledger.started + draft.ledger.cluster.settling
    draft.ledger.clear_since.pop((hold.policy, draft.facts.uid), None)
    if draft.now < settled:
        why = "not in force here, as far as this leader knows, which has just taken over: it waits"
        draft.hold(Hold(hold.policy, "policy", why, settled))
        return hold
    name = draft.facts.name
    why = (
        "removed, or not in force here any more: nothing further is done and nothing undone; "
        f"`remediator cancel {name}` undoes it, `remediator release {name}` keeps it"
    )
    draft.hold(Hold(hold.policy, "policy", why))
    draft.tell(
        f"{session.id}/{hold.policy}/orphaned",
        f"{name}: policy {hold.policy} is gone",
        f"Policy {hold.policy} is {why}.",
        kind="orphaned",
        to=draft.channels(steps),
        policy=hold.policy,
        notice=True,
    )
    return stop_work(draft.now, hold, "its policy is gone, or in force no more")
