"""Log lines: one JSON object each in the cluster, and no secret in any."""

import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import example, given
from hypothesis import strategies as st

from remediator.log import MAX_FIELD, _as_json, configure_logging, mask
from remediator.settings import LogFormat, LogLevel


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _refuse(password: str) -> None:
    raise ValueError(f"refused: Authorization: Bearer {password}")


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_auto_is_json_when_nobody_watches() -> None:
    stream = io.StringIO()
    configure_logging(stream=stream)

    structlog.get_logger("outbox").info("message_sent", channel="oncall")
    logging.getLogger("aiohttp.server").error("broken %s", "pipe")

    first, second = lines(stream)
    assert (
        first.items()
        >= {
            "event": "message_sent",
            "logger": "outbox",
            "level": "info",
            "channel": "oncall",
        }.items()
    )
    assert second["event"] == "broken pipe"
    assert first["timestamp"].endswith("Z")


def test_auto_is_readable_in_a_terminal() -> None:
    stream = Terminal()
    configure_logging(stream=stream)

    structlog.get_logger("outbox").info("message_sent")

    assert "message_sent" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


@given(text=st.text(), more=st.text(), level=st.sampled_from(["info", "warning"]))
@example(text="x\x1b[2K\x9b", more="a\r\nn2  well\u2028\u202e", level="info")
def test_in_a_terminal_each_line_stays_one_and_moves_no_cursor(
    text: str, more: str, level: str
) -> None:
    stream = Terminal()
    configure_logging(stream=stream, log_format=LogFormat.CONSOLE)
    own = len(ESCAPE.findall(said(stream, level, "a", "b")))

    whole = said(stream, level, text, more)

    assert len(ESCAPE.findall(whole)) == own, "its own colours, and no more"
    assert whole.endswith("\n")
    assert ESCAPE.sub("", whole.removesuffix("\n")).isprintable()


ESCAPE = re.compile("\x1b\\[[0-9;]*m")


def said(stream: io.StringIO, level: str, text: str, more: str) -> str:
    stream.seek(0)
    stream.truncate()
    getattr(structlog.get_logger("outbox"), level)("it is so", error=text, names=[text, more])
    logging.getLogger("library").warning("%s and %s", text, more)
    first, second = stream.getvalue().split("\n", 1)
    assert "library" in second
    return first + second


def fail() -> None:
    raise ValueError("over\x1b[2K\rthere")


def test_in_a_terminal_a_traceback_has_lines_and_moves_no_cursor() -> None:
    stream = io.StringIO()
    configure_logging(stream=stream, log_format=LogFormat.CONSOLE)
    try:
        fail()
    except ValueError:
        structlog.get_logger("outbox").exception("it is so")
    assert "ValueError: over [2K there" in stream.getvalue()
    assert all(line.isprintable() for line in stream.getvalue().split("\n"))


def test_lines_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    configure_logging(stream=stream, level=LogLevel.WARNING)

    structlog.get_logger("x").info("no")
    structlog.get_logger("x").warning("yes")

    assert [line["event"] for line in lines(stream)] == ["yes"]


@pytest.mark.parametrize("log_format", [LogFormat.JSON, LogFormat.CONSOLE])
def test_no_secret_is_written_wherever_it_stands(log_format: LogFormat) -> None:
    stream = io.StringIO()
    configure_logging(stream=stream, log_format=log_format)
    password = "hunter22hunter22"  # a local variable, to be seen in no traceback

    log = structlog.get_logger("x")
    try:
        _refuse(password)
    except ValueError:
        log.exception("failed", bearer_token=password, headers={"authorization": password})
    log.info(
        "u", url=f"https://me:{password}@host/a?b=1&token={password}&c=2", tried=[password[:0]]
    )

    assert password not in stream.getvalue()
    assert "[masked]" in stream.getvalue()


def test_a_key_is_no_secret_and_an_endless_field_is_cut() -> None:
    stream = io.StringIO()
    configure_logging(stream=stream)

    structlog.get_logger("x").info("e", key="session/1", text="x" * (MAX_FIELD + 1))

    (line,) = lines(stream)
    assert line["key"] == "session/1"
    assert len(line["text"]) < MAX_FIELD + 20


@given(
    st.dictionaries(
        st.sampled_from(["url", "why", "api_key", "x_Token", "Cookie", "after", "credentials"]),
        st.recursive(
            st.sampled_from(
                [
                    "Bearer abcdefgh12",
                    "https://u:p@h/",
                    "/a?token=1&x",
                    "BASIC YWxhZGRpbg==",
                    "k",
                    "",
                ]
            )
            | st.text(max_size=20)
            | st.integers(),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(st.sampled_from(["password", "why"]), inner, max_size=2)
            ),
            max_leaves=4,
        ),
        max_size=4,
    )
)
def test_the_quick_look_at_a_line_lets_nothing_through(fields: dict[str, Any]) -> None:
    written = json.loads(_as_json(None, "info", dict(fields)))
    assert written == json.loads(json.dumps(mask(None, "info", fields), default=str))
