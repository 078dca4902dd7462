"""The agent's own log: JSON where a collector reads it, readable in a terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

from node_agent.settings import LogFormat, Settings
from node_agent.terminal import plain


_TRACEBACK: Final = "exception"


def make_logger(settings: Settings) -> structlog.typing.FilteringBoundLogger:
    """A logger of its own; structlog's global configuration is left alone."""
    terminal = sys.stderr.isatty()
    console = settings.log_format is LogFormat.CONSOLE or (
        settings.log_format is LogFormat.AUTO and terminal
    )
    readable = structlog.dev.ConsoleRenderer(
        colors=terminal, exception_formatter=structlog.dev.plain_traceback
    )
    rendering: list[Any] = (
        [as_plain, readable] if console else [structlog.processors.JSONRenderer()]
    )
    processors: list[Any] = [
        structlog.processors.format_exc_info,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *rendering,
    ]
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )
    return logger


def as_plain(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Processor for a terminal: text in fields moves no cursor; only a traceback has lines.

    What is no text is shown by its `repr`, which is plain already.
    """
    return {
        name: value
        if not isinstance(value, str)
        else "\n".join(map(plain, value.split("\n")))
        if name == _TRACEBACK
        else plain(value)
        for name, value in event.items()
    }
