"""Results of policy tests for people (text) and for CI (JUnit XML)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from remediator.lab.file import TestFile
from remediator.lab.judge import format_time
from remediator.lab.play import Played
from remediator.lab.timeline import Happening, Timeline, What
from remediator.policy.problems import Problem


MAX_LINES: Final = 60
"""Of a failed test's timeline."""
_SHOWN: Final = frozenset(What) - {What.FREED}


@dataclass(frozen=True, slots=True)
class Result:
    """One test and what came of it. ``error``: it could not be played."""

    file: str
    name: str
    line: int
    played: Played | None = None
    error: str = ""
    given: TestFile | None = None
    case: int = 0

    @property
    def passed(self) -> bool:
        """Tell whether everything is as expected."""
        return not self.error and self.played is not None and not self.played.failures


def failed_lines(result: Result) -> Iterator[str]:
    """Yield what a person needs to see of a test that failed."""
    yield f"FAIL {result.file}:{result.line}: {result.name}"
    if result.error:
        yield f"  {result.error}"
        return
    played = result.played
    if played is None:
        return
    for one in played.failures:
        line = result.line if result.given is None else result.given.line(result.case, *one.parts)
        yield f"  {result.file}:{line}"
        yield f"    - expected  {one.expected}"
        yield f"    + got       {one.got}"
    yield "  what happened:"
    yield from (f"    {line}" for line in timeline_lines(played.timeline, played.zero))


def timeline_lines(timeline: Timeline, zero: float, *, limit: int = MAX_LINES) -> list[str]:
    """Write a timeline, one line a happening, at most ``limit`` of them."""
    shown = [one for one in timeline.happenings if one.what in _SHOWN]
    lines = [_line(one, zero) for one in shown[:limit]]
    if len(shown) > limit:
        lines.append(f"... and {len(shown) - limit} more")
    return lines or ["nothing"]


def _line(one: Happening, zero: float) -> str:
    parts = [one.what.value, one.name if one.what is not What.MESSAGE else "", one.result]
    if one.policy and one.what is not What.FACT:
        parts.append(f"({one.policy})")
    text = one.text.partition("\n")[0]
    said = " ".join(part for part in parts if part)
    if text and one.what is not What.BEGUN:
        said = f"{said}: {text}"
    dry = "[dry-run] " if one.dry_run else ""
    return f"{format_time(one.at - zero):>9}  {one.node or '-':<10}  {dry}{said}"


def junit(results: Sequence[Result], problems: Sequence[Problem] = ()) -> str:
    """Return JUnit's XML, as CI systems read it: a suite a file, a case a test.

    A file that cannot be read is a suite with an error: who reads this only must not see green.
    """
    files = list(dict.fromkeys(one.file for one in results))
    bad = sum(not one.passed for one in results)
    counts = f'tests="{len(results) + len(problems)}" failures="{bad}" errors="{len(problems)}"'
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuites name="remediator policy test" {counts}>',
    ]
    for problem in problems:
        file, message = quoteattr(problem.file), quoteattr(_printable(str(problem)))
        lines += [
            f'  <testsuite name={file} tests="1" failures="0" errors="1">',
            f'    <testcase classname={file} name="can be read" file={file} line="{problem.line}">',
            f"      <error message={message}/>",
            "    </testcase>",
            "  </testsuite>",
        ]
    for file in files:
        own = [one for one in results if one.file == file]
        failed = sum(not one.passed for one in own)
        lines.append(f'  <testsuite name={quoteattr(file)} tests="{len(own)}" failures="{failed}">')
        for one in own:
            lines += _case(one)
        lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>", ""])


def _case(one: Result) -> list[str]:
    head = (
        f"    <testcase classname={quoteattr(one.file)} name={quoteattr(_printable(one.name))}"
        f' file={quoteattr(one.file)} line="{one.line}"'
    )
    if one.passed:
        return [f"{head}/>"]
    text = "\n".join(failed_lines(one))
    first = one.error or (one.played.failures[0].expected if one.played else "")
    message = quoteattr(_printable(first))
    return [
        f"{head}>",
        f"      <failure message={message}>{escape(_printable(text))}</failure>",
        "    </testcase>",
    ]


def _printable(text: str) -> str:
    """Leave out what XML 1.0 does not allow."""
    return "".join(char for char in text if char.isprintable() or char in "\n\t")
