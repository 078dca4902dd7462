"""Rules about the files that RemediatorConfig's `templates` name, as far as they could be read.

What the API server would say of an object is not said here: only what the steps `job` and
`create` themselves refuse, or do not heed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from remediator.policy.cluster import ClusterSpec
from remediator.policy.lint.rule import Context, Hit, Rule, Severity
from remediator.policy.model import RemediationPolicy
from remediator.policy.templates import ReadTemplate


JOB: Final = ("batch/v1", "Job")
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
NOT_HEEDED: Final[Mapping[tuple[str, ...], tuple[tuple[Any, ...], str]]] = {
    ("backoffLimit",): ((0,), "it is tried once, and again by `maxAttempts` of the step"),
    ("completions",): ((1,), "one pod is run"),
    ("parallelism",): ((1,), "one pod is run"),
    ("activeDeadlineSeconds",): ((), "the step's timeout is its deadline"),
    ("podFailurePolicy",): ((), "it is tried once"),
    ("completionMode",): (("NonIndexed",), "one pod is run"),
    ("backoffLimitPerIndex",): ((), "it is tried once"),
    ("maxFailedIndexes",): ((), "it is tried once"),
    ("successPolicy",): ((), "it is done when its one pod is"),
    ("suspend",): ((False,), "it begins at once"),
    ("managedBy",): (("kubernetes.io/job-controller",), "Kubernetes' own controller runs it"),
    ("selector",): ((), "Kubernetes selects its pod"),
    ("manualSelector",): ((False,), "Kubernetes selects its pod"),
    ("template", "spec", "restartPolicy"): (("Never",), "its pod is not started again"),
    ("template", "spec", "nodeSelector"): (({},), "it runs on the node that is at fault"),
    ("template", "spec", "affinity"): (({},), "it runs on the node that is at fault"),
    ("template", "spec", "nodeName"): (("{node}",), "it runs on the node that is at fault"),
    ("template", "spec", "schedulingGates"): (([],), "it begins at once"),
    **{
        ("template", "metadata", "labels", key): (
            (),
            "it names an earlier Job, which was exported",
        )
        for key in (
            *("controller-uid", "job-name"),
            *("batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"),
        )
    },
}
"""Keys of a Job's spec that the step sets itself or takes out: what is the same, and what holds."""


def _unreadable(_: ClusterSpec, templates: Mapping[str, ReadTemplate]) -> Iterator[Hit]:
    for name, one in templates.items():
        if one.trouble and not one.elsewhere:
            yield Hit(
                ("spec", "templates", name, "file"),
                one.trouble,
                "a relative name begins at this file's folder",
            )


def _elsewhere(_: ClusterSpec, templates: Mapping[str, ReadTemplate]) -> Iterator[Hit]:
    for name, one in templates.items():
        if one.elsewhere:
            yield Hit(
                ("spec", "templates", name, "file"),
                f"{one.file} is not on this machine, and was not checked",
                "check where the controller runs, or put it beside this file and name it so",
            )


def _namespaces(_: ClusterSpec, templates: Mapping[str, ReadTemplate]) -> Iterator[Hit]:
    for name, one in templates.items():
        metadata = (one.data or {}).get("metadata") or {}
        given = metadata.get("namespace")
        if given is not None and not (isinstance(given, str) and _NAMESPACE.fullmatch(given)):
            yield Hit(
                ("spec", "templates", name, "file"),
                f"{one.file}: metadata.namespace {given!r} is no name of a namespace",
                "write one namespace as it is, without words to fill in; none: the controller's",
            )


def _no_jobs(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    for index, one in _jobs(policy, context):
        why = why_no_job(one.data or {})
        if why:
            yield Hit(
                ("spec", "steps", index, "job", "template"),
                f"{one.file}: {why}",
                "name the template of a Job, or use `create`",
            )


def _not_heeded(policy: RemediationPolicy, context: Context) -> Iterator[Hit]:
    for index, one in _jobs(policy, context):
        if why_no_job(one.data or {}):
            continue
        if "status" in (one.data or {}):
            yield Hit(
                ("spec", "steps", index, "job", "template"),
                f"{one.file}: status is not heeded: it says how another Job ended",
                "leave it out of the template",
            )
        for path, (same, holds) in NOT_HEEDED.items():
            given = _at((one.data or {}).get("spec"), path)
            if given is not None and given not in same:
                yield Hit(
                    ("spec", "steps", index, "job", "template"),
                    f"{one.file}: spec.{'.'.join(path)} is not heeded: {holds}",
                    "leave it out of the template",
                )


def _jobs(policy: RemediationPolicy, context: Context) -> Iterator[tuple[int, ReadTemplate]]:
    """Yield the `job` steps whose template could be read."""
    for index, step in enumerate(policy.spec.steps):
        one = context.templates.get(step.job.template) if step.job is not None else None
        if one is not None and one.data is not None:
            yield index, one


def why_no_job(template: Mapping[str, Any]) -> str:
    """Say why a `job` step cannot run a template; "" where it can."""
    kind = (template.get("apiVersion"), template.get("kind"))
    if kind != JOB:
        return f"it is a {kind[1]} of {kind[0]}, and no Job of batch/v1"
    if not _at(template, ("spec", "template", "spec", "containers")):
        return "it has no containers under spec.template.spec"
    metadata = _at(template, ("spec", "template", "metadata")) or {}
    labels = metadata.get("labels") or {} if isinstance(metadata, dict) else {}
    if not isinstance(metadata, dict) or not isinstance(labels, dict):
        return "spec.template.metadata, or its labels, is no mapping"
    return ""


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


RULES: Final = (
    Rule(
        "template-file",
        Severity.ERROR,
        "A template's file that is missing or holds no object. Asked of RemediatorConfig.",
        "The step fails when it is needed.",
        "Put the file where the config says, and one object into it.",
        of_config=_unreadable,
    ),
    Rule(
        "template-elsewhere",
        Severity.WARNING,
        "A template by an absolute name that is not on this machine. Asked of RemediatorConfig.",
        "It may be where the controller runs, or not: nobody has looked.",
        "Check there, or name it relative to RemediatorConfig.",
        of_config=_elsewhere,
    ),
    Rule(
        "template-namespace",
        Severity.ERROR,
        "A template whose namespace is none. Asked of RemediatorConfig.",
        "The object is refused when it is needed; and where Jobs are is not known when one has to "
        "be stopped.",
        "Write the namespace's name, or none for the controller's own.",
        of_config=_namespaces,
    ),
    Rule(
        "no-job",
        Severity.ERROR,
        "A `job` step whose template is no Job that could run. Asked only with `--config`.",
        "The step fails when it is needed.",
        "Name the template of a Job of batch/v1 with containers, or use `create`.",
        _no_jobs,
    ),
    Rule(
        "not-heeded",
        Severity.WARNING,
        "A Job's template says what a `job` step sets itself, and otherwise. Asked only with "
        "`--config`.",
        "Its author expects something of it, such as six tries of `backoffLimit`; or it was "
        "exported from a cluster, with what Kubernetes wrote into it.",
        "Leave it out, and say it at the step: `timeout`, `maxAttempts`.",
        _not_heeded,
    ),
)
