"""Selectors that no node can have."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediator.policy.base import LabelSelector
from remediator.policy.lint.nodes import contradiction
from remediator.policy.selector import selector_matches


def selector(labels: dict[str, str], *more: tuple[str, str, list[str]]) -> LabelSelector:
    expressions: list[dict[str, Any]] = [
        {"key": key, "operator": operator, "values": values} for key, operator, values in more
    ]
    return LabelSelector.model_validate({"matchLabels": labels, "matchExpressions": expressions})


@pytest.mark.parametrize(
    ("one", "key"),
    [
        (selector({}), ""),
        (selector({"a": "x", "b": "y"}), ""),
        (selector({"a": "x"}, ("a", "NotIn", ["x"])), "a"),
        (selector({"a": "x"}, ("a", "In", ["x", "y"])), ""),
        (selector({"a": "x"}, ("a", "DoesNotExist", [])), "a"),
        (selector({}, ("a", "NotIn", ["x"]), ("a", "DoesNotExist", [])), ""),
    ],
)
def test_what_excludes_itself(one: LabelSelector, key: str) -> None:
    assert contradiction(one) == key


def test_what_two_selectors_exclude_together() -> None:
    gpus = selector({"gpu": "true"})
    assert contradiction(gpus, selector({"gpu": "false"})) == "gpu"
    assert contradiction(gpus, selector({"pool": "a"})) == ""


VALUES = ["x", "y", "z"]
requirements = st.tuples(
    st.sampled_from(["a", "b"]),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    st.lists(st.sampled_from(VALUES), min_size=1, max_size=3, unique=True),
).map(lambda one: (one[0], one[1], one[2] if one[1] in {"In", "NotIn"} else []))


@given(st.lists(requirements, max_size=5))
def test_it_is_told_if_and_only_if_no_labels_fit(wanted: list[tuple[str, str, list[str]]]) -> None:
    """All labels that matter: each key with any value named, another one, or not there."""
    one = selector({}, *wanted)
    labels = [
        {key: value for key, value in (("a", a), ("b", b)) if value is not None}
        for a in (*VALUES, "other", None)
        for b in (*VALUES, "other", None)
    ]
    assert bool(contradiction(one)) is not any(selector_matches(one, each) for each in labels)
