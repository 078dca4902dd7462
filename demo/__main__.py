"""A GPU falls off the bus; its node goes out of service, and comes back. Then three more cases.

Everything is real but the hardware: API server, etcd, controller manager, both programs,
their identities and the admission policy. The exit code is 0 only if an independent reader
saw the node untouched in dry-run, unschedulable in enforce mode, and schedulable again; and the
same reader saw a hot node tainted, a drain that waited for a budget, and a storm that was stopped.
"""

import sys
import time

from demo import crowd, drain, heat
from demo.paper import Paper
from demo.scene import PATIENCE, DemoFailedError, status, until, wait_out_settling, when, written
from demo.stage import HOT, LOST, QUICK, RESET, Controller, Stage, set_up
from demo.witness import Sight
from testbed.processes import ServerFailedError


_GPU = 2


def main() -> int:
    """Play the demo; return its exit code."""
    paper, begun = Paper(), time.monotonic()
    paper.chapter("A real control plane, three GPU nodes, an agent on each")
    paper.say("starting etcd, kube-apiserver, kube-controller-manager and three node-agents ...")
    try:
        with set_up() as stage:
            return _play(paper, stage, begun)
    except (DemoFailedError, ServerFailedError) as error:
        paper.say(paper.ink("red", f"\nThe demo failed: {error}"))
        paper.say("`make test` tells more; please report this with the output above.")
        return 1


def _play(paper: Paper, stage: Stage, begun: float) -> int:
    paper.quote("kubectl get nodes", stage.kubectl("get", "nodes"))
    try:
        with stage.controller("DryRun", LOST) as controller:
            _dry_run(paper, stage, controller)
        _set_healthy(paper, stage)
        with stage.controller("Enforce", LOST, HOT, config=crowd.CONFIG) as controller:
            _enforce(paper, stage, controller)
            cooled = heat.begin(paper, stage, controller)
            _come_back(paper, stage, controller)
        with stage.controller("Enforce", HOT, RESET, LOST, config=crowd.CONFIG) as controller:
            wait_out_settling()
            drain.play(paper, stage, controller)
            crowd.play(paper, stage)
            heat.end(paper, stage, controller, cooled=cooled)
    except DemoFailedError:
        for agent in (stage.agent, stage.hot.agent, stage.busy.agent):
            paper.say(f"\n--- an agent said last:\n{agent.process.log_tail()}")
        raise
    paper.chapter("Done")
    seconds = time.monotonic() - begun
    paper.say(
        f"{paper.ink('green', 'ok')}: untouched in dry-run, cordoned in enforce mode, back after "
        "recovery;\na taint, a drain that respects a budget, a storm that was stopped: "
        f"{seconds:.0f} s in all.\nTo do this on your own cluster, in dry-run first: "
        "README.md, «On your own cluster»."
    )
    return 0


def _dry_run(paper: Paper, stage: Stage, controller: Controller) -> None:
    paper.chapter("Dry-run: what would be done, and nothing is")
    before = stage.witness.latest(stage.node)
    wait_out_settling()
    since = _break_gpu(paper, stage)
    _published(paper, stage, since)
    would = until(lambda: written(controller, "dry-run", "cordon"), "no decision in dry-run")
    paper.at(when(would), f"decision (dry-run): {would['why']}", colour="yellow")
    paper.quote("remediator status", status(stage, stage.node))
    time.sleep(0.5)  # time for a write that must not come
    after = stage.witness.latest(stage.node)
    if before is None or after is None or after.unschedulable or after.ours() != before.ours():
        raise DemoFailedError("dry-run changed the node")
    paper.say("an independent reader: spec, labels and annotations of the node are unchanged")


def _set_healthy(paper: Paper, stage: Stage) -> None:
    paper.chapter("The SRE says that the GPU is well (it was only a rehearsal)")
    stage.machine.plug(stage.machine.gpus[_GPU])
    since = paper.zero()
    answer = stage.agent.set_healthy()
    paper.quote("node-agent set-healthy", answer.stdout + answer.stderr)
    cleared = stage.witness.wait_for(stage.node, _well, since=since, timeout=PATIENCE)
    if cleared is None:
        raise DemoFailedError("the conditions did not clear after set-healthy")
    paper.at(cleared.at, "conditions are False again", colour="green")


