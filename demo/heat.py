"""A GPU is too hot: its node is tainted, not cordoned, and the taint goes when it is cool again.

The agent takes a GPU for cool after half a minute without a relapse; other scenes play meanwhile.
"""

import time

from demo.paper import Paper
from demo.scene import seen
from demo.stage import HOT, QUICK, Controller, Stage


_GPU = 5
_TAINT = "gpu-remediator.io/unhealthy=overheating:NoSchedule"
_MARGIN = 55
"""Degrees to the highest operating temperature (T.Limit), of a GPU that is well."""


def begin(paper: Paper, stage: Stage, controller: Controller) -> float:
    """It gets hot, the taint comes; then it is cooled, at the time that is returned."""
    paper.chapter("A GPU is too hot: a taint keeps new pods away, what runs goes on")
    paper.quote(f"diff policies/{HOT}.yaml (this demo's)", controller.difference(HOT))
    node, driver = stage.hot.node, stage.hot.driver
    since = paper.zero()
    driver.set(_GPU, margin=-4)
    paper.at(time.time(), f"NVML of {node}: GPU {_GPU} is 4 C over its limit", colour="red")
    _condition(paper, stage, "True", since)
    tainted = seen(
        stage,
        node,
        lambda one: _TAINT in one.taints,
        since=since,
        otherwise=f"the hot node was not tainted\n{controller.process.log_tail()}",
    )
    paper.at(tainted.at, f"tainted {_TAINT}, after {QUICK} of that", colour="red")
    cooled = time.time()
    driver.set(_GPU, margin=_MARGIN)
    paper.at(time.time(), f"NVML of {node}: GPU {_GPU} is {_MARGIN} C below its limit")
    paper.say("the agent says that it is cool when it has been so for 30 s; meanwhile:")
    return cooled


def end(paper: Paper, stage: Stage, controller: Controller, *, cooled: float) -> None:
    """It has been cool for long enough, the taint goes; maybe before the other scenes were over."""
    paper.chapter("Meanwhile the hot GPU has cooled down")
    since = _condition(paper, stage, "False", paper.zero(cooled))
    clean = seen(
        stage,
        stage.hot.node,
        lambda one: _TAINT not in one.taints,
        since=since,
        otherwise=f"the taint stayed on the cool node\n{controller.process.log_tail()}",
    )
    paper.at(clean.at, f"no taint, after {QUICK} of being cool", colour="green")


def _condition(paper: Paper, stage: Stage, wanted: str, since: float) -> float:
    found = seen(
        stage,
        stage.hot.node,
        lambda one: one.condition("GPUOverheating")[0] == wanted,
        since=since,
        otherwise=f"the agent did not publish GPUOverheating={wanted}",
    )
    reason = found.condition("GPUOverheating")[1]
    colour = "yellow" if wanted == "True" else "green"
    paper.at(found.at, f"condition GPUOverheating={wanted} ({reason})", colour=colour)
    return found.at
