"""The shipped policies pass their tests, each has some, and together they cover the faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from node_agent.contract import Severity
from node_agent.xid.catalogue import load_catalogue
from remediator.cli.testing import run_file
from remediator.lab.file import parse_tests
from remediator.lab.report import failed_lines
from remediator.policy.load import find_files, load_policies
from remediator.policy.model import Mode


POLICIES = Path(__file__).parents[3] / "policies"
FILES = sorted(POLICIES.glob("*.test.yaml"))
DECODED = {74, *range(144, 151), 154}
"""By condition, since their code alone says too little."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".test.yaml"))
def test_a_shipped_policy_passes_its_tests(path: Path) -> None:
    given = parse_tests(path.read_bytes(), file=path.name)
    results = run_file(given, load_policies([POLICIES / name for name in given.policies]))
    assert results
    failed = [line for one in results if not one.passed for line in failed_lines(one)]
    assert not failed, "\n".join(failed)


def test_every_policy_has_tests() -> None:
    tested = {path.name.replace(".test.yaml", ".yaml") for path in FILES}
    assert {path.name for path in find_files([POLICIES])} == tested


def test_every_test_file_fires_misses_and_runs_dry() -> None:
    """What the policy does, a near miss that it leaves alone, and dry-run."""
    for path in FILES:
        cases = parse_tests(path.read_bytes(), file=path.name).spec.tests
        assert any(case.expect.steps for case in cases), path.name
        assert any(case.quiet for case in cases), path.name
        assert any(case.mode == "DryRun" for case in cases), path.name


def test_every_fault_that_the_catalogue_calls_fatal_has_a_policy() -> None:
    named: set[int] = set()
    for policy in load_policies([POLICIES]):
        assert policy.spec.mode is Mode.DRY_RUN
        for when in policy.spec.when:
            named |= set(when.xid.codes if when.xid else ())
    rows = load_catalogue().xid.values()
    fatal = {row.code for row in rows if row.severity is Severity.FATAL}
    assert fatal - named - DECODED == set()
