"""`simulate`, `policy explain`, `record` and `replay` on the real API server, as an operator."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remediator.lab.tape import decode
from testbed.api import MERGE_PATCH
from testbed.faultproxy import FaultProxy
from tests.integration.controller.test_cli import (
    Remediator,
    account,
    remediator,
    remediator_with,
)


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site

__all__ = ["remediator"]  # a fixture that these tests share with those of the other commands

pytestmark = pytest.mark.cluster


def test_simulate_and_explain_say_what_would_be_done_and_do_nothing(
    site: Site, remediator: Remediator
) -> None:
    site.config("DryRun", budgets=[{"maxUnavailable": 1, "per": "cluster"}])
    waits, bad, well = (site.node() for _ in range(3))
    site.says(waits, 79)
    site.says(bad, 79, ago=60.0)  # the older fault comes first
    site.says(well)
    files = ("--policies", str(site.policies), "--config", str(site.folder / "config.yaml"))
    result = remediator("simulate", *files, "-o", "json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    nodes = {one["node"]: one for one in report["nodes"]}
    assert set(nodes) == {bad, waits}
    assert nodes[bad]["steps"] == ["cordon (xid-79)"]
    assert nodes[waits]["steps"] == []
    assert [hold["guard"] for hold in nodes[waits]["holds"]] == ["budget"]
    text = remediator("policy", "explain", waits, *files)
    assert text.exit_code == 0, text.output
    assert "xid-79 (Enforce): matches" in text.output
    assert "when[0].xid (codes 79) holds: Xid 79 on 0000:9b:00.0" in text.output
    assert "held by budget: 1 of 1 nodes" in text.output
    other = remediator("policy", "explain", well, *files, "--policy", "xid-79")
    assert "does not hold: the agent reports no code" in other.output
    for node in (bad, waits, well):
        assert not site.cordoned(node)
        assert site.session(node) is None


def test_a_session_is_explained_though_the_selector_no_longer_means_its_node(
    site: Site, run: Callable[..., Replica], remediator: Remediator
) -> None:
    site.policy(nodes={"selector": {"matchLabels": {"tier": "batch"}}})
    node, other = site.node(labels={"tier": "batch"}), site.node()
    run()
    site.says(node, 79)
    site.wait(lambda: site.cordoned(node), "cordon")
    change = {"metadata": {"labels": {"tier": None}}}
    site.cluster.api.patch(f"/api/v1/nodes/{node}", change, content_type=MERGE_PATCH)
    files = ("--policies", str(site.policies), "--config", str(site.folder / "config.yaml"))
    held = remediator("policy", "explain", node, *files).output
    assert "begins nothing here: the node's labels are not those of nodes.selector" in held
    assert "its session goes on whatever its labels" in held
    assert "xid-79 (Enforce): matches\n" in held
    free = remediator("policy", "explain", other, *files).output
    assert "is not about this node: the node's labels are not those" in free


def test_simulate_knows_of_a_pause(site: Site, remediator: Remediator) -> None:
    node = site.node()
    site.says(node, 79)
    assert remediator("pause", "--reason", "upgrade").exit_code == 0
    files = ("--policies", str(site.policies), "--config", str(site.folder / "config.yaml"))
    result = remediator("simulate", *files)
    assert "PAUSED by" in result.output
    assert "pause: paused by" in result.output


def test_what_was_recorded_can_be_replayed_and_looked_at(
    site: Site, remediator: Remediator, proxy: FaultProxy, tmp_path: Path
) -> None:
    node = site.node()
    site.says(node)
    out = tmp_path / "day.jsonl.gz"
    kubeconfig = str(site.cluster.kubeconfig_for(site.token, url=proxy.url))
    program = "from remediator.cli import main; main()"
    flags = ["record", "--out", str(out), "--for", "1h", "--kubeconfig", kubeconfig]
    with subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-c", program, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as recorder:
        site.wait(lambda: proxy.count("GET", "/nodes.*watch=1"), "it to follow what it listed")
        site.says(node, 79)
        site.wait(lambda: out.exists() and _lines_of(node, out) >= 2, "the change")
        recorder.send_signal(signal.SIGINT)
        said, _ = recorder.communicate(timeout=20)
    assert recorder.returncode == 0, said
    assert "lines of" in said
    from remediator.cli.replay import read_lines  # noqa: PLC0415 - as the command does

    mine = [one for one in decode(read_lines(out)) if one.name == node]
    assert len(mine) >= 2
    files = ("--policies", str(site.policies), "--config", str(site.folder / "config.yaml"))
    seen = remediator("simulate", *files, "--recorded", str(out))
    assert f"{node} " in seen.output
    assert "cordon (xid-79)" in seen.output


def test_without_the_right_to_list_nodes_the_rule_is_named(site: Site) -> None:
    poor = remediator_with(site.cluster, account(site.cluster, "nobody"))
    result = poor("simulate", "--policies", str(site.policies))
    assert result.exit_code == 1
    assert "not allowed to list nodes" in result.output
    assert 'resources: ["nodes"]' in result.output


def _lines_of(node: str, recording: Path) -> int:
    """How often the part that was written so far names the node."""
    unpacked = zlib.decompressobj(wbits=31).decompress(recording.read_bytes())
    return unpacked.count(f'"{node}"'.encode())


def _kubeconfig(site: Site) -> str:
    return str(site.cluster.kubeconfig_for(site.token))


def test_simulate_names_what_would_block_a_drain(site: Site, remediator: Remediator) -> None:
    """By pod and cause: a disruption budget, and a pod that nothing makes anew."""
    site.policy(steps=[{"cordon": {}}, {"drain": {}}])
    node = site.node()
    site.says(node, 79)
    cluster = site.cluster
    made = cluster.api.create(
        f"/api/v1/namespaces/{cluster.namespace}/configmaps", {"metadata": {"name": "owner"}}
    )
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "controller": True}
    guarded = cluster.create_pod(
        node=node,
        labels={"app": "web"},
        running=True,
        owner=owner | {"uid": made["metadata"]["uid"]},
    )
    alone = cluster.create_pod(node=node, running=True)
    cluster.api.create(
        f"/apis/policy/v1/namespaces/{cluster.namespace}/poddisruptionbudgets",
        {
            "metadata": {"name": "web"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        },
    )
    files = ("--policies", str(site.policies), "--config", str(site.folder / "config.yaml"))
    result = remediator("simulate", *files, "-o", "json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.output)["nodes"]
    said = "\n".join(row["drainBlockers"])
    assert f"{guarded}: the disruption budget {cluster.namespace}/web" in said
    assert f"{alone}: " in said
    assert set(cluster.pods()) >= {guarded, alone}
