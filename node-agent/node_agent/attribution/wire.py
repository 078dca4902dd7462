"""The part of protobuf's wire format that reading a few messages needs.

Own, because the whole of it is these lines, and the official package costs every node memory
for what it does beside. Tested against the official package.

https://protobuf.dev/programming-guides/encoding/. Groups (wire types 3 and 4, deprecated
before Kubernetes existed) are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final


_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}
_MAX_SHIFT: Final = 63


class WireError(ValueError):
    """The bytes are not a message of this kind. The text says at which offset and why."""


class Reader:
    """Reads fields of nested messages and counts them all against one budget.

    Args:
        budget: how many fields may be read; two bytes of input can ask for a whole object,
            so that the size of the input alone does not bound what it costs.
    """

    def __init__(self, *, budget: int) -> None:
        self._left = budget

    def fields(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Number and content of each length-delimited field; others are skipped.

        Raises:
            WireError: cut short, malformed, or over the budget.
        """
        at, end = 0, len(data)
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise WireError("more fields than any real answer has")
            tag, at = _varint(data, at)
            number, kind = tag >> 3, tag & 7
            if number == 0:
                raise WireError(f"field number 0 before offset {at}")
            if kind == _BYTES:
                size, at = _varint(data, at)
                if size > end - at:
                    raise WireError(f"a field of {size} bytes at offset {at}, {end - at} are there")
                yield number, data[at : at + size]
                at += size
            elif kind == _VARINT:
                _, at = _varint(data, at)
            elif kind in _FIXED:
                at += _FIXED[kind]
                if at > end:
                    raise WireError(f"cut short at offset {end}")
            else:
                raise WireError(f"wire type {kind} before offset {at}")


def text(data: memoryview) -> str:
    """A string field.

    Raises:
        WireError: not UTF-8.
    """
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise WireError(f"a text is not UTF-8: {error.reason}") from error


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the continuation bit
            return value, at
        shift += 7
        if shift > _MAX_SHIFT:
            raise WireError(f"a number of more than 64 bits before offset {at}")
    raise WireError(f"cut short at offset {at}")
