"""What others did between two versions of a node, without what our controller did.

A recording of a cluster where the controller acts holds its cordons and taints. Another
policy must not find them there: it is judged by what the outside did. The session on the node
says what was ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from remediator.decide.requests import REQUEST_ANNOTATION
from remediator.decide.session import (
    HISTORY_ANNOTATION,
    SESSION_ANNOTATION,
    Added,
    AnnotationError,
    Mark,
    Session,
    decode_session,
)
from remediator.kube.objects import Node, Taint


OURS: Final = frozenset((SESSION_ANNOTATION, HISTORY_ANNOTATION))
SERVER_TAINT: Final = "node.kubernetes.io/unschedulable"
"""Follows a cordon by itself."""

_Slot = tuple[str, str, str]


def cleaned(node: Node) -> Node:
    """Return the first version of a node as it would be without our controller."""
    session = _session(node)
    ours = _taints_of(session)
    texts = {key: text for key, text in node.annotations.items() if key not in OURS}
    texts.pop(REQUEST_ANNOTATION, None)
    added = Added() if session is None else session.added
    return msgspec.structs.replace(
        node,
        annotations=_put_back(texts, added.annotations),
        labels=_put_back(node.labels, added.labels),
        unschedulable=node.unschedulable and not (session is not None and session.added.cordoned),
        taints=tuple(
            one for one in node.taints if _slot(one) not in ours and one.key != SERVER_TAINT
        ),
    )


def carried_over(old: Node, new: Node, onto: Node) -> Node:
    """Return ``onto`` after what others did to the node between two versions of it.

    ``onto`` is the node in the lab, with what the policies under test did to it.
    """
    was, now = _session(old), _session(new)
    marks = _marks_of(was) ^ _marks_of(now)  # what we set, or put back; changed amid, it is theirs
    skip = OURS | marks
    return msgspec.structs.replace(
        onto,
        labels=_texts(old.labels, new.labels, onto.labels, marks),
        annotations=_texts(old.annotations, new.annotations, onto.annotations, skip),
        unschedulable=_cordon(old, new, was, now, onto=onto.unschedulable),
        taints=_taints(old, new, _taints_of(was) ^ _taints_of(now), onto.taints),
        conditions=new.conditions,
        boot_id=new.boot_id,
        deleted=new.deleted,
    )


def _cordon(old: Node, new: Node, was: Session | None, now: Session | None, *, onto: bool) -> bool:
    """Take over a cordon or uncordon of others; ours came or went with the session's word."""
    if old.unschedulable == new.unschedulable:
        return onto
    before = was is not None and was.added.cordoned
    after = now is not None and now.added.cordoned
    by_us = (after and not before) if new.unschedulable else (before and not after)
    return onto if by_us else new.unschedulable


def _taints(
    old: Node, new: Node, by_us: frozenset[_Slot], onto: tuple[Taint, ...]
) -> tuple[Taint, ...]:
    """Take over what others added, took away, or gave another value; there is one of a place."""
    before = {_slot(one): one for one in old.taints}
    after = {_slot(one): one for one in new.taints}
    came = [
        taint
        for slot, taint in after.items()
        if slot not in before and slot not in by_us and taint.key != SERVER_TAINT
    ]
    gone = {_place(one) for slot, one in before.items() if slot not in after and slot not in by_us}
    gone |= {_place(one) for one in came}
    return (*(one for one in onto if _place(one) not in gone), *came)


def _put_back(texts: Mapping[str, str], marks: Iterable[Mark]) -> dict[str, str]:
    """Return texts as they were before our marks; one that somebody changed stays."""
    found = dict(texts)
    for mark in marks:
        if found.get(mark.key) != mark.value:
            continue
        if mark.old is None:
            del found[mark.key]
        else:
            found[mark.key] = mark.old
    return found


def _texts(
    old: Mapping[str, str], new: Mapping[str, str], onto: Mapping[str, str], skip: frozenset[str]
) -> dict[str, str]:
    """Apply the changes of others; a request of a person is taken over, its answer is not."""
    merged = dict(onto)
    for key in {*old, *new} - skip:
        if old.get(key) == new.get(key):
            continue
        if key in new:
            merged[key] = new[key]
        elif key != REQUEST_ANNOTATION:
            merged.pop(key, None)
    return merged


def _session(node: Node) -> Session | None:
    text = node.annotations.get(SESSION_ANNOTATION)
    if text is None:
        return None
    try:
        return decode_session(text, node_uid=node.uid)
    except AnnotationError:
        return None


def _slot(taint: Any) -> _Slot:
    return taint.key, taint.effect, taint.value


def _place(taint: Any) -> tuple[str, str]:
    return taint.key, taint.effect


def _taints_of(session: Session | None) -> frozenset[_Slot]:
    added = () if session is None else session.added.taints
    return frozenset(_slot(one) for one in added)


def _marks_of(session: Session | None) -> frozenset[str]:
    """Return the keys of labels and annotations that a session has set."""
    if session is None:
        return frozenset()
    return frozenset(one.key for one in (*session.added.labels, *session.added.annotations))
