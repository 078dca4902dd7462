"""From the labels of an alert, or of a series, to the node that is meant. Never a guess.

What does not name exactly one node is refused, with a reason for people and for a metric:
a cordon of the wrong node is worse than none. The order of labels is the operator's; where
``exported_node`` is there, ``node`` and everything else is about the program that was scraped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from ipaddress import ip_address
from typing import Final, NamedTuple

from remediator.kube.objects import Node, epoch_seconds


HOSTNAME_LABEL: Final = "kubernetes.io/hostname"
INTERNAL_IP: Final = "InternalIP"
EXPORTED: Final = "exported_node"
INSTANCE: Final = "instance"
JOB: Final = "job"
NODE: Final = "node"
WEAK: Final = frozenset({"Hostname", "hostname", "host"})
"""Labels that hold a node's name with some exporters and their own pod's with others: one that
names no node is passed over. https://github.com/NVIDIA/dcgm-exporter/issues/78"""
SKEW_SECONDS: Final = 60.0
"""By how much the clocks of the API server and of Prometheus may differ."""
LOOKBACK_SECONDS: Final = 300.0
"""For how long Prometheus may still see what a node said that is gone: its ``lookback-delta``.
https://prometheus.io/docs/prometheus/latest/querying/basics/#staleness"""
_SHOWN: Final = 3


class Reason(StrEnum):
    """Why a node was not found: a label of a metric."""

    NO_LABEL = "no_label"
    UNKNOWN_NODE = "unknown_node"
    AMBIGUOUS = "ambiguous"
    CONFLICT = "conflict"
    SCRAPER = "scraper_node"
    POD = "unknown_pod"
    OLDER = "older_than_node"
    NO_NUMBER = "no_number"
    """Of a series, which then says nothing, whatever node it names."""


class PodKey(NamedTuple):
    """A pod by namespace and name, or by its address alone."""

    namespace: str = ""
    name: str = ""
    ip: str = ""

    def __str__(self) -> str:
        """Return it as people write it."""
        return f"pod {self.namespace}/{self.name}" if self.name else f"the pod at {self.ip}"


class PodPlace(NamedTuple):
    """Where a pod runs; ``node`` "": there is none such, or it cannot be found out."""

    node: str = ""
    created: float = 0.0


class Found(NamedTuple):
    """The node that is meant."""

    node: str
    uid: str


class Refused(NamedTuple):
    """Why none is. ``nodes``: those that it might have been, for people."""

    reason: Reason
    why: str
    nodes: tuple[str, ...] = ()


class Wanted(NamedTuple):
    """The place of a pod must be found out first."""

    pod: PodKey


Answer = Found | Refused | Wanted


class Rules(NamedTuple):
    """How labels are read; see ``remediator.policy.sources.Alertmanager``."""

    node_from: tuple[str, ...]
    exporter_jobs: tuple[str, ...] = ()
    scraper_jobs: tuple[str, ...] = ()


class Subject(NamedTuple):
    """What is to be placed.

    ``starts_at``: of an alert, epoch seconds. ``speaks_of``: all nodes that the same scraper
    names by the label ``node``, this one included. ``updated_at``: when the alert was sent
    last, epoch seconds; 0: not known.
    """

    labels: Mapping[str, str]
    starts_at: float | None = None
    speaks_of: AbstractSet[str] = frozenset()
    updated_at: float = 0.0


class _Known(NamedTuple):
    uid: str
    created: float
    keys: tuple[tuple[str, str], ...]


