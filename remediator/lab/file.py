"""A test file's bytes to its cases, with the line of each expectation."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from remediator.lab.case import KIND, Case, PolicyTest, TestSpec
from remediator.policy.cluster import ClusterSpec
from remediator.policy.files import TEST_SUFFIXES
from remediator.policy.load import parse_document
from remediator.policy.problems import Location, PolicyError, Problem
from remediator.policy.tree import Document


@dataclass(frozen=True, slots=True)
class TestFile:
    """The tests of one file, and where what stands in it."""

    __test__ = False  # no test class, whatever pytest thinks of its name

    file: str
    spec: TestSpec
    cluster: ClusterSpec
    document: Document

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of the policy files, from this file's folder."""
        return self.spec.policies or (policy_name(self.file.rpartition("/")[2]),)

    def line(self, case: int, *parts: str | int) -> int:
        """Return the line of a part of a case."""
        at: Location = ("spec", "tests", case, *parts)
        return self.document.find(at).place.line

    def case(self, at: int) -> Case:
        """Return a case by its place."""
        return self.spec.tests[at]


def policy_name(name: str) -> str:
    """Return the name of the policy file that ``name.test.yaml`` is about."""
    for suffix in TEST_SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix) + suffix.removeprefix(".test")
    return name


def parse_tests(data: bytes, *, file: str) -> TestFile:
    """Read a test file.

    Raises:
        PolicyError: with every problem of the file.
    """
    found, document = parse_document(data, file=file, model=PolicyTest, kind=KIND)
    spec = found.spec
    return TestFile(file, spec, _cluster(spec, document), document)


def _cluster(spec: TestSpec, document: Document) -> ClusterSpec:
    """Return the cluster's settings: those of the file, free to do what the tests' mode says."""
    at: Location = ("spec", "config")
    try:
        return ClusterSpec.model_validate({**spec.config, "mode": "Enforce"})
    except ValidationError as error:
        raise PolicyError(
            [
                _problem(document, (*at, *(p for p in one["loc"] if p != "[key]")), one["msg"])
                for one in error.errors(include_url=False)
            ]
        ) from error


def _problem(document: Document, at: Location, message: str) -> Problem:
    fix = "as in RemediatorConfig: `remediator policy schema --kind RemediatorConfig`"
    return document.problem(document.find(at).place, message, at=at, fix=fix)
