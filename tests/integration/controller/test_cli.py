"""What people type, with an operator's rights, while a controller runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import pytest
from typer.testing import CliRunner

from remediator.cli.root import app
from remediator.decide.requests import APPROVAL_ANNOTATION, REQUEST_ANNOTATION
from remediator.decide.session import SESSION_ANNOTATION
from remediator.record.status import decode_status
from testbed.cluster import Cluster


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site

pytestmark = pytest.mark.cluster

RBAC = "/apis/rbac.authorization.k8s.io/v1"


class Result(NamedTuple):
    exit_code: int
    output: str


Remediator = Callable[..., Result]


def account(cluster: Cluster, name: str) -> str:
    """Create a service account that nothing is bound to; return its token."""
    path = f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts"
    cluster.api.create(path, {"metadata": {"name": name}})
    return cluster.token_for(name, bound=False)


def remediator_with(cluster: Cluster, token: str) -> Remediator:
    """The program itself, in a process of its own: the controller's log is in ours."""
    kubeconfig = str(cluster.kubeconfig_for(token))
    program = [sys.executable, "-c", "from remediator.cli import main; main()"]

    def call(*arguments: str) -> Result:
        flags = ["--kubeconfig", kubeconfig, "--namespace", cluster.namespace]
        done = subprocess.run(  # noqa: S603 - our own program
            [*program, *arguments, *flags], capture_output=True, text=True, check=False, timeout=60
        )
        return Result(done.returncode, done.stdout + done.stderr)

    return call


