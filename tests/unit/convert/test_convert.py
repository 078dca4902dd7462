"""Rules of other programs become policies that pass `policy check`, with what differs in notes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediator.cli.policies import lint_files
from remediator.policy.convert import FORMATS, ConvertError, convert
from remediator.policy.convert.draft import policy_name
from remediator.policy.load import parse_policies
from remediator.policy.model import Mode, RecoverWhen, RemediationPolicy


NPD = json.dumps(
    {
        "plugin": "kmsg",
        "source": "kernel-monitor",
        "conditions": [{"type": "KernelDeadlock", "reason": "KernelHasNoDeadlock"}],
        "rules": [
            {"type": "temporary", "reason": "OOMKilling", "pattern": "Killed process"},
            {
                "type": "permanent",
                "condition": "KernelDeadlock",
                "reason": "DockerHung",
                "pattern": "task docker",
            },
            {"type": "permanent", "condition": "KernelDeadlock", "reason": "AUFSUmountHung"},
            {
                "type": "permanent",
                "condition": "ReadonlyFilesystem",
                "reason": "FilesystemIsReadOnly",
            },
        ],
    }
)
EKS = """
managedNodeGroups:
- name: gpu-ng
  nodeRepairConfig:
    enabled: true
    maxUnhealthyNodeThresholdPercentage: 20
    maxParallelNodesRepairedCount: 2
    nodeRepairConfigOverrides:
    - {nodeMonitoringCondition: AcceleratedInstanceNotReady, nodeUnhealthyReason: NvidiaXID64Error,
       minRepairWaitTimeMins: 5, repairAction: Replace}
    - {nodeMonitoringCondition: AcceleratedHardwareReady, nodeUnhealthyReason: NvidiaXID13Error,
       minRepairWaitTimeMins: 10, repairAction: NoAction}
