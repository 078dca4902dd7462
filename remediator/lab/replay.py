"""Replays a recording under other policies, and counts what they would have done.

The same recording and policies give the same result, on every machine. The controller takes
over when the recording begins, so faults that were there then are a backlog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from remediator.decide.facts import ClusterFacts
from remediator.decide.signal_clauses import names
from remediator.kube.objects import Node
from remediator.lab.assumed import Answers, assumptions, relied_on
from remediator.lab.foreign import carried_over, cleaned
from remediator.lab.given import ApproveGiven
from remediator.lab.outside import CHANGES
from remediator.lab.player import with_mode
from remediator.lab.run import Lab
from remediator.lab.said import TICK_SECONDS, Said, Sayings
from remediator.lab.tape import Change, TapeError
from remediator.lab.timeline import DONE, Timeline, What
from remediator.lab.works import Assumptions
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import Mode, RemediationPolicy
from remediator.policy.quantities import format_duration
from remediator.policy.steps import WORKS
from remediator.signals.fleet import SignalsOfNode, signals_differ


HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Replayed:
    """What policies would have done. Times are epoch seconds."""

    start: float
    end: float
    nodes: int
    timeline: Timeline
    notes: tuple[str, ...] = ()
    """What the policies ask that the recording does not know."""
    assumed: Mapping[str, float | None] = field(default_factory=dict)
    """What is assumed of the policies' steps, in seconds; None: it never comes."""

    @property
    def steps(self) -> Counter[str]:
        """How often which step was done, or undone."""
        found = self.timeline.of(What.STEP, What.UNDONE)
        return Counter(one.name for one in found if one.result in {"", DONE})

    @property
    def failed(self) -> int:
        """Steps that failed or ran out of time."""
        return sum(one.result not in {"", DONE} for one in self.timeline.of(What.STEP))

    @property
    def holds(self) -> Counter[str]:
        """How often which guard held something back."""
        return Counter(span.guard for span in self.timeline.holds)

    @property
    def sessions(self) -> int:
        """Remediations begun."""
        return len(self.timeline.of(What.BEGUN))

    @property
    def messages(self) -> int:
        """Messages sent."""
        return len(self.timeline.of(What.MESSAGE))

    @property
    def lost(self) -> Sequence[tuple[float, int]]:
        """When how many nodes were out of service by our doing: each change."""
        return self.timeline.lost

    def begun(self, action: str) -> Sequence[tuple[float, int]]:
        """Return when how many steps of an action had begun: each change.

        A change of the node is one write: it begins when it is done.
        """
        works = action in WORKS
        found = self.timeline.of(What.WORK if works else What.STEP)
        times = [one.at for one in found if one.name == action and (works or one.result == DONE)]
        return [(at, count) for count, at in enumerate(times, 1)]

    @property
    def most_lost(self) -> int:
        """Most nodes out of service at once."""
        return max((count for _, count in self.lost), default=0)

    @property
    def lost_node_hours(self) -> float:
        """Capacity lost: nodes out of service, times hours."""
        total, (at, count) = 0.0, (self.start, 0)
        for later, now in (*self.lost, (self.end, 0)):
            total += max(0.0, min(later, self.end) - at) * count
            at, count = later, now
        return total / HOUR

    def sessions_by_node(self) -> Mapping[str, int]:
        """Return how many remediations which node had."""
        return Counter(one.node for one in self.timeline.of(What.BEGUN))


def replay(
    changes: Iterable[Change],
    *,
    policies: Sequence[RemediationPolicy],
    cluster: ClusterSpec,
    assume: Assumptions | None = None,
) -> Replayed:
    """Play a recording to a controller with these policies, as though they were enforced.

    ``assume``: of what the recording cannot know; None: the defaults of ``lab.assumed``.

    Raises:
        TapeError: nothing was recorded.
        LabError: the policies never come to rest.
    """
    player: _Player | None = None
    for change in changes:
        if player is None:
            player = _Player(change.at, policies, cluster, assume or assumptions())
        player.take(change)
    if player is None:
        raise TapeError("the recording holds no node")
    return player.end()


