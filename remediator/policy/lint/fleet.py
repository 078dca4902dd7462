"""Rules about several policies, and about the mode that the cluster's settings allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from remediator.policy.cluster import ClusterSpec
from remediator.policy.keys import closest
from remediator.policy.lint.names import channels_of
from remediator.policy.lint.rule import Context, Hit, Rule, Severity, entries
from remediator.policy.lint.shadow import shadows
from remediator.policy.model import Mode, RemediationPolicy
from remediator.policy.steps import Step
from remediator.policy.templates import ReadTemplate
from remediator.policy.when import AttemptsClause


def _shadowed(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    if any(policy.name in _counted(one) for one in context.policies):
        return  # another one takes over where this one's help does not last
    for other in context.policies:
        if other is not policy and shadows(other, policy):
            if shadows(policy, other) and policy.name < other.name:
                continue  # the same twice: one of them is told
            yield Hit(
                ("spec", "when"),
                f"{other.name} matches all that it matches, does the same to the node, and tells "
                "the same channels",
                "remove it if its second message is not meant; if it was meant as an exception, "
                f"take its faults out of {other.name}",
            )
            return


def _counted(policy: RemediationPolicy) -> Iterator[str]:
    """Yield the policies whose attempts a policy counts by name."""
    for _, entry in entries(policy):
        yield from entry.attempts.policies if entry.attempts is not None else ()


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
                f"did you mean {meant}?" if meant else _step_fix(entry.attempts),
            )


def _step_fix(clause: AttemptsClause) -> str:
    if clause.policies:
        return "write a step that one of them has"
    return "write a step that a policy has, and check the files of all policies together"


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


def _only_log_config(cluster: ClusterSpec, _files: Mapping[str, ReadTemplate]) -> Iterator[Hit]:
    if cluster.mode is Mode.ENFORCE and set(cluster.alerts_to) <= {"log"}:
        yield Hit(
            ("spec", "alertsTo"),
            "it enforces, and of an open breaker, a frozen node or a hold only its own log is told",
            "name a channel that people read",
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
        "Another policy matches all that it matches, does the same, and tells the same channels.",
        "It adds a second message and nothing else; mostly it was meant to be an exception, which "
        "policies are not: all that match are done.",
        "Remove it if the message is not meant, or take its faults out of the other one.",
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
        _only_log_config,
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