@pytest.fixture
def remediator(cluster: Cluster) -> Remediator:
    """The command line of a person who is bound to the operator's two roles."""
    token = account(cluster, "sre")
    name = f"gpu-remediator-operator-{cluster.namespace}"
    bindings = f"{RBAC}/namespaces/{cluster.namespace}/rolebindings"
    for path, kind, role in (
        (f"{RBAC}/clusterrolebindings", "ClusterRole", name),
        (bindings, "Role", "gpu-remediator-operator"),
    ):
        subject = {"kind": "ServiceAccount", "name": "sre", "namespace": cluster.namespace}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
        cluster.api.create(
            path, {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
        )
    return remediator_with(cluster, token)


def test_status_cancel_retry_release(
    site: Site, run: Callable[..., Replica], remediator: Remediator
) -> None:
    node = site.node()
    run()
    site.says(node, 79)
    site.wait(lambda: site.cordoned(node), "cordon")
    site.wait(lambda: site.status_of(node), "the node in the status")

    table = remediator("status")
    assert table.exit_code == 0
    assert f"\n{node}  " in table.output
    assert "Xid 79 on 0000:9b:00.0" in table.output
    assert "leader one (" in table.output
    assert decode_status(remediator("status", "-o", "json").output).leader == "one"

    cancelled = remediator("cancel", node, "--reason", "mine")
    assert cancelled.exit_code == 0, cancelled.output
    assert "is schedulable again, its session has ended: cancelled by system:serviceaccount:" in (
        cancelled.output
    )
    assert "(mine)" in cancelled.output
    assert site.session(node) is None
    assert not site.cordoned(node)

    assert remediator("retry", node).exit_code == 0
    site.wait(lambda: site.cordoned(node), "cordon after the retry")
    released = remediator("release", node)
    assert "The node is cordoned, its session has ended: released to" in released.output
    assert site.cordoned(node)


def test_a_dry_run_is_shown_and_can_be_cancelled(
    site: Site, run: Callable[..., Replica], remediator: Remediator
) -> None:
    site.config(mode="DryRun")
    node = site.node()
    run()
    site.says(node, 79)
    site.wait(
        lambda: (site.status_of(node) or {}).get("phase") == "in-session", "the dry-run's session"
    )
    shown = remediator("status").output
    assert "in-session [dry-run]" in shown
    assert "mode DryRun" in shown
    cancelled = remediator("cancel", node)
    assert cancelled.exit_code == 0, cancelled.output
    assert "in dry-run it never has one" in cancelled.output
    site.wait(lambda: (site.status_of(node) or {}).get("phase") == "waived", "the waiver")
    assert not site.cordoned(node)


def test_unfreeze(site: Site, run: Callable[..., Replica], remediator: Remediator) -> None:
    node = site.node(annotations={SESSION_ANNOTATION: "{"})
    run()
    site.wait(lambda: site.status_of(node), "the frozen node in the status")
    refused = remediator("cancel", node)
    assert refused.exit_code == 1
    assert f"`remediator unfreeze {node}` first" in refused.output
    answered = remediator("unfreeze", node)
    assert answered.exit_code == 0, answered.output
    assert "the unreadable annotation is gone" in answered.output


def test_pause_and_resume(site: Site, run: Callable[..., Replica], remediator: Remediator) -> None:
    paused = remediator("pause", "--reason", "moving racks")
    assert paused.exit_code == 0, paused.output
    node = site.node()
    run()
    site.says(node, 79)
    site.wait(lambda: (site.status_of(node) or {}).get("holds"), "a hold by the pause")
    assert not site.cordoned(node)
    shown = remediator("status").output
    assert "PAUSED by system:serviceaccount:" in shown
    assert "pause: paused by" in shown
    assert "moving racks" in shown
    resumed = remediator("resume")
    assert "(moving racks) has ended" in resumed.output
    site.wait(lambda: site.cordoned(node), "cordon after the resume")
    assert remediator("resume").output == "there was no pause\n"


def test_breaker_reset(site: Site, run: Callable[..., Replica], remediator: Remediator) -> None:
    site.config(breaker={"minNodes": 1, "percent": 1})
    nodes = [site.node() for _ in range(4)]
    for node in nodes:
        site.says(node)
    run()
    site.wait(lambda: site.status().get("policies"), "the policy in the status")
    assert "no open breaker xid-79" in remediator("breaker", "reset", "xid-79").output
    for node in nodes:
        site.says(node, 79)
    site.wait(
        lambda: any(one["open"] for one in site.status().get("breakers", [])), "an open breaker"
    )
    assert "BREAKER OPEN xid-79" in remediator("status").output
    unknown = remediator("breaker", "reset", "xid-97")
    assert unknown.exit_code == 1
    assert "there is no breaker xid-97; there are: agents/all, xid-79" in unknown.output
    assert remediator("breaker", "reset", "xid-79", "--keep").exit_code == 0
    site.wait(lambda: all(site.cordoned(node) for node in nodes), "cordons after the reset")


def test_no_answer_is_said_and_the_request_stays(site: Site, remediator: Remediator) -> None:
    node = site.node()
    result = remediator("cancel", node, "--wait", "0.5")
    assert result.exit_code == 1
    assert "no answer within 0.5 s. Is a controller running" in result.output
    annotations = site.cluster.node(node)["metadata"]["annotations"]
    assert json.loads(annotations[REQUEST_ANNOTATION])["verb"] == "cancel"
    assert remediator("cancel", node, "--no-wait").exit_code == 0


def test_a_node_that_does_not_exist(remediator: Remediator) -> None:
    result = remediator("cancel", "nowhere")
    assert result.exit_code == 1
    assert result.output == "error: there is no node nowhere\n"


def test_where_no_controller_ever_ran(remediator: Remediator) -> None:
    result = remediator("status")
    assert result.exit_code == 1
    assert "no controller has ever written a status in namespace" in result.output


def test_a_missing_right_is_named_with_the_rule_that_grants_it(
    site: Site, cluster: Cluster
) -> None:
    nobody = remediator_with(cluster, account(cluster, "nobody"))
    node = site.node()
    wanted = {
        ("status",): 'resources: ["configmaps"], verbs: ["get"]',
        ("pause",): 'resources: ["configmaps"], verbs: ["get"]',
        ("cancel", node): 'resources: ["nodes"], verbs: ["get"]',
    }
    for arguments, rule in wanted.items():
        result = nobody(*arguments)
        assert result.exit_code == 1
        assert rule in result.output
        assert result.output.count("\n") == 1


def test_a_wrong_token_is_said(cluster: Cluster) -> None:
    result = remediator_with(cluster, "not-a-token")("status")
    assert result.exit_code == 1
    assert "does not accept our credentials" in result.output


def test_an_unknown_context_is_said(cluster: Cluster) -> None:
    kubeconfig = str(cluster.kubeconfig_for("x"))
    result = CliRunner().invoke(app, ["status", "--kubeconfig", kubeconfig, "--context", "nope"])
    assert result.exit_code == 1
    assert result.output.startswith(f"error: context nope of {kubeconfig}: cannot be used")


def test_approve_lets_exactly_one_step_go_on(
    site: Site, run: Callable[..., Replica], remediator: Remediator
) -> None:
    asks = ["cordon", "approve", "taint", "approve", "approve"]
    site.policy(steps=[{action: {}} for action in asks])
    node = site.node()
    assert "it has no session" in remediator("approve", node).output
    run()
    site.says(node, 79)

    def step() -> int:
        session = site.session(node)
        return session["holds"][0].get("step", 0) if session else 0

    site.wait(lambda: step() == 1, "wait for the approval")
    held = site.wait(lambda: (site.status_of(node) or {}).get("holds"), "hold in the status")
    assert held[0]["guard"] == "approval"
    assert f"remediator approve {node} --policy xid-79" in held[0]["reason"]
    assert remediator("approve", node, "--policy", "other").exit_code == 1

    approved = remediator("approve", node, "--expires", "5m")
    assert approved.exit_code == 0, approved.output
    assert f"approved: step 2 of xid-79 on {node}; it goes on" in approved.output
    site.wait(lambda: step() == 3, "next approval")
    session = site.session(node)
    assert session is not None
    assert "approved by system:serviceaccount:" in session["holds"][0]["results"][1]["note"]
    annotations = site.cluster.node(node)["metadata"]["annotations"]
    assert APPROVAL_ANNOTATION not in annotations
    assert remediator("approve", node, "--no-wait").exit_code == 0
    site.wait(lambda: step() == 4, "last approval")

    def by_hand(at: int) -> None:
        """Annotate the node as the page says that people may."""
        yes = {"session": session["id"], "policy": "xid-79", "step": at, "by": "ann", "at": "now"}
        text = json.dumps([yes | {"expires": "2999-01-01T00:00:00Z"}])
        site.cluster.annotate(node, {APPROVAL_ANNOTATION: text})

    by_hand(2)
    unfit = "the approval of ann is for step 3, and this is step 5"
    site.wait(lambda: unfit in json.dumps(site.status_of(node)), "reason that it is not used")
    by_hand(4)
    site.wait(lambda: step() == 5, "end of the steps")
