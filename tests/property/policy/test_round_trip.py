"""Any policy survives a trip through YAML; no text whatever breaks the loader."""

from collections.abc import Sequence
from datetime import date
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from node_agent.contract import Severity
from remediator.policy.cluster import ClusterSpec, RemediatorConfig
from remediator.policy.load import parse_config, parse_policies
from remediator.policy.model import (
    API_VERSION,
    BudgetPer,
    Mode,
    RecoverWhen,
    RemediationPolicy,
)
from remediator.policy.problems import PolicyError, Problem, render
from remediator.policy.quantities import format_duration
from remediator.policy.reload import PolicySet, fold
from remediator.policy.steps import OnFailure
from remediator.policy.windows import DAYS
from tests.property.cases import cases
from tests.property.spoil import damaged


ROOT = Path(__file__).parents[3]
SHIPPED = [path.read_bytes() for path in sorted((ROOT / "policies").glob("*.yaml"))]
CONFIG = (ROOT / "examples" / "remediator-config.yaml").read_text(encoding="utf-8")

names = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?", fullmatch=True)
label_keys = st.from_regex(
    r"([a-z0-9]{1,5}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,9}[a-z0-9])?", fullmatch=True
)
texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=40)
some_texts = st.lists(texts, min_size=1, max_size=3)
durations = st.integers(0, 10**9).map(lambda ms: format_duration(ms / 1000))
amounts = st.integers(0, 1000) | st.integers(0, 100).map(lambda n: f"{n}%")
rates = st.builds(lambda n, d: f"{n}/{d}m", st.integers(1, 99), st.integers(1, 99))


def keys(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


def codes(most: int) -> st.SearchStrategy[dict[str, Any]]:
    return keys({"codes": st.lists(st.integers(1, most), min_size=1, max_size=4)}, {})


requirements = keys(
    {"key": label_keys, "operator": st.sampled_from(["In", "NotIn"]), "values": some_texts}, {}
) | keys({"key": label_keys, "operator": st.sampled_from(["Exists", "DoesNotExist"])}, {})
selectors = keys(
    {},
    {
        "matchLabels": st.dictionaries(label_keys, texts, max_size=3),
        "matchExpressions": st.lists(requirements, max_size=2),
    },
)
severities = st.sampled_from([*map(str, Severity)])
conditions = keys(
    {"type": st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)},
    {
        "status": st.sampled_from(["True", "False", "Unknown"]),
        "reasons": st.lists(texts, max_size=2),
        "for": durations,
        "severity": severities,
    },
)
metric_labels = st.from_regex(r"[a-z_][a-z0-9_]{0,9}", fullmatch=True)
alerts = keys(
    {"name": st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)},
    {
        "labels": st.dictionaries(metric_labels, texts, max_size=2),
        "source": names,
        "for": durations,
        "severity": severities,
    },
)
promql = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40)
queries = keys(
    {"promql": promql},
    {
        "nodeFrom": st.lists(metric_labels, min_size=1, max_size=2),
        "interval": st.integers(1, 999).map(lambda s: f"{s}s"),
        "clearedBy": promql,
        "source": names,
        "for": durations,
        "severity": severities,
    },
)
counted = {"atLeast": st.integers(2, 10)}
counts = keys(
    {"xid": st.lists(st.integers(1, 999), min_size=1, max_size=3), **counted},
    {"within": durations, "per": st.sampled_from(["gpu", "node"])},
) | keys({"sxid": st.lists(st.integers(1, 99999), min_size=1, max_size=3), **counted}, {})
attempts = keys(
    {"atLeast": st.integers(1, 100)},
    {
        "within": st.integers(1, 24).map(lambda h: f"{h}h"),
        "policies": st.lists(st.sampled_from(["bus", "ecc"]), max_size=2),
        "steps": st.lists(st.sampled_from(["drain", "job", "create/reboot"]), max_size=3),
    },
)
clauses: dict[str, st.SearchStrategy[Any]] = {
    "xid": codes(999),
    "sxid": codes(99999),
    "condition": conditions,
    "alert": alerts,
    "query": queries,
    "count": counts,
    "attempts": attempts,
    "cel": st.sampled_from(["ready", "attempts > 1", 'name == "a"']),
}


