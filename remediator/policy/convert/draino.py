"""draino's arguments: its conditions ``Type=Status,Duration``, and flags that we have a word for.

The format: https://github.com/planetlabs/draino. Given are its arguments as on its command
line or in a Deployment's ``args`` (a YAML list), or just the conditions. Flags are kingpin's:
``--flag=value`` and ``--flag value``; a switch takes no value, and ``--no-switch`` turns it off.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from remediator.policy.base import LABEL_KEY_PATTERN
from remediator.policy.convert.draft import (
    Converted,
    ConvertError,
    Draft,
    policy_name,
    read_document,
)
from remediator.policy.quantities import MAX_DURATION, format_duration


_GO: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_STATUSES: Final = ("True", "False", "Unknown")
_DESPITE: Final = {
    "evict-emptydir-pods": "emptyDir",
    "evict-unreplicated-pods": "unmanaged",
}
_SWITCHES: Final = frozenset(
    (
        *("debug", "dry-run", "help", "skip-drain", *_DESPITE),
        *("evict-daemonset-pods", "evict-statefulset-pods"),
        *("allow-force-delete", "ignore-safe-to-evict-annotation"),
    )
)
"""Flags that take no value."""
_VALUED: Final = frozenset(
    (
        *("listen", "kubeconfig", "master", "namespace", "node-label", "node-label-expr"),
        *("max-grace-period", "eviction-headroom", "drain-buffer"),
        *("leader-election-lease-duration", "leader-election-renew-deadline"),
        *("leader-election-retry-period", "leader-election-token-name"),
        *("protected-pod-annotation", "do-not-evict-pod-controlled-by"),
    )
)
"""Flags whose value may be the next word."""
_CARRIED: Final = frozenset(
    ("node-label", "skip-drain", "max-grace-period", "drain-buffer", *_DESPITE)
)
"""Flags that are in the policies."""
_OURS: Final = {
    "evict-daemonset-pods": "pods of a DaemonSet are never evicted here",
    "evict-statefulset-pods": "pods of a StatefulSet are evicted as all others, by their budget",
    "dry-run": "mode: DryRun is the default here",
    "eviction-headroom": "a drain has one deadline, its `timeout`",
    "node-label-expr": "write nodes.selector by hand; as it is, every GPU node is meant",
    "protected-pod-annotation": "write a pod rule with `skip` for these pods",
}
_CONDITION: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*/)?[A-Za-z0-9][-A-Za-z0-9_.]*(=.*)?")
_LONGEST_TYPE: Final = 316
_NO_TIME: Final = format_duration(0.0)


@dataclass(slots=True)
class _Arguments:
    """draino's arguments, taken apart."""

    flags: dict[str, list[str]] = field(default_factory=dict)
    """Values by flag, in their order; a switch that is on has one empty value."""
    conditions: list[str] = field(default_factory=list)
    guessed: dict[str, str] = field(default_factory=dict)
    """Flags that nobody knows, and the word behind each that was taken for a condition."""

    def last(self, flag: str) -> str:
        """Return a flag's value; "" where it is not given."""
        return self.flags.get(flag, [""])[-1]


def convert(text: str) -> Converted:
    """Convert draino's arguments. Raises ConvertError."""
    given = _taken_apart(_words(text))
    if not given.conditions:
        raise ConvertError("there is no condition in it, such as KernelDeadlock=True,10m")
    found = Converted(notes=list(_not_carried(given)))
    for one in given.conditions:
        found.drafts.append(_draft(one, given))
    found.notes.append(
        "draino acts on every node; here only GPU nodes are looked at (RemediatorConfig gpuNodes)."
    )
    found.notes.append(
        "draino never uncordons; here the node comes back when the condition has cleared for ten "
        "minutes (recover.when: manual leaves that to people). A human's uncordon ends it."
    )
    return found


def _not_carried(given: _Arguments) -> Iterator[str]:
    """Yield what is to be said of flags that are not in the policies."""
    for name in given.flags:
        if name in _OURS:
            yield f"--{name}: {_OURS[name]}."
        elif name not in _CARRIED:
            word = given.guessed.get(name)
            more = f" {word} behind it was taken for a condition: is it the flag's value?"
            yield f"--{name} has no counterpart here.{more if word else ''}"
    if not {"evict-statefulset-pods", "skip-drain"} & set(given.flags):
        yield (
            "draino leaves pods of a StatefulSet alone without --evict-statefulset-pods; here they "
            "are evicted as all others, by their budget."
        )
    if "skip-drain" not in given.flags:
        yield (
            "draino begins a drain every --drain-buffer (10m where it is not given) in the whole "
            "cluster; here a rate is per pool and policy, beside RemediatorConfig's rates."
        )


def _words(text: str) -> list[str]:
    """Return the arguments: a YAML list of them, or words as a shell splits them."""
    if text.lstrip().startswith(("-", "[")) and "\n" in text.strip():
        data = read_document(text, "list of draino's arguments")
        if isinstance(data, list) and all(isinstance(one, str | int) for one in data):
            return [str(one) for one in data]
    try:
        return shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise ConvertError(f"these are no arguments of draino: {error}") from error