class NodeIndex:
    """Nodes by every name and address that they have. ``version`` grows with each change."""

    def __init__(self) -> None:
        self.version = 0
        self._nodes: dict[str, _Known] = {}
        self._by: dict[tuple[str, str], set[str]] = {}

    def on_event(self, old: Node | None, new: Node | None) -> None:
        """Take in a version of a node: the handler for ``Store.on_event``."""
        name = new.name if new is not None else old.name if old is not None else ""
        before = self._nodes.get(name)
        if new is None:
            after = None
        elif old is not None and before is not None and _same(old, new):
            return
        else:
            after = _Known(new.uid, epoch_seconds(new.created) or 0.0, _keys(new))
        if before == after:
            return
        for key in before.keys if before is not None else ():
            self._by[key].discard(name)
            if not self._by[key]:
                del self._by[key]
        self._nodes.pop(name, None)
        if after is not None:
            self._nodes[name] = after
            for key in after.keys:
                self._by.setdefault(key, set()).add(name)
        self.version += 1

    def uid(self, name: str) -> str:
        """Return the UID of a node; "" if there is none."""
        known = self._nodes.get(name)
        return "" if known is None else known.uid

    def created(self, name: str) -> float:
        """Return when a node was created, in epoch seconds."""
        return self._nodes[name].created

    def named(self, text: str) -> set[str]:
        """Return the nodes that a text names.

        By name, by the hostname label, by an internal address; then as the full of a short
        name, or the short of a full one.
        """
        value = text.strip().lower()
        ip = _ip(value)
        if ip:
            return set(self._by.get(("ip", ip), ()))
        for kind in ("name", "hostname"):
            if found := self._by.get((kind, value)):
                return set(found)
        short, dot, _ = value.partition(".")
        if not dot:
            return set(self._by.get(("short", value), ()))
        return {*self._by.get(("name", short), ()), *self._by.get(("hostname", short), ())}


def _same(old: Node, new: Node) -> bool:
    return (
        old.uid == new.uid
        and (old.labels is new.labels or old.labels == new.labels)
        and (old.addresses is new.addresses or old.addresses == new.addresses)
    )


def _keys(node: Node) -> tuple[tuple[str, str], ...]:
    names = {"name": node.name.lower(), "hostname": node.labels.get(HOSTNAME_LABEL, "").lower()}
    keys = {(kind, name) for kind, name in names.items() if name}
    keys |= {("short", name.partition(".")[0]) for name in names.values() if name}
    keys |= {("ip", _ip(one.address)) for one in node.addresses if one.type == INTERNAL_IP}
    return tuple(sorted(keys))


def resolve(
    subject: Subject, rules: Rules, index: NodeIndex, pods: Mapping[PodKey, PodPlace]
) -> Answer:
    """Return the node that is meant, or why none is, or the pod whose place is needed."""
    labels, job = subject.labels, subject.labels.get(JOB, "")
    scraper = job in rules.scraper_jobs
    answer = _by_labels(labels, rules, index)
    if isinstance(answer, str):
        if scraper and EXPORTED not in labels:
            doubt = _only_itself(answer, subject, index, pods)
            if doubt is not None:
                return doubt
        return _not_younger(answer, subject, index)
    if answer is not None:
        return answer
    if scraper:
        return Refused(Reason.NO_LABEL, f"job {job} speaks of others, and no label names a node")
    target = _by_target(subject, rules, index, pods)
    return _not_younger(target, subject, index) if isinstance(target, str) else target


def _by_labels(labels: Mapping[str, str], rules: Rules, index: NodeIndex) -> str | Refused | None:
    """Return the one node that labels name. None: no label does."""
    wanted: Sequence[str] = [
        one for one in rules.node_from if one != INSTANCE and labels.get(one, "").strip()
    ]
    if EXPORTED in wanted:
        wanted = [EXPORTED]
    found: dict[str, str] = {}
    for label in wanted:
        nodes = index.named(labels[label])
        if len(nodes) > 1:
            why = f"{label}={labels[label]} names {_list(nodes)}"
            return Refused(Reason.AMBIGUOUS, why, tuple(sorted(nodes)))
        if nodes:
            found[label] = nodes.pop()
        elif label not in WEAK:
            return Refused(Reason.UNKNOWN_NODE, f"{label}={labels[label]} names no node")
    if len(set(found.values())) > 1:
        said = ", ".join(f"{label} names {node}" for label, node in found.items())
        return Refused(Reason.CONFLICT, said, tuple(sorted(set(found.values()))))
    return next(iter(found.values()), None)


