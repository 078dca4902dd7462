"""Names of pods and containers from the kubelet's log folders, with no right on the API server.

The kubelet makes ``<root>/pods/<namespace>_<pod>_<uid>/`` for each pod, and
``<root>/containers/<pod>_<namespace>_<container>-<container id>.log`` for each container.
Kubernetes names have no ``_``, so that the parts are unambiguous. Only the names of the
entries are read, never a log. A pod's folder outlives it for a while, which is welcome:
a fault is often read after its pod has gone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple


class PodName(NamedTuple):
    """A pod's namespace and name."""

    namespace: str
    name: str


class Names(NamedTuple):
    """``pods`` by uid, ``containers``: name by container id."""

    pods: dict[str, PodName]
    containers: dict[str, str]


NO_NAMES: Final = Names({}, {})
_POD: Final = re.compile(r"([a-z0-9.-]+)_([a-z0-9.-]+)_([0-9a-f-]{32,36})")
_CONTAINER: Final = re.compile(r"[a-z0-9.-]+_[a-z0-9.-]+_([a-z0-9.-]+)-([0-9a-f]{64})\.log")
_MAX_ENTRIES: Final = 10_000


def read_names(root: Path) -> Names:
    """List both folders; one that is missing or forbidden gives nothing."""
    return parse_names(_list(root / "pods"), _list(root / "containers"))


def parse_names(pods: Iterable[str], containers: Iterable[str]) -> Names:
    """The names in entries of the two folders. Pure."""
    found_pods = {m[3]: PodName(m[1], m[2]) for e in pods if (m := _POD.fullmatch(e))}
    found = {m[2]: m[1] for e in containers if (m := _CONTAINER.fullmatch(e))}
    return Names(found_pods, found)


def _list(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(_MAX_ENTRIES), entries, strict=False):
                yield entry.name
    except OSError:
        return
