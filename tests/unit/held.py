"""How much something holds on to, as a number that two moments can be compared by."""

from __future__ import annotations

import asyncio
import gc
import types
from collections import deque
from typing import Any, Final


_COUNTED: Final = (dict, set, list, deque)
_SHARED: Final = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.FrameType,
    types.CodeType,
    asyncio.AbstractEventLoop,
)
"""Of these there is as much, however much passes through what is looked at."""


def held(*roots: Any) -> int:
    """Return how many entries there are in all dicts, sets, lists and deques behind these."""
    entries, seen, todo = 0, set[int](), list[Any](roots)
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, _SHARED):
            continue
        seen.add(id(one))
        if isinstance(one, _COUNTED):
            entries += len(one)
        todo += gc.get_referents(one)
    return entries
