"""Eight nodes turn bad at once: the signal itself is suspect, and a breaker stops all of it."""

import time
from concurrent.futures import ThreadPoolExecutor

from demo.paper import Paper
from demo.scene import DemoFailedError, seen, status
from demo.stage import Stage


CONFIG = ", budgets: [{maxUnavailable: 100%, per: cluster}]"
"""No budget that would hold the storm anyway: what stops it here is the breaker alone."""
_NODES = 8
_BELIEVABLE = 3
"""`breaker.minNodes`, by default: more nodes within 5 minutes are not, those of before included."""


def play(paper: Paper, stage: Stage) -> None:
    """Storm, breaker, status."""
    paper.chapter("Eight nodes lose a GPU within a second: a breaker stops it")
    paper.say("budgets are lifted on purpose here: by default they would allow a single node")
    names = [stage.cluster.create_node(f"s{number}") for number in range(1, _NODES + 1)]
    for name in names:
        seen(stage, name, lambda _: True, since=0, otherwise="the new nodes were not seen")
    time.sleep(1.0)  # the controller has looked at them while they were well
    paper.zero()
    _lose_gpu(stage, names)
    paper.at(
        time.time(), f"GPULost=True (FallenOffBus) on {names[0]} ... {names[-1]}", colour="red"
    )
    text = status(stage, "BREAKER OPEN")
    source = text.partition("BREAKER OPEN ")[2].split()[0]
    time.sleep(1.0)  # time for cordons that must not come
    taken = {name: at for name in names if (at := _cordoned_at(stage, name)) is not None}
    for number, (name, at) in enumerate(sorted(taken.items(), key=lambda one: one[1]), 1):
        paper.at(at, f"cordon {number}: {name}", colour="red")
    if len(taken) > _BELIEVABLE:
        raise DemoFailedError(f"{len(taken)} of {_NODES} nodes were cordoned")
    paper.quote("remediator status", text.partition("\n\n")[0])
    paper.quote("kubectl get nodes", stage.kubectl("get", "nodes"))
    paper.say(
        f"an independent reader: {_NODES - len(taken)} of the {_NODES} nodes stay schedulable\n"
        f"after a look at the signal: `remediator breaker reset {source}`"
    )


def _lose_gpu(stage: Stage, names: list[str]) -> None:
    """What the agents of all these nodes would say, at once."""

    def lose(name: str) -> None:
        stage.cluster.set_condition(name, "GPULost", "True", reason="FallenOffBus")

    with ThreadPoolExecutor(_NODES) as pool:
        list(pool.map(lose, names))


def _cordoned_at(stage: Stage, name: str) -> float | None:
    return next((one.at for one in stage.witness.versions(name) if one.unschedulable), None)
