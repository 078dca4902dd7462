"""What lint reads off a PromQL text is what a real Prometheus makes of it."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from remediator.policy.promql import Kind, PromQLError, read_promql
from testbed.monitoring import Prometheus, call
from tests.property.cases import cases


pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]  # the first build takes minutes

METRIC: Final = "bad"
OTHER: Final = "other_values"
"""Series with the same labels, and values on the other side of every number below."""
VALUES: Final = {METRIC: (0, 79, 60), OTHER: (90, 0, 1)}
NODES: Final = ("a", "b", "c")
KINDS: Final = {
    "vector": Kind.SERIES,
    "matrix": Kind.RANGES,
    "scalar": Kind.NUMBER,
    "string": Kind.TEXT,
}


def rules() -> str:
    """Recording rules: a series for each node, of both metrics."""
    recorded = [
        {
            "record": metric,
            "expr": f"vector({value})",
            "labels": {"node": node, "gpu": str(gpu), "zone": "z"},
        }
        for metric, values in VALUES.items()
        for gpu, (node, value) in enumerate(zip(NODES, values, strict=True))
    ]
    return json.dumps({"groups": [{"name": "series", "rules": recorded}]})


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder: Path = tmp_path_factory.mktemp("prometheus")
    with Prometheus(folder, rules=rules()) as server:
        ripe = f"count_over_time({OTHER}[1m]) >= 3 and on(node) count_over_time({METRIC}[1m]) >= 3"
        server.wait_until(lambda: len(server.query(ripe)) == len(NODES), "its rules")
        yield server


def ask(server: Prometheus, promql: str) -> dict[str, Any] | str:
    """What it answers; why it refuses, `bad_data` or `execution`."""
    try:
        answer = call(f"{server.url}/api/v1/query?{urllib.parse.urlencode({'query': promql})}")
    except urllib.error.HTTPError as error:
        return str(json.loads(error.read())["errorType"])
    return dict(answer["data"])


LABELS: Final = st.lists(st.sampled_from(["node", "gpu", "zone"]), max_size=2, unique=True).map(
    ", ".join
)
SELECTED: Final = st.sampled_from(
    [METRIC, f'{METRIC}{{gpu="1"}}', f'{{__name__="{METRIC}"}}', f"{METRIC} offset 1s"]
)


def below(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Expressions over these: functions, aggregations, operators, and what does not go together."""
    return st.one_of(
        st.builds("({})".format, inner),
        st.builds("-{}".format, inner),
        st.builds(
            "{}({})".format,
            st.sampled_from(["abs", "absent", "vector", "scalar", "timestamp", "sort", "nofunc"]),
            inner,
        ),
        st.builds(
            "{}({}[1m:1s])".format, st.sampled_from(["max_over_time", "absent_over_time"]), inner
        ),
        st.builds('label_replace({}, "{}", "x", "", "")'.format, inner, st.just("made")),
        st.builds("{}({})".format, st.sampled_from(["sum", "count", "max", "group"]), inner),
        st.builds(
            "{} {} ({}) ({})".format,
            st.sampled_from(["sum", "min", "avg"]),
            st.sampled_from(["by", "without"]),
            LABELS,
            inner,
        ),
        st.builds("topk(2, {})".format, inner),
        st.builds(
            "{} {} {}".format,
            inner,
            st.sampled_from(["+", "/", "==", "> bool", ">", "!="]),
            st.sampled_from(["50", "0", "time()"]),
        ),
        st.builds(
            "({}) {} {} ({})".format,
            inner,
            st.sampled_from(["*", "==", "<= bool", "and", "or", "unless"]),
            st.one_of(
                st.just(""),
                st.builds("{}({})".format, st.sampled_from(["on", "ignoring"]), LABELS),
                st.builds("on({}) group_left({})".format, LABELS, LABELS),
                st.builds("ignoring({}) group_right({})".format, LABELS, LABELS),
            ),
            inner,
        ),
    )


EXPRESSIONS: Final = st.recursive(
    st.one_of(SELECTED, st.sampled_from(["1", "time()", f"{METRIC}[1m]", '"text"', f"{METRIC}{{"])),
    below,
    max_leaves=5,
)


@settings(
    max_examples=cases(600),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(promql=EXPRESSIONS)
@example(promql=f"{METRIC} == 79")
@example(promql=f"{METRIC} > bool 90")
@example(promql=f"max by (node) ({METRIC}) == 79")
@example(promql=f"{METRIC} and on(node) vector(1)")
@example(promql=f"{METRIC} or on() vector(0)")
def test_a_query_is_read_as_prometheus_reads_it(prometheus: Prometheus, promql: str) -> None:
    answer = ask(prometheus, promql)
    try:
        shape = read_promql(promql)
    except PromQLError:
        assert answer == "bad_data", promql
        return
    assert answer != "bad_data", promql
    if isinstance(answer, str):
        return  # such as two series where one is wanted: the text alone does not tell
    assert shape.kind is KINDS[answer["resultType"]]
    if shape.kind is not Kind.SERIES:
        return
    kept = [set(one["metric"]) - {"__name__"} for one in answer["result"]]
    if shape.labels is not None:
        assert all(one <= shape.labels for one in kept), (promql, kept)
    if not shape.selective:
        moved = ask(prometheus, promql.replace(METRIC, OTHER))
        if not isinstance(moved, str):
            assert len(moved["result"]) == len(answer["result"]), promql


@pytest.mark.parametrize("bool_", ["", " bool"])
@pytest.mark.parametrize("comparison", ["==", "!=", ">", "<", ">=", "<="])
def test_a_comparison_leaves_series_out_unless_it_is_bool(
    prometheus: Prometheus, comparison: str, bool_: str
) -> None:
    """Shows that the claim above is one: what is selective does change with the values."""
    promql = f"{METRIC} {comparison}{bool_} 60"
    answer = ask(prometheus, promql)
    assert isinstance(answer, dict)
    assert read_promql(promql).selective is (len(answer["result"]) < len(NODES))
