"""The outside of a lab: virtual nodes with their agents, and a timeline that happens to them.

Agents renew their heartbeats every five minutes, as ours do, until they fall silent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from node_agent.contract import HEARTBEAT_SECONDS
from remediator.decide.ledger import Pause
from remediator.decide.session import MODE_KEY
from remediator.lab import nodes as on
from remediator.lab.given import (
    ChannelGiven,
    Happens,
    NodeGiven,
    PauseGiven,
    RebootGiven,
    ResetGiven,
    SwitchGiven,
    WorkGiven,
)
from remediator.lab.outside import CHANGES, labels_of
from remediator.lab.run import Lab
from remediator.lab.signals import Signals
from remediator.lab.works import Assumed
from remediator.policy.model import Mode, RemediationPolicy


MAX_REPEATS: Final = 10_000


class CaseError(Exception):
    """A case says what cannot be played: an unknown node or policy. ``parts``: where."""

    def __init__(self, message: str, *parts: str | int) -> None:
        super().__init__(message)
        self.parts = parts


class Player:
    """Plays a timeline into a lab. ``zero``: the lab's clock at the timeline's 0s."""

    def __init__(self, lab: Lab, *, zero: float) -> None:
        self.names: list[str] = []
        self._lab = lab
        self._zero = zero
        self._silent: set[str] = set()
        self._signals = Signals(lab)
        self._on_lab: dict[str, Callable[[Any], None]] = {
            "pause": self._pause,
            "resume": lambda _given: lab.pause(None),
            "breakerReset": self._reset,
            "restart": lambda _given: lab.restart(),
            "work": self._work,
            "channel": self._channel,
            "policy": self._switch,
            "source": self._signals.source,
        }
        self._on_node: dict[str, Callable[[str, Any], None]] = {
            "agent": self._agent,
            "reboot": self._reboot,
            "delete": lambda name, _given: lab.remove(name),
            "query": self._signals.query,
        }

    def add(self, given: NodeGiven) -> None:
        """Add the nodes of one entry.

        Raises:
            CaseError: there is one of that name already.
        """
        names = [given.name]
        if given.count > 1:
            names = [f"{given.name}-{number}" for number in range(1, given.count + 1)]
        for name in names:
            if name in self.names:
                raise CaseError(f"two nodes are called {name}", "nodes")
            self.names.append(name)
            self._add(name, given)

    def schedule(self, happens: Happens, index: int) -> None:
        """Put an entry on the lab's agenda, as often as it says.

        Raises:
            CaseError: it names a node or policy that is not there.
        """
        for name in happens.named:
            if name not in self.names:
                known = ", ".join(self.names[:5])
                raise CaseError(f"{name} is none of the nodes: {known}", "timeline", index, "node")
        switched = happens.policy
        if switched is not None and switched.policy not in self._lab.policies.active:
            where = ("timeline", index, "policy")
            raise CaseError(f"no policy {switched.policy} is tested here", *where)
        if happens.query is not None and not self._signals.known(happens.query.promql):
            message = "no policy here asks this query: write it exactly as the policy does"
            raise CaseError(message, "timeline", index, "query")
        last = happens.at if happens.until is None else happens.until
        if happens.every is not None and (last - happens.at) / happens.every > MAX_REPEATS:
            message = f"`every` would repeat it more than {MAX_REPEATS} times"
            raise CaseError(message, "timeline", index, "every")
        at = happens.at
        while at <= last:
            self._lab.call_at(self._zero + at, partial(self._happen, happens))
            if happens.every is None:
                return
            at += happens.every

    # -- what happens ---------------------------------------------------------------------------

    def _add(self, name: str, given: NodeGiven) -> None:
        lab = self._lab
        labels = labels_of(given, lab.cluster)
        node = on.well_node(name, now=lab.now, labels=labels, agent=given.agent)
        node = on.cordoned(node, unschedulable=given.cordoned)
        if given.mode is not None:
            node = on.with_texts(node, annotations={MODE_KEY: given.mode})
        lab.put(node)
        if given.agent:
            lab.call_at(lab.now + HEARTBEAT_SECONDS, partial(self._beat, name))

    def _beat(self, name: str) -> None:
        lab = self._lab
        if lab.fleet.node(name) is None:
            return
        if name not in self._silent:
            lab.put(on.beaten(lab.node(name), now=lab.now))
        lab.call_at(lab.now + HEARTBEAT_SECONDS, partial(self._beat, name))

    def _happen(self, happens: Happens) -> None:
        lab, what, given = self._lab, happens.what, happens.given
        said = f"{what}: {said_of(given)}"
        if what == "alert":
            lab.timeline.fact(", ".join(happens.named), said, lab.now)
            self._signals.alert(happens.named, given)
            return
        if what in self._on_lab:
            lab.timeline.fact("", said, lab.now)
            self._on_lab[what](given)
            return
        for name in happens.named or tuple(self.names):
            if lab.fleet.node(name) is None:
                continue
            lab.timeline.fact(name, said, lab.now)
            if what in CHANGES:
                lab.put(CHANGES[what](lab.node(name), given, lab.now))
            else:
                self._on_node[what](name, given)

    def _agent(self, name: str, given: str) -> None:
        lab = self._lab
        if given == "silent":
            self._silent.add(name)
            return
        self._silent.discard(name)
        lab.put(on.beaten(lab.node(name), now=lab.now))

    def _reboot(self, name: str, given: RebootGiven) -> None:
        lab = self._lab
        was_silent = name in self._silent
        lab.put(
            on.with_condition(lab.node(name), on.READY, "Unknown", "NodeStatusUnknown", now=lab.now)
        )
        self._silent.add(name)

        def back() -> None:
            if lab.fleet.node(name) is None:
                return
            node = on.booted(lab.node(name), now=lab.now)
            lab.put(on.cleared(node, now=lab.now) if given.clears else node)
            if not was_silent:
                self._silent.discard(name)

        lab.call_at(lab.now + given.takes, back)

    def _pause(self, given: PauseGiven) -> None:
        at = on.stamp(self._lab.now)
        self._lab.pause(Pause(by=given.by, at=at, reason=given.reason, all=given.all))

    def _reset(self, given: ResetGiven) -> None:
        self._lab.reset_breaker(given.policy, keep=given.keep)

    def _work(self, given: WorkGiven) -> None:
        seconds = None if given.never else given.takes
        self._lab.assume.work[given.step] = Assumed(seconds, given.fails)

    def _channel(self, given: ChannelGiven) -> None:
        self._lab.assume.failing.pop(given.name, None)
        if given.fails:
            self._lab.assume.failing[given.name] = given.fails

    def _switch(self, given: SwitchGiven) -> None:
        known = {name: one.policy for name, one in self._lab.policies.active.items()}
        policy = known.pop(given.policy, None)
        if policy is not None and not given.removed:
            mode = policy.spec.mode if given.mode is None else Mode(given.mode)
            known[given.policy] = with_mode(policy, mode)
        self._lab.use(known.values())


def with_mode(policy: RemediationPolicy, mode: Mode) -> RemediationPolicy:
    """Return a policy as though its own mode were another."""
    spec = policy.spec.model_copy(update={"mode": mode})
    return policy.model_copy(update={"spec": spec})


def said_of(given: Any) -> str:
    """Return what is given in a timeline's entry as short text."""
    if hasattr(given, "model_dump"):
        kept = given.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return ", ".join(f"{key} {value}" for key, value in kept.items()) or "{}"
    return str(given)