class _Player:
    """Feeds changes to a lab, each at its time, onto what the policies made of the nodes."""

    def __init__(
        self,
        start: float,
        policies: Sequence[RemediationPolicy],
        cluster: ClusterSpec,
        assume: Assumptions,
    ) -> None:
        free = cluster.model_copy(update={"mode": Mode.ENFORCE})
        enforced = [
            with_mode(one, Mode.ENFORCE) for one in policies if one.spec.mode is not Mode.DISABLED
        ]
        lab = self._lab = Lab(policies=enforced, cluster=free, start=start, assume=assume)
        lab.on_decision = Answers(
            after=assume.approval,
            call_after=lambda seconds, act: lab.call_at(lab.now + seconds, act),
            approve=self._approve,
        ).decided
        self._start = self._last = start
        self._raw: dict[str, Node] = {}
        self._seen: set[str] = set()
        self._policies = enforced
        self._gaps: list[tuple[float, float]] = []
        """When how many seconds ended in which nothing was seen."""
        self._sayings = Sayings()
        self._told: dict[str, SignalsOfNode] = {}
        self._unless = [
            one.alert for policy in enforced for one in policy.spec.unless if one.alert is not None
        ]

    def take(self, change: Change) -> None:
        """Let time pass until a change, and have it happen: now, if that is over.

        Of two recorders that ran at once, the second one begins before the end of the first.
        """
        self._last = max(self._last, change.at)
        self._lab.call_at(self._last, partial(self._happen, change))
        self._lab.run(self._last)

    def end(self) -> Replayed:
        """Return what came of it."""
        timeline = self._lab.timeline
        notes = (*self._sayings.unrecorded(self._policies), *_blind(self._gaps, self._start))
        assumed = relied_on(self._lab.assume, self._policies)
        return Replayed(self._start, self._last, len(self._seen), timeline, notes, assumed)

    def _happen(self, change: Change) -> None:
        lab = self._lab
        if change.blind:
            self._gaps.append((change.at, change.blind))
            lab.blind(change.blind)
        if change.anew:
            self._hear_nothing()
        if change.blind or change.anew:
            return
        if change.said is not None:
            self._hear(change.said, change.at)
            return
        name, new = change.name, change.node
        old = self._raw.pop(name, None)
        if old is None or new is None or new.uid != old.uid:
            self._forget(name)
        if new is None:
            lab.remove(name)
            return
        self._raw[name] = new
        self._seen.add(name)
        if old is None or old.uid != new.uid or lab.fleet.node(name) is None:
            lab.put(cleaned(new))
        else:
            lab.put(carried_over(old, new, lab.node(name)))

    def _approve(self, name: str, policy: str) -> None:
        lab, given = self._lab, ApproveGiven(policy=policy, by="assumed")
        if lab.fleet.node(name) is not None:
            lab.timeline.fact(name, f"assumed: a person approves the step of {policy}", lab.now)
            lab.put(CHANGES["approve"](lab.node(name), given, lab.now))

    def _hear(self, said: Said, at: float) -> None:
        """Have alerts and queries say something else, or the same again."""
        said_before = self._sayings.around
        taken = self._sayings.take(said, at)
        for name in sorted(taken.nodes):
            self._tell(name)
        around = self._sayings.around
        if around != said_before:
            concerns = any(names(clause, one) for clause in self._unless for one in taken.alerts)
            self._lab.set_around(around, matters=taken.levels or concerns)

    def _hear_nothing(self) -> None:
        """Another recorder begins: what it was told is what it says, and nothing before."""
        self._sayings = Sayings()
        self._lab.set_around(ClusterFacts())
        for name in sorted(self._told):
            self._tell(name)

    def _forget(self, name: str) -> None:
        """What is said of a node is not said of another of its name, until it is said anew."""
        self._told.pop(name, None)
        self._lab.call_at(self._lab.now + TICK_SECONDS, partial(self._tell, name))

    def _tell(self, name: str) -> None:
        """Tell the lab of one node, as the board tells the fleet: by the same rule."""
        lab, facts = self._lab, self._lab.fleet.get(name)
        if facts is None:
            return  # it is told when it is there
        before = self._told.get(name, SignalsOfNode())
        after = SignalsOfNode(self._sayings.alerts_on(name), self._sayings.queries_on(name))
        self._told[name] = after
        in_session = facts.session is not None
        matters = signals_differ(before, after, in_session=in_session, now=lab.now)
        lab.set_signals(name, alerts=after.alerts, queries=after.queries, matters=matters)


def _blind(gaps: Sequence[tuple[float, float]], start: float) -> tuple[str, ...]:
    """Say what was not seen, and so cannot be known."""
    if not gaps:
        return ()
    at, seconds = max(gaps, key=lambda one: one[1])
    total = format_duration(round(sum(length for _, length in gaps)))
    since = format_duration(max(0, round(at - seconds - start)))
    times = "once" if len(gaps) == 1 else f"{len(gaps)} times"
    longest = f"from {since} on" if len(gaps) == 1 else f"the longest from {since} on"
    note = f"the recorder saw nothing of the nodes {times}, {total} in all, {longest}"
    return (f"{note}: what these policies would have done meanwhile is not known",)
