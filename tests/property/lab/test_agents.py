"""A lab walks heartbeats seldom, and says what the controller says that walks every 20 s."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.contract import HEARTBEAT_SECONDS, STALE_AFTER_SECONDS
from remediator.decide.facts import AGENTS, NOTHING_KNOWN
from remediator.kube.objects import Node
from remediator.lab import nodes as on
from remediator.lab.agenda import Agenda
from remediator.lab.agents import Agents
from remediator.policy.cluster import ClusterSpec, Sanity
from remediator.signals.board import AGENTS_SECONDS
from remediator.signals.fleet import Fleet
from tests.property.cases import cases


START = 1_767_614_400.0
GPU = {"nvidia.com/gpu.present": "true"}

versions = st.lists(
    st.tuples(
        st.integers(1, 4 * int(HEARTBEAT_SECONDS)),
        st.integers(1, 5),
        st.sampled_from(["beat", "beat", "gone", "no gpu", "blind"]),
    ),
    max_size=25,
)


@settings(max_examples=cases(60))
@given(script=versions, believable=st.integers(0, 2))
def test_what_is_walked_seldom_is_said_as_by_who_walks_always(
    script: list[tuple[int, int, str]], believable: int
) -> None:
    """The same answer as a walk every 20 s gives, at every one of these times."""
    sanity = Sanity.model_validate({"minAgents": believable})
    assert told(script, sanity, kind=Agents) == told(script, sanity, kind=Walking)


def told(
    script: list[tuple[int, int, str]], sanity: Sanity, *, kind: type[Agents]
) -> list[tuple[int, bool, str, float]]:
    """Return what was said of the agents shortly after each of the controller's times."""
    agenda = Agenda(START)
    fleet = Fleet(cluster=ClusterSpec(), clock=agenda)
    agents = kind(sanity=sanity, nodes=fleet.all, agenda=agenda, changed=lambda: None)
    agents.judge()
    at, said = 0.5, []
    for number in range(1, 6):
        put(fleet, agents, on.well_node(f"n{number}", now=START, labels=GPU))
    for gap, number, what in [*script, (3 * int(STALE_AFTER_SECONDS), 1, "beat")]:
        for tick in range(int(at // AGENTS_SECONDS) + 1, int((at + gap) // AGENTS_SECONDS) + 1):
            agenda.run(START + tick * AGENTS_SECONDS, lambda _names: None)
            fact = agents.among(NOTHING_KNOWN)[AGENTS]
            said.append((tick, fact.ok, fact.why, fact.since))
        at += gap
        agenda.run(START + at, lambda _names: None)
        happen(fleet, agents, f"n{number}", what)
    return said


def happen(fleet: Fleet, agents: Agents, name: str, what: str) -> None:
    node, now = fleet.node(name), fleet._clock.now()
    if what == "blind":
        fleet.blind(60.0)
        agents.soon()
    elif what == "gone":
        fleet.on_event(node, None)
        agents.heard(name, None)
    elif node is None or what == "beat":
        known = on.well_node(name, now=now, labels=GPU) if node is None else node
        put(fleet, agents, on.beaten(known, now=now))
    else:
        put(fleet, agents, msgspec.structs.replace(node, labels={}))


def put(fleet: Fleet, agents: Agents, node: Node) -> None:
    known = fleet.node(node.name)
    version = str(1 + int(known.resource_version if known is not None else 0))
    fleet.on_event(known, msgspec.structs.replace(node, resource_version=version))
    agents.heard(node.name, fleet.get(node.name))


class Walking(Agents):
    """Walks at each of the controller's times."""

    def judge(self) -> None:
        super().judge()
        self.soon()
