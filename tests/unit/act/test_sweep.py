"""Which Jobs are swept: ours, running, on a known node whose session does not want them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import structlog

from remediator.act.made import Templates
from remediator.act.sweep import UNWANTED, sweep
from remediator.kube.access import access_of
from remediator.kube.errors import Forbidden
from remediator.kube.lease import NotLeading
from remediator.policy.templates import Template


TEMPLATE = 'apiVersion: batch/v1\nkind: {kind}\nmetadata: {{namespace: "{place}"}}\n'
ENDED = {"conditions": [{"type": "Failed", "status": "True"}]}
KEYS = {"well": frozenset({"k1"}), "frozen": None}


def job(name: str, node: str = "well", key: str = "k2", **more: Any) -> dict[str, Any]:
    notes = {"gpu-remediator.io/node": node, "gpu-remediator.io/work": key}
    kept = {at: value for at, value in notes.items() if value}
    owners = [{"kind": "Node", "uid": "uid-of-node"}]
    digest = hashlib.sha256(f"uid-of-node/{key}".encode()).hexdigest()[:12]
    full = name if name == "foreign" else f"{name}-{digest}"
    metadata = {"name": full, "uid": f"uid-{name}", "annotations": kept, "ownerReferences": owners}
    return {"metadata": metadata, **more}


class Objects:
    def __init__(self, *jobs: dict[str, Any]) -> None:
        self.jobs = list(jobs)
        self.asked: list[str] = []
        self.deleted: list[tuple[str, str]] = []
        self.said: dict[str, Any] = {}
        self.error: Exception | None = None

    async def select(self, _kind: Any, namespace: str, labels: Any) -> list[dict[str, Any]]:
        self.asked.append(namespace)
        assert labels == {"app.kubernetes.io/managed-by": "gpu-remediator"}
        if self.error is not None:
            raise self.error
        return self.jobs

    async def delete(self, _kind: Any, _namespace: str, name: str, *, uid: str) -> None:
        self.deleted.append((name, uid))
        self.said = structlog.contextvars.get_contextvars()


async def swept(folder: Path, objects: Objects) -> int:
    for name, kind, place in (("a", "Job", "resets"), ("b", "Reboot", "other")):
        (folder / f"{name}.yaml").write_text(TEMPLATE.format(kind=kind, place=place))
    specs = {name: Template(file=f"{name}.yaml") for name in ("a", "b", "gone")}
    return await sweep(
        objects=objects,  # type: ignore[arg-type]
        templates=Templates(specs, folder=folder),
        namespace="home",
        wanted=KEYS.get,
    )


async def test_only_a_running_job_that_its_known_node_does_not_want_goes(tmp_path: Path) -> None:
    objects = Objects(
        job("unwanted"),
        job("wanted", key="k1"),
        job("ended", status=ENDED),
        job("frozen", node="frozen"),
        job("unknown", node="elsewhere"),
        job("nobody", node=""),
        job("keyless", key=""),
        job("foreign"),
    )
    assert await swept(tmp_path, objects) == 1
    ((name, uid),) = objects.deleted
    assert name.startswith("unwanted-")
    assert uid == "uid-unwanted"
    assert objects.said == {"node": "well", "key": "k2", "why": UNWANTED}, "for the audit log"
    assert structlog.contextvars.get_contextvars() == {}
    assert objects.asked == ["resets"], "where templates of Jobs are, and nowhere else"


@pytest.mark.parametrize(
    "error", [Forbidden(access_of("GET", "/apis/batch/v1/jobs")), NotLeading("stale")]
)
async def test_trouble_ends_a_sweep_and_nothing_else(tmp_path: Path, error: Exception) -> None:
    objects = Objects(job("unwanted"))
    objects.error = error
    assert await swept(tmp_path, objects) == 0
