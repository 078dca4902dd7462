"""`policy test`: runs `*.test.yaml` in virtual time. No cluster needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import typer

from remediator.cli.failure import Failure
from remediator.lab.file import TestFile, parse_tests
from remediator.lab.play import play
from remediator.lab.player import CaseError
from remediator.lab.report import Result, failed_lines, junit, timeline_lines
from remediator.policy.files import TEST_SUFFIXES, read_text
from remediator.policy.load import load_policies
from remediator.policy.model import RemediationPolicy
from remediator.policy.problems import PolicyError, Problem, render


FAILED: Final = 1
UNREADABLE: Final = 2


def test(
    paths: Sequence[Path], *, report: Path | None, only: str, verbose: bool, output: str
) -> None:
    """Run the tests of files and folders.

    Raises:
        typer.Exit: a test failed (1), or a file cannot be read (2).
    """
    problems: list[Problem] = []
    results: list[Result] = []
    for path in _found(paths, problems):
        try:
            given = parse_tests(read_text(path), file=str(path))
            policies = load_policies([path.parent / name for name in given.policies])
        except PolicyError as error:
            problems += error.problems
            continue
        results += [one for one in run_file(given, policies) if only in one.name]
    if report is not None:
        _write(report, junit(results, problems))
    if output == "json":
        typer.echo(json.dumps(_as_json(results, problems), indent=2))
    else:
        _print(results, problems, verbose=verbose)
    if problems:
        raise typer.Exit(UNREADABLE)
    if not results:
        raise Failure("no test found: they are in files *.test.yaml", code=UNREADABLE)
    if not all(one.passed for one in results):
        raise typer.Exit(FAILED)


test.__test__ = False  # type: ignore[attr-defined]  # no test function, for all its name


def run_file(given: TestFile, policies: Sequence[RemediationPolicy]) -> list[Result]:
    """Run all tests of a file."""
    results = []
    for at, case in enumerate(given.spec.tests):
        line = given.line(at)
        try:
            played = play(given, at, policies)
        except CaseError as error:
            line = given.line(at, *error.parts)
            results.append(Result(given.file, case.name, line, error=str(error)))
        else:
            results.append(Result(given.file, case.name, line, played, given=given, case=at))
    return results


def _found(paths: Sequence[Path], problems: list[Problem]) -> list[Path]:
    """Return test files: files as given, and of a folder its `*.test.yaml`."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(one for one in path.iterdir() if one.name.endswith(TEST_SUFFIXES))
        elif path.exists():
            found.append(path)
        else:
            problems.append(Problem(file=str(path), message="there is no such file or folder"))
    return list(dict.fromkeys(found))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(f"error: {path}: {error.strerror or error}", code=UNREADABLE) from error


def _print(results: Sequence[Result], problems: Sequence[Problem], *, verbose: bool) -> None:
    for one in results:
        if not one.passed:
            typer.echo("\n".join(failed_lines(one)))
        elif verbose:
            typer.echo(f"ok   {one.file}:{one.line}: {one.name}")
            if one.played is not None:
                lines = timeline_lines(one.played.timeline, one.played.zero)
                typer.echo("\n".join(f"    {line}" for line in lines))
    for problem in problems:
        typer.echo(render(problem))
    failed = sum(not one.passed for one in results)
    files = len({one.file for one in results})
    typer.echo(
        f"{len(results) - failed} passed, {failed} failed, in {files} file{'s' * (files != 1)}"
    )


def _as_json(results: Sequence[Result], problems: Sequence[Problem]) -> dict[str, object]:
    return {
        "ok": not problems and all(one.passed for one in results),
        "tests": [
            {
                "file": one.file,
                "line": one.line,
                "name": one.name,
                "passed": one.passed,
                "error": one.error,
                "failures": [
                    {"expected": two.expected, "got": two.got}
                    for two in (one.played.failures if one.played else ())
                ],
            }
            for one in results
        ],
        "problems": [str(one) for one in problems],
    }
