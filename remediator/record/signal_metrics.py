"""Metrics of alerts and queries: what comes in, what is refused, and which sources can be trusted.

Labels are sources of RemediatorConfig, and reasons: no node, no alert, no query.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge


class SignalMetrics:
    """The metrics of signals.

    Args:
        registry: where they are registered.
    """

    def __init__(self, *, registry: CollectorRegistry) -> None:
        self.webhook_requests = Counter(
            "webhook_requests",
            "Calls of the webhook by the code of our answer; Alertmanager repeats those with 5xx.",
            ["code"],
            registry=registry,
        )
        self.webhook_dropped = Counter(
            "webhook_connections_dropped",
            "Connections to the webhook that were dropped, by reason: header (no request within"
            " 10 s, TLS handshake included), handshake (TLS could not be agreed upon: a wrong"
            " certificate, ours or the caller's, or none), idle (its answer was not taken within"
            " 75 s), crowd (it had waited longest of 256).",
            ["reason"],
            registry=registry,
        )
        self.alerts_received = Counter(
            "alerts_received",
            "Alerts in accepted calls of the webhook, by status (firing, resolved).",
            ["status"],
            registry=registry,
        )
        self.alerts_unresolved = Counter(
            "alerts_unresolved",
            "Alerts that turned out to name no node, by reason (no_label, unknown_node, ambiguous,"
            " conflict, scraper_node, unknown_pod, older_than_node).",
            ["reason"],
            registry=registry,
        )
        self.refused_now = Gauge(
            "remediation_signals_refused",
            "Alerts and series that are refused now, by source (alertmanager/NAME,"
            " prometheus/NAME) and reason: those of alerts_unresolved, outside_gpu_nodes, too_many"
            " (no room for a call of the webhook), left_out (of a call, by the receiver's"
            " max_alerts), no_number (NaN or a histogram), unreadable"
            " (queries without a usable answer).",
            ["source", "reason"],
            registry=registry,
        )
        self.source_ok = Gauge(
            "remediation_source_ok",
            "1 while a source of facts can be trusted, else 0.",
            ["source"],
            registry=registry,
        )
        self._refused: set[tuple[str, str]] = set()
        self._sources: set[str] = set()

    def unresolved(self, reason: str) -> None:
        """Count an alert that names no node."""
        self.alerts_unresolved.labels(reason).inc()

    def refused(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Say how many are refused now; what is no longer is 0, not gone."""
        self._refused |= counts.keys()
        for key in self._refused:
            self.refused_now.labels(*key).set(float(counts.get(key, 0)))

    def sources(self, ok: Mapping[str, bool]) -> None:
        """Say of each source whether it can be trusted; one that is not asked any more is gone."""
        for name in self._sources - ok.keys():
            self.source_ok.remove(name)
        self._sources = set(ok)
        for name, good in ok.items():
            self.source_ok.labels(name).set(float(good))

    def webhook_called(self, code: int, *, firing: int = 0, resolved: int = 0) -> None:
        """Count a call of the webhook, and the alerts in it."""
        self.webhook_requests.labels(str(code)).inc()
        self.alerts_received.labels("firing").inc(firing)
        self.alerts_received.labels("resolved").inc(resolved)

    def connection_dropped(self, reason: str) -> None:
        """Count a connection to the webhook that was dropped."""
        self.webhook_dropped.labels(reason).inc()
