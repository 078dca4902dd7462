"""Which node each alert of one Alertmanager is about: kept, and asked anew when it may change.

An alert that was placed stays with that node for as long as both are there: were it refused
later, because a second node got the same address, its silence would look like recovery.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from remediator.policy.sources import Alertmanager
from remediator.signals.alertbook import AlertBook
from remediator.signals.alerts import Alert, Identity
from remediator.signals.resolve import (
    EXPORTED,
    INSTANCE,
    JOB,
    NODE,
    Answer,
    Found,
    NodeIndex,
    PodKey,
    PodPlace,
    Reason,
    Refused,
    Rules,
    Subject,
    Wanted,
    resolve,
)


_Scraper = tuple[str, str]


class Refusal(NamedTuple):
    """An alert that names no node, for people."""

    alert: Alert
    reason: Reason
    why: str
    nodes: tuple[str, ...] = ()


class Placing:
    """Places the alerts of one book.

    Args:
        book: the alerts.
        index: the nodes.
        pods: where pods run, as far as it is known; filled by whoever can ask.
    """

    def __init__(
        self, book: AlertBook, *, index: NodeIndex, pods: Mapping[PodKey, PodPlace]
    ) -> None:
        self._book = book
        self._index = index
        self._pods = pods
        self._rules = rules_of(book.spec)
        self._answers: dict[Identity, Answer] = {}
        self._on: dict[str, set[Identity]] = {}
        self._index_seen = -1
        self._loose: set[Identity] = set()
        """Alerts that are about no node, or not yet."""
        self._refused: dict[Identity, Refusal] = {}
        """Those of them that are refused: there may be many, and they are often looked at."""
        self._scraped: dict[Identity, _Scraper] = {}
        """Alerts of scrapers that name a node by ``node``: seldom many."""
        self._named: dict[_Scraper, frozenset[str]] = {}

    def on(self, node: str) -> AbstractSet[Identity]:
        """Return the alerts about a node."""
        return self._on.get(node, frozenset())

    def placed(self) -> Iterable[tuple[str, AbstractSet[Identity]]]:
        """Return the nodes that alerts are or were about, with those alerts."""
        return self._on.items()

    def wanted(self) -> set[PodKey]:
        """Return the pods whose place would help."""
        answers = (self._answers[identity] for identity in self._loose)
        return {one.pod for one in answers if isinstance(one, Wanted)}

    def refusals(self) -> Collection[Refusal]:
        """Return the alerts that name no node."""
        return self._refused.values()

    def update(self, changed: AbstractSet[Identity]) -> tuple[set[str], list[Refusal]]:
        """Place what changed, and what may be placed otherwise now.

        Args:
            changed: every alert that came, went or changed since the last call.

        Returns:
            The nodes with an alert more or less than before, and the new refusals.
        """
        moved = self._index.version != self._index_seen
        self._index_seen = self._index.version
        again = self._moved() if moved else set()
        again |= self._unsettled(others=self._read_scrapers(changed, moved=moved))
        nodes: set[str] = set()
        refused: list[Refusal] = []
        for identity in changed | again:
            before = self._answers.get(identity)
            after = self._place(identity, before)
            self._keep(identity, before, after)
            for one in (before, after):
                if isinstance(one, Found) and (before != after or identity in changed):
                    nodes.add(one.node)
            if isinstance(after, Refused) and (
                not isinstance(before, Refused) or before.reason is not after.reason
            ):
                refused.append(self._refused[identity])
        return nodes, refused

    def _keep(self, identity: Identity, before: Answer | None, after: Answer | None) -> None:
        if isinstance(before, Found):
            self._on[before.node].discard(identity)
            if not self._on[before.node]:
                del self._on[before.node]
        if isinstance(after, Found):
            self._on.setdefault(after.node, set()).add(identity)
        if after is None:
            self._answers.pop(identity, None)
        else:
            self._answers[identity] = after
        if after is None or isinstance(after, Found):
            self._loose.discard(identity)
        else:
            self._loose.add(identity)
        if isinstance(after, Refused):
            self._refused[identity] = Refusal(self._book.entries[identity].alert, *after)
        else:
            self._refused.pop(identity, None)

    def _place(self, identity: Identity, before: Answer | None) -> Answer | None:
        entry = self._book.entries.get(identity)
        if entry is None:
            return None
        if isinstance(before, Found) and self._index.uid(before.node) == before.uid:
            return before
        scraper = self._scraped.get(identity)
        speaks_of = frozenset() if scraper is None else self._named[scraper]
        alert = entry.alert
        subject = Subject(dict(identity), alert.starts_at, speaks_of, alert.updated_at)
        return resolve(subject, self._rules, self._index, self._pods)

    def _moved(self) -> set[Identity]:
        """Return the alerts without a node, and those whose node is gone."""
        gone = (
            alerts
            for node, alerts in self._on.items()
            if any(self._uid_of(one) != self._index.uid(node) for one in alerts)
        )
        return self._loose.union(*gone)

    def _uid_of(self, identity: Identity) -> str:
        answer = self._answers[identity]
        return answer.uid if isinstance(answer, Found) else ""

    def _unsettled(self, *, others: bool) -> set[Identity]:
        """Return the alerts that wait for a pod, or to be sent again, or for other alerts.

        Those of a scraper may settle what one of them means.
        """
        reasons = {Reason.POD, Reason.OLDER, *({Reason.SCRAPER} if others else ())}
        return {
            identity
            for identity in self._loose
            if isinstance(answer := self._answers[identity], Wanted)
            or (isinstance(answer, Refused) and answer.reason in reasons)
        }

    def _read_scrapers(self, changed: AbstractSet[Identity], *, moved: bool) -> bool:
        """Keep which nodes each scraper names by ``node``; tell whether that is otherwise now."""
        jobs, touched = self._rules.scraper_jobs, moved and bool(self._scraped)
        for identity in changed if jobs else ():
            labels = dict(identity)
            if labels.get(JOB) not in jobs or not labels.get(NODE) or EXPORTED in labels:
                continue
            touched = True
            if identity in self._book.entries:
                self._scraped[identity] = (labels[JOB], labels.get(INSTANCE, ""))
            else:
                self._scraped.pop(identity, None)
        if not touched:
            return False
        named: dict[_Scraper, set[str]] = {}
        for identity, scraper in self._scraped.items():
            named.setdefault(scraper, set()).update(self._index.named(dict(identity)[NODE]))
        before, self._named = self._named, {key: frozenset(found) for key, found in named.items()}
        return before != self._named


def rules_of(spec: Alertmanager) -> Rules:
    """Return how the labels of an Alertmanager's alerts are read."""
    return Rules(spec.node_from, spec.exporter_jobs, spec.scraper_jobs)
