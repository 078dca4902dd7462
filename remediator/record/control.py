"""What people tell the controller as a whole: pause, and the reset of a breaker.

`remediator pause`, `resume` and `breaker reset` write ConfigMap `gpu-remediator-control`
with the person's own credentials; the controller watches it. It is a level, not a
command: a pause is the presence of its key, and survives every restart. A reset is
answered once: whoever acts on it remembers its `at`, and removes the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from remediator.decide.ledger import Pause


CONTROL_CONFIGMAP: Final = "gpu-remediator-control"
PAUSE_KEY: Final = "pause"
RESET_PREFIX: Final = "breakerReset."
"""Followed by the breaker's name, that of a policy or of a source; see `reset_key`."""

_T = TypeVar("_T")


class BreakerReset(msgspec.Struct, frozen=True, omit_defaults=True):
    """Close a breaker. `keep`: what matches now is handled, else waived until it returns."""

    by: str
    at: str
    keep: bool = False
    reason: str = ""


class Control(NamedTuple):
    """The ConfigMap, read. `problems` are entries that cannot be read, in words.

    An unreadable pause counts as a pause: whoever wrote it wanted less to happen.
    """

    pause: Pause | None
    resets: Mapping[str, BreakerReset]
    problems: tuple[str, ...]


def read_control(data: Mapping[str, str]) -> Control:
    """Read the ConfigMap's data; an absent one is `{}`."""
    problems: list[str] = []
    pause = None
    if text := data.get(PAUSE_KEY):
        pause = _read(text, Pause, PAUSE_KEY, problems)
        pause = pause or Pause(by="?", at="?", reason=f"{CONTROL_CONFIGMAP}: {problems[-1]}")
    resets = {}
    for key, text in data.items():
        if key.startswith(RESET_PREFIX):
            reset = _read(text, BreakerReset, key, problems)
            if reset is not None:
                resets[key.removeprefix(RESET_PREFIX).replace("_", "/")] = reset
    return Control(pause, resets, tuple(problems))


def write_pause(pause: Pause) -> dict[str, str | None]:
    """Return the change of data that pauses."""
    return {PAUSE_KEY: msgspec.json.encode(pause).decode()}


def write_reset(source: str, reset: BreakerReset) -> dict[str, str | None]:
    """Return the change of data that asks for a reset."""
    return {reset_key(source): msgspec.json.encode(reset).decode()}


def reset_key(source: str) -> str:
    """Return the key of a breaker's reset. A key has no slash, and a name no underscore."""
    return RESET_PREFIX + source.replace("/", "_")


def _read(text: str, kind: type[_T], key: str, problems: list[str]) -> _T | None:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        problems.append(f"the key {key} is malformed: {error}")
        return None
