"""Rules about several policies, and about the mode that the cluster's settings allow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from remediator.policy.lint.names import channels_of
from remediator.policy.lint.rule import Context, Hit, Rule, Severity
from remediator.policy.model import Mode, RemediationPolicy
from remediator.policy.when import ConditionClause, When


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
