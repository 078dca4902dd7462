"""Which worker does which action."""

from __future__ import annotations

from collections.abc import Mapping

from remediator.act.work import Worker


def make_workers() -> Mapping[str, Worker]:
    """Return the workers by action."""
    return {}
