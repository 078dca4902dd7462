"""Rules about `nodes`: selectors that no node can have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from remediator.policy.base import LabelSelector
from remediator.policy.lint.rule import Context, Hit, Rule, Severity
from remediator.policy.model import RemediationPolicy


class _Wanted(NamedTuple):
    """One requirement on a label: of these values, of others, there at all, or not there."""

    key: str
    operator: str
    values: frozenset[str]


def _no_node(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    own = policy.spec.nodes.selector
    ours = context.cluster.gpu_nodes if context.cluster is not None else LabelSelector()
    key = contradiction(own)
    if key:
        yield Hit(
            ("spec", "nodes", "selector"),
            f"no node can be so: its requirements on {key} exclude each other",
            "write several values as matchExpressions: [{key: ..., operator: In, values: [a, b]}]",
        )
        return
    key = contradiction(own, ours)
    if key and not contradiction(ours):
        yield Hit(
            ("spec", "nodes", "selector"),
            f"it selects nodes that are none of gpuNodes: by {key} the two exclude each other",
            f"leave {key} out; RemediatorConfig's gpuNodes holds for every policy",
        )


def contradiction(*selectors: LabelSelector) -> str:
    """Return the label by which no node can have all of these selectors; "" if there is none."""
    by_key: dict[str, list[_Wanted]] = defaultdict(list)
    for selector in selectors:
        for one in _requirements(selector):
            by_key[one.key].append(one)
    return next((key for key, wanted in by_key.items() if not _possible(wanted)), "")


def _requirements(selector: LabelSelector) -> Iterator[_Wanted]:
    for key, value in selector.match_labels.items():
        yield _Wanted(key, "In", frozenset({value}))
    for one in selector.match_expressions:
        yield _Wanted(one.key, one.operator, frozenset(one.values))


def _possible(wanted: Iterable[_Wanted]) -> bool:
    """Tell whether some label, or its absence, meets all of these; as Kubernetes reads them."""
    by = {one: [each.values for each in wanted if each.operator == one] for one in _OPERATORS}
    if by["DoesNotExist"]:
        return not by["In"] and not by["Exists"]
    if not by["In"]:
        return True  # any other value does
    return bool(frozenset.intersection(*by["In"]).difference(*by["NotIn"]))


_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")

RULES: Final = (
    Rule(
        "no-node",
        Severity.ERROR,
        "A selector of `nodes` that no node can have, or, with `--config`, none of `gpuNodes`.",
        "All of a selector must hold: two values of one label exclude each other.",
        "Write several values as one `In`.",
        _no_node,
    ),
)