"""
CLOUDFORMATION = json.dumps(
    {
        "NodeRepairConfig": {
            "Enabled": True,
            "MaxParallelNodesRepairedPercentage": 10,
            "NodeRepairConfigOverrides": [
                {
                    "NodeMonitoringCondition": "KernelReady",
                    "NodeUnhealthyReason": "ForkFailedOutOfPIDs",
                    "MinRepairWaitTimeMins": 30,
                    "RepairAction": "Reboot",
                }
            ],
        }
    }
)
DRAINO = (
    "--node-label=pool=gpu --evict-emptydir-pods --max-grace-period=5m --drain-buffer=10m "
    "--evict-daemonset-pods --namespace=x Ready=Unknown,15m KernelDeadlock OutOfDisk=True,1.5h"
)


def checked(text: str) -> dict[str, RemediationPolicy]:
    """Return the policies, after they passed the check with no error and no warning."""
    parsed = parse_policies(text.encode(), file="converted.yaml")
    assert lint_files([parsed], None) == []
    return {one.policy.name: one.policy for one in parsed.policies}


def test_permanent_rules_of_node_problem_detector_become_a_policy_a_condition() -> None:
    text = convert("npd", NPD)
    found = checked(text)
    assert set(found) == {"kernel-deadlock", "readonly-filesystem"}
    clause = found["kernel-deadlock"].spec.when[0].condition
    assert clause is not None
    assert clause.reasons == ("DockerHung", "AUFSUmountHung")
    assert "OOMKilling" in text
    assert "ReadonlyFilesystem is not under `conditions`" in text


@pytest.mark.parametrize("text", [EKS, CLOUDFORMATION])
def test_overrides_of_eks_become_policies(text: str) -> None:
    for policy in checked(convert("eks", text)).values():
        clause = policy.spec.when[0].condition
        assert clause is not None
        assert clause.status == "False"  # those conditions say what is well
        assert clause.for_ >= 300


@pytest.mark.parametrize(
    "config",
    ["{enabled: true}", "{maxParallelNodesRepairedPercentage: 20}"],
    ids=["bare", "limits"],
)
def test_a_node_group_without_overrides_is_named(config: str) -> None:
    other = f"managedNodeGroups:\n- {{name: cpu-ng, nodeRepairConfig: {config}}}\n"
    found = convert("eks", other + EKS.partition("managedNodeGroups:\n")[2])
    assert "NOTE: node group cpu-ng has no overrides" in found
    assert checked(found)


def test_limits_waits_and_actions_of_eks_are_carried_over() -> None:
    text = convert("eks", EKS)
    replace, ignore = checked(text).values()
    assert [step.action for step in replace.spec.steps] == ["cordon", "notify", "drain"]
    assert [step.action for step in ignore.spec.steps] == ["event"]
    clause = replace.spec.when[0].condition
    assert clause is not None
    assert (clause.type, clause.for_) == ("AcceleratedHardwareReady", 300.0)
    assert replace.spec.nodes.selector.match_labels == {"eks.amazonaws.com/nodegroup": "gpu-ng"}
    assert replace.spec.limits.budget is not None
    assert replace.spec.limits.budget.max_unavailable.value == 2
    assert "EKS would have done Replace" in text
    assert "switch EKS node repair off" in text


def test_conditions_and_flags_of_draino_are_carried_over() -> None:
    text = convert("draino", DRAINO)
    found = checked(text)
    assert set(found) == {"ready-unknown", "kernel-deadlock", "out-of-disk"}
    silent = found["ready-unknown"].spec
    assert silent.recover.when is RecoverWhen.MANUAL
    clause = found["out-of-disk"].spec.when[0].condition
    assert clause is not None
    assert clause.for_ == 5400.0
    drain = silent.steps[-1].drain
    assert drain is not None
    assert drain.despite == ("emptyDir",)
    assert "--namespace has no counterpart here" in text
    assert "pods of a DaemonSet are never evicted" in text


def test_arguments_of_draino_may_be_a_list_of_a_deployment() -> None:
    found = checked(convert("draino", "- --skip-drain\n- KernelDeadlock\n"))
    assert [step.action for step in found["kernel-deadlock"].spec.steps] == ["cordon", "notify"]


def test_the_page_shows_what_comes_out() -> None:
    page = (Path(__file__).parents[3] / "docs" / "policies" / "convert.md").read_text("utf-8")
    arguments = page.partition("```\n")[2].partition("\n```")[0]
    made = page.partition("```yaml\n")[2].partition("```")[0]
    assert arguments.startswith("draino ")
    assert made == convert("draino", arguments)


def test_labels_of_draino_must_all_be_there() -> None:
    flags = "--node-label=pool=gpu --node-label zone=a --node-label=canary="
    (policy,) = checked(convert("draino", f"{flags} KernelDeadlock")).values()
    selector = policy.spec.nodes.selector
    assert selector.match_labels == {"pool": "gpu", "zone": "a"}
    assert [(one.key, one.operator) for one in selector.match_expressions] == [("canary", "Exists")]


DRAINO_SCRIPT = r"""#!/bin/sh
set -e
exec ./draino --debug --kubeconfig $KUBECONFIG \
  --max-grace-period=5m --drain-buffer=20m --evict-emptydir-pods --no-skip-drain \
  KernelDeadlock
