"""The agent's own log: JSON where a collector reads it, readable in a terminal."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from node_agent.settings import LogFormat, Settings


def make_logger(settings: Settings) -> structlog.typing.FilteringBoundLogger:
    """A logger of its own; structlog's global configuration is left alone."""
    console = settings.log_format is LogFormat.CONSOLE or (
        settings.log_format is LogFormat.AUTO and sys.stderr.isatty()
    )
    renderer: Any = (
        structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    )
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        renderer,
    ]
    if not console:
        processors.insert(0, structlog.processors.format_exc_info)
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )
    return logger
