"""EKS' ``nodeRepairConfig``: its overrides, one policy each, and its limits.

The format: https://docs.aws.amazon.com/eks/latest/APIReference/API_NodeRepairConfig.html, as in
the answer of ``describe-nodegroup``, in eksctl's ClusterConfig or in CloudFormation. The
conditions are those of the EKS node monitoring agent: ``True`` is good.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from remediator.policy.convert.draft import (
    Converted,
    ConvertError,
    Draft,
    listed,
    policy_name,
    read_document,
)
from remediator.policy.quantities import MAX_DURATION


RENAMED: Final = {"AcceleratedInstanceNotReady": "AcceleratedHardwareReady"}
"""Names that older examples use for a condition that is called otherwise on the Node."""
_CONFIG: Final = "nodeRepairConfig"
_OVERRIDES: Final = "nodeRepairConfigOverrides"
_LIMITS: Final = ("maxParallelNodesRepaired", "maxUnhealthyNodeThreshold")
_LABEL: Final = "eks.amazonaws.com/nodegroup"
_COUNT: Final = range(1, 1_000_001)
_PERCENT: Final = range(1, 101)
_MINUTES: Final = range(int(MAX_DURATION) // 60 + 1)


def convert(text: str) -> Converted:
    """Convert JSON or YAML with one nodeRepairConfig or several. Raises ConvertError."""
    data = read_document(text, "configuration of EKS")
    configs = list(_configs(_lowered(data), ""))
    if not configs:
        raise ConvertError("there is no nodeRepairConfig in it")
    found = Converted()
    for group, config in configs:
        _one(config, group, found)
    if not found.drafts:
        raise ConvertError(
            f"there is no override under {_OVERRIDES}, and so nothing to convert: what EKS does by "
            "itself is not in this file"
        )
    found.notes.append(
        "switch EKS node repair off (`enabled: false`) before you enforce: two programs must not "
        "repair one node. What EKS does without an override is not in your file, and so not here."
    )
    return found


def _one(config: dict[str, Any], group: str, found: Converted) -> None:
    limits, notes = _limits(config)
    overrides = listed(config.get(_OVERRIDES), _OVERRIDES)
    for one in overrides:
        if not isinstance(one, dict):
            continue
        draft = _draft(one, group)
        if draft is None:
            found.notes.append(f"an override without a condition is left out: {one}")
            continue
        if limits:
            draft.spec["limits"] = limits
        draft.notes += notes
        found.drafts.append(draft)
    if not overrides:
        found.notes.append(f"node group {group or '?'} has no overrides")


def _draft(override: dict[str, Any], group: str) -> Draft | None:
    given = str(override.get("nodeMonitoringCondition") or "")
    if not given:
        return None
    kind = RENAMED.get(given, given)
    reason = str(override.get("nodeUnhealthyReason") or "")
    action = str(override.get("repairAction") or "Replace")
    minutes = _whole(override, "minRepairWaitTimeMins", _MINUTES)
    condition: dict[str, Any] = {"type": kind, "status": "False"}
    if reason:
        condition["reasons"] = [reason]
    if minutes:
        condition["for"] = f"{minutes}m"
    spec: dict[str, Any] = {}
    if group:
        spec["nodes"] = {"selector": {"matchLabels": {_LABEL: group}}}
    spec["when"] = [{"condition": condition}]
    spec["steps"] = _steps(action, f"{kind}: {reason or 'any reason'}.")
    spec["recover"] = {"when": "cleared", "for": "10m"}
    draft = Draft(policy_name(group, reason or kind), spec)
    if kind != given:
        draft.notes.append(f"{given} is the condition {kind} on the Node.")
    if action != "NoAction":
        draft.notes.append(
            f"EKS would have done {action}. Here the node is cordoned, drained and told of; add a "
            "`job` step (reboot) or a `create` step (your provisioner's object) after the drain. "
            "The EKS agent keeps a fatal reason until it restarts: a reboot clears it."
        )
    return draft


def _steps(action: str, message: str) -> list[dict[str, Any]]:
    if action == "NoAction":
        return [{"event": {"reason": "NodeUnhealthy"}}]
    return [
        {"cordon": {}},
        {"notify": {"to": ["log"], "message": message}},
        {"drain": {}, "timeout": "30m"},
    ]


def _limits(config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return limits of a policy, and what is not the same about them."""
    limits: dict[str, Any] = {}
    notes = []
    count = _whole(config, "maxParallelNodesRepairedCount", _COUNT)
    share = _whole(config, "maxParallelNodesRepairedPercentage", _PERCENT)
    if count is not None or share is not None:
        amount = count if count is not None else f"{share}%"
        limits["budget"] = {"maxUnavailable": amount, "per": "pool"}
        notes.append(
            "EKS counts the nodes that it repairs, as a share of the unhealthy ones; our budget "
            "counts every unavailable node of the pool, whoever made it so, of all its nodes."
        )
    count = _whole(config, "maxUnhealthyNodeThresholdCount", _COUNT)
    share = _whole(config, "maxUnhealthyNodeThresholdPercentage", _PERCENT)
    if count is not None:
        limits["breaker"] = {"minNodes": count, "percent": 1}
    elif share is not None and share < 100:  # noqa: PLR2004 - percent
        limits["breaker"] = {"percent": share}
    if "breaker" in limits:
        notes.append(
            "EKS stops above so many unhealthy nodes at a time; our breaker counts those that turn "
            "bad within five minutes, and stays open until people reset it."
        )
    return limits, notes


def _whole(data: dict[str, Any], key: str, within: range) -> int | None:
    """Return a number, which CloudFormation may hold as text; None where it is not given."""
    value = data.get(key)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
        value = int(value)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConvertError(f"{key} is no whole number: {value}")
    if value not in within:
        raise ConvertError(f"{key} is not from {within[0]} to {within[-1]}: {value}")
    return value


def _configs(value: Any, group: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the repair configurations in a document, each with its node group's name."""
    if isinstance(value, list):
        for one in value:
            yield from _configs(one, group)
    if not isinstance(value, dict):
        return
    name = str(value.get("nodegroupName") or value.get("name") or group)
    if _OVERRIDES in value or any(key.startswith(_LIMITS) for key in value):
        yield group, value
        return
    for key, one in value.items():
        if key == _CONFIG and isinstance(one, dict):
            yield name, one
        else:
            yield from _configs(one, name if key != "metadata" else group)


def _lowered(value: Any) -> Any:
    """Read CloudFormation's capitals as the API writes them."""
    if isinstance(value, list):
        return [_lowered(one) for one in value]
    if isinstance(value, dict):
        return {f"{k}"[:1].lower() + f"{k}"[1:]: _lowered(one) for k, one in value.items()}
    return value
