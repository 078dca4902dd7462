"""Rules about steps: what can never run, runs for nothing, or in a harmful order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from remediator.policy.cluster import ClusterSpec
from remediator.policy.lint.rule import Context, Hit, Rule, Severity
from remediator.policy.model import Mode, RecoverWhen, RemediationPolicy
from remediator.policy.quantities import format_duration
from remediator.policy.selector import selector_matches
from remediator.policy.steps import JobSuccess, NodeConditionWait, OnFailure, Step
from remediator.policy.when import FILTERS


_WORDS: Final = re.compile(r"\{\{.*?\}\}|\{[A-Za-z_.]+\}")
_RESETS: Final = frozenset(("job", "create", "webhook"))


def _unreachable(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    for index, step in enumerate(policy.spec.steps[:-1]):
        awaited = step.after_failure is not OnFailure.CONTINUE
        timed = step.wait is not None and step.wait.for_ is not None  # has no deadline
        if awaited and not timed and not step.changes_node and step.limit <= 0:
            then = "escalates" if step.after_failure is OnFailure.ESCALATE else "stops"
            yield Hit(
                ("spec", "steps", index + 1),
                f"it can never run: {step.action} before it has no time, fails and {then}",
                "give that step a timeout, or onFailure: continue",
            )
            return


def _waits_for_own_end(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    """No step is begun while the fault is clear: recovery has the word then."""
    steps = policy.spec.steps
    for index, step in enumerate(steps[:-1]):
        wanted = step.wait.condition if step.wait is not None else None
        given_up = step.after_failure is not OnFailure.CONTINUE
        if wanted is None or not given_up or not _proves_clear(wanted, policy):
            continue
        yield Hit(
            ("spec", "steps", index + 1),
            f"it can never run: once {wanted.type} is {wanted.status} the fault is clear, and "
            "recovery takes over",
            f"remove the wait, and say by recover what follows; or, if {steps[index + 1].action} "
            "is for a fault that stays, onFailure: continue",
        )
        return


def _proves_clear(wanted: NodeConditionWait, policy: RemediationPolicy) -> bool:
    """Tell whether a condition says of every fault that the policy names that it is over."""
    if policy.asked is not None:
        return wanted.status == "False" and policy.asked.spoken_by == {wanted.type}
    opposite = {"True": "False", "False": "True"}
    named = {
        (entry.condition.type, opposite.get(entry.condition.status))
        if entry.condition is not None
        else ("", None)
        for entry in policy.spec.when
    }
    alone = all(
        key in {"condition", *FILTERS} for entry in policy.spec.when for key, _ in entry.given
    )
    return alone and named == {(wanted.type, wanted.status)}


def _repeated(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    seen: dict[tuple[str, str], int] = {}
    for index, step in enumerate(policy.spec.steps):
        slot = _slot(step)
        if slot is None:
            continue
        if slot in seen:
            yield Hit(
                ("spec", "steps", index),
                f"it does nothing: step {seen[slot] + 1} has done it already",
                "remove one of them",
            )
        seen.setdefault(slot, index)
        if step.action in {"uncordon", "untaint"}:
            seen.clear()  # what follows may do it again


def _slot(step: Step) -> tuple[str, str] | None:
    """Name what a step changes, so that a second such step changes nothing."""
    if step.cordon is not None:
        return "cordon", ""
    if step.taint is not None:
        return "taint", f"{step.taint.key}:{step.taint.effect}"
    return None


def _slot_back(step: Step) -> tuple[str, str] | None:
    """Name what a step takes back, as `_slot` does."""
    if step.uncordon is not None:
        return "cordon", ""
    if step.untaint is not None:
        return "taint", f"{step.untaint.key}:{step.untaint.effect}"
    return None


def _nothing_to_take_back(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    done: dict[tuple[str, str], str] = {}
    for index, step in enumerate(policy.spec.steps):
        slot, back = _slot(step), _slot_back(step)
        if slot is not None:
            done[slot] = f"{step.action} {slot[1]}".rstrip()
        if back is not None and back not in done:
            open_ = ", ".join(done.values())
            what = f"taint {back[1]}" if back[1] else "cordon"
            yield Hit(
                ("spec", "steps", index),
                f"it takes nothing back: no step before it adds the {what}"
                + (f"; done was: {open_}" if open_ else ""),
                _back_of(next(iter(done))) if len(done) == 1 else "leave it to recover: remove it",
            )
        elif back is not None:
            del done[back]


def _back_of(slot: tuple[str, str]) -> str:
    if slot[0] == "cordon":
        return "write `- uncordon: {}`"
    key, _, effect = slot[1].rpartition(":")
    return f"write `- untaint: {{key: {key}, effect: {effect}}}`"


def _unfilled(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    for index, step in enumerate(policy.spec.steps):
        for key in ("notify", "approve", "event"):
            said = getattr(getattr(step, key), "message", "")
            word = _WORDS.search(said)
            if word is not None:
                yield Hit(
                    ("spec", "steps", index, key, "message"),
                    f"{word.group()} goes out as it stands: nothing is filled into it",
                    "leave it out: each message names node, fault and policy; own words for all of "
                    "them are `template` of the channel",
                )


def _doors(policy: RemediationPolicy) -> Iterator[tuple[int, Step, bool]]:
    """Yield the steps, and whether the policy keeps new pods away when each begins."""
    shut: set[tuple[str, str]] = set()
    for index, step in enumerate(policy.spec.steps):
        yield index, step, bool(shut)
        slot, back = _slot(step), _slot_back(step)
        if slot is not None and step.disruptive:
            shut.add(slot)
        if back is not None:
            shut.discard(back)


def _drain_without_cordon(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    for index, step, closed in _doors(policy):
        if step.action == "drain" and not closed:
            yield Hit(
                ("spec", "steps", index),
                "the node still takes new pods while it is drained",
                "put `- cordon: {}` before it",
            )


def _work_without_drain(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    emptied, was, all_left = False, False, False
    for index, step, closed in _doors(policy):
        drains = step.drain is not None
        emptied = (emptied and closed) or drains
        was = was or emptied
        all_left = (all_left and closed) or (
            step.drain is not None and not step.drain.gpu_pods_only
        )
        if step.job is not None and not emptied:
            yield Hit(
                ("spec", "steps", index, "job"),
                "the node takes pods again when the Job runs"
                if was
                else "pods are still on the node when the Job runs",
                "put a drain before it; say lint-ignore if the Job only looks (diagnostics)",
            )
        elif step.job is not None and step.job.success is JobSuccess.REBOOT and not all_left:
            yield Hit(
                ("spec", "steps", index, "job"),
                "pods without a GPU are still on the node when it reboots: gpuPodsOnly left them",
                "put `- drain: {}` before it",
            )


def _silent(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    spec = policy.spec
    tells = any(step.notify is not None or step.approve is not None for step in spec.steps)
    if spec.mode is Mode.ENFORCE and not tells:
        yield Hit(
            ("spec", "steps"),
            "it enforces, and tells nobody what it does",
            "add `- notify: {to: [...]}`",
        )


def _late_notify(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    steps = policy.spec.steps
    first = next((at for at, step in enumerate(steps) if step.notify is not None), None)
    if first is None:
        return
    before = next((step for step in steps[:first] if step.works or step.wait is not None), None)
    if before is not None:
        yield Hit(
            ("spec", "steps", first),
            f"people hear of it only after {before.action}, which may take "
            f"{format_duration(before.limit)} or fail",
            "put a notify before it, too",
        )


def _kept_forever(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    spec = policy.spec
    taken = {slot for step in spec.steps if step.disruptive and (slot := _slot(step))}
    back = {slot for step in spec.steps if (slot := _slot_back(step))}
    if spec.recover.when is RecoverWhen.NEVER and taken - back:
        yield Hit(
            ("spec", "recover", "when"),
            "the node stays out of service for good, and leaves the budget to nobody",
            "write `manual`: people end it; `cleared`: it ends by itself",
        )


def _leaves_gpu_nodes(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    ours = (context.cluster or ClusterSpec()).gpu_nodes
    steps = policy.spec.steps
    for index, step in enumerate(steps):
        new = step.label.set if step.label is not None else {}
        asked = ours.model_copy(
            update={
                "match_labels": {key: one for key, one in ours.match_labels.items() if key in new},
                "match_expressions": [one for one in ours.match_expressions if one.key in new],
            }
        )
        held = next((one for one in steps[index + 1 :] if one.disruptive or one.works), None)
        if held is not None and not selector_matches(asked, new):
            yield Hit(
                ("spec", "steps", index, "label"),
                f"after it the node is none of gpuNodes, and {held.action} is held for good",
                "set another label, or put it last",
            )
            return


RULES: Final = (
    Rule(
        "takes-nothing-back",
        Severity.WARNING,
        "An `uncordon` or `untaint` of what no step before it added.",
        "It takes away what the session added, and nothing else: the node stays as it is.",
        "Name what was added, or leave it to `recover`.",
        _nothing_to_take_back,
    ),
    Rule(
        "unfilled-word",
        Severity.WARNING,
        "A word in braces in the message of a step.",
        "Steps' messages are no templates: people read `{node}`.",
        "Leave it out; a message names the node by itself.",
        _unfilled,
    ),
    Rule(
        "leaves-gpu-nodes",
        Severity.ERROR,
        "A label step after which the node is none of `gpuNodes`, with steps behind it.",
        "On a node that is not ours to look at, no step that takes capacity begins.",
        "Set another label, or put the step last.",
        _leaves_gpu_nodes,
    ),
    Rule(
        "unreachable-step",
        Severity.ERROR,
        "A step that can never run, since one before it always fails.",
        "The policy promises what it cannot do.",
        "Give the step before it time, or let its failure pass.",
        _unreachable,
    ),
    Rule(
        "waits-for-own-end",
        Severity.WARNING,
        "A wait for the end of the policy's own fault, with steps behind it.",
        "When the fault is clear no further step begins: then `recover` has the word.",
        "Leave it to `recover`, or let the wait's failure pass.",
        _waits_for_own_end,
    ),
    Rule(
        "repeated-step",
        Severity.WARNING,
        "A second cordon, or a second taint of the same key and effect.",
        "It changes nothing; another one was probably meant.",
        "Remove it.",
        _repeated,
    ),
    Rule(
        "drain-without-cordon",
        Severity.ERROR,
        "A drain of a node that still takes new pods.",
        "The scheduler fills it again while it is emptied: it never ends.",
        "Put a cordon, or a taint NoSchedule, before it.",
        _drain_without_cordon,
    ),
    Rule(
        "job-without-drain",
        Severity.WARNING,
        "A Job on a node that was not drained; a reboot behind a drain of GPU pods alone.",
        "A reset or a reboot takes running pods down without asking their budgets.",
        "Put a drain before it.",
        _work_without_drain,
    ),
    Rule(
        "enforce-without-notify",
        Severity.WARNING,
        "`mode: Enforce`, and no step that tells people.",
        "A node that goes out of service unseen is found weeks later.",
        "Add a notify step.",
        _silent,
    ),
    Rule(
        "late-notify",
        Severity.WARNING,
        "The first message comes after a step that may take long or fail.",
        "When it fails or hangs, nobody has heard of the fault.",
        "Tell people first, too.",
        _late_notify,
    ),
    Rule(
        "kept-for-good",
        Severity.WARNING,
        "`recover.when: never` with a step that takes capacity.",
        "Nothing, not even the end of the session, brings the node back.",
        "Use `manual` or `cleared`.",
        _kept_forever,
    ),
)
