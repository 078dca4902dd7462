"""Every lint rule finds its example, and is silent about the same policy put right."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from remediator.policy.cluster import ClusterSpec
from remediator.policy.lint import IGNORE_ANNOTATION, RULES, lint, settings, templates
from remediator.policy.lint.reasons import REASONS
from remediator.policy.lint.reference import reference
from remediator.policy.load import load_policies
from remediator.policy.model import RemediationPolicy


ROOT = Path(__file__).parents[3]
LOG = {"notify": {"to": ["log"]}}
CORDON: dict[str, Any] = {"cordon": {}}
GPU = "nvidia.com/gpu.present"
BY_NODE = "max by (node) (DCGM_FI_DEV_XID_ERRORS) == 79"
NO_EXECUTE = {"effect": "NoExecute", "acknowledge": "evicts-daemons"}


def policy(name: str = "one", **spec: Any) -> RemediationPolicy:
    base = {"when": [{"xid": {"codes": [79]}}], "steps": [CORDON, LOG]}
    annotations = spec.pop("annotations", {})
    return RemediationPolicy.model_validate(
        {
            "apiVersion": "gpu-remediator.io/v1alpha1",
            "kind": "RemediationPolicy",
            "metadata": {"name": name, "annotations": annotations},
            "spec": base | spec,
        }
    )


def when(**entry: Any) -> dict[str, Any]:
    return {"when": [entry]}


def wait(kind: str, status: str = "False", **step: Any) -> dict[str, Any]:
    return {"wait": {"condition": {"type": kind, "status": status}}, **step}


def attempts(**clause: Any) -> dict[str, Any]:
    return when(xid={"codes": [79]}, attempts={"atLeast": 1, **clause})


def query(promql: str, **more: Any) -> dict[str, Any]:
    return when(query={"promql": promql, **more}) | {"recover": {"when": "manual"}}


def budget(amount: Any) -> dict[str, Any]:
    return {"limits": {"budget": {"maxUnavailable": amount}}}


EXAMPLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "application-error": (
        when(xid={"codes": [31, 79]}),
        when(count={"xid": [31], "atLeast": 10}),
    ),
    "undecoded-code": (
        when(xid={"codes": [149]}),
        when(condition={"type": "GPUInterconnectDegraded", "reasons": ["NVLinkDown"]}),
    ),
    "unknown-condition": (
        when(all=[{"condition": {"type": "GPULosst"}}]),
        when(condition={"type": "AcceleratedHardwareReady", "status": "False"}),
    ),
    "healthy-status": (
        when(condition={"type": "AcceleratedHardwareReady", "for": "5m"}),
        when(condition={"type": "AcceleratedHardwareReady", "status": "False", "for": "5m"}),
    ),
    "healthy-unless": (
        {"unless": [{"condition": {"type": "Ready"}}]},
        {"unless": [{"condition": {"type": "Ready", "status": "False"}}]},
    ),
    "self-held": (
        {"unless": [{"condition": {"type": "GPULost"}}], **when(condition={"type": "GPULost"})},
        {"unless": [{"condition": {"type": "Upgrading"}}], **when(condition={"type": "GPULost"})},
    ),
    "no-node": (
        {"nodes": {"selector": {"matchLabels": {GPU: "false"}}}},
        {"nodes": {"selector": {"matchLabels": {GPU: "true", "pool": "a"}}}},
    ),
    "no-pattern": (
        when(alert={"name": "Gpu.*"}),
        when(alert={"name": "GpuFallenOffBus", "labels": {"instance": "10.0.0.1:9400"}}),
    ),
    "late-attempts": (
        attempts(atLeast=3) | {"steps": [CORDON, LOG, {"drain": {}}]},
        attempts(atLeast=2) | {"steps": [CORDON, LOG, {"drain": {}}]},
    ),
    "any-value": (query("DCGM_FI_DEV_ROW_REMAP_FAILURE"), query(BY_NODE)),
    "own-alert": (
        when(alert={"name": "GpuRemediation"}),
        when(alert={"name": "GpuRemediated"}),
    ),
    "any-alert": (
        when(alert={"labels": {"severity": "critical"}}),
        when(alert={"labels": {"severity": "critical", "team": "gpu"}}),
    ),
    "late-pod-rule": (
        {"steps": [CORDON, LOG, {"drain": {"pods": [{"deleteAfter": {"timeout": "1h"}}]}}]},
        {"steps": [CORDON, LOG, {"drain": {"pods": [{"deleteAfter": {"timeout": "59m"}}]}}]},
    ),
    "reboot-by-completion": (
        {"steps": [CORDON, LOG, {"drain": {}}, {"job": {"template": "gpu-reboot"}}]},
        {"steps": [CORDON, {"drain": {}}, {"job": {"template": "reboot", "success": "reboot"}}]},
    ),
    "evicted-before-drain": (
        {"steps": [LOG, {"taint": NO_EXECUTE}, {"drain": {}}]},
        {"steps": [LOG, CORDON, {"drain": {}}, {"taint": NO_EXECUTE}]},
    ),
    "unknown-reason": (
        when(condition={"type": "GPULost", "reasons": ["FalenOffBus"]}),
        when(condition={"type": "GPUXidError", "reasons": ["Xid79", "SXid20034"]}),
    ),
    "alert-names-no-node": (
        when(alert={"name": "Watchdog"}),
        when(alert={"name": "GpuFallenOffBus"}),
    ),
    "alert-names-one-node": (
        when(alert={"name": "GpuBad", "labels": {"node": "gpu-1"}}),
        when(alert={"name": "GpuBad", "labels": {"severity": "critical"}}),
    ),
    "unreadable-query": (query("max by (node (x)"), query(BY_NODE)),
    "query-names-no-node": (query("count(DCGM_FI_DEV_XID_ERRORS == 79)"), query(BY_NODE)),
    "never-clears": (
        when(query={"promql": BY_NODE}),
        when(query={"promql": BY_NODE, "clearedBy": "up == 1"}),
    ),
    "repeated-entry": (
        {"when": [{"xid": {"codes": [79]}}, {"xid": {"codes": [79]}}]},
        {"when": [{"xid": {"codes": [79]}}, {"xid": {"codes": [48]}}]},
    ),
    "leaves-gpu-nodes": (
        {"steps": [{"label": {"set": {GPU: "false"}}}, CORDON, LOG]},
        {"steps": [CORDON, LOG, {"label": {"set": {GPU: "false"}}}]},
    ),
    "unreachable-step": (
        {"steps": [LOG | {"onFailure": "escalate", "timeout": "0s"}, CORDON]},
        {"steps": [LOG | {"onFailure": "escalate", "timeout": "1m"}, CORDON]},
    ),
    "waits-for-own-end": (
        {"steps": [CORDON, wait("GPUXidError"), LOG]},
        {"steps": [CORDON, wait("GPUXidError", onFailure="continue"), LOG]},
    ),
    "odd-timeout": (
        {"steps": [CORDON, LOG, {"drain": {}, "timeout": "10s"}]},
        {"steps": [CORDON, LOG, {"drain": {}, "timeout": "30m"}]},
    ),
    "idle-timeout": (
        {"steps": [CORDON, LOG | {"timeout": "5m"}]},
        {"steps": [CORDON, LOG | {"timeout": "5m", "onFailure": "hold"}]},
    ),
    "repeated-step": (
        {"steps": [{"taint": {}}, LOG, {"taint": {"value": "x"}}]},
        {"steps": [{"taint": {}}, LOG, {"taint": {"effect": "PreferNoSchedule"}}]},
    ),
    "drain-without-cordon": (
        {"steps": [LOG, {"drain": {}}]},
        {"steps": [LOG, {"taint": {}}, {"drain": {}}]},
    ),
    "job-without-drain": (
        {"steps": [CORDON, LOG, {"job": {"template": "gpu-reset"}}]},
        {"steps": [CORDON, LOG, {"drain": {}}, {"job": {"template": "gpu-reset"}}]},
    ),
    "enforce-without-notify": (
        {"mode": "Enforce", "steps": [CORDON, {"event": {}}]},
        {"mode": "DryRun", "steps": [CORDON, {"event": {}}]},
    ),
    "late-notify": (
        {"steps": [CORDON, {"drain": {}}, LOG]},
        {"steps": [CORDON, LOG, {"drain": {}}, LOG]},
    ),
    "odd-count": (
        when(count={"xid": [94], "atLeast": 3, "within": "30s"}),
        when(count={"xid": [94], "atLeast": 3, "within": "5m"}),
    ),
    "takes-nothing-back": (
        {"steps": [{"taint": {}}, LOG, {"uncordon": {}}]},
        {"steps": [{"taint": {}}, LOG, {"untaint": {}}]},
    ),
    "unfilled-word": (
        {"steps": [CORDON, {"notify": {"to": ["log"], "message": "look at {node}"}}]},
        {"steps": [CORDON, {"notify": {"to": ["log"], "message": "look at it, {}"}}]},
    ),
    "never-open": (
        {"windows": [{"days": ["Sat"], "from": "2026-12-21", "until": "2026-12-23"}]},
        {"windows": [{"days": ["Sat"], "from": "2026-12-21", "until": "2026-12-27"}]},
    ),
    "idle-windows": (
        {"emergency": True, "windows": [{"days": ["Sat"]}]},
        {"windows": [{"days": ["Sat"]}]},
    ),
    "unreached-pods": (
        {"steps": [CORDON, {"drain": {"pods": [{"skip": {}}]}}]},
        {"steps": [CORDON, {"drain": {"pods": [{"namespaces": ["a"], "skip": {}}]}}]},
    ),
    "unproven-return": (
        {"steps": [CORDON, {"job": {"template": "a"}, "onFailure": "continue"}, {"uncordon": {}}]},
        {"steps": [CORDON, {"job": {"template": "a"}}, {"uncordon": {}}]},
    ),
    "kept-for-good": ({"recover": {"when": "never"}}, {"recover": {"when": "manual"}}),
    "unbounded-budget": (budget("51%"), budget("50%")),
    "idle-limit": (
        {"limits": {"rate": {"drain": "2/5m"}}},
        {"limits": {"rate": {"drain": "1/5m"}}},
    ),
    "empty-budget": (budget(0), budget(1)),
    "deaf-breaker": (
        {"limits": {"breaker": {"percent": 51}}},
        {"limits": {"breaker": {"percent": 50}}},
    ),
    "quick-recovery": ({"recover": {"for": "10s"}}, {"recover": {"for": "1m"}}),
    "odd-duration": ({"recover": {"for": "600h"}}, {"recover": {"for": "24h"}}),
    "many-attempts": ({"limits": {"maxAttempts": 50}}, {"limits": {"maxAttempts": 3}}),
    "unknown-channel": ({"steps": [CORDON, {"notify": {"to": ["oncal"]}}]}, {}),
    "late-channel": (
        {"steps": [CORDON, {"notify": {"to": ["slow"]}, "onFailure": "hold", "timeout": "30s"}]},
        {"steps": [CORDON, {"notify": {"to": ["slow"]}, "onFailure": "hold", "timeout": "31s"}]},
    ),
    "unknown-template": (
        {"steps": [CORDON, LOG, {"drain": {}}, {"job": {"template": "gpu-rset"}}]},
        {"steps": [CORDON, LOG, {"drain": {}}, {"job": {"template": "gpu-reset"}}]},
    ),
    "unknown-endpoint": ({"steps": [LOG, {"webhook": {"to": "x"}}]}, {}),
    "unknown-source": (
        when(alert={"name": "Bad", "source": "mian"}),
        when(alert={"name": "Bad", "source": "main"}),
    ),
    "no-source": (
        when(query={"promql": "up == 0"}),
        when(alert={"name": "Bad", "source": "main"}),
    ),
    "no-watchdog": (
        when(alert={"name": "Bad", "source": "second"}),
        when(alert={"name": "Bad", "source": "main"}),
    ),
    "unknown-policy": (attempts(policies=["two"]), attempts(policies=["one"])),
    "uncounted-step": (attempts(steps=["drain"]), attempts(steps=["cordon"])),
    "only-log": ({"mode": "Enforce"}, {"mode": "Enforce", "recover": {"notify": ["oncall"]}}),
    "capped-mode": ({"mode": "Enforce"}, {"mode": "DryRun"}),
}
CLUSTER = ClusterSpec.model_validate(
    {
        "channels": {"oncall": {"log": {}}, "slow": {"log": {}, "groupWait": "30s"}},
        "templates": {"gpu-reset": {"file": "gpu-reset.yaml"}},
        "alertmanagers": [
            {"name": "main", "urls": ["http://a:9093"], "watchdog": {}},
            {"name": "second", "urls": ["http://b:9093"]},
        ],
    }
)


def found(*policies: RemediationPolicy, cluster: ClusterSpec | None = CLUSTER) -> list[str]:
    return [one.rule.id for one in lint(policies, cluster=cluster)]


@pytest.mark.parametrize("rule", EXAMPLES)
def test_a_rule_finds_its_example_and_not_the_policy_put_right(rule: str) -> None:
    bad, good = EXAMPLES[rule]
    assert rule in found(policy(**bad))
    assert rule not in found(policy(**good))


def test_every_rule_has_an_example_an_id_of_its_own_and_words() -> None:
    of_config = {one.id for one in settings.RULES}
    elsewhere = {"shadowed-policy", "past-window", *of_config, *(one.id for one in templates.RULES)}
    assert {one.id for one in RULES} == {*EXAMPLES, *elsewhere}
    assert len({one.id for one in RULES}) == len(RULES)
    assert all(one.says and one.why and one.fix for one in RULES)


RESET: dict[str, Any] = {"job": {"template": "gpu-reset"}}
REBOOT: dict[str, Any] = {"job": {"template": "reboot", "success": "reboot"}}
GPU_PODS: dict[str, Any] = {"drain": {"gpuPodsOnly": True}}
RESETS = {"steps": [CORDON, LOG, {"drain": {}}, RESET]}


@pytest.mark.parametrize(
    ("clause", "said"),
    [
        ({"policies": ["first"], "steps": ["job/gpu-reset"]}, []),
        ({"steps": ["job"]}, []),
        ({"steps": ["job/gpu-rset"]}, ["did you mean job/gpu-reset?"]),
        ({"policies": ["frist"], "steps": ["webhook"]}, ["did you mean first?"]),
        ({"policies": ["second"], "steps": ["drain"]}, ["write a step that one of them has"]),
        ({"policies": ["elsewhere"]}, ["check its file, too, or leave it out"]),
        (
            {"steps": ["taint"]},
            ["write a step that a policy has, and check the files of all policies together"],
        ),
    ],
)
def test_what_is_counted_must_be_done_by_somebody(clause: dict[str, Any], said: list[str]) -> None:
    """Of a policy that is not known nothing is said: its steps are not known either."""
    rest = {"steps": [CORDON, LOG, {"taint": {"effect": "PreferNoSchedule"}}]}
    loaded = [policy("first", **RESETS), policy("second", **attempts(**clause), **rest)]
    rules = [one for one in RULES if one.id in {"unknown-policy", "uncounted-step"}]
    assert [one.fix for one in lint(loaded, rules=rules)] == said


def test_the_cluster_s_budget_bounds_a_policy_s_own() -> None:
    bounded = ClusterSpec.model_validate({"budgets": [{"maxUnavailable": "10%"}]})
    assert "unbounded-budget" in found(policy(**budget("100%")), cluster=None)
    assert "unbounded-budget" not in found(policy(**budget("100%")), cluster=bounded)
    assert "unbounded-budget" in found(policy(**budget(1_000_000)), cluster=None)
    assert "unbounded-budget" not in found(policy(**budget(1_000_000)), cluster=bounded)
    assert "unbounded-budget" not in found(policy(**budget(1_000)), cluster=None)


def of_pods(value: str) -> dict[str, Any]:
    rule = {"selector": {"matchLabels": {"app": value}}, "skip": {}}
    return {"steps": [CORDON, LOG, {"drain": {"pods": [rule]}}]}


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        (when(alert={"labels": {"severity": "critical|page"}}), "severity"),
        (when(alert={"name": "~Gpu"}), "name"),
        (when(all=[{"condition": {"type": "GPU*"}}]), "type"),
        ({"unless": [{"alert": {"name": "^Maintenance$"}}]}, "name"),
        ({"nodes": {"selector": {"matchLabels": {"pool": "gpu-*"}}}}, "pool"),
        (
            {
                "nodes": {
                    "selector": {
                        "matchExpressions": [{"key": "a", "operator": "In", "values": ["a|b"]}]
                    }
                }
            },
            0,
        ),
        (of_pods("web-*"), "app"),
        (of_pods("web"), None),
        (when(alert={"name": "GPU temperature > 90 (critical)"}), None),
        (when(alert={"name": "Bad", "labels": {"url": "http://a:1/b?c=d|e"}}), None),
        ({"nodes": {"selector": {"matchLabels": {"pool": ""}}}}, None),
    ],
)
def test_what_is_compared_letter_for_letter_is_no_pattern(
    spec: dict[str, Any], place: str | int | None
) -> None:
    hits = [hit.at[-1] for hit in lint([policy(**spec)]) if hit.rule.id == "no-pattern"]
    assert hits == ([] if place is None else [place])


@pytest.mark.parametrize(
    ("limits", "idle"),
    [
        ({"budget": {"maxUnavailable": 2, "per": "pool"}}, True),
        ({"budget": {"maxUnavailable": 1, "per": "pool"}}, False),
        ({"budget": {"maxUnavailable": 2, "per": "zone"}}, False),
        ({"budget": {"maxUnavailable": "20%", "per": "pool"}}, False),
        ({"budget": {"maxUnavailable": "20%", "per": "cluster"}}, True),
        ({"budget": {"maxUnavailable": "5%", "per": "cluster"}}, False),
        ({"rate": {"job": "1/10m"}}, False),
        ({"rate": {"job": "2/10m"}}, True),
        ({"rate": {"job": "2/1h"}}, False),
        ({"rate": {"cordon": "20/10m", "job": "5/1m"}}, True),
    ],
)
def test_a_policy_s_limit_is_told_where_the_cluster_s_is_tighter(
    limits: dict[str, Any], *, idle: bool
) -> None:
    budgets = [{"maxUnavailable": 1, "per": "pool"}, {"maxUnavailable": "10%", "per": "cluster"}]
    cluster = ClusterSpec.model_validate({"budgets": budgets})
    assert ("idle-limit" in found(policy(limits=limits), cluster=cluster)) is idle
    assert "idle-limit" not in found(policy(limits=limits), cluster=None)
    assert "idle-limit" not in found(policy(limits=limits, steps=[LOG]), cluster=cluster)


@pytest.mark.parametrize(
    ("kind", "meant"),
    [
        ("ready", "Ready"),
        ("Diskpressure", "DiskPressure"),
        ("ReadonlyFileSystem", "ReadonlyFilesystem"),
        ("GPUReady", ""),
        ("KernelReady", ""),
        ("GPULosst", "GPULost"),
    ],
)
def test_a_type_is_written_letter_for_letter(kind: str, meant: str) -> None:
    one = policy(**when(condition={"type": kind, "status": "False"}))
    fixes = [hit.fix for hit in lint([one]) if hit.rule.id == "unknown-condition"]
    assert fixes == ([f"did you mean {meant}?"] if meant else [])


LOST = {"condition": {"type": "GPULost"}}
OFF_BUS = {"condition": {"type": "GPULost", "reasons": ["FallenOffBus"]}}
FATAL = {"condition": {"type": "GPULost", "reasons": ["FallenOffBus"], "severity": "fatal"}}
COUNTED = {"count": {"xid": [94], "atLeast": 3}}


@pytest.mark.parametrize(
    ("entries", "at"),
    [
        ([{"xid": {"codes": [94]}}, COUNTED], [1]),
        ([COUNTED, {"xid": {"codes": [94, 48]}}], [0]),
        ([{"xid": {"codes": [94]}, "attempts": {"atLeast": 1}}, {"xid": {"codes": [94]}}], [0]),
        ([{"xid": {"codes": [94]}}, {"sxid": {"codes": [94]}}], []),
        ([{"xid": {"codes": [94]}}, {"xid": {"codes": [94, 48]}}], [0]),
        ([{"xid": {"minSeverity": "fatal"}}, {"xid": {"codes": [94]}}], []),
        ([COUNTED, {"count": {"xid": [94], "atLeast": 5}}], []),
        ([LOST, OFF_BUS], [1]),
        ([LOST, FATAL], []),
        ([LOST, {"all": [LOST, COUNTED]}], [1]),
        ([LOST, {"any": [LOST, COUNTED]}], []),
        ([LOST, LOST], [1]),
    ],
)
def test_an_entry_within_another_one_adds_nothing(
    entries: list[dict[str, Any]], at: list[int]
) -> None:
    one = policy(when=entries)
    assert [hit.at[-1] for hit in lint([one]) if hit.rule.id == "repeated-entry"] == at


@pytest.mark.parametrize(
    ("selector", "label", "leaves"),
    [
        ({"matchLabels": {GPU: "true"}}, {GPU: "true"}, False),
        ({"matchLabels": {GPU: "true"}}, {"nvidia.com/gpu.deploy.device-plugin": "no"}, False),
        ({"matchExpressions": [{"key": "pool", "operator": "Exists"}]}, {"pool": "x"}, False),
        ({"matchExpressions": [{"key": "bad", "operator": "DoesNotExist"}]}, {"bad": "x"}, True),
        ({}, {GPU: "false"}, False),
    ],
)
def test_a_label_step_leaves_the_nodes_that_the_cluster_calls_ours(
    selector: dict[str, Any], label: dict[str, str], *, leaves: bool
) -> None:
    cluster = ClusterSpec.model_validate({"gpuNodes": selector})
    steps = [{"label": {"set": label}}, CORDON, LOG]
    assert ("leaves-gpu-nodes" in found(policy(steps=steps), cluster=cluster)) is leaves


SAT: Final[dict[str, Any]] = {"days": ["Sat"], "start": "22:00", "end": "06:00"}


def test_a_drain_that_would_wait_for_a_window_needs_one() -> None:
    steps = [{"cordon": {}}, LOG, {"drain": {"onWindowEnd": "pause"}}]
    assert "idle-windows" in found(policy(steps=steps))
    assert "idle-windows" not in found(policy(steps=steps, windows=[{"days": ["Sat"]}]))
    assert "idle-windows" in found(policy(steps=steps, windows=[{}], emergency=True))


@pytest.mark.parametrize(
    ("windows", "held"),
    [
        ([SAT, {"blackout": True}], True),
        ([SAT, {"blackout": True, "days": ["Sat", "Sun"]}], True),
        ([SAT, {"blackout": True, "days": ["Sat"]}], False),
        ([SAT, {"blackout": True, "from": "2026-01-01"}], False),
        ([SAT | {"from": "2040-01-01"}, {"blackout": True, "from": "2026-01-01"}], True),
        ([SAT | {"from": "2040-01-01"}], False),
        ([SAT | {"timeZone": "Europe/Zurich"}, {"days": ["Mon"]}], False),
        ([SAT, {"blackout": True, "until": "2040-01-01"}], False),
        ([SAT | {"until": "2026-02-01"}, {"blackout": True, "until": "2026-02-01"}], True),
        ([SAT, *({"blackout": True, "from": f"20{y}-01-01"} for y in range(30, 60))], False),
        ([SAT | {"blackout": True}], False),
        ([{"blackout": True, "from": "2026-12-20", "until": "2027-01-03"}], False),
        ([{"blackout": True}], True),
        ([{"days": ["Sun"], "start": "02:00", "end": "02:30", "timeZone": "Europe/Berlin"}], False),
    ],
)
def test_windows_that_never_open_hold_for_good(
    windows: list[dict[str, Any]], *, held: bool
) -> None:
    assert ("never-open" in found(policy(windows=windows))) is held
    assert "never-open" not in found(policy(windows=windows, steps=[LOG]))


def test_a_window_is_over_when_its_last_day_has_passed_everywhere() -> None:
    over = policy(windows=[SAT | {"until": "2026-11-28"}])
    noon = datetime(2026, 11, 28, 12, tzinfo=UTC).timestamp()

    def said(now: float | None) -> list[str]:
        return [one.message for one in lint([over], now=now) if one.rule.id == "past-window"]

    assert said(noon + 7 * 86400.0) == [
        "its last day was 2026-11-28: disruptive steps are held for good"
    ]
    assert said(noon) == said(noon + 86400.0) == said(None) == []


@pytest.mark.parametrize(
    ("kind", "status", "reason", "fix"),
    [
        ("GPULost", "True", "FallenOffBus", None),
        ("GPUXidError", "True", "SXid20034", None),
        ("GPURecoveryActionRequired", "True", "Xid154", None),
        ("GPULost", "False", "NoFault", None),
        ("GPULost", "Unknown", "NotChecked", None),
        ("Ready", "False", "KubeletNotReady", None),
        ("GPULost", "True", "FalenOffBus", "did you mean FallenOffBus?"),
        (
            "GPULost",
            "True",
            "Xid79",
            "Xid79 is a reason of GPUXidError: make it a clause of its own",
        ),
        (
            "GPUXidError",
            "True",
            "FallenOffBus",
            "FallenOffBus is a reason of GPULost: ",
        ),
        ("GPULost", "True", "NoFault", "reasons of it: FallenOffBus, CountMismatch, DeviceLost; "),
        ("GPUXidError", "True", "Fatal", "reasons of it: Xid79, SXid20034 and the like; "),
    ],
)
def test_a_reason_is_one_of_the_condition_that_is_asked_for(
    kind: str, status: str, reason: str, fix: str | None
) -> None:
    one = policy(**when(condition={"type": kind, "status": status, "reasons": [reason]}))
    said = [hit.fix for hit in lint([one]) if hit.rule.id == "unknown-reason"]
    assert len(said) == (fix is not None)
    assert all(text.startswith(fix or "") for text in said)


def test_the_reasons_of_a_condition_are_those_of_the_contract() -> None:
    page = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (GPU\w+) \| (.*) \|$", page, re.MULTILINE)
    written = {kind: re.findall(r"`([^`]+)`", cell) for kind, cell in rows}
    assert written.pop("GPUXidError") == ["Xid<code>", "SXid<code>"]
    assert {kind: list(reasons) for kind, reasons in REASONS.items() if reasons} == written


def test_a_healthy_node_is_not_taken_for_a_faulty_one_by_our_own_conditions_either() -> None:
    well = when(condition={"type": "GPULost", "status": "False"})
    assert "healthy-status" in found(policy(**well))
    assert "healthy-status" not in found(policy(**well, steps=[LOG]))


@pytest.mark.parametrize(
    "spec",
    [
        {"unless": [{"condition": {"type": "GPULosst"}}]},
        {"steps": [CORDON, LOG, wait("GPULosst")]},
    ],
)
def test_a_misspelt_condition_is_found_wherever_one_is_asked_for(spec: dict[str, Any]) -> None:
    assert "unknown-condition" in found(policy(**spec))


def test_what_never_comes_back_is_told_by_what_was_done() -> None:
    never: dict[str, Any] = {"recover": {"when": "never"}}
    assert "kept-for-good" in found(policy(**never, steps=[{"taint": {}}, LOG, {"uncordon": {}}]))
    assert "kept-for-good" not in found(policy(**never, steps=[CORDON, LOG, {"uncordon": {}}]))


@pytest.mark.parametrize(
    ("steps", "fix"),
    [
        ([CORDON, {"untaint": {}}], "write `- uncordon: {}`"),
        (
            [{"taint": {"key": "gpu-remediator.io/x"}}, {"untaint": {}}],
            "write `- untaint: {key: gpu-remediator.io/x, effect: NoSchedule}`",
        ),
        ([LOG, {"uncordon": {}}], "leave it to recover: remove it"),
        ([CORDON, {"uncordon": {}}, {"uncordon": {}}], "leave it to recover: remove it"),
        ([CORDON, {"uncordon": {}}, CORDON, {"uncordon": {}}], None),
    ],
)
def test_what_was_not_added_is_not_taken_back(steps: list[dict[str, Any]], fix: str | None) -> None:
    hits = [one.fix for one in lint([policy(steps=steps)]) if one.rule.id == "takes-nothing-back"]
    assert hits == ([] if fix is None else [fix])


@pytest.mark.parametrize(
    ("count", "odd"),
    [
        ({"xid": [94], "atLeast": 3, "within": "1m"}, False),
        ({"xid": [94], "atLeast": 3, "within": "59s"}, True),
        ({"xid": [94, 48], "atLeast": 3, "within": "10s"}, False),
        ({"xid": [94], "atLeast": 3, "within": "10s", "per": "node"}, False),
        ({"sxid": [20034], "atLeast": 2, "within": "24h"}, False),
        ({"xid": [94], "atLeast": 2, "within": "7d"}, True),
    ],
)
def test_a_count_fits_the_time_that_it_is_given(count: dict[str, Any], *, odd: bool) -> None:
    assert ("odd-count" in found(policy(**when(count=count)))) is odd


@pytest.mark.parametrize(
    ("steps", "rules"),
    [
        ([CORDON, {"uncordon": {}}, {"drain": {}}], {"drain-without-cordon"}),
        ([CORDON, {"taint": {}}, {"untaint": {}}, {"drain": {}}], set()),
        ([{"taint": {"effect": "PreferNoSchedule"}}, {"drain": {}}], {"drain-without-cordon"}),
        ([CORDON, {"drain": {}}, {"uncordon": {}}, RESET], {"job-without-drain"}),
        ([CORDON, {"drain": {}}, RESET, RESET], set()),
        ([CORDON, GPU_PODS, RESET], set()),
        ([CORDON, GPU_PODS, REBOOT], {"job-without-drain"}),
        ([CORDON, GPU_PODS, RESET, {"drain": {}}, REBOOT], set()),
        ([CORDON, {"drain": {}}, GPU_PODS, REBOOT], set()),
    ],
)
def test_a_node_that_was_given_back_is_neither_closed_nor_empty(
    steps: list[dict[str, Any]], rules: set[str]
) -> None:
    asked = {"drain-without-cordon", "job-without-drain"}
    assert set(found(policy(steps=[LOG, *steps]))) & asked == rules


@pytest.mark.parametrize(
    ("rules", "at"),
    [
        ([{"evict": {}}, {"namespaces": ["a"], "skip": {}}], 1),
        ([{"namespaces": ["*"], "skip": {}}, {"evict": {}}], 0),
        ([{"namespaces": ["a"], "skip": {}}, {"deleteAfter": {"timeout": "5m"}}], None),
        ([{"selector": {"matchLabels": {"a": "b"}}, "skip": {}}, {"skip": {}}], None),
    ],
)
def test_pod_rules_are_reached(rules: list[dict[str, Any]], at: int | None) -> None:
    one = policy(steps=[CORDON, LOG, {"drain": {"pods": rules}}])
    hits = [hit.at[-1] for hit in lint([one]) if hit.rule.id == "unreached-pods"]
    assert hits == ([] if at is None else [at])


PASSED = {"job": {"template": "a"}, "onFailure": "continue"}
MADE = {"create": {"template": "a", "waitFor": {"type": "Done"}}, "onFailure": "continue"}


@pytest.mark.parametrize(
    ("steps", "unproven"),
    [
        ([PASSED], True),
        ([MADE], True),
        ([wait("GPULost", onFailure="continue")], True),
        ([PASSED, {"wait": {"for": "10m"}}], True),
        ([{"wait": {"for": "10m"}, "onFailure": "continue"}], False),
        ([{"create": {"template": "a"}, "onFailure": "continue"}], False),
        ([PASSED, {"approve": {}}], False),
        ([PASSED, {"job": {"template": "a"}}], False),
        ([PASSED, wait("GPULost")], False),
        ([MADE | {"onFailure": "hold"}], False),
        ([], True),
        ([{"drain": {}}], True),
        ([{"wait": {"for": "10m"}}], False),
        ([{"webhook": {"to": "x"}}], False),
    ],
)
def test_a_node_comes_back_by_what_was_proven(
    steps: list[dict[str, Any]], *, unproven: bool
) -> None:
    """A wait for a time cannot fail, and proves nothing; a person's yes does."""
    one = policy(steps=[CORDON, LOG, *steps, {"uncordon": {}}])
    assert ("unproven-return" in found(one)) is unproven


