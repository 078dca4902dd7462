"""draino's arguments: its conditions ``Type=Status,Duration``, and flags that we have a word for.

The format: https://github.com/planetlabs/draino. Given are its arguments as on its command
line or in a Deployment's ``args`` (a YAML list), or just the conditions.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any, Final

from remediator.policy.convert.draft import (
    Converted,
    ConvertError,
    Draft,
    policy_name,
    read_document,
)
from remediator.policy.quantities import format_duration


_GO: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_STATUSES: Final = ("True", "False", "Unknown")
_DESPITE: Final = {
    "evict-emptydir-pods": "emptyDir",
    "evict-unreplicated-pods": "unmanaged",
}
_OURS: Final = {
    "evict-daemonset-pods": "pods of a DaemonSet are never evicted here",
    "evict-statefulset-pods": "pods of a StatefulSet are evicted as all others, by their budget",
    "dry-run": "mode: DryRun is the default here",
    "skip-drain": "",
    "max-grace-period": "",
    "eviction-headroom": "a drain has one deadline, its `timeout`",
    "drain-buffer": "",
    "node-label": "",
    "node-label-expr": "write nodes.selector by hand",
    "protected-pod-annotation": "write a pod rule with `skip` for these pods",
}


def convert(text: str) -> Converted:
    """Convert draino's arguments. Raises ConvertError."""
    flags, conditions = _split(_words(text))
    if not conditions:
        raise ConvertError("there is no condition in it, such as KernelDeadlock=True,10m")
    found = Converted()
    for name in flags:
        if _OURS.get(name):
            found.notes.append(f"--{name}: {_OURS[name]}.")
        elif name not in _OURS and name not in _DESPITE:
            found.notes.append(f"--{name} has no counterpart here.")
    for one in conditions:
        found.drafts.append(_draft(one, flags))
    found.notes.append(
        "draino acts on every node; here only GPU nodes are looked at (RemediatorConfig gpuNodes)."
    )
    found.notes.append(
        "draino never uncordons; here the node comes back when the condition has cleared for ten "
        "minutes (recover.when: manual leaves that to people). A human's uncordon ends it."
    )
    return found


def _words(text: str) -> list[str]:
    """Return the arguments: a YAML list of them, or words as a shell splits them."""
    if text.lstrip().startswith(("-", "[")) and "\n" in text.strip():
        data = read_document(text, "list of draino's arguments")
        if isinstance(data, list) and all(isinstance(one, str | int) for one in data):
            return [str(one) for one in data]
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise ConvertError(f"these are no arguments of draino: {error}") from error


def _split(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    flags: dict[str, str] = {}
    conditions = []
    for word in words:
        if word.startswith("--"):
            name, _, value = word.removeprefix("--").partition("=")
            flags[name] = value
        elif word[:1].isalpha() and "/" not in word and word != "draino":
            conditions.append(word)
    return flags, conditions


def _draft(condition: str, flags: dict[str, str]) -> Draft:
    kind, _, rest = condition.partition("=")
    status, _, lasting = rest.partition(",")
    status = status or "True"
    if status not in _STATUSES:
        raise ConvertError(f"{condition}: {status} is none of {', '.join(_STATUSES)}")
    clause: dict[str, Any] = {"type": kind, "status": status}
    if lasting:
        clause["for"] = format_duration(_duration(lasting, condition))
    spec: dict[str, Any] = {}
    if label := flags.get("node-label"):
        key, _, value = label.partition("=")
        spec["nodes"] = {"selector": {"matchLabels": {key: value}}}
    spec["when"] = [{"condition": clause}]
    rate = flags.get("drain-buffer")
    if rate and "skip-drain" not in flags:
        spec["limits"] = {"rate": {"drain": f"1/{format_duration(_duration(rate, rate))}"}}
    spec["steps"] = _steps(f"{kind} is {status}.", flags)
    manual = kind == "Ready" or status == "Unknown"
    spec["recover"] = {"when": "manual" if manual else "cleared", "for": "10m"}
    draft = Draft(policy_name(kind, "" if status == "True" else status), spec)
    if manual:
        draft.notes.append(
            f"{kind}={status}: a node that was silent is judged by people (recover.when: manual)."
        )
    return draft


def _steps(message: str, flags: dict[str, str]) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = [
        {"cordon": {}},
        {"notify": {"to": ["log"], "message": message}},
    ]
    if "skip-drain" in flags:
        return steps
    drain: dict[str, Any] = {}
    despite = [word for flag, word in _DESPITE.items() if flag in flags]
    if despite:
        drain["despite"] = despite
    if grace := flags.get("max-grace-period"):
        drain["gracePeriod"] = format_duration(_duration(grace, grace))
    return [*steps, {"drain": drain, "timeout": "1h"}]


def _duration(text: str, where: str) -> float:
    """Read a duration of Go: 1h30m, 1.5h. Raises ConvertError."""
    parts = _GO.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConvertError(f"{where}: {text!r} is no duration such as 10m")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)
