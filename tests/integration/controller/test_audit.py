"""The audit log of a whole drain on the real API server: every write, and whose it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import structlog
from structlog.testing import capture_logs


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site

pytestmark = pytest.mark.cluster


def test_the_lines_of_a_drain(site: Site, run: Callable[..., Replica]) -> None:
    site.policy(steps=[{"cordon": {}}, {"drain": {"despite": ["unmanaged"]}}])
    node = site.node()
    pod = site.cluster.create_pod(node=node, running=True, grace=30)
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
        run()
        site.says(node, 79)
        site.wait(lambda: "deletionTimestamp" in site.cluster.pod(pod)["metadata"], "eviction")
        session = (site.session(node) or {})["id"]
        site.cluster.delete_pod(pod)
        site.wait(lambda: any("DrainCompleted" in str(one.get("after")) for one in logs), "the end")

    lines = [one for one in logs if one["event"] == "write" and one["result"] == "done"]
    assert {one["action"] for one in lines} >= {"cordon", "drain", "evict", "condition"}
    of_steps = [one for one in lines if one["action"] in {"evict", "condition"}]
    assert {(one["node"], one["policy"], one["session"], one["step"]) for one in of_steps} == {
        (node, "xid-79", session, 2)
    }
    assert all("before" in one and "after" in one for one in lines)
