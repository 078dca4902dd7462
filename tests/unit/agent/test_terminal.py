"""What the agent prints and logs for people: others' words begin no line and move no cursor."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import node_agent
from node_agent.check import Check
from node_agent.cli_check import lines_of as check_lines
from node_agent.cli_faults import lines_of, shown_of
from node_agent.cli_local import NoAgentError, ask
from node_agent.log import make_logger
from node_agent.settings import load_settings
from node_agent.terminal import plain, say
from tests.unit.agent.test_show import fault, node


HOSTILE = "Hot\x1b[2K\r\nn2  well\u2028\u202e\x9b\x07\t"


def tame(text: str, lines: int) -> None:
    told = text.removesuffix("\n").split("\n")
    assert len(told) == lines
    assert all(one.isprintable() for one in told)
    assert not any(one.startswith("n2") for one in told)


@given(st.text())
def test_a_line_stays_one_line_of_its_length(text: str) -> None:
    told = plain(text)
    assert told.isprintable()
    assert len(told) == len(text)
    assert plain(told) == told


@pytest.mark.parametrize("err", [False, True])
def test_what_is_said_is_plain(capsys: pytest.CaptureFixture[str], *, err: bool) -> None:
    say("a", HOSTILE, err=err)
    said = capsys.readouterr()
    tame(said.err if err else said.out, 2)
    assert not (said.out if err else said.err)


def test_tables_are_plain(capsys: pytest.CaptureFixture[str]) -> None:
    view = node(fault(message=HOSTILE, pods=(f"a/{HOSTILE}",)))
    faults = lines_of(shown_of(HOSTILE, view))
    found = check_lines((Check(HOSTILE, "off", HOSTILE, HOSTILE),))
    say(*faults, *found)
    tame(capsys.readouterr().out, len([*faults, *found]))


def test_that_nobody_answers_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(NoAgentError) as refused:
        ask(str(tmp_path / "no.sock"), "GET", "/check")
    tame(str(refused.value), 1)
    assert "--socket" in str(refused.value)


def logged(capsys: pytest.CaptureFixture[str], log_format: str, **fields: object) -> str:
    given = {"node_name": "n1", "log_format": log_format}
    make_logger(load_settings(environ={}, flags=given, config="")).warning("it is so", **fields)
    return capsys.readouterr().err


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_line_of_the_log_is_one_line(capsys: pytest.CaptureFixture[str], log_format: str) -> None:
    tight = "x\x1b[2K\x9b"  # without a blank a console shows a text as it is
    tame(logged(capsys, log_format, error=HOSTILE, name=tight, names=[HOSTILE]), 1)


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_traceback_keeps_its_lines_and_moves_no_cursor(
    capsys: pytest.CaptureFixture[str], log_format: str
) -> None:
    text = logged(capsys, log_format, exc_info=ValueError(HOSTILE))
    assert "ValueError: Hot" in text
    assert all(line.isprintable() for line in text.split("\n"))


def test_no_command_prints_what_others_wrote_as_it_is() -> None:
    """`say` makes it plain, and so does JSON; nothing else prints."""
    folder = Path(node_agent.__file__).parent
    found = {
        f"{file.name}:{call.lineno}"
        for file in folder.glob("*.py")
        if file.stem != "terminal"
        for call in _prints(ast.parse(file.read_text(encoding="utf-8")))
    }
    assert found == set()


def _prints(tree: ast.Module) -> Iterator[ast.Call]:
    for one in ast.walk(tree):
        if isinstance(one, ast.Call) and ast.unparse(one.func) in {"print", "sys.stdout.write"}:
            text = ast.unparse(one.args[0])
            if not text.startswith("json.dumps("):
                yield one
