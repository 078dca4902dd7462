"""`deploy/crds/` says what the models say. `UPDATE_DOCS=1` writes it anew."""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from remediator.policy.structural import RULES
from remediator.record.crds import policy_crd, remediation_crd


CRDS = Path(__file__).parents[3] / "deploy" / "crds"
HEAD = """\
# Made from the models: UPDATE_DOCS=1 pytest tests/unit/record/test_crds.py
# yamllint disable rule:line-length
"""


def text_of(crd: dict[str, Any]) -> str:
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 100
    stream = io.StringIO()
    yaml.dump(crd, stream)
    lines = (line.rstrip() for line in stream.getvalue().splitlines())  # where it was folded
    return HEAD + "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("file", "crd"),
    [("remediationpolicies.yaml", policy_crd), ("remediations.yaml", remediation_crd)],
)
def test_the_manifests_are_current(file: str, crd: Callable[[], dict[str, Any]]) -> None:
    text = text_of(crd())
    if os.environ.get("UPDATE_DOCS"):
        (CRDS / file).write_text(text)

    assert (CRDS / file).read_text() == text, f"{file} is old: run UPDATE_DOCS=1 pytest {__file__}"


def schemas(value: Any) -> list[dict[str, Any]]:
    """Every object within a schema that has a type."""
    found = []
    if isinstance(value, dict):
        found += [value] if isinstance(value.get("type"), str) else []
        found += [one for inner in value.values() for one in schemas(inner)]
    elif isinstance(value, list):
        found += [one for inner in value for one in schemas(inner)]
    return found


@pytest.mark.parametrize("crd", [policy_crd, remediation_crd])
def test_everything_is_bounded_and_structural(crd: Callable[[], dict[str, Any]]) -> None:
    (version,) = crd()["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    assert "$ref" not in str(schema)
    for one in schemas(schema):
        assert one.get("additionalProperties") is not False
        assert one["type"] != "null"
        if one["type"] == "array":
            assert "maxItems" in one
        if "additionalProperties" in one:
            assert "maxProperties" in one
            assert "properties" not in one


def test_every_rule_is_somewhere_in_the_schema() -> None:
    text = str(policy_crd())
    for name, rules in RULES.items():
        for rule in rules:
            assert repr(rule.message)[1:-1] in text or rule.message in text, name
