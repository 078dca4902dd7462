"""What is read without a complaint, readers of YAML 1.1 and 1.2 read alike."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from remediator.policy.problems import PolicyError
from remediator.policy.yaml import read_documents
from tests.property.cases import cases


def accepted(text: str) -> Any:
    """Return what we read of a document that has nothing wrong in it, else None."""
    try:
        (document,) = read_documents(text, file="policy.yaml")
    except (PolicyError, ValueError):
        return None
    return None if document.problems else document.data


def read(text: str, head: str = "") -> Any:
    """Return what another reader makes of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return YAML(typ="safe", pure=True).load(head + text)


@given(scalar=st.text("0123456789.._:eExXob+-~nulTrueFasyYNOIiA", min_size=1, max_size=8))
@example(scalar="-0x1F")
@example(scalar="0xffffffffffffffff")
@example(scalar="1_0.5")
@example(scalar="1.0_5")
@example(scalar="5_98e31")
@example(scalar="6_.")
@settings(max_examples=cases(300), deadline=None)
def test_plain_scalars_that_are_accepted_mean_the_same_to_everybody(scalar: str) -> None:
    text = f"key: {scalar}\n"
    ours = accepted(text)
    if ours is None:
        return
    for head in ("", "%YAML 1.1\n---\n"):
        try:
            theirs = read(text, head)
        except (YAMLError, ValueError, LookupError):  # refused there
            continue
        assert (repr(theirs), theirs) == (repr(ours), ours), head


@pytest.mark.parametrize("scalar", ["x_1", "a_b", "_", "1.2.3_4", "v1_0", "0xg_", "1_0m", "-x"])
def test_names_with_an_underscore_are_text(scalar: str) -> None:
    assert accepted(f"key: {scalar}\n") == {"key": scalar}
