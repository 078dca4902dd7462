"""What was read in one go, and what became of each call that failed. In the child.

Invariants:

- A number that cannot be true, and a call that failed, are an error under the quantity's name.
- What a device does not support is neither a value nor an error.
- The first answer GPU_IS_LOST ends the reading: a lost GPU is one error, not one a quantity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from node_agent.nvml.quantities import OutOfRangeError, Quantity


_NEVER_THERE: Final = frozenset(
    {
        2,  # INVALID_ARGUMENT: a field id or selector that this driver does not know
        3,  # NOT_SUPPORTED
        13,  # FUNCTION_NOT_FOUND: an older library
        25,  # ARGUMENT_VERSION_MISMATCH: it knows other versions of the struct
        26,  # DEPRECATED
    }
)
_NOT_NOW: Final = frozenset({6, 21, 27})  # NOT_FOUND, NO_DATA, NOT_READY
_LOST: Final = 15


class GpuLostError(Exception):
    """A call answered GPU_IS_LOST."""


def never_there(error: Any) -> bool:
    """Whether this ``NVMLError`` says that there is no such thing on this device."""
    return error.value in _NEVER_THERE


class Findings:
    """Values and errors by quantity, of one device or instance."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.errors: dict[str, str] = {}

    def keep(self, quantity: Quantity, raw: float) -> None:
        """Note what was read, if it can be true and is there."""
        try:
            value = quantity.convert(raw)
        except OutOfRangeError as error:
            self.errors[quantity.name] = str(error)
            return
        if value is not None:
            self.values[quantity.name] = value
            self.errors.pop(quantity.name, None)

    def failed(self, error: Any, names: Sequence[str]) -> bool:
        """Note a failed call. True: it will never work on this device.

        Raises:
            GpuLostError: the device is lost.
        """
        if error.value == _LOST:
            raise GpuLostError from error
        if never_there(error):
            return True
        if error.value not in _NOT_NOW:
            self.errors.update(dict.fromkeys(names, str(error)))
        return False
