"""What the annotations of a node say, and its label of the mode.

What cannot be read is never guessed: a session becomes :class:`Malformed` (the node
is frozen), a mode we do not know is read as ``disabled``, and a history we cannot
read, which may hold what people took over, permits no new session.
"""

from __future__ import annotations

from typing import Any, Final

from node_agent.contract import (
    FAULTS_ANNOTATION,
    VERSION,
    ContractError,
    FaultReport,
    decode_report,
)
from remediator.decide.facts import Malformed, NodeMode
from remediator.decide.requests import (
    APPROVAL_ANNOTATION,
    REQUEST_ANNOTATION,
    Approval,
    decode_approvals,
    decode_request,
)
from remediator.decide.session import (
    HISTORY_ANNOTATION,
    MODE_KEY,
    SESSION_ANNOTATION,
    AnnotationError,
    History,
    Session,
    decode_history,
    decode_session,
)
from remediator.kube.objects import Node


_CAREFUL: Final = {
    mode: rank
    for rank, mode in enumerate(
        (NodeMode.FULL, NodeMode.DRY_RUN, NodeMode.NOTIFY_ONLY, NodeMode.DISABLED)
    )
}
_SMALL: Final = (MODE_KEY, HISTORY_ANNOTATION, REQUEST_ANNOTATION, APPROVAL_ANNOTATION)


def read_annotations(
    node: Node, old: Node | None, problem: str, now: float
) -> tuple[dict[str, Any], str]:
    """Return the facts that our annotations changed, and which of them could not be read.

    An unchanged text is not read again: it keeps the object that was read from it. What
    is from a later time than now was written by another clock, and counts as of now.
    """
    texts, before = node.annotations, {} if old is None else old.annotations

    def changed(key: str) -> bool:
        return old is None or texts.get(key) != before.get(key)

    facts: dict[str, Any] = {"annotations": texts}
    if changed(FAULTS_ANNOTATION):
        facts |= _faults(texts.get(FAULTS_ANNOTATION))
    if changed(SESSION_ANNOTATION):
        text = texts.get(SESSION_ANNOTATION)
        facts["session"] = None if text is None else _session(text, node.uid, now)
    mode_label = None if old is None else old.labels.get(MODE_KEY)
    if any(map(changed, _SMALL)) or node.labels.get(MODE_KEY) != mode_label:
        small, problem = _small(node, now)
        facts |= small
    return facts, problem


def _faults(text: str | None) -> dict[str, Any]:
    report, note = FaultReport(version=VERSION), ""
    if text is not None:
        try:
            report = decode_report(text)
        except ContractError as error:
            note = str(error)
    return {
        "faults": report.faults,
        "faults_boot_id": report.boot_id,
        "faults_note": note,
        "faults_truncated": report.truncated is not None and report.truncated.warning > 0,
        "info_truncated": report.truncated is not None and report.truncated.info > 0,
        "past": report.past,
        "past_truncated": report.truncated is not None and report.truncated.past > 0,
    }


def _session(text: str, uid: str, now: float) -> Session | Malformed:
    try:
        return decode_session(text, node_uid=uid).not_after(now)
    except AnnotationError as error:
        return Malformed(str(error))


def _small(node: Node, now: float) -> tuple[dict[str, Any], str]:
    """Read mode, history and request: seldom there, and the history has a say in the mode.

    An unreadable history may hold waivers: it permits no new session, while recovery goes on.
    """
    problems = []
    history, request = History(), None
    mode, note = _mode(node)
    try:
        if (text := node.annotations.get(HISTORY_ANNOTATION)) is not None:
            history = decode_history(text, node_uid=node.uid).not_after(now)
    except AnnotationError as error:
        problems.append(str(error))
        if _CAREFUL[mode] < _CAREFUL[NodeMode.NOTIFY_ONLY]:
            mode, note = NodeMode.NOTIFY_ONLY, f"read as {NodeMode.NOTIFY_ONLY}: {error}"
    try:
        if (text := node.annotations.get(REQUEST_ANNOTATION)) is not None:
            request = decode_request(text)
    except AnnotationError as error:
        problems.append(str(error))
    approvals: tuple[Approval, ...] = ()
    try:
        if (text := node.annotations.get(APPROVAL_ANNOTATION)) is not None:
            approvals = decode_approvals(text)
    except AnnotationError as error:
        problems.append(str(error))
    facts = {
        "mode": mode,
        "mode_note": note,
        "history": history,
        "request": request,
        "approvals": approvals,
    }
    return facts, "; ".join(problems)


def _mode(node: Node) -> tuple[NodeMode, str]:
    """Return the stricter of annotation and label; a value that we do not know is an opt-out."""
    mode, note = NodeMode.FULL, ""
    for kind, values in (("annotation", node.annotations), ("label", node.labels)):
        text = values.get(MODE_KEY)
        if text is None:
            continue
        try:
            found, why = NodeMode(text), ""
        except ValueError:
            found = NodeMode.DISABLED
            known = ", ".join(one.value for one in NodeMode if one.value)
            why = f"{kind} {MODE_KEY} is {text!r}, read as disabled: use one of {known}"
        if _CAREFUL[found] > _CAREFUL[mode]:
            mode, note = found, why
    return mode, note
