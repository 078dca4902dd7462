"""A stream of chunks cut into lines, copying only what a chunk border cut in two."""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterator

_NEWLINE = b"\n"


class LineTooLongError(ValueError):
    """A line beyond the limit: no object of Kubernetes is that big, so this is no watch."""


class LineSplitter:
    r"""Feed it chunks, get lines without their newline. Blank lines are left out.

    Lines that lie within one chunk are views of it, valid as long as they are held.

    Args:
        limit: longest line in bytes. etcd refuses objects over 1.5 MiB by default.
    """

    def __init__(self, limit: int = 8 << 20) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._pending = 0

    def feed(self, chunk: bytes) -> Iterator[bytes | memoryview]:
        """The lines that `chunk` completes."""
        start = 0
        end = chunk.find(_NEWLINE)
        if end >= 0 and self._parts:
            self._parts.append(chunk[:end])
            line = b"".join(self._parts)
            self._parts.clear()
            self._pending = 0
            if line.strip():
                yield line
            start = end + 1
            end = chunk.find(_NEWLINE, start)
        if end >= 0:
            view = memoryview(chunk)
            while end >= 0:
                if chunk[start:end].strip() if end - start < 3 else True:  # noqa: PLR2004 - "\r", ""
                    yield view[start:end]
                start = end + 1
                end = chunk.find(_NEWLINE, start)
        if start < len(chunk):
            self._keep(chunk[start:] if start else chunk)

    def _keep(self, part: bytes) -> None:
        self._pending += len(part)
        if self._pending > self._limit:
            raise LineTooLongError(f"a line is longer than {self._limit} bytes")
        self._parts.append(part)
