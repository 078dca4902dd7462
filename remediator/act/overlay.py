"""The world of dry-run: what the nodes would be, had the dry-run policies acted.

A patch that dry-run decides goes here instead of to the API server. Facts seen
through the overlay carry the virtual session and cordon, so that the next decision
goes on from there: steps, budget and recovery run their course without a write.

Real sessions are hidden from this world: they belong to Enforce policies, which the
virtual decision does not know. Their cordons are not hidden: they cost capacity. A
person's request is not hidden either: it ends or retries the virtual session too.

What a session leaves behind when it ends (``recover.when: never``, `remediator release`) stays
on the virtual node, too, and takes its place in the budget: with enforcement it would.

All that rests on the node as it was. When people change that (cordon or uncordon it, add the
same taint, or a real session begins or ends), it is dropped and decided anew. `remediator cancel`
takes away what was left: nobody could uncordon a node that is not cordoned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from remediator.decide.decision import PatchNode, Unset
from remediator.decide.facts import NodeFacts, out_of_service
from remediator.decide.requests import Verb
from remediator.decide.session import History, Session, Taint


Changes = Mapping[str, str | None]
"""Labels or annotations: key to the value that it would have, None for one that would be gone."""


@dataclass(frozen=True, slots=True)
class _Virtual:
    """What dry-run would have written to one node, and what the node was like then.

    ``since``: it would be out of service. ``left_by``: policies whose sessions have ended and
    left something.
    """

    really_cordoned: bool
    session: Session | None = None
    history: History | None = None
    cordoned: bool = False
    taints: tuple[Taint, ...] = ()
    labels: Changes = field(default_factory=dict)
    annotations: Changes = field(default_factory=dict)
    since: float | None = None
    left_by: frozenset[str] = frozenset()

    @property
    def changed(self) -> bool:
        """Tell whether the node would be different, whatever its session and history."""
        return bool(self.cordoned or self.taints or self.labels or self.annotations)


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
        cordoned = known.cordoned if patch.unschedulable is None else patch.unschedulable
        cordoned = cordoned and not facts.unschedulable  # else it is as the real node is
        kept = (one for one in known.taints if one not in patch.untaint)
        taints = (*kept, *(one for one in patch.taint if one not in known.taints))
        virtual = _Virtual(
            really_cordoned=facts.unschedulable,
            session=known.session if isinstance(patch.session, Unset) else patch.session,
            history=known.history if isinstance(patch.history, Unset) else patch.history,
            cordoned=cordoned,
            taints=taints,
            labels=_differing(known.labels, patch.labels, facts.labels),
            annotations=_differing(known.annotations, patch.annotations, facts.annotations),
            since=(known.since or now) if out_of_service(taints, unschedulable=cordoned) else None,
        )
        virtual = replace(virtual, left_by=_left_by(known, virtual))
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
        return replace(
            facts,
            session=virtual.session,
            uncordoned=False,  # said of the real session
            untainted=False,
            request=facts.request if virtual.session is not None else None,
            history=facts.history if virtual.history is None else virtual.history,
            unschedulable=virtual.cordoned or facts.unschedulable,
            taints=(*facts.taints, *virtual.taints),
            labels=_changed(facts.labels, virtual.labels),
            annotations=_changed(facts.annotations, virtual.annotations),
            unavailable_since=facts.unavailable_since or virtual.since,
        )

    def forget(self, uid: str) -> bool:
        """Drop what is known of a node; tell whether it was different."""
        return self._nodes.pop(uid, None) is not None

    def expire(self, uid: str, policies: Collection[str]) -> bool:
        """Drop what rests on a policy that is not in dry-run any more; tell if so.

        Otherwise a policy that was switched to Enforce would be told that it was removed, or
        would meet its own cordon that nobody ever made.
        """
        virtual = self._nodes.get(uid)
        if virtual is None:
            return False
        holds = virtual.session.holds if virtual.session is not None else ()
        if all(one in policies for one in (*virtual.left_by, *(hold.policy for hold in holds))):
            return False
        return self.forget(uid)

    @staticmethod
    def _changed_hands(virtual: _Virtual, facts: NodeFacts) -> bool:
        if virtual.session is None and not virtual.changed:
            return False
        slots = {taint.slot for taint in virtual.taints}
        tainted = bool(slots) and any(taint.slot in slots for taint in facts.taints)
        request = facts.request.verb if facts.request is not None else None
        given_back = virtual.session is None and request is Verb.CANCEL
        return tainted or given_back or facts.unschedulable != virtual.really_cordoned


def _left_by(before: _Virtual, after: _Virtual) -> frozenset[str]:
    """Return the policies by whose ended sessions the node would still be different."""
    if after.session is not None or before.session is None or not after.changed:
        return before.left_by if after.changed else frozenset()
    ended = before.session
    return before.left_by.union(ended.let_go, (hold.policy for hold in ended.holds))


def _differing(known: Changes, new: Changes, real: Mapping[str, str]) -> Changes:
    """Return what would be different from the real node after one more patch."""
    both = {**known, **new}
    return {key: value for key, value in both.items() if real.get(key) != value}


def _changed(real: Mapping[str, str], changes: Changes) -> Mapping[str, str]:
    if not changes:
        return real
    return {key: value for key, value in {**real, **changes}.items() if value is not None}
