"""Which node each alert of one Alertmanager is about: kept, and asked anew when it may change.

An alert that was placed stays with that node for as long as both are there: were it refused
later, because a second node got the same address, its silence would look like recovery.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from remediator.policy.sources import Alertmanager
from remediator.signals.alertbook import AlertBook
from remediator.signals.alerts import Alert, Identity
from remediator.signals.resolve import (
    EXPORTED,
    INSTANCE,
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


JOB: Final = "job"
NODE: Final = "node"
_Scraper = tuple[str, str]


class Refusal(NamedTuple):
    """An alert that names no node, for people."""

    alert: Alert
    reason: Reason
    why: str


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
        self._seen_index = -1
        self._seen_scrapers: dict[_Scraper, frozenset[str]] = {}

    def on(self, node: str) -> AbstractSet[Identity]:
        """Return the alerts about a node."""
        return self._on.get(node, frozenset())

    def nodes(self) -> list[str]:
        """Return the nodes that alerts are about."""
        return [node for node, alerts in self._on.items() if alerts]

    def wanted(self) -> set[PodKey]:
        """Return the pods whose place would help."""
        return {one.pod for one in self._answers.values() if isinstance(one, Wanted)}

    def refusals(self) -> list[Refusal]:
        """Return the alerts that name no node."""
        return [
            Refusal(self._book.entries[identity].alert, answer.reason, answer.why)
            for identity, answer in self._answers.items()
            if isinstance(answer, Refused)
        ]

    def update(self, changed: Iterable[Identity]) -> tuple[set[str], list[Reason]]:
        """Place what changed, and what may be placed otherwise now.

        Returns:
            The nodes with an alert more or less than before, and the reason of each new refusal.
        """
        changed = set(changed)
        for identity in [key for key in self._answers if key not in self._book.entries]:
            changed.add(identity)
        scrapers = self._scrapers()
        again = self._moved() if self._index.version != self._seen_index else set()
        again |= self._unsettled(scrapers)
        self._seen_index, self._seen_scrapers = self._index.version, scrapers
        nodes: set[str] = set()
        refused: list[Reason] = []
        for identity in changed | again:
            before = self._answers.get(identity)
            after = self._place(identity, before, scrapers)
            self._keep(identity, before, after)
            for one in (before, after):
                if isinstance(one, Found) and (before != after or identity in changed):
                    nodes.add(one.node)
            if isinstance(after, Refused) and (
                not isinstance(before, Refused) or before.reason is not after.reason
            ):
                refused.append(after.reason)
        return nodes, refused

    def _keep(self, identity: Identity, before: Answer | None, after: Answer | None) -> None:
        if isinstance(before, Found):
            self._on[before.node].discard(identity)
        if isinstance(after, Found):
            self._on.setdefault(after.node, set()).add(identity)
        if after is None:
            self._answers.pop(identity, None)
        else:
            self._answers[identity] = after

    def _place(
        self,
        identity: Identity,
        before: Answer | None,
        scrapers: Mapping[_Scraper, frozenset[str]],
    ) -> Answer | None:
        entry = self._book.entries.get(identity)
        if entry is None:
            return None
        if isinstance(before, Found) and self._index.uid(before.node) == before.uid:
            return before
        labels = dict(identity)
        scraper = (labels.get(JOB, ""), labels.get(INSTANCE, ""))
        subject = Subject(labels, entry.alert.starts_at, scrapers.get(scraper, frozenset()))
        return resolve(subject, self._rules, self._index, self._pods)

    def _moved(self) -> set[Identity]:
        """Return the alerts without a node, and those whose node is gone."""
        return {
            identity
            for identity, answer in self._answers.items()
            if not isinstance(answer, Found) or self._index.uid(answer.node) != answer.uid
        }

    def _unsettled(self, scrapers: Mapping[_Scraper, frozenset[str]]) -> set[Identity]:
        """Return the alerts that wait for a pod, or that other alerts of a scraper may settle."""
        other = scrapers != self._seen_scrapers
        return {
            identity
            for identity, answer in self._answers.items()
            if isinstance(answer, Wanted)
            or (
                isinstance(answer, Refused)
                and (answer.reason is Reason.POD or (other and answer.reason is Reason.SCRAPER))
            )
        }

    def _scrapers(self) -> dict[_Scraper, frozenset[str]]:
        """Return the nodes that each scraper names by ``node``, all its alerts together."""
        jobs = set(self._rules.scraper_jobs)
        named: dict[_Scraper, set[str]] = {}
        if not jobs:
            return {}
        for identity in self._book.entries:
            labels = dict(identity)
            if labels.get(JOB) in jobs and labels.get(NODE) and EXPORTED not in labels:
                key = (labels[JOB], labels.get(INSTANCE, ""))
                named.setdefault(key, set()).update(self._index.named(labels[NODE]))
        return {key: frozenset(nodes) for key, nodes in named.items()}


def rules_of(spec: Alertmanager) -> Rules:
    """Return how the labels of an Alertmanager's alerts are read."""
    return Rules(spec.node_from, spec.exporter_jobs, spec.scraper_jobs)