def test_a_query_that_clears_itself_never_clears() -> None:
    same = when(query={"promql": "x == 79", "clearedBy": "x==79"})
    assert "never-clears" in found(policy(**same))


@pytest.mark.parametrize(
    ("spec", "rule", "said"),
    [
        ({"wait": {"condition": {"type": "A", "for": "30m"}}}, "odd-timeout", True),
        ({"wait": {"condition": {"type": "A", "for": "29m"}}}, "odd-timeout", False),
        (
            {"wait": {"condition": {"type": "A", "for": "5m"}}, "timeout": "4m"},
            "odd-timeout",
            True,
        ),
        ({"wait": {"for": "2h"}, "timeout": "1h"}, "idle-timeout", True),
        ({"wait": {"for": "2h"}}, "idle-timeout", False),
        ({"wait": {"for": "2h"}, "timeout": "0s"}, "unreachable-step", False),
        ({"drain": {"pods": [{"waitCompletion": {"maxWait": "2h"}}]}}, "late-pod-rule", True),
        ({"drain": {"pods": [{"waitCompletion": {}}]}}, "late-pod-rule", False),
        (
            {"drain": {"pods": [{"waitCompletion": {"maxWait": "2h"}}]}, "timeout": "3h"},
            "late-pod-rule",
            False,
        ),
    ],
)
def test_a_step_has_time_for_what_it_waits_for(
    spec: dict[str, Any], rule: str, *, said: bool
) -> None:
    assert (rule in found(policy(steps=[CORDON, LOG, spec, LOG]))) is said


