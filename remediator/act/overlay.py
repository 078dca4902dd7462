"""The world of dry-run: what the nodes would be, had the dry-run policies acted.

A patch that dry-run decides goes here instead of to the API server. Facts seen
through the overlay carry the virtual session and cordon, so that the next decision
goes on from there: steps, budget and recovery run their course without a write.

Real sessions are hidden from this world: they belong to Enforce policies, which the
virtual decision does not know. Their cordons are not hidden: they cost capacity. A
person's request is not hidden either: it ends or retries the virtual session too.

A virtual session rests on the node as it was. When people change that (cordon or
uncordon it, add the same taint, or a real session begins or ends), it is dropped and decided anew.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from remediator.decide.decision import PatchNode, Unset
from remediator.decide.facts import NodeFacts
from remediator.decide.marks import effective
from remediator.decide.session import History, Session, Taint


@dataclass(frozen=True, slots=True)
class _Virtual:
    """What dry-run would have written to one node, and what the node was like then."""

    really_cordoned: bool
    unschedulable: bool | None = None
    session: Session | None = None
    history: History | None = None
    since: float | None = None


class Overlay:
    """Virtual sessions, by node UID. In memory only: a restart decides anew."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Virtual] = {}

    def __len__(self) -> int:
        """Return the number of nodes that would be different."""
        return len(self._nodes)

    def in_session(self, facts: NodeFacts) -> bool:
        """Tell whether dry-run has a session on a node."""
        virtual = self._nodes.get(facts.uid)
        return virtual is not None and virtual.session is not None

    def apply(self, patch: PatchNode, facts: NodeFacts, *, now: float) -> bool:
        """Do to the virtual node what the patch would do. False: it changes nothing.

        ``facts`` are the real ones.
        """
        known = self._nodes.get(facts.uid) or _Virtual(facts.unschedulable)
        session = known.session if isinstance(patch.session, Unset) else patch.session
        history = known.history if isinstance(patch.history, Unset) else patch.history
        cordon = known.unschedulable if patch.unschedulable is None else patch.unschedulable
        if session is None or cordon == facts.unschedulable:
            cordon = None  # as the real node is
        virtual = _Virtual(
            really_cordoned=facts.unschedulable,
            unschedulable=cordon,
            session=session,
            history=history,
            since=(known.since or now) if cordon or _takes_capacity(session) else None,
        )
        if virtual == known:
            return False
        self._nodes[facts.uid] = virtual
        return True

    def view(self, facts: NodeFacts) -> NodeFacts:
        """Return the node as it would be. Cheap for the many that would be the same."""
        virtual = self._nodes.get(facts.uid)
        if virtual is not None and self._changed_hands(virtual, facts):
            virtual = _Virtual(facts.unschedulable, history=virtual.history)
            self._nodes[facts.uid] = virtual
        if virtual is None:
            return (
                facts
                if facts.session is None
                else replace(facts, session=None, uncordoned=False, untainted=False)
            )
        added = virtual.session.added if virtual.session is not None else None
        return replace(
            facts,
            session=virtual.session,
            uncordoned=False,  # said of the real session
            untainted=False,
            request=facts.request if virtual.session is not None else None,
            history=facts.history if virtual.history is None else virtual.history,
            unschedulable=bool(virtual.unschedulable) or facts.unschedulable,
            taints=(*facts.taints, *_taints_of(virtual.session)),
            labels=facts.labels if added is None else effective(facts.labels, added.labels),
            annotations=facts.annotations
            if added is None
            else effective(facts.annotations, added.annotations),
            unavailable_since=facts.unavailable_since or virtual.since,
        )

    def forget(self, uid: str) -> bool:
        """Drop what is known of a node; tell whether it was different."""
        return self._nodes.pop(uid, None) is not None

    def expire(self, uid: str, policies: Collection[str]) -> bool:
        """Drop a session that a policy holds which is not in dry-run any more; tell if so.

        Otherwise a policy that was switched to Enforce would be told that it was removed.
        """
        virtual = self._nodes.get(uid)
        session = virtual.session if virtual is not None else None
        if session is None or all(hold.policy in policies for hold in session.holds):
            return False
        return self.forget(uid)

    @staticmethod
    def _changed_hands(virtual: _Virtual, facts: NodeFacts) -> bool:
        if virtual.session is None:
            return False
        slots = {taint.slot for taint in _taints_of(virtual.session)}
        tainted = bool(slots) and any(taint.slot in slots for taint in facts.taints)
        return tainted or facts.unschedulable != virtual.really_cordoned


def _taints_of(session: Session | None) -> tuple[Taint, ...]:
    """Return the taints that a virtual session has added: they stand nowhere else."""
    return () if session is None else session.added.taints


def _takes_capacity(session: Session | None) -> bool:
    return session is not None and session.takes_capacity
