"""node-problem-detector's monitor configurations: one policy a permanent condition.

The format: https://github.com/kubernetes/node-problem-detector (config/*.json): ``conditions``
name types with their well reason; a rule of type ``permanent`` names a condition and the reason
that it gets, one of type ``temporary`` makes an Event only. node-problem-detector goes on
running: it is what writes the conditions that the policies read.
"""

from __future__ import annotations

from typing import Any

from remediator.policy.convert.draft import (
    Converted,
    ConvertError,
    Draft,
    listed,
    policy_name,
    read_document,
)


def convert(text: str) -> Converted:
    """Convert a monitor's configuration (JSON). Raises ConvertError."""
    data = read_document(text, "configuration of node-problem-detector")
    if not isinstance(data, dict) or not isinstance(data.get("rules"), list):
        raise ConvertError("a configuration of node-problem-detector has a list `rules`")
    found = Converted()
    found.notes.append(
        "keep node-problem-detector running: it reads the log and writes these conditions; its "
        "patterns stay there. Only GPU nodes are looked at here (RemediatorConfig gpuNodes)."
    )
    reasons: dict[str, list[str]] = {}
    temporary = []
    for rule in data["rules"]:
        if not isinstance(rule, dict):
            continue
        reason, kind = str(rule.get("reason", "")), rule.get("type")
        if kind == "permanent" and rule.get("condition"):
            known = reasons.setdefault(str(rule["condition"]), [])
            if reason and reason not in known:
                known.append(reason)
        elif kind == "permanent":
            raise ConvertError(f"the permanent rule {reason or rule} names no condition")
        else:
            temporary.append(reason)
    for condition, given in reasons.items():
        found.drafts.append(_draft(condition, given, data))
    if temporary:
        found.notes.append(
            "temporary rules make Events only, which no policy can rest on; not carried over: "
            f"{', '.join(sorted(set(temporary)))}. Make them permanent there if a node should be "
            "taken out of service for them."
        )
    return found


def _draft(condition: str, reasons: list[str], data: dict[str, Any]) -> Draft:
    known = listed(data.get("conditions"), "conditions")
    declared = {str(one.get("type")) for one in known if isinstance(one, dict)}
    draft = Draft(
        policy_name(condition),
        {
            "when": [{"condition": {"type": condition, "reasons": reasons, "for": "1m"}}],
            "steps": [
                {"cordon": {}},
                {"notify": {"to": ["log"], "message": f"{condition}: look at the node."}},
            ],
            "recover": {"when": "cleared", "for": "10m"},
        },
    )
    if not reasons:
        del draft.spec["when"][0]["condition"]["reasons"]
    if condition not in declared:
        draft.notes.append(
            f"{condition} is not under `conditions` there: it is written once it is true, and "
            "never False, so that nothing proves a recovery. Declare it there."
        )
    draft.notes.append(
        "node-problem-detector itself acts on nothing: steps, limits and recovery are ours; "
        "choose what this condition deserves. It clears a condition only when it restarts or a "
        "custom plugin says so; `remediator cancel NODE` ends a remediation by hand."
    )
    return draft
