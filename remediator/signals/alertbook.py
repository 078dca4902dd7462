"""What one Alertmanager, with all its peers, says fires now: a fold over polls and webhook calls.

The polls are the truth. A webhook call adds an alert before the next poll would, and takes none
away. An alert is gone when two polls of *every* peer did not have it, for the configured time,
and, where a watchdog is configured, when that was sent anew since: an Alertmanager that was
restarted, or whose Prometheus died, forgets alerts that still fire. A poll that fails changes
nothing but the trust in the source. What any peer suppresses is suppressed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from remediator.decide.facts import SourceFact
from remediator.policy.sources import Alertmanager
from remediator.signals.alerts import ALERT_NAME, MAX_ALERTS, Alert, Identity, Report


POLLS_WITHOUT: Final = 2
"""Good polls of every peer that must not have an alert before it is gone."""
_INTERVALS: Final = 3
"""A peer that was not asked for so many intervals is not known, whatever it said last."""


class BookFullError(Exception):
    """There are more alerts than anybody could look at; nothing was taken in."""


@dataclass(slots=True)
class Entry:
    """One alert that fires. Times are ours: ``since`` it is known, ``seen`` last.

    ``missed``: by peer, how many good polls in a row did not have it. ``missing_since``: the
    first of those; None while it is there. ``suppressed_by``: the peers that suppress it.
    """

    alert: Alert
    since: float
    seen: float
    missed: dict[str, int] = field(default_factory=dict)
    missing_since: float | None = None
    suppressed_by: frozenset[str] = frozenset()

    @property
    def suppressed(self) -> bool:
        """Tell whether any peer suppresses it."""
        return bool(self.suppressed_by)


@dataclass(slots=True)
class _Peer:
    good_at: float | None = None
    trouble: str = "it has not been polled yet"


class AlertBook:
    """The alerts of one Alertmanager.

    Args:
        spec: its entry in RemediatorConfig.
        now: when it is opened, by the controller's clock.

    Attributes:
        entries: what fires.
        heard_at: when the first poll of any peer was good; None: none was yet.
        turned_away: alerts of the last call of the webhook that there was no room for.
        left_out: alerts that the last call of the webhook did not hold, by its own word.
    """

    def __init__(self, spec: Alertmanager, *, now: float) -> None:
        self.spec = spec
        self.entries: dict[Identity, Entry] = {}
        self.heard_at: float | None = None
        self.turned_away = 0
        self.left_out = 0
        self._peers = {url: _Peer() for url in spec.urls}
        self._proofs: dict[tuple[str, Identity], float] = {}
        self._proven_at: float | None = None
        self._changed: set[Identity] = set()
        self._source = SourceFact(ok=False, since=now, why="it has not been polled yet")

    def polled(self, peer: str, alerts: Iterable[Alert], now: float) -> None:
        """Take in all that one peer has, now."""
        ours = {one.identity: one for one in alerts if one.has(self.spec.labels)}
        self._peers[peer] = _Peer(good_at=now, trouble="")
        self.turned_away = self.left_out = 0  # a poll has them all
        self.heard_at = now if self.heard_at is None else self.heard_at
        self._prove(peer, ours.values(), now)
        for one in ours.values():
            self._there(one, peer, now)
        for identity in [key for key in self.entries if key not in ours]:
            self._missing(identity, peer, now)
        self._shed(now)

    def failed(self, peer: str, why: str) -> None:
        """Take in that a peer could not be polled: what it said before stays."""
        self._peers[peer].trouble = why

    def told(self, report: Report, now: float) -> None:
        """Take in a call of the webhook. Raises BookFullError."""
        firing = [one for one in report.firing if one.has(self.spec.labels)]
        new = sum(one.identity not in self.entries for one in firing)
        full = bool(new) and len(self.entries) + new > MAX_ALERTS
        self.turned_away = new if full else 0
        if full:
            raise BookFullError
        self.left_out = report.left_out
        for one in firing:
            self._there(one, "", now)
        if self.spec.webhook_only:
            for identity in report.resolved:
                self._drop(identity)

    def trusts(self, peer: str) -> bool:
        """Tell whether the last poll of a peer was good."""
        return not self._peers[peer].trouble

    def take_changed(self) -> set[Identity]:
        """Return the alerts that came, went or changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def source(self, now: float) -> SourceFact:
        """Say whether it can be trusted now, and whether an absence proves anything."""
        alive = self._alive(now)
        why = self._trouble(now, alive=alive)
        before = self._source
        since = before.since if before.ok is not bool(why) else now
        self._source = SourceFact(ok=not why, since=since, why=why, alive=alive and not why)
        return self._source

    # -- alerts ------------------------------------------------------------------------------

    def _there(self, alert: Alert, peer: str, now: float) -> None:
        """An alert fires. ``peer`` "": a webhook says so, which knows of no silence."""
        known = self.entries.get(alert.identity)
        if known is None:
            by = frozenset({peer}) if alert.suppressed else frozenset()
            self.entries[alert.identity] = Entry(alert, now, now, suppressed_by=by)
            self._changed.add(alert.identity)
            return
        by = known.suppressed_by
        if peer:
            by = by | {peer} if alert.suppressed else by - {peer}
        if by != known.suppressed_by or alert.starts_at != known.alert.starts_at:
            self._changed.add(alert.identity)
        known.alert, known.seen, known.suppressed_by = alert, now, by
        if not peer:
            known.missed.clear()
        known.missed.pop(peer, None)
        known.missing_since = None

    def _missing(self, identity: Identity, peer: str, now: float) -> None:
        entry = self.entries[identity]
        entry.missed[peer] = entry.missed.get(peer, 0) + 1
        if entry.missing_since is None:
            entry.missing_since = now
        gone_here = entry.missed[peer] >= POLLS_WITHOUT  # one poll alone proves nothing
        if gone_here and peer in entry.suppressed_by and len(self._peers) > 1:
            entry.suppressed_by -= {peer}
            self._changed.add(identity)
        if self._gone(entry, now):
            self._drop(identity)

    def _gone(self, entry: Entry, now: float) -> bool:
        if any(entry.missed.get(peer, 0) < POLLS_WITHOUT for peer in self._peers):
            return False
        if now - entry.seen < self.spec.gone_after or entry.missing_since is None:
            return False
        if self.spec.watchdog is None:
            return True
        return self._proven_at is not None and self._proven_at > entry.missing_since

    def _shed(self, now: float) -> None:
        """Forget what was missing for the longest, if that is too much.

        That is, of what would be gone if a peer, or the watchdog, were not away: the source is not
        trusted then, and nothing follows from an absence.
        """
        if len(self.entries) <= MAX_ALERTS:
            return
        missing = [
            (one.suppressed, one.missing_since, key)
            for key, one in self.entries.items()
            if one.missing_since is not None and now - one.missing_since >= self.spec.gone_after
        ]
        for _, _, key in sorted(missing)[: max(0, len(missing) - MAX_ALERTS)]:
            self._drop(key)

    def _drop(self, identity: Identity) -> None:
        if self.entries.pop(identity, None) is not None:
            self._changed.add(identity)

    # -- trust -------------------------------------------------------------------------------

    def _prove(self, peer: str, alerts: Iterable[Alert], now: float) -> None:
        """Look whether the watchdog was sent anew: then its Prometheus lives."""
        for one in self._watchdogs(alerts):
            key = (peer, one.identity)
            if self._proofs.get(key) != one.updated_at:
                self._proofs[key] = one.updated_at
                self._proven_at = now

    def _watchdogs(self, alerts: Iterable[Alert]) -> Iterator[Alert]:
        watchdog = self.spec.watchdog
        if watchdog is None:
            return
        wanted = {ALERT_NAME: watchdog.name, **watchdog.labels}
        yield from (one for one in alerts if one.has(wanted))

    def _alive(self, now: float) -> bool:
        watchdog = self.spec.watchdog
        if watchdog is None or self._proven_at is None:
            return False
        return now - self._proven_at < watchdog.max_age

    def _trouble(self, now: float, *, alive: bool) -> str:
        for url, peer in self._peers.items():
            if peer.trouble:
                return f"{url}: {peer.trouble}"
            limit = _INTERVALS * self.spec.interval + self.spec.timeout
            if peer.good_at is None or now - peer.good_at > limit:
                return f"{url}: it has not been polled for too long"
        if self.spec.watchdog is not None and not alive:
            return f"alert {self.spec.watchdog.name} was not sent anew: its Prometheus may be dead"
        return ""
