"""Rules about several policies, and about the mode that the cluster's settings allow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from remediator.policy.explain import closest
from remediator.policy.lint.names import channels_of
from remediator.policy.lint.rule import Context, Hit, Rule, Severity, entries
from remediator.policy.model import Mode, RemediationPolicy
from remediator.policy.steps import Step
from remediator.policy.when import AttemptsClause, ConditionClause, When


_RANK: Final = {Mode.DISABLED: 0, Mode.DRY_RUN: 1, Mode.ENFORCE: 2}


def _shadowed(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    for other in context.policies:
        if other is not policy and shadows(other, policy):
            if shadows(policy, other) and policy.name < other.name:
                continue  # the same twice: one of them is told
            yield Hit(
                ("spec", "when"),
                f"{other.name} matches all that it matches, and does all that it does to the node",
                f"remove it, or narrow {other.name}",
            )
            return


def shadows(wide: RemediationPolicy, narrow: RemediationPolicy) -> bool:
    """Tell whether one policy does for the same faults all that another does to a node."""
    spec, inner = wide.spec, narrow.spec
    same_nodes = spec.nodes == inner.nodes or (
        not spec.nodes.selector.match_labels
        and not spec.nodes.selector.match_expressions
        and (spec.nodes.control_plane or not inner.nodes.control_plane)
    )
    does = {step.action for step in spec.steps}
    wants = {step.action for step in inner.steps}
    return (
        same_nodes
        and _RANK[spec.mode] >= _RANK[inner.mode]
        and spec.unless == inner.unless
        and spec.windows == inner.windows
        and does >= wants
        and all(any(covers(one, entry) for one in spec.when) for entry in inner.when)
    )


def covers(wide: When, narrow: When) -> bool:
    """Tell whether an entry holds whenever another one does. No: perhaps not."""
    if wide == narrow:
        return True
    given = [key for key in type(wide).model_fields if getattr(wide, key) is not None]
    if len(given) != 1:
        return False
    key = given[0]
    inner = getattr(narrow, key)
    if inner is None:
        return False
    outer = getattr(wide, key)
    if key in {"xid", "sxid"}:
        return set(outer.codes) >= set(inner.codes)
    if isinstance(outer, ConditionClause) and isinstance(inner, ConditionClause):
        reasons = not outer.reasons or (
            bool(inner.reasons) and set(outer.reasons) >= set(inner.reasons)
        )
        same = (outer.type, outer.status) == (inner.type, inner.status)
        return same and reasons and outer.for_ <= inner.for_
    return bool(outer == inner)


def _strangers(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    known = [one.name for one in context.policies]
    for at, entry in entries(policy):
        named = entry.attempts.policies if entry.attempts is not None else ()
        for index, name in enumerate(named):
            if name not in known:
                meant = closest(name, known)
                yield Hit(
                    (*at, "attempts", "policies", index),
                    f"no policy {name} is among those that are checked",
                    f"did you mean {meant}?" if meant else "check its file, too, or leave it out",
                )


def _never_done(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    for at, entry in entries(policy):
        if entry.attempts is None:
            continue
        done = _done_by(entry.attempts, context)
        for index, step in enumerate(entry.attempts.steps):
            if done is None or any(one == step or one.startswith(f"{step}/") for one in done):
                continue
            who = "none of these policies" if entry.attempts.policies else "no policy"
            meant = closest(step, sorted(done)) if "/" in step else ""
            yield Hit(
                (*at, "attempts", "steps", index),
                f"{who} has a step {step}: it is never counted",
                f"did you mean {meant}?" if meant else "write a step that one of them has",
            )


def _done_by(clause: AttemptsClause, context: Context) -> set[str] | None:
    """Return the steps that ``attempts`` can count, in its words; None: one policy is not known."""
    known = {one.name: one for one in context.policies}
    if not known.keys() >= set(clause.policies):
        return None
    counted = [known[name] for name in clause.policies] or context.policies
    steps = [step for one in counted for step in one.spec.steps]
    return {_words_of(step) for step in steps if step.disruptive or step.works}


def _words_of(step: Step) -> str:
    made = step.job or step.create
    name = made.template if made is not None else step.webhook.to if step.webhook else ""
    return f"{step.action}/{name}" if name else step.action


def _only_log(policy: RemediationPolicy, _context: Context) -> Iterator[Hit]:
    named = {name for _, name in channels_of(policy)}
    if policy.spec.mode is Mode.ENFORCE and named == {"log"}:
        yield Hit(
            ("spec", "steps"),
            "it enforces, and tells only the controller's own log",
            "name a channel of RemediatorConfig that people read",
        )


def _capped(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    cluster = context.cluster
    if cluster is None or policy.spec.mode is not Mode.ENFORCE or cluster.mode is Mode.ENFORCE:
        return
    yield Hit(
        ("spec", "mode"),
        f"RemediatorConfig says mode: {cluster.mode}, and the strictest holds",
        "write mode: Enforce there, too, once dry-run has shown what you want to see",
    )


RULES: Final = (
    Rule(
        "shadowed-policy",
        Severity.WARNING,
        "Another policy matches all that it matches, and does all that it does to the node.",
        "It adds a second message and nothing else; mostly it was meant to be an exception, which "
        "policies are not: all that match are done.",
        "Remove it, or take its codes out of the other one.",
        _shadowed,
    ),
    Rule(
        "unknown-policy",
        Severity.WARNING,
        "`attempts.policies` names a policy that is not among those that are checked together.",
        "What nobody does is never counted: the second line of help never comes.",
        "Write the name as its policy has it, and check all files together.",
        _strangers,
    ),
    Rule(
        "uncounted-step",
        Severity.WARNING,
        "`attempts.steps` names a step that none of the counted policies has.",
        "What nobody does is never counted: the second line of help never comes.",
        "Write the step as the policy has it: `job/NAME`, with the template's name.",
        _never_done,
    ),
    Rule(
        "only-log",
        Severity.WARNING,
        "`mode: Enforce`, and messages go to the controller's log only.",
        "Nobody reads it in time.",
        "Name a channel that people read.",
        _only_log,
    ),
    Rule(
        "capped-mode",
        Severity.WARNING,
        "`mode: Enforce` under a RemediatorConfig that allows less. Asked only with `--config`.",
        "Its author believes that it acts.",
        "Change both, or neither.",
        _capped,
    ),
)
