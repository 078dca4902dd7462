"""Shipped policies and examples pass their tests, each has some, and they cover the faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from node_agent.contract import Severity
from node_agent.xid.catalogue import load_catalogue
from remediator.cli.testing import run_file
from remediator.lab.file import parse_tests
from remediator.lab.report import failed_lines
from remediator.policy.files import find_files
from remediator.policy.load import load_policies
from remediator.policy.model import Mode


ROOT = Path(__file__).parents[3]
POLICIES = ROOT / "policies"
EXAMPLES = ROOT / "examples" / "policies"
JOBS = ROOT / "examples" / "jobs"
FOLDERS = (POLICIES, EXAMPLES)
FILES = sorted(path for folder in FOLDERS for path in folder.glob("*.test.yaml"))
DECODED = {74, *range(144, 151), 154}
"""By condition, since their code alone says too little."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".test.yaml"))
def test_a_shipped_policy_passes_its_tests(path: Path) -> None:
    given = parse_tests(path.read_bytes(), file=path.name)
    results = run_file(given, load_policies([path.parent / name for name in given.policies]))
    assert results
    failed = [line for one in results if not one.passed for line in failed_lines(one)]
    assert not failed, "\n".join(failed)


def test_every_policy_has_tests() -> None:
    tested = {path.name.replace(".test.yaml", ".yaml") for path in FILES}
    assert {path.name for path in find_files(FOLDERS)} == tested


def test_every_test_file_fires_misses_and_runs_dry() -> None:
    """What the policy does, a near miss that it leaves alone, and dry-run."""
    for path in FILES:
        cases = parse_tests(path.read_bytes(), file=path.name).spec.tests
        assert any(case.expect.steps for case in cases), path.name
        assert any(case.quiet for case in cases), path.name
        assert any(case.mode == "DryRun" for case in cases), path.name


def test_the_examples_run_jobs_that_there_are() -> None:
    """They change nothing before somebody says so, and name templates of `examples/jobs`."""
    names = set()
    for policy in load_policies([EXAMPLES]):
        assert policy.spec.mode is Mode.DRY_RUN
        names |= {step.job.template for step in policy.spec.steps if step.job}
    assert names == {"reboot", "gpu-reset"}
    assert all((JOBS / f"{name}.yaml").is_file() for name in names)


def test_every_fault_that_the_catalogue_calls_fatal_has_a_policy() -> None:
    named: set[int] = set()
    for policy in load_policies([POLICIES]):
        assert policy.spec.mode is Mode.DRY_RUN
        for when in policy.spec.when:
            named |= set((when.xid.codes or ()) if when.xid else ())
    rows = load_catalogue().xid.values()
    fatal = {row.code for row in rows if row.severity is Severity.FATAL}
    assert fatal - named - DECODED == set()
