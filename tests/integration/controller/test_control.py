"""What people tell a running controller: pause, breaker reset, other policies."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from remediator.decide.ledger import Pause
from remediator.record.control import (
    CONTROL_CONFIGMAP,
    RESET_PREFIX,
    BreakerReset,
    write_pause,
    write_reset,
)
from testbed.api import ApiError
from testbed.faultproxy import Answer, FaultProxy


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site

pytestmark = pytest.mark.cluster


def control(site: Site, data: dict[str, str | None]) -> None:
    path = f"/api/v1/namespaces/{site.cluster.namespace}/configmaps"
    try:
        site.cluster.api.patch(
            f"{path}/{CONTROL_CONFIGMAP}",
            {"data": data},
            content_type="application/merge-patch+json",
        )
    except ApiError:
        body = {"metadata": {"name": CONTROL_CONFIGMAP}, "data": data}
        site.cluster.api.create(path, {"apiVersion": "v1", "kind": "ConfigMap", **body})


def guards(site: Site, node: str) -> list[str]:
    return [hold["guard"] for hold in (site.status_of(node) or {}).get("holds", [])]


def test_a_pause_holds_new_steps_and_recovery_goes_on(
    site: Site, run: Callable[..., Replica]
) -> None:
    old, new = site.node(), site.node()
    run()
    site.says(old, 79)
    site.wait(lambda: site.cordoned(old), "cordon")
    control(site, write_pause(Pause(by="alice", at="now", reason="upgrade")))
    site.wait(lambda: site.status().get("pause"), "pause in the status")

    site.says(new, 79)
    site.says(old)
    site.wait(lambda: guards(site, new) == ["pause"], "hold")
    site.wait(lambda: not site.cordoned(old), "uncordon in spite of the pause")
    assert not site.cordoned(new)

    control(site, {"pause": None})
    site.wait(lambda: site.cordoned(new), "cordon after the pause")


def test_pause_all_stops_every_write(site: Site, run: Callable[..., Replica]) -> None:
    node, mark = site.node(), site.node()
    control(site, write_pause(Pause(by="alice", at="now", all=True)))
    run()
    site.says(mark, 79)
    site.says(node, 79)
    site.wait(lambda: guards(site, node) and guards(site, mark), "holds")
    assert not site.writes_to(node)
    control(site, {"pause": None})
    site.wait(lambda: site.cordoned(node), "cordon after the pause")
    control(site, write_pause(Pause(by="alice", at="now", all=True)))
    site.wait(lambda: site.status().get("pause"), "pause in the status")
    before = len(site.writes_to(node))
    site.says(node)
    site.wait(lambda: "pause" in guards(site, node), "hold of the recovery")
    assert site.cordoned(node)
    assert len(site.writes_to(node)) == before


def test_a_breaker_is_reset_once(site: Site, run: Callable[..., Replica]) -> None:
    site.config(breaker={"minNodes": 1, "percent": 1})
    nodes = [site.node() for _ in range(3)]
    run()
    site.wait(lambda: site.status().get("gpuNodes") == 3, "first status")
    for node in nodes:
        site.says(node, 79)
    site.wait(lambda: any(one["open"] for one in site.status().get("breakers", [])), "breaker")
    assert [site.cordoned(node) for node in nodes].count(True) <= 1

    control(site, write_reset("xid-79", BreakerReset(by="alice", at="t1", keep=True)))
    site.wait(lambda: all(map(site.cordoned, nodes)), "cordons after the reset")
    site.wait(
        lambda: RESET_PREFIX + "xid-79" not in (site.cluster.configmap(CONTROL_CONFIGMAP) or {}),
        "the answered request to be removed",
    )


def test_a_storm_over_several_policies_opens_the_breaker_of_the_agents(
    site: Site, run: Callable[..., Replica]
) -> None:
    site.config(breaker={"minNodes": 1, "percent": 1})
    site.policy(name="xid-48", when=[{"xid": {"codes": [48]}}])
    nodes = [site.node() for _ in range(3)]
    run()
    site.wait(lambda: site.status().get("gpuNodes") == 3, "first status")
    for code, node in zip((79, 48), nodes[:2], strict=True):
        site.says(node, code)

    def is_open() -> list[str]:
        return [one["source"] for one in site.status().get("breakers", []) if one["open"]]

    site.wait(lambda: is_open() == ["agents/all"], "breaker of the agents")
    site.says(nodes[2], 79)
    site.wait(lambda: "breaker" in guards(site, nodes[2]), "hold")
    assert not site.cordoned(nodes[2])

    reset = write_reset("agents/all", BreakerReset(by="alice", at="t1", keep=True))
    control(site, reset)
    site.wait(lambda: all(map(site.cordoned, nodes)), "cordons after the reset")
    site.wait(
        lambda: not set(reset) & set(site.cluster.configmap(CONTROL_CONFIGMAP) or {}),
        "the answered request to be removed",
    )


def test_a_policy_is_taken_over_and_a_broken_edit_is_not(
    site: Site, run: Callable[..., Replica]
) -> None:
    site.policy(mode="DryRun")
    node = site.node()
    run()
    site.says(node, 79)
    site.wait(lambda: (site.status_of(node) or {}).get("dryRun"), "dry-run")
    assert not site.cordoned(node)

    site.policy(mode="Enforce")
    site.wait(lambda: site.cordoned(node), "cordon by the edited policy")

    (site.policies / "xid-79.yaml").write_text("kind: RemediationPolicy\nspec: {mod: Enforce}\n")
    (problem,) = site.wait(lambda: site.status().get("policyProblems"), "problem in the status")
    assert "xid-79.yaml" in problem["source"]
    site.says(node)
    site.wait(lambda: not site.cordoned(node), "recovery by the version that stays in force")


def test_health_readiness_and_metrics(site: Site, run: Callable[..., Replica]) -> None:
    node = site.node()
    replica = run()
    site.says(node, 79)
    site.wait(lambda: site.cordoned(node), "cordon")

    def get(path: str) -> str:
        url = f"http://127.0.0.1:{replica.port}{path}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())

    assert get("/healthz").endswith("ok\n")
    assert get("/readyz").endswith("ok\n")
    text = get("/metrics")
    done = 'remediation_actions_total{action="cordon",mode="enforce",policy="xid-79",result="done"}'
    assert f"{done} 1.0" in text
    assert "\nleader 1.0" in text
    assert node not in text


def test_a_memory_that_cannot_be_written_is_said_and_counted(
    site: Site, run: Callable[..., Replica], proxy: FaultProxy
) -> None:
    refusal = Answer(403, reason="Forbidden")
    proxy.add(refusal, method="POST", path="/configmaps", body=b"gpu-remediator-state")
    proxy.add(refusal, method="PATCH", path="/configmaps/gpu-remediator-state")
    node = site.node()
    replica = run(server=proxy.url)
    site.says(node, 79)
    site.wait(lambda: site.cordoned(node), "cordon")

    def page() -> str:
        url = f"http://127.0.0.1:{replica.port}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())

    def noted() -> bool:
        return any("rates and breakers" in note for note in site.status().get("notes", []))

    site.wait(noted, "the note")
    assert 'remediation_unwritten{document="state"} 1.0' in page()
    assert 'remediation_unwritten{document="status"} 0.0' in page()
    proxy.clear()
    site.wait(lambda: not noted(), "the end of the note")
    assert 'remediation_unwritten{document="state"} 0.0' in page()