@pytest.mark.parametrize(
    ("template", "reboots"),
    [
        ("reboot", True),
        ("gpu-reboot", True),
        ("reboot-node", True),
        ("power-cycle", True),
        ("reboot-check", False),
        ("gpu-reset", False),
    ],
)
def test_a_job_that_reboots_is_known_by_its_template(template: str, *, reboots: bool) -> None:
    steps = [CORDON, LOG, {"drain": {}}, {"job": {"template": template}}]
    assert ("reboot-by-completion" in found(policy(steps=steps))) is reboots


def test_where_a_drain_pauses_its_rules_may_take_longer() -> None:
    drain = {"pods": [{"deleteAfter": {"timeout": "2h"}}], "onWindowEnd": "pause"}
    steps = [CORDON, LOG, {"drain": drain}]
    assert "late-pod-rule" in found(policy(steps=steps))
    assert "late-pod-rule" not in found(policy(steps=steps, windows=[SAT]))


def test_an_approval_takes_a_person_some_time() -> None:
    def asked(timeout: str) -> RemediationPolicy:
        return policy(steps=[CORDON, LOG, {"approve": {}, "timeout": timeout}])

    assert "odd-timeout" in found(asked("24s"))
    assert "odd-timeout" not in found(asked("10m"))


def test_an_author_can_silence_a_rule_for_a_policy() -> None:
    annotations = {IGNORE_ANNOTATION: "quick-recovery, late-notify"}
    assert "quick-recovery" not in found(policy(recover={"for": "1s"}, annotations=annotations))


def test_the_shipped_policies_are_clean() -> None:
    assert found(*load_policies([ROOT / "policies"])) == []
    assert found(*load_policies([ROOT / "examples" / "policies"]), cluster=None) == []


def test_the_page_lists_the_rules_as_they_are() -> None:
    page = (ROOT / "docs" / "policies" / "lint.md").read_text(encoding="utf-8")
    assert page == reference(), (
        "run: python -m remediator.policy.lint.reference docs/policies/lint.md"
    )