def entries(**nested: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    every = keys({}, clauses | nested)
    return every.filter(lambda entry: bool(set(entry) - {"attempts", "cel"}))


leaves = entries()
groups = entries(all=st.lists(leaves, min_size=1, max_size=2))
whens = entries(
    all=st.lists(groups, min_size=1, max_size=2), any=st.lists(groups, min_size=1, max_size=2)
)
unlesses = keys({}, {"alert": alerts, "query": queries, "condition": conditions}).filter(bool)
windows = keys(
    {},
    {
        "days": st.lists(st.sampled_from(DAYS), min_size=1, max_size=7),
        "start": st.integers(0, 11).map(lambda h: f"{h:02}:30"),
        "end": st.integers(12, 24).map(lambda h: f"{h:02}:00"),
        "timeZone": st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]),
        "from": st.dates(max_value=date(2030, 1, 1)).map(str),
        "until": st.dates(min_value=date(2030, 1, 2)).map(str),
        "blackout": st.booleans(),
    },
)
budgets = keys({"maxUnavailable": amounts}, {"per": st.sampled_from([*map(str, BudgetPer)])})
breakers = keys(
    {},
    {
        "minNodes": st.integers(1, 99),
        "percent": st.integers(1, 100),
        "window": durations,
    },
)
limits = keys(
    {},
    {
        "budget": budgets,
        "rate": keys({}, {"cordon": rates, "drain": rates, "job": rates}),
        "breaker": breakers,
        "maxAttempts": st.integers(1, 9),
    },
)
own_keys = st.from_regex(r"gpu-remediator\.io/[a-z]{1,9}", fullmatch=True)
values = st.from_regex(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,9}[a-z0-9])?)?", fullmatch=True)
taints = keys(
    {"acknowledge": st.just("evicts-daemons")},
    {
        "key": own_keys,
        "value": values,
        "effect": st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"]),
    },
)
actions = st.one_of(
    st.just({"cordon": {}}),
    keys({"taint": taints}, {}),
    keys({"notify": keys({"to": some_texts}, {"message": texts})}, {}),
    keys(
        {
            "event": keys(
                {},
                {
                    "reason": st.from_regex(r"[A-Z][A-Za-z0-9]{0,9}", fullmatch=True),
                    "message": texts,
                },
            )
        },
        {},
    ),
)
steps = st.builds(
    lambda action, rest: {**action, **rest},
    actions,
    keys({}, {"timeout": durations, "onFailure": st.sampled_from([*map(str, OnFailure)])}),
)
specs = keys(
    {
        "when": st.lists(whens, min_size=1, max_size=3),
        "steps": st.lists(steps, min_size=1, max_size=3),
    },
    {
        "mode": st.sampled_from([*map(str, Mode)]),
        "emergency": st.booleans(),
        "nodes": keys({}, {"selector": selectors, "controlPlane": st.booleans()}),
        "unless": st.lists(unlesses, max_size=2),
        "windows": st.lists(windows, max_size=2),
        "limits": limits,
        "recover": keys(
            {},
            {
                "when": st.sampled_from([*map(str, RecoverWhen)]),
                "for": durations,
                "notify": st.lists(texts, max_size=2),
            },
        ),
    },
)
policies = st.builds(
    lambda name, labels, spec: RemediationPolicy.model_validate(
        {
            "apiVersion": API_VERSION,
            "kind": "RemediationPolicy",
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
        }
    ),
    names,
    st.dictionaries(texts, texts, max_size=2),
    specs,
)
configs = st.builds(
    lambda budgets, settling, selector, mode: RemediatorConfig.model_validate(
        {
            "apiVersion": API_VERSION,
            "kind": "RemediatorConfig",
            "spec": {
                "budgets": budgets,
                "settling": settling,
                "gpuNodes": selector,
                "mode": mode,
                "channels": {"a": {"log": {}}},
            },
        }
    ),
    st.lists(budgets, max_size=2),
    durations,
    selectors,
    st.sampled_from([*map(str, Mode)]),
)