def _only_itself(
    node: str, subject: Subject, index: NodeIndex, pods: Mapping[PodKey, PodPlace]
) -> Refused | Wanted | None:
    """Refuse a node that may be merely the one on which a scraper of others runs.

    Scrape configurations overwrite ``node`` with it. A scraper that names several nodes is not
    one of those. https://github.com/kubernetes/kube-state-metrics/issues/1927
    """
    job = subject.labels.get(JOB, "")
    if len(subject.speaks_of) > 1:
        return None
    own = _place_of_target(subject.labels, index, pods)
    if isinstance(own, Wanted):
        return own
    if own and own != node:
        return None
    where = "that is the node it runs on" if own else "where it runs is not known"
    return Refused(
        Reason.SCRAPER,
        f"every alert of job {job} names {node}, and {where}: let Prometheus keep its labels"
        " (honor_labels: true)",
        (node,),
    )


def _place_of_target(
    labels: Mapping[str, str], index: NodeIndex, pods: Mapping[PodKey, PodPlace]
) -> str | Wanted:
    host = host_of(labels.get(INSTANCE, ""))
    if not _ip(host):
        return ""
    nodes = index.named(host)
    if nodes:
        return nodes.pop() if len(nodes) == 1 else ""
    key = PodKey(ip=host)
    return pods[key].node if key in pods else Wanted(key)


def _by_target(
    subject: Subject, rules: Rules, index: NodeIndex, pods: Mapping[PodKey, PodPlace]
) -> str | Refused | Wanted:
    """Find the node by what was scraped: its address, and the pod of an exporter."""
    labels = subject.labels
    host = host_of(labels.get(INSTANCE, "")) if INSTANCE in rules.node_from else ""
    exporter = labels.get(JOB, "") in rules.exporter_jobs
    if host:
        nodes = index.named(host)
        if len(nodes) > 1:
            why = f"instance={host} names {_list(nodes)}"
            return Refused(Reason.AMBIGUOUS, why, tuple(sorted(nodes)))
        if nodes:
            return nodes.pop()
    if not exporter:
        return Refused(Reason.NO_LABEL, "no label names a node")
    if labels.get("namespace") and labels.get("pod"):
        key = PodKey(labels["namespace"], labels["pod"])
    elif _ip(host):
        key = PodKey(ip=host)
    else:
        return Refused(Reason.NO_LABEL, "no label names a node, a pod or an address")
    return _by_pod(key, subject, index, pods)


def _by_pod(
    key: PodKey, subject: Subject, index: NodeIndex, pods: Mapping[PodKey, PodPlace]
) -> str | Refused | Wanted:
    if key not in pods:
        return Wanted(key)
    place = pods[key]
    if not place.node or not index.uid(place.node):
        return Refused(Reason.POD, f"where {key} runs cannot be found out")
    if subject.starts_at is not None and place.created > subject.starts_at + SKEW_SECONDS:
        return Refused(Reason.POD, f"{key} is younger than the alert", (place.node,))
    return place.node


def _not_younger(node: str, subject: Subject, index: NodeIndex) -> Found | Refused:
    """Refuse an alert that is about an earlier node of the same name.

    One that was sent again when nothing of that node counted any more is about the present one.
    """
    created = index.created(node)
    began_before = subject.starts_at is not None and created > subject.starts_at + SKEW_SECONDS
    if began_before and subject.updated_at <= created + LOOKBACK_SECONDS + SKEW_SECONDS:
        return Refused(
            Reason.OLDER,
            f"it began before {node} was created, and was not sent again"
            f" {LOOKBACK_SECONDS / 60:.0f} minutes after that: it is about another of that name",
            (node,),
        )
    return Found(node, index.uid(node))


def host_of(instance: str) -> str:
    """Return the host of ``host:port``, ``[v6]:port``, or of either alone."""
    text = instance.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    host, colon, port = text.rpartition(":")
    return host if colon and port.isdecimal() and not _ip(text) else text


def _ip(text: str) -> str:
    """Return an address in its one form; "" for what is none."""
    try:
        return ip_address(text).compressed
    except ValueError:
        return ""


def _list(nodes: Iterable[str]) -> str:
    return ", ".join(sorted(nodes)[:_SHOWN])