def _enforce(paper: Paper, stage: Stage, controller: Controller) -> None:
    paper.chapter("Enforce: the same policy, the same fault")
    paper.quote(f"diff policies/{LOST}.yaml (this demo's)", controller.difference(LOST))
    wait_out_settling()
    since = _break_gpu(paper, stage)
    _published(paper, stage, since)
    cordoned = stage.witness.wait_for(
        stage.node, lambda seen: seen.unschedulable, since=since, timeout=PATIENCE
    )
    if cordoned is None:
        raise DemoFailedError(f"the node was not cordoned\n{controller.process.log_tail()}")
    done = until(lambda: written(controller, "enforce", "cordon"), "the cordon was not recorded")
    paper.at(when(done), f"decision, written: {done['why']}")
    guards = done["allowed_by"]
    if isinstance(guards, list):
        paper.at(when(done), f"guards that were asked and allowed it: {', '.join(guards)}")
    paper.at(cordoned.at, "unschedulable, as an independent reader sees it", colour="red")
    paper.quote("kubectl get nodes", stage.kubectl("get", "nodes"))
    paper.quote("remediator status", status(stage, stage.node))
    paper.say(f"to undo it by hand: `remediator cancel {stage.node}`, or just uncordon the node")


def _come_back(paper: Paper, stage: Stage, controller: Controller) -> None:
    paper.chapter("The machine is restarted, all eight GPUs answer")
    since = paper.zero()
    stage.agent.kill()
    stage.machine.plug(stage.machine.gpus[_GPU])
    boot_id = stage.machine.reboot()
    stage.cluster.set_boot_id(stage.node, boot_id)
    stage.agent.start()
    paper.at(time.time(), f"new boot {boot_id[:8]}, the agent is back")
    well = stage.witness.wait_for(stage.node, _well, since=since, timeout=PATIENCE)
    if well is None:
        raise DemoFailedError("the conditions did not clear after the reboot")
    paper.at(well.at, "conditions are False, of the running boot", colour="green")
    back = stage.witness.wait_for(
        stage.node, lambda seen: not seen.unschedulable, since=since, timeout=PATIENCE
    )
    if back is None:
        raise DemoFailedError(f"the node was not uncordoned\n{controller.process.log_tail()}")
    paper.at(back.at, f"schedulable again, after {QUICK} of being well", colour="green")
    paper.quote("kubectl get nodes", stage.kubectl("get", "nodes"))
    left = [key for key in back.ours()["annotations"] if key.endswith("/session")]
    if left:
        raise DemoFailedError(f"the node still carries {left[0]}")


def _break_gpu(paper: Paper, stage: Stage) -> float:
    since = paper.zero()
    stage.machine.fall_off_bus(_GPU)
    paper.at(time.time(), f"kernel log of {stage.node}: {_last_line(stage)}", colour="red")
    return since


def _published(paper: Paper, stage: Stage, since: float) -> None:
    seen = stage.witness.wait_for(
        stage.node,
        lambda one: one.condition("GPUXidError") == ("True", "Xid79"),
        since=since,
        timeout=PATIENCE,
    )
    if seen is None:
        raise DemoFailedError("the agent did not publish the fault")
    lost = seen.condition("GPULost")[1]
    paper.at(seen.at, f"condition GPUXidError=True (Xid79), GPULost=True ({lost})", colour="yellow")


def _well(seen: Sight) -> bool:
    return all(seen.condition(kind)[0] == "False" for kind in ("GPUXidError", "GPULost"))


def _last_line(stage: Stage) -> str:
    return stage.machine.kernel_log.read_text("utf-8").splitlines()[-1].partition("] ")[2]


if __name__ == "__main__":
    sys.exit(main())
