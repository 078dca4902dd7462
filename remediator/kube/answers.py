"""Answers of the API server, read. What is none of its own is a failure as any other.

Something in between (a proxy, a gateway's login page) may answer with a text of its own. Whether
a write was done is then as unknown as without any answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from remediator.kube.access import access_of
from remediator.kube.errors import ServerError


if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def read_answer(method: str, target: str, answer: bytes, decode: Callable[[bytes], T]) -> T:
    """Return what `decode` makes of the answer to a call.

    Raises:
        ServerError: nothing can be made of it.
    """
    try:
        return decode(answer)
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise ServerError(
            access_of(method, target),
            message=f"the answer cannot be read ({error}): does a proxy stand before the server?",
        ) from error
