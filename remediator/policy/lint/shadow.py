"""Whether one policy makes another one needless: it does the same, for the same faults and nodes.

Where it cannot be told the answer is no. The advice that follows a yes is to remove a policy,
so a yes must be true of all that it decides: steps with their contents, their order and their
deadlines, who is told, limits, windows, and the way back.
"""

from __future__ import annotations

from typing import Final

from node_agent.contract import Severity
from remediator.policy.codes import CodesClause
from remediator.policy.model import Mode, RemediationPolicy, Spec
from remediator.policy.steps import OnFailure, Step
from remediator.policy.when import ConditionClause, When


_RANK: Final = {Mode.DISABLED: 0, Mode.DRY_RUN: 1, Mode.ENFORCE: 2}
_BADNESS: Final = {Severity.INFO: 0, Severity.WARNING: 1, Severity.FATAL: 2}


def shadows(wide: RemediationPolicy, narrow: RemediationPolicy) -> bool:
    """Tell whether a policy does, whenever another one would, all that the other one does."""
    spec, inner = wide.spec, narrow.spec
    return (
        _same_nodes(spec, inner)
        and _RANK[spec.mode] >= _RANK[inner.mode]
        and (spec.emergency or not inner.emergency)
        and (spec.unless, spec.windows, spec.limits) == (inner.unless, inner.windows, inner.limits)
        and _same_way_back(spec, inner)
        and _does_all(spec.steps, inner.steps)
        and _tells(spec) >= _tells(inner)
        and all(any(covers(one, entry) for one in spec.when) for entry in inner.when)
    )


def _same_nodes(wide: Spec, narrow: Spec) -> bool:
    anywhere = not wide.nodes.selector.match_labels and not wide.nodes.selector.match_expressions
    control_plane = wide.nodes.control_plane or not narrow.nodes.control_plane
    return wide.nodes == narrow.nodes or (anywhere and control_plane)


def _same_way_back(wide: Spec, narrow: Spec) -> bool:
    return (wide.recover.when, wide.recover.for_) == (narrow.recover.when, narrow.recover.for_)


def _does_all(wide: tuple[Step, ...], narrow: tuple[Step, ...]) -> bool:
    """Tell whether the wide policy begins with what the narrow one does: nothing holds it before.

    A step between them could fail, or wait for a person, where the narrow one goes on.
    """
    theirs = [step for step in wide if not _only_tells(step)]
    ours = [step for step in narrow if not _only_tells(step)]
    return theirs[: len(ours)] == ours


def _only_tells(step: Step) -> bool:
    return step.tells and step.after_failure is OnFailure.CONTINUE


def _tells(spec: Spec) -> set[tuple[str, str]]:
    """Return who is told by a policy, whatever the words: channels, and reasons of Events."""
    told = {("event", step.event.reason) for step in spec.steps if step.event is not None}
    notified = {("notify", name) for step in spec.steps if step.notify for name in step.notify.to}
    well = {("recovery", name) for name in spec.recover.notify}
    return told | notified | (well or {("recovery", name) for _, name in notified})


def covers(wide: When, narrow: When) -> bool:
    """Tell whether an entry holds whenever another one does. No: perhaps not."""
    if wide == narrow:
        return True
    if len(wide.given) != 1:
        return False
    key, outer = wide.given[0]
    inner = getattr(narrow, key)
    if inner is None:
        return False
    if isinstance(outer, CodesClause):
        return _covers_codes(outer, inner)
    if isinstance(outer, ConditionClause):
        return _covers_condition(outer, inner)
    return bool(outer == inner)


def _covers_codes(wide: CodesClause, narrow: CodesClause) -> bool:
    """How bad the agent takes a code for that is asked for by name is not known here."""
    if wide.min_severity is None and narrow.min_severity is None:
        return set(wide.codes or ()) >= set(narrow.codes or ())
    if wide.min_severity is None or narrow.min_severity is None:
        return False
    as_bad = _BADNESS[wide.min_severity] <= _BADNESS[narrow.min_severity]
    return as_bad and set(wide.except_) <= set(narrow.except_)


def _covers_condition(wide: ConditionClause, narrow: ConditionClause) -> bool:
    same = (wide.type, wide.status, wide.severity) == (narrow.type, narrow.status, narrow.severity)
    any_reason = not wide.reasons
    reasons = any_reason or (bool(narrow.reasons) and set(wide.reasons) >= set(narrow.reasons))
    sooner = not wide.for_ or (wide.for_ <= narrow.for_ and wide.clear_for >= narrow.clear_for)
    return same and reasons and sooner