def quoted(value: Any) -> Any:
    """The same data with all text in quotes, as a careful author writes it."""
    if isinstance(value, dict):
        return {quoted(key): quoted(one) for key, one in value.items()}
    if isinstance(value, list):
        return [quoted(one) for one in value]
    return DoubleQuotedScalarString(value) if isinstance(value, str) else value


def dump(model: RemediationPolicy | RemediatorConfig) -> bytes:
    stream = StringIO()
    YAML().dump(quoted(model.model_dump(mode="json", by_alias=True, exclude_none=True)), stream)
    return stream.getvalue().encode()


# The scanner of ruamel.yaml takes 10 ms a file.
FEW = settings(max_examples=cases(40))


@FEW
@given(policy=policies)
def test_a_policy_written_as_yaml_and_read_again_is_the_same(policy: RemediationPolicy) -> None:
    (one,) = parse_policies(dump(policy), file="p").policies
    assert one.policy == policy
    assert one.policy.version == policy.version


@FEW
@given(config=configs)
def test_a_config_written_as_yaml_and_read_again_is_the_same(config: RemediatorConfig) -> None:
    assert parse_config(dump(config), file="c") == config.spec


def survive(data: bytes) -> None:
    """Either policies or problems that can be shown, and nothing else."""
    problems: Sequence[Problem] | None = None
    try:
        parse_policies(data, file="p")
    except PolicyError as error:
        problems = error.problems
    if problems is not None:
        assert problems
        assert all(problem.message and render(problem) for problem in problems)


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@settings(max_examples=cases(200))
@given(
    base=st.sampled_from(SHIPPED),
    edits=st.lists(
        st.tuples(
            st.floats(0, 1),
            st.integers(0, 12),
            st.binary(max_size=4)
            | st.sampled_from([b"\t", b"- ", b": ", b"{", b"}", b"[", b"*a ", b"&a ", b"!!", b"|"])
            | st.sampled_from(
                [b"? ", b"---\n", b"%YAML 9", b"<<: ", b'"', b"'", b"#", b"\n", b">"]
            ),
        ),
        max_size=5,
    ),
)
def test_a_damaged_file_gives_problems_and_nothing_worse(
    base: bytes, edits: list[tuple[float, int, bytes]]
) -> None:
    for where, cut, put in edits:
        at = int(where * len(base))
        base = base[:at] + put + base[at + cut :]
    survive(base)


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@settings(max_examples=cases(100))
@given(text=damaged([CONFIG]))
def test_a_damaged_config_gives_problems_and_nothing_worse(text: str) -> None:
    try:
        parse_config(text.encode("utf-8", "surrogatepass"), file="c")
    except PolicyError as error:
        assert error.problems  # noqa: PT017 - some are read
        assert all(one.message and render(one) for one in error.problems)  # noqa: PT017


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@given(st.text(alphabet="ab:- \n{}[],&*!|>'\"%@`#?<=~01\t\\", max_size=60))
def test_any_text_gives_problems_and_nothing_worse(text: str) -> None:
    survive(text.encode())


edits = st.dictionaries(
    st.sampled_from("abc"),
    st.sampled_from([b"mess: [", *SHIPPED[:3]]),
)


@FEW
@given(st.lists(edits, max_size=4))
def test_names_are_unique_and_good_files_are_in_force_whatever_the_history(
    history: list[dict[str, bytes]],
) -> None:
    state = PolicySet()
    for now, files in enumerate(history):
        before, state = state, fold(state, files, cluster=ClusterSpec(), now=float(now))
        for name, loaded in state.policies.items():
            assert loaded.file in files
            assert loaded.policy.name == name
        for name, file in state.files.items():
            if file.problems and name in before.files:
                assert file.in_force == before.files[name].in_force
        named = [
            one.policy.name
            for file in state.files.values()
            if file.in_force
            for one in file.in_force.policies
        ]
        assert len(named) == len(set(named))
        assert set(named) == set(state.policies)
