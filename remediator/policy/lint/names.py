"""Rules about names that RemediatorConfig must have: channels, templates, endpoints, sources.

They are asked only where the config is known (`policy check --config`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from remediator.policy.cluster import ClusterSpec
from remediator.policy.keys import closest
from remediator.policy.lint.rule import Context, Hit, Rule, Severity, entries
from remediator.policy.model import RecoverWhen, RemediationPolicy
from remediator.policy.problems import Location
from remediator.policy.quantities import format_duration
from remediator.policy.steps import OnFailure


Mention = tuple[Location, str]
LOG: Final = "log"


def channels_of(policy: RemediationPolicy) -> Iterator[Mention]:
    """Yield the channels that a policy names, and where."""
    for index, step in enumerate(policy.spec.steps):
        for key in ("notify", "approve"):
            given = getattr(step, key)
            for at, name in enumerate(given.to if given is not None else ()):
                yield ("spec", "steps", index, key, "to", at), name
    for at, name in enumerate(policy.spec.recover.notify):
        yield ("spec", "recover", "notify", at), name


def _channels(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    if context.cluster is not None:
        known = (LOG, *context.cluster.channels)
        yield from _unknown(channels_of(policy), known, "channel", "channels")


def _waits(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    """Yield the notify steps that run out of time while their channel waits for a storm."""
    channels = {} if context.cluster is None else context.cluster.channels
    for index, step in enumerate(policy.spec.steps):
        if step.notify is None or step.after_failure is OnFailure.CONTINUE:
            continue
        for at, name in enumerate(step.notify.to):
            wait = channels[name].group_wait if name in channels else 0.0
            if wait and step.limit <= wait:
                limit, waits = format_duration(step.limit), format_duration(wait)
                yield Hit(
                    ("spec", "steps", index, "notify", "to", at),
                    f"{name} waits {waits} for alike messages, and the step ends after {limit}",
                    f"write a timeout of more than {waits}, or groupWait: 0s at the channel",
                )


def _templates(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    if context.cluster is None:
        return
    steps = enumerate(policy.spec.steps)
    named = [
        (("spec", "steps", index, key, "template"), given.template)
        for index, step in steps
        for key, given in (("job", step.job), ("create", step.create))
        if given is not None
    ]
    yield from _unknown(named, context.cluster.templates, "template", "templates")


def _endpoints(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    if context.cluster is None:
        return
    named = [
        (("spec", "steps", index, "webhook", "to"), step.webhook.to)
        for index, step in enumerate(policy.spec.steps)
        if step.webhook is not None
    ]
    yield from _unknown(named, context.cluster.endpoints, "endpoint", "endpoints")


def _sources(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    """Find the sources that are named, and are none."""
    if context.cluster is None:
        return
    homes = _homes(context.cluster)
    for at, key, source in sources_of(policy):
        where, known = homes[key]
        if source is not None:
            named = [((*at, key, "source"), source)]
            yield from _unknown(named, known, f"source of {key} clauses", where)


def _nobody(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    """Alerts need an Alertmanager, and queries a Prometheus."""
    if context.cluster is None:
        return
    homes = _homes(context.cluster)
    for at, key, source in sources_of(policy):
        where, known = homes[key]
        if source is None and not known:
            yield Hit(
                (*at, key),
                f"RemediatorConfig has nobody to ask: the {key} can never be told",
                f"add one there under spec.{where}",
            )


def _homes(cluster: ClusterSpec) -> dict[str, tuple[str, list[str]]]:
    """Return where in RemediatorConfig the sources of alerts and queries are, and their names."""
    return {
        "alert": ("alertmanagers", [one.name for one in cluster.alertmanagers]),
        "query": ("prometheus", [one.name for one in cluster.prometheus]),
    }


def sources_of(policy: RemediationPolicy) -> Iterator[tuple[Location, str, str | None]]:
    """Yield where a policy has alerts and queries: place, key and the source that is named."""
    found = [(at, entry) for at, entry in entries(policy)]
    for at, entry in found:
        for key, clause in (("alert", entry.alert), ("query", entry.query)):
            if clause is not None:
                yield at, key, clause.source
    for index, unless in enumerate(policy.spec.unless):
        for key, clause in (("alert", unless.alert), ("query", unless.query)):
            if clause is not None:
                yield ("spec", "unless", index), key, clause.source


def _watchdog(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    cluster = context.cluster
    if cluster is None or policy.spec.recover.when is not RecoverWhen.CLEARED:
        return
    for at, entry in entries(policy):
        if entry.alert is None:
            continue
        source = entry.alert.source
        asked = [one for one in cluster.alertmanagers if source in {None, one.name}]
        if asked and any(one.watchdog is None for one in asked):
            yield Hit(
                (*at, "alert"),
                "recover.when is cleared, and without a watchdog the alert's end proves nothing",
                "add spec.alertmanagers[].watchdog to RemediatorConfig, or recover: {when: manual}",
            )


def _unknown(
    named: Collection[Mention] | Iterator[Mention], known: Collection[str], what: str, where: str
) -> Iterator[Hit]:
    for at, name in named:
        if name in known:
            continue
        meant = closest(name, list(known))
        listed = ", ".join(known) or "none"
        fix = f"{where} of RemediatorConfig: {listed}; add it under spec.{where}"
        yield Hit(at, f"{name} is no {what}", f"did you mean {meant}?" if meant else fix)


RULES: Final = (
    Rule(
        "unknown-channel",
        Severity.ERROR,
        "A channel that RemediatorConfig does not have. Asked only with `--config`.",
        "The message would go nowhere.",
        "Add the channel, or name another.",
        _channels,
    ),
    Rule(
        "late-channel",
        Severity.ERROR,
        "A `notify` step that waits for its message, and a channel whose `groupWait` is not "
        "shorter than the step's `timeout`. Asked only with `--config`.",
        "The step runs out of time before the message is sent.",
        "Give the step more time, or the channel no `groupWait`.",
        _waits,
    ),
    Rule(
        "unknown-template",
        Severity.ERROR,
        "A template that RemediatorConfig does not have. Asked only with `--config`.",
        "The step fails when it is needed.",
        "Add it under `spec.templates`.",
        _templates,
    ),
    Rule(
        "unknown-endpoint",
        Severity.ERROR,
        "An endpoint that RemediatorConfig does not have. Asked only with `--config`.",
        "The step fails when it is needed.",
        "Add it under `spec.endpoints`.",
        _endpoints,
    ),
    Rule(
        "unknown-source",
        Severity.ERROR,
        "A source that RemediatorConfig does not have. Asked only with `--config`.",
        "The clause can never be told, and the policy never matches by it.",
        "Add the Alertmanager or Prometheus, or name another.",
        _sources,
    ),
    Rule(
        "no-source",
        Severity.WARNING,
        "An alert or query where RemediatorConfig has nobody to ask. Asked only with `--config`.",
        "The clause can never be told, and the policy never matches by it.",
        "Add an Alertmanager or Prometheus, or leave the policy out.",
        _nobody,
    ),
    Rule(
        "no-watchdog",
        Severity.WARNING,
        "`recover.when: cleared` for an alert whose Alertmanager has no watchdog. Asked only with "
        "`--config`.",
        "An alert that is gone may mean that its Prometheus is dead, so the node stays out of "
        "service until people end it.",
        "Name the alert that always fires under `watchdog`, or leave the end to people.",
        _watchdog,
    ),
)
