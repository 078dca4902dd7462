"""What others wrote begins no line and moves no cursor, whichever command prints it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import remediator.cli
from remediator.act.drain.plan import Cause, Left
from remediator.act.drain.report import Progress, lines
from remediator.cli.failure import Failure
from remediator.cli.requests import outcome
from remediator.cli.terminal import say, shown
from remediator.decide.requests import Verb
from remediator.decide.session import HISTORY_ANNOTATION, History, encode
from remediator.policy.problems import Problem, rendered
from tests.unit.cli.test_requests import SESSION, node


HOSTILE = "Hot\x1b[2K\r\nn2  well\u2028\u202e\x9b\x07\t"
OF_AUTHORS = {"convert", "policies", "testing", "root", "options"}
"""Modules that print what their own user wrote, what `render` cleans, or a `Failure`."""


def plain(text: str, lines: int) -> None:
    told = text.split("\n")
    assert len(told) == lines
    assert all(one.isprintable() for one in told)
    assert not any(one.startswith("n2") for one in told)


@given(st.lists(st.text(), min_size=1))
def test_each_line_stays_one_line(given: list[str]) -> None:
    told = shown(given).split("\n")
    assert [len(one) for one in told] == [len(one) for one in given]
    assert all(one.isprintable() for one in told)


def test_what_is_said_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    say("a", HOSTILE)
    plain(capsys.readouterr().out.removesuffix("\n"), 2)


def test_a_failure_is_plain() -> None:
    plain(str(Failure(f"error: webhook says {HOSTILE}", HOSTILE)), 2)


def test_a_problem_of_a_policy_is_plain() -> None:
    problem = Problem(file="f", line=1, column=1, message=HOSTILE, source=HOSTILE, fix=HOSTILE)
    plain("\n".join(rendered(problem)), 4)


def test_what_is_left_of_a_drain_is_plain() -> None:
    left = (Left(pod=f"ns/{HOSTILE}", cause=Cause.REFUSED, why=HOSTILE),)
    said = [*lines(Progress(left=left, trouble=HOSTILE, passed_over=(HOSTILE,)), now=1.0)]
    plain(shown(said), len(said))


def test_an_answer_to_a_request_is_plain() -> None:
    after = node(history=encode(History(last=f"cancelled by {HOSTILE}")))
    assert HISTORY_ANNOTATION in after.annotations
    plain(shown([outcome(node(session=SESSION), after, Verb.CANCEL)]), 1)


def test_no_command_prints_what_others_wrote_as_it_is() -> None:
    """`say` and `render_*` make it plain, and so does JSON; nothing else prints what is made up."""
    folder = Path(remediator.cli.__file__).parent
    found = {
        f"{file.name}:{call.lineno}"
        for file in folder.glob("*.py")
        if file.stem not in OF_AUTHORS | {"terminal"}
        for call in _prints(ast.parse(file.read_text(encoding="utf-8")))
    }
    assert found == set()


def _prints(tree: ast.Module) -> Iterator[ast.Call]:
    for one in ast.walk(tree):
        if isinstance(one, ast.Call) and ast.unparse(one.func) in {"typer.echo", "print"}:
            text = ast.unparse(one.args[0])
            if not text.startswith(("json.dumps(", "render_")):
                yield one
