"""Logging of the controller: JSON lines in the cluster, readable lines in a terminal.

Everything goes to standard error, one event per line: an event name in snake_case,
then fields. Events and their fields are what people search for, so they are
constants of the code, never built from values.

Whatever looks like a secret by its name, and credentials within URLs, is masked on
the way out: the last guard, not the first (nothing that reads a secret logs it).
Lines of the standard library's ``logging`` (aiohttp, asyncio) come out in the same form.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from functools import lru_cache
from typing import Any, Final, TextIO

import structlog

from remediator.settings import LogFormat, LogLevel


MASK: Final = "[masked]"
MAX_FIELD: Final = 4000
"""Characters of one field; an API server's error page must not fill the log."""

_SECRET_NAME: Final = re.compile(
    r"(^|_)(token|secret|password|passwd|authorization|api_?key|private_?key|cookie|credentials?)$",
    re.IGNORECASE,
)
_SECRET_TEXT: Final = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {MASK}"),
    (re.compile(r"(?i)(https?://)[^/\s:@]+:[^/\s@]+@"), rf"\1{MASK}@"),
    (
        re.compile(r"(?i)([?&](?:token|key|secret|sig|signature|password|access_token)=)[^&\s]+"),
        rf"\1{MASK}",
    ),
)
_MAY_HOLD_SECRET: Final = re.compile(r"(?i)bearer|basic|://|[?&]")
"""In every text that `_SECRET_TEXT` would change: one look instead of three for the others."""
_SHORTEST: Final = 10
"""``http://:p@`` is the shortest text with a secret."""
_SUSPICIOUS: Final = (
    *("token", "secret", "passw", "authorization", "key", "cookie", "credential"),
    *("bearer", "basic", "://", "?", "&"),
)
"""One of them is in every line of which `mask` would hide something, whatever its case: most lines
need no second look. (One search for each is a tenth of what one pattern for all costs.)"""


_OF_LINES: Final = ("exception", "stack")


def configure_logging(
    *,
    log_format: LogFormat = LogFormat.AUTO,
    level: LogLevel = LogLevel.INFO,
    stream: TextIO | None = None,
) -> None:
    """Set up structlog and the standard library for this process. Call it once, at start.

    Args:
        log_format: ``auto`` is console when `stream` is a terminal.
        level: the least severe lines that are written.
        stream: default standard error.
    """
    stream = sys.stderr if stream is None else stream
    console = log_format is LogFormat.CONSOLE or (log_format is LogFormat.AUTO and stream.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering = _rendering(console=console, colors=console and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        _OnceFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        ),
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(number)
    # No line names the thread or process it comes from, so nobody needs to find it out.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)  # a scrape is no news
    structlog.configure(
        processors=[*shared, *rendering, _rendered],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        # One logger per name in any case, and this spares taking the module's lock for each line.
        logger_factory=lru_cache(maxsize=1024)(structlog.stdlib.LoggerFactory()),
        cache_logger_on_first_use=False,
    )


class _Rendered(str):
    """A line of ours as it goes out."""

    __slots__ = ()


def _rendered(_logger: Any, _method: str, line: Any) -> _Rendered:
    """Processor, the last: mark a line, so that the handler renders only those of others."""
    return _Rendered(line if isinstance(line, str) else line.decode())


class _OnceFormatter(structlog.stdlib.ProcessorFormatter):
    """Renders lines of the standard library's ``logging``; ours are rendered already."""

    def format(self, record: logging.LogRecord) -> str:
        return record.msg if isinstance(record.msg, _Rendered) else super().format(record)


def mask(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Processor: hide what is secret by name or by form, and shorten what is endless."""
    return {
        name: MASK if value and _names_secret(name) else _masked(value)
        for name, value in event.items()
    }


@lru_cache(maxsize=1024)
def _names_secret(name: str) -> bool:
    """Field names recur; this is asked for each field of each line."""
    return _SECRET_NAME.search(name) is not None


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        if len(value) < _SHORTEST or _MAY_HOLD_SECRET.search(value) is None:
            return value if len(value) <= MAX_FIELD else f"{value[:MAX_FIELD]}... ({len(value)})"
        for pattern, replacement in _SECRET_TEXT:
            value = pattern.sub(replacement, value)
        return value if len(value) <= MAX_FIELD else f"{value[:MAX_FIELD]}... ({len(value)})"
    if isinstance(value, dict):
        return mask(None, "", value)
    if isinstance(value, list | tuple):
        return [_masked(item) for item in value]
    return value


def plain(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Processor for a terminal: what others wrote moves no cursor and begins no line.

    Only a traceback has lines. What is no text is shown by its `repr`, which is plain already.
    """
    return {
        name: _printable(value, keep="\n" if name in _OF_LINES else "")
        if isinstance(value, str)
        else value
        for name, value in event.items()
    }


def _printable(text: str, *, keep: str) -> str:
    return "".join(c if c.isprintable() or c in keep else " " for c in text)


def _rendering(*, console: bool, colors: bool) -> list[Any]:
    """Exceptions are rendered without local variables: those may hold a token."""
    if console:
        return [
            structlog.processors.format_exc_info,
            mask,
            plain,
            structlog.dev.ConsoleRenderer(
                colors=colors,
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ]
    without_locals = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return [structlog.processors.ExceptionRenderer(without_locals), _as_json]


def _as_json(logger: Any, method: str, event: MutableMapping[str, Any]) -> str | bytes:
    """Render a line; what may hold a secret, or too much, is masked field by field."""
    text = _JSON(logger, method, event)
    if len(text) <= MAX_FIELD and not _suspicious(str(text).lower()):
        return text
    return _JSON(logger, method, mask(logger, method, event))


def _suspicious(text: str) -> bool:
    return any(word in text for word in _SUSPICIOUS)


_JSON: Final = structlog.processors.JSONRenderer(default=str)
