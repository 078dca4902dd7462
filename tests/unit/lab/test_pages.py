"""What the pages for policy authors show is true: their policies pass, their tests run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from remediator.cli.policies import lint_files
from remediator.cli.testing import run_file
from remediator.lab.file import parse_tests
from remediator.lab.given import ON_ALL, ON_NODES
from remediator.lab.reference import reference
from remediator.lab.report import failed_lines
from remediator.policy.lint import RULES
from remediator.policy.load import load_policies, parse_policies


ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "policies"


def blocks(page: str, kind: str) -> list[str]:
    text = (PAGES / page).read_text(encoding="utf-8")
    found = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    return [one for one in found if f"kind: {kind}\n" in one]


def test_the_way_from_an_idea_to_an_enforced_policy_works() -> None:
    (written,) = blocks("writing.md", "RemediationPolicy")
    parsed = parse_policies(written.encode(), file="gpu-driver-hang.yaml")
    assert lint_files([parsed], None) == []
    (tests,) = blocks("writing.md", "PolicyTest")
    given = parse_tests(tests.encode(), file="gpu-driver-hang.test.yaml")
    results = run_file(given, [one.policy for one in parsed.policies])
    assert [one.name for one in results if not one.passed] == []


def test_the_example_of_the_page_on_tests_passes() -> None:
    (tests,) = blocks("testing.md", "PolicyTest")
    given = parse_tests(tests.encode(), file="gpu-lost.test.yaml")
    policies = load_policies([ROOT / "policies" / name for name in given.policies])
    failed = [
        line for one in run_file(given, policies) if not one.passed for line in failed_lines(one)
    ]
    assert not failed, "\n".join(failed)


def test_the_page_on_tests_names_everything_that_can_happen() -> None:
    text = (PAGES / "testing.md").read_text(encoding="utf-8")
    section = text.partition("## What can happen")[2].partition("\n## ")[0]
    missing = [key for key in (*ON_NODES, *ON_ALL) if f"`{key}:" not in section]
    assert missing == []


def test_the_reference_of_tests_is_up_to_date() -> None:
    page = (PAGES / "testing-reference.md").read_text(encoding="utf-8")
    assert page == reference(), (
        "run: python -m remediator.lab.reference > docs/policies/testing-reference.md"
    )


@pytest.mark.parametrize("page", ["../../CHANGELOG.md"])
def test_the_number_of_rules_is_right(page: str) -> None:
    text = (PAGES / page).read_text(encoding="utf-8")
    (count,) = re.findall(r"lints by (\d+) rules", text)
    assert int(count) == len(RULES)
