"""A GPU needs a reset, so its node is drained; a PodDisruptionBudget holds the last pod."""

import time

from demo.paper import Paper
from demo.scene import DemoFailedError, seen, status, until
from demo.stage import RESET, Controller, Stage
from testbed.cluster import Cluster
from testbed.workload import create_budget, create_owner, stand_in_kubelet


_GPU = 1
_NAMESPACE = "inference"
_RECOVERY_ACTION = 230  # NVML field; 1 is a GPU reset
_LINE = "Timeout after 6s of waiting for RPC response from GPU0 GSP!"


def play(paper: Paper, stage: Stage, controller: Controller) -> None:
    """Fault, cordon, blocked drain; the budget is relaxed, the drain ends; reset, back."""
    paper.chapter("A GPU needs a reset: the node is drained, within a PodDisruptionBudget")
    paper.quote(f"diff policies/{RESET}.yaml (this demo's)", controller.difference(RESET))
    node = stage.busy.node
    team = _pods(stage)
    paper.quote(
        f"kubectl get pods,pdb -n {_NAMESPACE}", stage.kubectl("get", "pods,pdb", "-n", _NAMESPACE)
    )
    with stand_in_kubelet(team):
        since = _break(paper, stage)
        _blocked(paper, stage, team, since)
        patch = '{"spec": {"minAvailable": 0}}'
        command = ("patch", "pdb", "llm", "-n", _NAMESPACE, "--type=merge", "-p", patch)
        zero = paper.zero()
        paper.quote(f"kubectl {' '.join(command[:-1])} '{patch}'", stage.kubectl(*command))
        done = seen(
            stage,
            node,
            lambda one: one.condition("Drained")[0] == "True",
            since=zero,
            otherwise=f"the drain did not end\n{controller.process.log_tail()}",
        )
        if left := team.pods():
            raise DemoFailedError(f"the drain is said to be done, and {list(left)} are there")
    paper.at(done.at, "the budget allows it: evicted, gone; condition Drained=True", colour="green")
    _reset(paper, stage, controller)


def _pods(stage: Stage) -> Cluster:
    """A pod of a batch job, and one of a service whose budget wants it there."""
    team = Cluster(stage.plane, namespace=_NAMESPACE)
    team.api.create("/api/v1/namespaces", {"metadata": {"name": _NAMESPACE}})
    account = f"/api/v1/namespaces/{_NAMESPACE}/serviceaccounts"
    team.wait_for(lambda: team.api.get(account)["items"], what="the default service account")
    for name in ("batch", "llm"):
        team.create_pod(
            f"{name}-0",
            node=stage.busy.node,
            service_account="default",
            labels={"app": name},
            owner=create_owner(team, "StatefulSet", name),
            running=True,
            gpus=4,
            grace=30,
        )
    create_budget(team, "llm", {"app": "llm"})
    return team


def _break(paper: Paper, stage: Stage) -> float:
    machine, node = stage.busy.machine, stage.busy.node
    since = paper.zero()
    stage.busy.driver.field(_GPU, _RECOVERY_ACTION, 1)
    machine.xid(119, _LINE, gpu=_GPU)
    paper.at(time.time(), f"kernel log of {node}: Xid 119, {_LINE}", colour="red")
    cordoned = seen(
        stage,
        node,
        lambda one: one.unschedulable,
        since=since,
        otherwise="the node was not cordoned before its drain",
    )
    paper.at(cordoned.at, "unschedulable, as an independent reader sees it", colour="red")
    return since


def _blocked(paper: Paper, stage: Stage, team: Cluster, since: float) -> None:
    node = stage.busy.node
    marked = seen(
        stage,
        node,
        lambda one: one.condition("DrainInProgress")[0] == "True",
        since=since,
        otherwise="the node does not say that it is drained",
    )
    paper.at(marked.at, f"condition DrainInProgress=True on {node}", colour="yellow")
    until(lambda: "batch-0" not in team.pods(), "the pod without a budget was not evicted")
    paper.at(time.time(), "batch-0 is evicted, and gone")
    table = status(stage, f"{_NAMESPACE}/llm-0").rpartition("\n\n")[2]
    said = next(line for line in table.splitlines() if f"{_NAMESPACE}/llm-0" in line)
    paper.quote("remediator status", said[said.index("drain for") :])
    if "deletionTimestamp" in team.pod("llm-0")["metadata"]:
        raise DemoFailedError("the pod was evicted against its budget")
    paper.say(f"an independent reader: {_NAMESPACE}/llm-0 runs on, nobody went past its budget")


def _reset(paper: Paper, stage: Stage, controller: Controller) -> None:
    since = paper.zero()
    stage.busy.driver.field(_GPU, _RECOVERY_ACTION, 0)
    paper.at(time.time(), f"GPU {_GPU} is reset; the driver wants no recovery action any more")
    back = seen(
        stage,
        stage.busy.node,
        lambda one: not one.unschedulable,
        since=since,
        otherwise=f"the node did not come back after its drain\n{controller.process.log_tail()}",
    )
    paper.at(back.at, "schedulable again", colour="green")
