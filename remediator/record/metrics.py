"""Prometheus metrics of the controller. Labels are bounded: policies, guards, scopes, channels.

No node name is ever a label, and no error text: 5,000 nodes must not be 5,000 series,
and text would be endless. Which node it is, ``remediator status`` says.

The registry is handed in, so that each test, and each process, has its own. Gauges that
restate the status document are set from it, when it is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics import MetricWrapperBase

from remediator.decide.decision import Decision, NodePhase, PatchNode
from remediator.record.audit import WriteResult
from remediator.record.events import new_holds
from remediator.record.signal_metrics import SignalMetrics
from remediator.record.stages import Stage
from remediator.record.status import BudgetStatus, Status


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600)


class Metrics:
    """All metrics of the controller.

    Args:
        registry: where they are registered.

    Attributes:
        signals: those of alerts and queries.
    """

    def __init__(self, *, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.sessions = Gauge(
            "remediation_sessions",
            "Policies' holds in sessions on nodes now, by state"
            " (running, done, held, escalated) and mode (enforce, dry_run).",
            ["policy", "state", "mode"],
            registry=registry,
        )
        self.actions = Counter(
            "remediation_actions",
            "Writes to nodes, by the action that names them (cordon, uncordon, taint, untaint,"
            " label, annotate; drain, job, create, webhook where such work begins; record; cancel,"
            " release, retry, unfreeze), mode (enforce, dry_run) and result"
            " (done, conflict, failed, unknown, gone).",
            ["policy", "action", "mode", "result"],
            registry=registry,
        )
        self.steps = Counter(
            "remediation_steps",
            "Steps that began or ended, by action (cordon, taint, label, annotate, drain, job,"
            " create, webhook, wait, approve, notify, event, uncordon, untaint), mode (enforce,"
            " dry_run) and result (started: of what takes time; done, failed, timed-out,"
            " cancelled).",
            ["policy", "action", "mode", "result"],
            registry=registry,
        )
        self.dry_run_answers = Counter(
            "remediation_dry_run_answers",
            "Answers of the API server to what server dry-run asked, by action and result"
            " (accepted, held, refused, unknown).",
            ["action", "result"],
            registry=registry,
        )
        self.blocked = Counter(
            "remediation_blocked",
            "Times that a guard began to hold a policy's next step on a node, by mode.",
            ["policy", "guard", "mode"],
            registry=registry,
        )
        self.expression_failures = Counter(
            "remediation_expression_failures",
            "Times that a policy's expression (cel) began to fail on a node, or failed otherwise.",
            ["policy"],
            registry=registry,
        )
        self.budget_used = Gauge(
            "remediation_budget_used",
            "Nodes unavailable now in a scope (cluster, pool/NAME, zone/NAME), by anyone; by mode"
            " dry_run those, too, that dry-run would have taken.",
            ["scope", "mode"],
            registry=registry,
        )
        self.budget_limit = Gauge(
            "remediation_budget_limit",
            "Nodes that may be unavailable in that scope, by the budget with the least room.",
            ["scope", "mode"],
            registry=registry,
        )
        self.breaker_open = Gauge(
            "remediation_breaker_open",
            "1 while the breaker of a source is open: no new disruptive step from it, by mode.",
            ["source", "mode"],
            registry=registry,
        )
        self.detect_to_cordon = Histogram(
            "detect_to_cordon_seconds",
            "From the moment the controller first saw that a policy matches"
            " to the answered patch that cordoned the node; guards' holds included.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.frozen = Gauge(
            "remediation_frozen_nodes",
            "Nodes with a session annotation that cannot be read: nothing is done to them.",
            registry=registry,
        )
        self.escalated = Gauge(
            "remediation_escalated_nodes",
            "Nodes on which automation has ended and that wait for people.",
            registry=registry,
        )
        self.policy_errors = Gauge(
            "remediation_policy_errors",
            "Policy files that are not in force as they stand on disk.",
            registry=registry,
        )
        self.config_error = Gauge(
            "remediation_config_error",
            "1 while RemediatorConfig is not in force as it stands on disk.",
            registry=registry,
        )
        self.policies = Gauge(
            "remediation_policies",
            "Policies in force, by effective mode (Enforce, DryRun, Disabled).",
            ["mode"],
            registry=registry,
        )
        self.paused = Gauge(
            "remediation_paused",
            "1 while people paused new disruptive steps, 2 while they paused every write.",
            registry=registry,
        )
        self.state_unreadable = Gauge(
            "remediation_state_unreadable",
            "1 if the saved state of the guards could not be read when this leader began.",
            registry=registry,
        )
        self.unwritten = Gauge(
            "remediation_unwritten",
            "1 while a ConfigMap of ours cannot be written, by document: state (what rates and"
            " breakers remember), messages (those under way), status (what `remediator status`"
            " shows).",
            ["document"],
            registry=registry,
        )
        self.messages = Counter(
            "remediation_messages",
            "Messages to people that ended, by channel and result (delivered, failed).",
            ["channel", "result"],
            registry=registry,
        )
        self.template_failures = Counter(
            "remediation_message_template_failures",
            "Messages that went out in the built-in words because a channel's template failed.",
            ["channel"],
            registry=registry,
        )
        self.outbox_pending = Gauge(
            "remediation_outbox_pending",
            "Messages that are neither delivered nor given up.",
            registry=registry,
        )
        self.signals = SignalMetrics(registry=registry)
        self.leader = Gauge(
            "leader",
            "1 while this replica leads, else 0.",
            registry=registry,
        )
        self.watch_failures = Counter(
            "watch_failures",
            "Watches and lists that failed and were begun again, by what is watched (nodes,"
            " control, policies).",
            ["what"],
            registry=registry,
        )
        self.unreadable = Gauge(
            "remediation_unreadable_nodes",
            "Nodes of which the newest version cannot be read: the version before counts.",
            registry=registry,
        )
        self.events = Counter(
            "remediation_events",
            "Kubernetes Events about nodes, by result (sent, dropped, failed).",
            ["result"],
            registry=registry,
        )
        self.defects = Counter(
            "remediation_defects",
            "Errors of the program itself that it survived, by where (decision, job, handler);"
            " the log has each with its traceback. Please report them.",
            ["where"],
            registry=registry,
        )
        self.watch_activity = Gauge(
            "watch_last_activity_seconds",
            "Seconds since the API server last said anything on the watch of nodes.",
            registry=registry,
        )
        self.drain_duration = Histogram(
            "drain_duration_seconds",
            "From the beginning of a drain to its end, by result (done, failed). Drains that were"
            " called off are not in it.",
            ["result"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.drain_pods = Gauge(
            "drain_blocked_pods",
            "Pods that have to leave nodes which are drained now, by what keeps them there.",
            ["cause"],
            registry=registry,
        )
        self.evictions = Counter(
            "evictions",
            "Answers to evictions and deletions of drains, by result (accepted, gone, changed,"
            " budget, budgets, namespace, throttled, refused, trouble).",
            ["result"],
            registry=registry,
        )
        self._breakers: set[tuple[str, str]] = set()
        self._drains: dict[str, Mapping[str, int]] = {}

    # -- drains -------------------------------------------------------------------------------

    def answered(self, reply: str) -> None:
        """One eviction or deletion was answered."""
        self.evictions.labels(reply).inc()

    def blocked_pods(self, node: str, causes: Mapping[str, int]) -> None:
        """So many pods of a node are there for these causes; none: its drain has ended."""
        for cause in {*self._drains.get(node, {}), *causes}:
            others = sum(one.get(cause, 0) for name, one in self._drains.items() if name != node)
            self.drain_pods.labels(cause).set(others + causes.get(cause, 0))
        if causes:
            self._drains[node] = dict(causes)
        else:
            self._drains.pop(node, None)

    def drained(self, seconds: float, *, done: bool) -> None:
        """One drain has ended."""
        self.drain_duration.labels("done" if done else "failed").observe(seconds)

    def bind(
        self,
        *,
        leader: Callable[[], bool],
        watch_staleness: Callable[[], float],
        outbox_pending: Callable[[], int],
        config_problem: Callable[[], str],
    ) -> None:
        """Read these at each scrape."""
        self.config_error.set_function(lambda: float(bool(config_problem())))
        self.leader.set_function(lambda: float(leader()))
        self.watch_activity.set_function(watch_staleness)
        self.outbox_pending.set_function(outbox_pending)

    def keeps(self, document: str, problem: Callable[[], str]) -> None:
        """Read at each scrape whether a document of ours can be written."""
        self.unwritten.labels(document).set_function(lambda: float(bool(problem())))

    def written(self, patch: PatchNode, *, result: WriteResult, dry_run: bool) -> None:
        """Count a write to a node."""
        self.actions.labels(patch.policy, patch.action, mode_of(dry_run), result.value).inc()

    def went_on(self, found: Iterable[Stage], *, dry_run: bool) -> None:
        """Count steps that began or ended."""
        for one in found:
            self.steps.labels(one.policy, one.action, mode_of(dry_run), one.result).inc()

    def dry_run_answered(self, action: str, result: str) -> None:
        """Count an answer (`remediator.act.server_dry_run.Answers`)."""
        self.dry_run_answers.labels(action, result).inc()

    def cordoned(self, *, seconds: float) -> None:
        """Take in how long it took from the match to the cordon."""
        self.detect_to_cordon.observe(max(0.0, seconds))

    def decided(self, before: Decision | None, now: Decision, *, dry_run: bool) -> None:
        """Count the guards that newly hold, and the expressions that newly fail."""
        known = before.failed if before is not None else ()
        for policy, said in now.failed:
            if (policy, said) not in known:
                self.expression_failures.labels(policy).inc()
        for hold in new_holds(before, now):
            self.blocked.labels(hold.policy, hold.guard, mode_of(dry_run)).inc()

    def message_ended(self, channel: str, result: str) -> None:
        """Count a message (`remediator.act.outbox.OutboxObserver`)."""
        self.messages.labels(channel, result).inc()

    def template_failed(self, channel: str) -> None:
        """Count a template that failed."""
        self.template_failures.labels(channel).inc()

    def event_ended(self, result: str) -> None:
        """Count an Event (`remediator.kube.events.EventRecorder`)."""
        self.events.labels(result).inc()

    def defect(self, where: str) -> None:
        """Count a bug that was survived."""
        self.defects.labels(where).inc()

    def watch_failed(self, what: str) -> None:
        """Count a watch or list that failed."""
        self.watch_failures.labels(what).inc()

    def update(self, status: Status, sessions: Mapping[tuple[str, str, bool], int]) -> None:
        """Set the gauges from the status document and the sessions (`report.session_counts`)."""
        counts = {(name, state, mode_of(dry)): n for (name, state, dry), n in sessions.items()}
        self._replace(self.sessions, {key: float(count) for key, count in counts.items()})
        tightest = {
            (one.scope, mode_of(one.dry_run)): one for one in tightest_budgets(status.budgets)
        }
        self._replace(self.budget_used, {key: float(b.used) for key, b in tightest.items()})
        self._replace(self.budget_limit, {key: float(b.limit) for key, b in tightest.items()})
        opened = {(one.source, mode_of(one.dry_run)) for one in status.breakers if one.open}
        self._breakers |= opened  # a breaker that closed is 0, not gone: alerts resolve
        self._replace(self.breaker_open, {key: float(key in opened) for key in self._breakers})
        modes = [one.effective_mode for one in status.policies]
        self._replace(self.policies, {(m,): float(modes.count(m)) for m in set(modes)})
        self.frozen.set(status.phases.get(NodePhase.FROZEN.value, 0))
        self.escalated.set(status.phases.get(NodePhase.ESCALATED.value, 0))
        self.policy_errors.set(len({one.source for one in status.policy_problems}))
        paused = 0 if status.pause is None else 2 if status.pause.everything else 1
        self.paused.set(paused)

    def render(self) -> bytes:
        """Return the text that Prometheus scrapes."""
        return generate_latest(self._registry)

    @staticmethod
    def _replace(gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
        gauge.clear()
        for labels, value in values.items():
            gauge.labels(*labels).set(value)


def tightest_budgets(budgets: tuple[BudgetStatus, ...]) -> Iterator[BudgetStatus]:
    """Yield one budget per scope and world: the one with the least room left."""
    best: dict[tuple[str, bool], BudgetStatus] = {}
    for one in budgets:
        known = best.get((one.scope, one.dry_run))
        if known is None or one.limit - one.used < known.limit - known.used:
            best[one.scope, one.dry_run] = one
    yield from best.values()


def mode_of(dry_run: bool) -> str:  # noqa: FBT001 - of two worlds
    """Return the label of a world."""
    return "dry_run" if dry_run else "enforce"


def reference() -> str:
    """Return the table of docs/controller/metrics.md."""
    metrics = Metrics(registry=CollectorRegistry())
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    rows += [_row(one) for one in _all(metrics)]
    return "\n".join(rows) + "\n"


def _all(metrics: Metrics | SignalMetrics) -> Iterator[MetricWrapperBase]:
    for one in vars(metrics).values():
        if isinstance(one, MetricWrapperBase):
            yield one
        elif isinstance(one, SignalMetrics):
            yield from _all(one)


def _row(metric: MetricWrapperBase) -> str:
    (family,) = metric.describe()
    name = f"{family.name}_total" if family.type == "counter" else family.name
    labels = ", ".join(f"`{label}`" for label in metric._labelnames)  # noqa: SLF001 - no public way
    return f"| `{name}` | {family.type} | {labels} | {family.documentation} |"
