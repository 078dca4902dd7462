"""Policies that are objects, read by a command: a wrong one is said, the others count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remediator.cli.failure import Failure
from remediator.cli.policysource import PolicySource, parse_objects
from remediator.kube.access import access_of
from remediator.kube.errors import NotFound
from remediator.policy.cluster import ClusterSpec
from remediator.settings import PoliciesFrom


def text(name: str, **spec: Any) -> bytes:
    document = {
        "apiVersion": "gpu-remediator.io/v1alpha1",
        "kind": "RemediationPolicy",
        "metadata": {"name": name},
        "spec": {"when": [{"xid": {"codes": [79]}}], "steps": [{"cordon": {}}], **spec},
    }
    return json.dumps(document).encode()


def test_each_object_is_judged_by_itself() -> None:
    found = {
        "kind/good": text("good"),
        "kind/taken": text("taken"),
        "kind/odd": text("odd", when=[]),
        "kind/mute": text("mute", steps=[{"notify": {"to": ["nobody"]}}]),
    }
    policies, bad = parse_objects(found, owners={"taken": "p.yaml"}, cluster=ClusterSpec())
    assert [one.name for one in policies] == ["good"]
    assert [one.file for one in bad] == ["kind/mute", "kind/odd", "kind/taken"]
    policies, bad = parse_objects(found, owners={}, cluster=None)
    assert [one.name for one in policies] == ["good", "mute", "taken"]
    assert len(bad) == 1


async def test_a_cluster_without_the_kind_is_told_what_to_apply(tmp_path: Path) -> None:
    class Api:
        async def request(self, method: str, target: str, **_: Any) -> bytes:
            raise NotFound(access_of(method, target))

    path = tmp_path / "p.yaml"
    path.write_bytes(text("p"))
    api: Any = Api()
    for kind, paths in ((PoliciesFrom.CRDS, ()), (PoliciesFrom.BOTH, (path,))):
        with pytest.raises(Failure, match="apply deploy/crds"):
            await PolicySource(paths, kind).read(api, "ns")
    found = await PolicySource((path,), PoliciesFrom.FILES).read(api, "ns")
    assert [one.name for one in found.policies] == ["p"]
