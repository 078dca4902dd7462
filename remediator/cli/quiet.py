"""Standard output has what a command says, and nothing else: it may be JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog


_ERROR: Final = 40


@contextmanager
def errors_alone() -> Iterator[None]:
    """Have the controller's code log errors alone meanwhile, and on standard error.

    Its reflector, polls and readers tell of every hiccup; what counts of it the command prints. One
    that is a controller itself (``run``) sets its log up anew.
    """
    before = structlog.get_config()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        yield
    finally:
        structlog.configure(**before)
