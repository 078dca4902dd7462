"""The current state of one kind of object, by name and by further indexes.

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

from collections import defaultdict
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import structlog

from remediator.kube.codec import Named
from remediator.kube.objects import Node
from remediator.kube.significance import node_changed


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_log = structlog.get_logger(__name__)

T = TypeVar("T", bound=Named)
Handler: TypeAlias = "Callable[[T | None, T | None], None]"
Index: TypeAlias = "Callable[[T], Iterable[str]]"

BY_ADDRESS = "address"
BY_HOSTNAME = "hostname"
BY_POOL = "pool"
_HOSTNAME_LABEL = "kubernetes.io/hostname"


class Store(Generic[T]):
    """Objects by name.

    Args:
        indexes: by name, functions that give the keys under which an object is found.
        changed: whether two versions of an object differ in a way that matters.
    """

    def __init__(
        self,
        *,
        indexes: Mapping[str, Index[T]] | None = None,
        changed: Callable[[T, T], bool] = lambda _old, _new: True,
    ) -> None:
        self.handler_errors = 0
        self._objects: dict[str, T] = {}
        self._functions = dict(indexes or {})
        self._indexes: dict[str, dict[str, dict[str, T]]] = {
            name: defaultdict(dict) for name in self._functions
        }
        self._changed = changed
        self._every: list[Handler[T]] = []
        self._significant: list[Handler[T]] = []

    # -- reading -----------------------------------------------------------------------

    def get(self, name: str) -> T | None:
        """The object of that name."""
        return self._objects.get(name)

    def by(self, index: str, key: str) -> Sequence[T]:
        """All objects found under `key` of `index`, in no particular order."""
        return tuple(self._indexes[index].get(key, {}).values())

    def keys(self, index: str) -> Sequence[str]:
        """The keys of `index` under which there is an object."""
        return tuple(self._indexes[index])

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
        """Call `handler` for each new version, heartbeats included."""
        self._every.append(handler)

    def on_change(self, handler: Handler[T]) -> None:
        """Call `handler` for what appears, is gone, or changed in a way that matters."""
        self._significant.append(handler)

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
        self._reindex(old, new)
        self._tell(old, new, significant=old is None or self._changed(old, new))

    def remove(self, name: str) -> None:
        """Forget an object; nothing happens if there is none of that name."""
        old = self._objects.pop(name, None)
        if old is not None:
            self._reindex(old, None)
            self._tell(old, None, significant=True)

    def _reindex(self, old: T | None, new: T | None) -> None:
        for index, keys_of in self._functions.items():
            table = self._indexes[index]
            before = set() if old is None else set(keys_of(old))
            after = set() if new is None else set(keys_of(new))
            for key in before - after:
                bucket = table[key]
                bucket.pop(old.name, None) if old else None
                if not bucket:
                    del table[key]
            if new is not None:
                for key in after:
                    table[key][new.name] = new

    def _tell(self, old: T | None, new: T | None, *, significant: bool) -> None:
        for handler in self._every:
            self._call(handler, old, new)
        if significant:
            for handler in self._significant:
                self._call(handler, old, new)

    def _call(self, handler: Handler[T], old: T | None, new: T | None) -> None:
        try:
            handler(old, new)
        except Exception:  # noqa: BLE001 - see the module's text
            self.handler_errors += 1
            named = new if new is not None else old
            _log.exception("store handler failed", object=named.name if named else "")


def node_store(pool_labels: Sequence[str] = ()) -> Store[Node]:
    """A store of nodes, indexed by internal IP, hostname label and pool.

    Args:
        pool_labels: label keys that name a node's pool; the first one present counts.
            Nodes without any form the pool "".
    """
    labels = tuple(pool_labels)
    return Store(
        indexes={
            BY_ADDRESS: _internal_addresses,
            BY_HOSTNAME: _hostname,
            BY_POOL: lambda node: (pool_of(node, labels),),
        },
        changed=node_changed,
    )


def pool_of(node: Node, pool_labels: Iterable[str]) -> str:
    """The node's pool: the value of the first of `pool_labels` that it has, else ""."""
    return next((node.labels[key] for key in pool_labels if key in node.labels), "")


def _internal_addresses(node: Node) -> Iterable[str]:
    return [entry.address for entry in node.addresses if entry.type == "InternalIP"]


def _hostname(node: Node) -> Iterable[str]:
    name = node.labels.get(_HOSTNAME_LABEL)
    return [name] if name else []