"""
DRAINO_ARGS = """
- /draino
- --max-grace-period
- 5m
- --drain-buffer
- 20m
- --skip-drain=false
- --evict-emptydir-pods
- KernelDeadlock
"""
DRAINO_WORDS = "--max-grace-period 5m --drain-buffer 20m --evict-emptydir-pods KernelDeadlock"
DRAINO_UNDONE = f"draino --evict-unreplicated-pods --no-evict-unreplicated-pods {DRAINO_WORDS}"


@pytest.mark.parametrize("text", [DRAINO_WORDS, DRAINO_SCRIPT, DRAINO_ARGS, DRAINO_UNDONE])
def test_a_flag_of_draino_is_read_however_it_is_written(text: str) -> None:
    (policy,) = checked(convert("draino", text)).values()
    drain, rate = policy.spec.steps[-1].drain, policy.spec.limits.rate.drain
    assert drain is not None
    assert rate is not None
    assert (policy.name, drain.grace_period, drain.despite) == (
        "kernel-deadlock",
        300.0,
        ("emptyDir",),
    )
    assert (rate.starts, rate.seconds) == (1, 1200.0)


def test_what_a_flag_that_nobody_knows_may_have_meant_is_said() -> None:
    text = convert("draino", "--config-name prod KernelDeadlock")
    assert "prod behind it was taken for a condition" in text
    assert set(checked(text)) == {"prod", "kernel-deadlock"}


@pytest.mark.parametrize(
    ("flags", "said"), [("", True), ("--evict-statefulset-pods", False), ("--skip-drain", False)]
)
def test_pods_of_a_stateful_set_are_mentioned_where_draino_would_leave_them(
    flags: str, *, said: bool
) -> None:
    assert ("leaves pods of a StatefulSet" in convert("draino", f"{flags} X")) is said


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("npd", "{", "this is no configuration"),
        ("npd", "[]", "a list `rules`"),
        ("npd", '{"rules": []}', "nothing to convert"),
        ("eks", "a: b", "no nodeRepairConfig"),
        ("eks", "nodeRepairConfig: {enabled: true}", "there is no override"),
        ("eks", "nodeRepairConfig: {maxUnhealthyNodeThresholdPercentage: 20}", "no override"),
        ("eks", "nodeRepairConfig: {nodeRepairConfigOverrides: []}", "nothing to convert"),
        ("eks", "nodeRepairConfig: {maxUnhealthyNodeThresholdPercentage: most}", "no whole number"),
        (
            "eks",
            "nodeRepairConfigOverrides: [{nodeMonitoringCondition: X, minRepairWaitTimeMins: ten}]",
            "minRepairWaitTimeMins is no whole number: ten",
        ),
        ("npd", '{"rules": [{"type": "permanent", "reason": "Hung"}]}', "Hung names no condition"),
        ("draino", "--dry-run", "no condition"),
        ("draino", "Ready=Maybe", "is none of True"),
        ("draino", "Ready=True,soon", "is no duration"),
        ("draino", "'", "no arguments"),
        ("draino", "KernelDeadlock --drain-buffer", "--drain-buffer needs a value"),
        ("draino", "args: KernelDeadlock", "neither a flag nor a condition"),
        ("draino", "--node-label a=b --node-label a=c X", "given twice, as 'b' and 'c'"),
        ("draino", "X=True,9999999999h", "longer than"),
        ("draino", "--node-label =b X", "no key of a label"),
        (
            "npd",
            '{"conditions": 5, "rules": [{"type": "permanent", "condition": "X"}]}',
            "no list: 5",
        ),
        (
            "npd",
            json.dumps({"rules": [{"type": "permanent", "condition": "X" * 400}]}),
            "no policy can be made of it: .*type: X+... is too long",
        ),
        ("npd", "a: &a {b: *a}", "nested more than"),
        ("eks", "a: &a [*a]", "nested more than"),
        ("eks", "[" * 2000 + "]" * 2000, "recursion"),
        (
            "eks",
            "\n".join(
                ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1]"]
                + [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 8)}]" for at in range(1, 30)]
            ),
            "more than 50000 values",
        ),
        ("eks", "nodeRepairConfig: {nodeRepairConfigOverrides: 5}", "Overrides is no list: 5"),
        ("eks", "nodeRepairConfig: {maxParallelNodesRepairedPercentage: 150}", "not from 1 to 100"),
        ("eks", "nodeRepairConfig: {maxUnhealthyNodeThresholdCount: '0'}", "not from 1 to"),
    ],
)
def test_what_cannot_be_converted_says_why(kind: str, text: str, said: str) -> None:
    with pytest.raises(ConvertError, match=said):
        convert(kind, text)


def test_numbers_of_cloudformation_may_be_text() -> None:
    text = (
        "NodeRepairConfig: {MaxParallelNodesRepairedCount: '2', "
        "MaxUnhealthyNodeThresholdPercentage: '20', NodeRepairConfigOverrides: "
        "[{NodeMonitoringCondition: X, MinRepairWaitTimeMins: '5'}]}"
    )
    said = convert("eks", text)
    assert "for: 5m" in said
    assert "maxUnavailable: 2" in said
    assert "percent: 20" in said


@given(condition=st.text(max_size=40), reason=st.text(max_size=40))
def test_whatever_names_others_use_the_policy_can_be_read(condition: str, reason: str) -> None:
    rule = {"type": "permanent", "condition": condition, "reason": reason}
    try:
        text = convert("npd", json.dumps({"rules": [rule]}))
    except ConvertError:
        assert not condition
        return
    (policy,) = parse_policies(text.encode(), file="converted.yaml").policies
    clause = policy.policy.spec.when[0].condition
    assert clause is not None
    assert clause.type == condition
    assert policy.policy.spec.mode is Mode.DRY_RUN


NUMBERS = st.one_of(st.none(), st.integers(-2, 120), st.integers(), st.integers().map(str))
OVERRIDES = st.lists(
    st.fixed_dictionaries(
        {"nodeMonitoringCondition": st.sampled_from(["KernelReady", "KernelReady-2", "X" * 99])},
        optional={
            "nodeUnhealthyReason": st.sampled_from(["A", "A-2", "A-3", "a 2", "9", ""]),
            "minRepairWaitTimeMins": NUMBERS,
            "repairAction": st.sampled_from(["Reboot", "Replace", "NoAction", 5]),
        },
    ),
    max_size=4,
)
LIMITS = st.dictionaries(
    st.sampled_from(
        [
            f"{what}{how}"
            for what in ("maxParallelNodesRepaired", "maxUnhealthyNodeThreshold")
            for how in ("Count", "Percentage")
        ]
    ),
    NUMBERS,
)


@given(overrides=OVERRIDES, limits=LIMITS)
def test_any_configuration_of_eks_is_converted_or_refused_with_its_own_key(
    overrides: list[dict[str, object]], limits: dict[str, object]
) -> None:
    config = {"nodeRepairConfigOverrides": overrides, **limits}
    try:
        made = convert("eks", json.dumps({"nodeRepairConfig": config}))
    except ConvertError as error:
        said = str(error)
    else:
        parsed = parse_policies(made.encode(), file="converted.yaml")
        assert len(parsed.policies) == len(overrides)
        said = ""
    assert "no policy can be made of it" not in said


@pytest.mark.parametrize(
    ("kind", "text", "names"),
    [
        ("draino", "Aa AA Aa-2 aA", {"aa", "aa-2", "aa-3", "a-a"}),
        (
            "npd",
            json.dumps(
                {"rules": [{"type": "permanent", "condition": x} for x in ("Ab", "AB", "ab-2")]}
            ),
            {"ab", "ab-2", "ab-3"},
        ),
    ],
)
def test_no_number_that_keeps_names_apart_makes_the_name_of_another(
    kind: str, text: str, names: set[str]
) -> None:
    assert set(checked(convert(kind, text))) == names


def test_a_buffer_too_short_to_be_a_rate_is_none() -> None:
    (policy,) = checked(convert("draino", "--drain-buffer=0.1ms X")).values()
    assert policy.spec.limits.rate.drain is None


def test_what_is_null_in_a_configuration_is_not_given() -> None:
    rules = [{"type": "permanent", "condition": "X"}]
    assert checked(convert("npd", json.dumps({"conditions": None, "rules": rules})))


ARGUMENTS = st.lists(
    st.sampled_from(
        (
            *("--node-label", "--node-label=", "--drain-buffer", "--skip-drain", "--x", "--", "-d"),
            *("a=b", "pool", "10m", "0s", "Ready=Unknown,5m", "X=False", "=", "--max-grace-period"),
        )
    )
)


@given(words=ARGUMENTS)
def test_any_arguments_of_draino_are_converted_or_refused(words: list[str]) -> None:
    try:
        made = convert("draino", " ".join(words))
    except ConvertError:
        return
    assert parse_policies(made.encode(), file="converted.yaml").policies


@given(text=st.text(max_size=60), kind=st.sampled_from(sorted(FORMATS)))
def test_any_text_is_converted_or_refused(text: str, kind: str) -> None:
    try:
        made = convert(kind, text)
    except ConvertError:
        return
    assert parse_policies(made.encode(), file="converted.yaml").policies


@given(parts=st.lists(st.text(max_size=80), max_size=3))
def test_a_policy_s_name_is_one_that_a_policy_may_have(parts: list[str]) -> None:
    name = policy_name(*parts)
    assert 0 < len(name) <= 63
    assert name == name.lower()