def _taken_apart(words: Sequence[str]) -> _Arguments:
    found = _Arguments()
    rest = list(_behind_program(words))
    while rest:
        word = rest.pop(0)
        if word.startswith("--") and word != "--":
            _flag(word.removeprefix("--"), rest, found)
        elif not word.startswith("-"):
            found.conditions.append(_condition(word))
    return found


def _behind_program(words: Sequence[str]) -> Sequence[str]:
    """Leave out the program's name, and what a script says before it."""
    programs = [at for at, one in enumerate(words) if one.rpartition("/")[2] == "draino"]
    return words[programs[0] + 1 :] if programs else words


def _flag(text: str, rest: list[str], found: _Arguments) -> None:
    """Take in a flag, with its value where the next word is that."""
    name, assigned, value = text.partition("=")
    if name in _SWITCHES:
        if not assigned or value != "false":
            found.flags[name] = [""]
        else:
            found.flags.pop(name, None)
        return
    if name.removeprefix("no-") in _SWITCHES:
        found.flags.pop(name.removeprefix("no-"), None)
        return
    if name in _VALUED and not assigned:
        if not rest:
            raise ConvertError(f"--{name} needs a value")
        value = rest.pop(0)
    elif not assigned and rest and not rest[0].startswith("-"):
        found.guessed[name] = rest[0]
    found.flags.setdefault(name, []).append(value)


def _condition(word: str) -> str:
    if not _CONDITION.fullmatch(word) or len(word.partition("=")[0]) > _LONGEST_TYPE:
        raise ConvertError(
            f"{word!r} is neither a flag nor a condition: give draino's arguments alone, such as "
            "--skip-drain KernelDeadlock=True,10m"
        )
    return word


def _nodes(labels: Sequence[str]) -> dict[str, Any]:
    """Return the selector of nodes that have all the labels. ``key=``: any value will do.

    Raises:
        ConvertError: one is no label, or two exclude each other, which draino refuses, too.
    """
    wanted: dict[str, str] = {}
    for label in labels:
        key, _, value = label.partition("=")
        if not re.fullmatch(LABEL_KEY_PATTERN, key):
            raise ConvertError(f"--node-label {label}: {key!r} is no key of a label")
        if wanted.setdefault(key, value) != value:
            raise ConvertError(
                f"--node-label {key} is given twice, as {wanted[key]!r} and {value!r}: no node has "
                "both"
            )
    selector: dict[str, Any] = {}
    if same := {key: value for key, value in wanted.items() if value}:
        selector["matchLabels"] = same
    if there := [key for key, value in wanted.items() if not value]:
        selector["matchExpressions"] = [{"key": key, "operator": "Exists"} for key in there]
    return selector


def _draft(condition: str, given: _Arguments) -> Draft:
    kind, _, rest = condition.partition("=")
    status, _, lasting = rest.partition(",")
    status = status or "True"
    if status not in _STATUSES:
        raise ConvertError(f"{condition}: {status} is none of {', '.join(_STATUSES)}")
    clause: dict[str, Any] = {"type": kind, "status": status}
    if lasting:
        clause["for"] = format_duration(_duration(lasting, condition))
    spec: dict[str, Any] = {}
    if labels := given.flags.get("node-label"):
        spec["nodes"] = {"selector": _nodes(labels)}
    spec["when"] = [{"condition": clause}]
    rate = given.last("drain-buffer")
    between = format_duration(_duration(rate, "--drain-buffer") if rate else 0.0)
    if between != _NO_TIME and "skip-drain" not in given.flags:
        spec["limits"] = {"rate": {"drain": f"1/{between}"}}
    spec["steps"] = _steps(f"{kind} is {status}.", given)
    manual = kind == "Ready" or status == "Unknown"
    spec["recover"] = {"when": "manual" if manual else "cleared", "for": "10m"}
    draft = Draft(policy_name(kind, "" if status == "True" else status), spec)
    if manual:
        draft.notes.append(
            f"{kind}={status}: a node that was silent is judged by people (recover.when: manual)."
        )
    return draft


def _steps(message: str, given: _Arguments) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = [
        {"cordon": {}},
        {"notify": {"to": ["log"], "message": message}},
    ]
    if "skip-drain" in given.flags:
        return steps
    drain: dict[str, Any] = {}
    despite = [word for flag, word in _DESPITE.items() if flag in given.flags]
    if despite:
        drain["despite"] = despite
    if grace := given.last("max-grace-period"):
        drain["gracePeriod"] = format_duration(_duration(grace, "--max-grace-period"))
    return [*steps, {"drain": drain, "timeout": "1h"}]


def _duration(text: str, where: str) -> float:
    """Read a duration of Go: 1h30m, 1.5h. Raises ConvertError."""
    parts = _GO.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConvertError(f"{where}: {text!r} is no duration such as 10m")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds > MAX_DURATION:
        raise ConvertError(f"{where}: {text} is longer than {format_duration(MAX_DURATION)}")
    return seconds
