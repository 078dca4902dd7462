"""The current state of one kind of object, by name.

Written by one reflector, read by everyone on the same event loop; objects are
immutable, so a reader can keep what it got. Handlers are told of every change
right after it happened, synchronously and in order, as `(old, new)`:

    (None, new)  appeared         (old, None)  is gone        (old, new)  changed

An object that was deleted and created again under the same name is another one:
handlers see it go and another appear, never a change from one to the other.

A handler must be quick and must not fail. If it does fail, the error is logged
and counted and the others are still told: one node that trips a bug must not
blind the controller to all nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import structlog

from remediator.kube.codec import Named


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_log = structlog.get_logger(__name__)

T = TypeVar("T", bound=Named)
Handler: TypeAlias = "Callable[[T | None, T | None], None]"


class Store(Generic[T]):
    """Objects by name.

    Args:
        failed: told of each handler that failed.
    """

    def __init__(self, *, failed: Callable[[], None] = lambda: None) -> None:
        self._failed = failed
        self._objects: dict[str, T] = {}
        self._handlers: list[Handler[T]] = []

    # -- reading -----------------------------------------------------------------------

    def get(self, name: str) -> T | None:
        """The object of that name."""
        return self._objects.get(name)

    def names(self) -> Iterable[str]:
        """A view of all names."""
        return self._objects.keys()

    def __iter__(self) -> Iterator[T]:
        """All objects; do not write to the store while iterating."""
        return iter(self._objects.values())

    def __len__(self) -> int:
        """How many objects there are."""
        return len(self._objects)

    def __contains__(self, name: object) -> bool:
        """Whether there is an object of that name."""
        return name in self._objects

    # -- being told --------------------------------------------------------------------

    def on_event(self, handler: Handler[T]) -> None:
        """Call `handler` for each new version, heartbeats included; what matters, it decides."""
        self._handlers.append(handler)

    # -- writing: the reflector only ---------------------------------------------------

    def upsert(self, new: T) -> None:
        """Take in a version of an object; nothing happens if it is the one we have."""
        old = self._objects.get(new.name)
        if old is not None and old.uid != new.uid:
            self.remove(new.name)
            old = None
        elif old is not None and old.resource_version == new.resource_version:
            return
        self._objects[new.name] = new
        self._tell(old, new)

    def remove(self, name: str) -> None:
        """Forget an object; nothing happens if there is none of that name."""
        old = self._objects.pop(name, None)
        if old is not None:
            self._tell(old, None)

    def _tell(self, old: T | None, new: T | None) -> None:
        for handler in self._handlers:
            try:
                handler(old, new)
            except Exception:  # noqa: BLE001 - see the module's text
                self._failed()
                named = new if new is not None else old
                _log.exception("store handler failed", object=named.name if named else "")
