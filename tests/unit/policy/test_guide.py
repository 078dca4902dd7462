"""What the guide for policy authors shows is true."""

import re
from pathlib import Path

import pytest

from remediator.decide.guards import GUARD_NAMES
from remediator.policy.expression import VARIABLES
from remediator.policy.load import parse_policies
from remediator.policy.problems import PolicyError
from remediator.policy.quantities import parse_amount


FOLDER = Path(__file__).parents[3] / "docs" / "policies"
GUIDE = (FOLDER / "index.md").read_text(encoding="utf-8")
HEAD = (
    "apiVersion: gpu-remediator.io/v1alpha1\nkind: RemediationPolicy\nmetadata: {name: p}\nspec:\n"
)


def test_the_first_policy_is_valid() -> None:
    (text,) = re.findall(r"```yaml\n(.*?apiVersion.*?)```", GUIDE, re.DOTALL)
    assert parse_policies(text.encode(), file="guide").policies


def test_the_examples_of_when_are_valid() -> None:
    (text,) = re.findall(r"```yaml\n(when:.*?)```", GUIDE, re.DOTALL)
    indented = "".join(f"  {line}\n" for line in text.splitlines())
    text = f"{HEAD}{indented}  steps: [{{cordon: {{}}}}]\n"
    assert parse_policies(text.encode(), file="guide").policies


@pytest.mark.parametrize("page", ["when.md", "guards.md"])
def test_the_examples_of_other_pages_are_valid(page: str) -> None:
    text = (FOLDER / page).read_text(encoding="utf-8")
    examples = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert len(examples) >= 2
    for example in examples:
        indented = "".join(f"  {line}\n" for line in example.splitlines())
        when = "" if example.startswith("when:") else "  when: [{xid: {codes: [79]}}]\n"
        document = f"{HEAD}{indented}{when}  steps: [{{cordon: {{}}}}]\n"
        assert parse_policies(document.encode(), file=page).policies


def test_every_guard_and_every_variable_has_a_line() -> None:
    guards = (FOLDER / "guards.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z-]+) \|", guards.partition("## Unless")[0], re.MULTILINE)
    assert tuple(rows[1:]) == GUARD_NAMES
    when = (FOLDER / "when.md").read_text(encoding="utf-8").partition("## Expressions")[2]
    assert all(f"`{name}`" in when for name in VARIABLES)


def test_the_table_of_small_pools_is_right() -> None:
    section = GUIDE.partition("### Percentages in small pools")[2].partition("\n## ")[0]
    head, _, *rows = [line for line in section.splitlines() if line.startswith("|")]
    percents = re.findall(r"\d+%", head)
    assert len(rows) == 10
    for row in rows:
        total, *allowed = (int(cell) for cell in re.findall(r"\d+", row))
        assert allowed == [parse_amount(percent).of(total) for percent in percents]


@pytest.mark.parametrize("scalar", ["yes", "n", "1:30", "010", "2026-01-02", "1_000"])
def test_what_two_readers_see_differently_is_an_error(scalar: str) -> None:
    assert scalar in GUIDE
    text = (
        f"{HEAD}  nodes: {{selector: {{matchLabels: {{a: {scalar}}}}}}}\n"
        "  when: [{xid: {codes: [79]}}]\n  steps: [{cordon: {}}]\n"
    )
    with pytest.raises(PolicyError, match="YAML"):
        parse_policies(text.encode(), file="p")
    quoted = text.replace(f"a: {scalar}", f'a: "{scalar}"')
    assert parse_policies(quoted.encode(), file="p").policies
