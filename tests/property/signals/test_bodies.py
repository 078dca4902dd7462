"""Bodies of the webhook and of polls, of any shape: read, or refused with a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediator.policy.sources import Alertmanager
from remediator.signals.alertbook import AlertBook
from remediator.signals.alerts import (
    Alert,
    AlertsUnreadableError,
    decode_poll,
    decode_webhook,
)
from remediator.signals.queries import ClockError, QueryUnreadableError, read_vector
from remediator.signals.resolve import Found, NodeIndex, Rules, Subject, resolve
from tests.unit.signals.test_resolve import RULES, node


pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(3600)]
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)  # JSON may say so, and no float can hold it
    | st.floats()
    | st.text()
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda one: st.lists(one) | st.dictionaries(st.text(), one), max_leaves=12
)
labels = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=4)
times = st.sampled_from(
    ["2026-12-02T14:46:35Z", "2026-12-02T14:46:35.123456789+02:00", "0001-01-01T00:00:00Z"]
)


def maybe(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly as it should be."""
    return good | values


told = st.fixed_dictionaries(
    {
        "status": maybe(st.sampled_from(["firing", "resolved"])),
        "labels": maybe(labels),
        "startsAt": maybe(times),
    },
    optional={"endsAt": values, "annotations": values, "fingerprint": values, "more": values},
)
payloads = st.fixed_dictionaries(
    {"version": maybe(st.just("4")), "alerts": maybe(st.lists(maybe(told), max_size=4))},
    optional={"status": values, "groupKey": values, "truncatedAlerts": values},
)
polled = st.fixed_dictionaries(
    {
        "labels": maybe(labels),
        "startsAt": maybe(times),
        "status": maybe(
            st.fixed_dictionaries(
                {"state": maybe(st.sampled_from(["active", "suppressed", "unprocessed"]))},
                optional={"silencedBy": values, "inhibitedBy": values},
            )
        ),
    },
    optional={"updatedAt": maybe(times), "receivers": values},
)
points = st.tuples(maybe(st.just(0.0)), maybe(st.just("1"))).map(list)
odd_points = scalars.flatmap(lambda one: st.sampled_from([{"a": one, "b": one}, [one, one], one]))
series = st.fixed_dictionaries(
    {"metric": maybe(labels)},
    optional={
        "value": maybe(points) | odd_points,
        "histogram": maybe(points) | odd_points,
        "values": values,
    },
)


def encode(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_with_a_sentence(body: bytes) -> None:
    for decode in (decode_webhook, decode_poll):
        try:
            decode(body)
        except AlertsUnreadableError as error:
            assert str(error)  # noqa: PT017 - most are read


@given(payloads)
def test_any_payload_is_read_or_refused_and_what_is_read_can_be_kept(payload: Any) -> None:
    try:
        report = decode_webhook(encode(payload))
    except AlertsUnreadableError as error:
        assert str(error)  # noqa: PT017 - most are read
        return
    book = AlertBook(Alertmanager.model_validate({"name": "m", "webhookOnly": True}), now=0.0)
    book.told(report, 1.0)
    firing = {one.identity for one in report.firing}
    assert set(book.entries) == firing - set(report.resolved)


@given(st.lists(polled, max_size=4))
def test_any_poll_is_read_or_refused_as_a_whole(answer: Any) -> None:
    try:
        alerts = decode_poll(encode(answer))
    except AlertsUnreadableError as error:
        assert str(error)  # noqa: PT017 - most are read
        return
    assert len(alerts) == len(answer)


@given(values | st.lists(series, min_size=1, max_size=3))
def test_any_result_of_a_query_is_read_or_refused(result: Any) -> None:
    try:
        read_vector(result, now=0.0, skew=60.0)
    except (QueryUnreadableError, ClockError) as error:
        assert str(error)  # noqa: PT017 - most are read


names = st.sampled_from(["n1", "n2", "n1.example.com", "10.0.0.1", "10.0.0.1:9100", "x", ""])
some_labels = st.dictionaries(
    st.sampled_from(["exported_node", "node", "Hostname", "instance", "job", "pod", "namespace"]),
    names | st.sampled_from(["kube-state-metrics", "dcgm-exporter"]),
)


@given(some_labels, st.permutations(RULES.node_from))
def test_a_node_is_only_ever_one_that_a_label_names(
    given_labels: dict[str, str], order: list[str]
) -> None:
    """Never by chance: whatever is found is named by some label, and by no other differently."""
    index = NodeIndex()
    for one in (node("n1", ip="10.0.0.1"), node("n2")):
        index.on_event(None, one)
    rules = Rules(tuple(order), RULES.exporter_jobs, RULES.scraper_jobs)
    answer = resolve(Subject(given_labels, 2e9), rules, index, {})
    if not isinstance(answer, Found):
        return
    host = given_labels.get("instance", "").removesuffix(":9100")
    said = {key: given_labels.get(key, "") for key in ("exported_node", "node", "Hostname")}
    texts = [*said.values(), host]
    assert any(answer.node in index.named(text) for text in texts if text)
    if said["exported_node"]:
        assert index.named(said["exported_node"]) == {answer.node}
    elif said["node"]:
        assert index.named(said["node"]) == {answer.node}


peers = st.sampled_from(["http://a", "http://b"])
FAULT = (("alertname", "F"),)
steps = st.lists(
    st.tuples(peers, st.sampled_from(["with", "suppressed", "without", "failed"])), max_size=30
)


@given(steps)
def test_an_alert_is_never_gone_before_two_good_polls_of_every_peer_in_a_row(
    history: list[tuple[str, str]],
) -> None:
    spec = {"name": "m", "urls": ["http://a", "http://b"], "goneAfter": "0s"}
    book = AlertBook(Alertmanager.model_validate(spec), now=0.0)
    without = {"http://a": 0, "http://b": 0}
    there, suppressed = False, {"http://a": False, "http://b": False}
    for now, (peer, what) in enumerate(history):
        if what == "failed":
            book.failed(peer, "no answer")
        else:
            one = Alert(identity=FAULT, starts_at=0.0, suppressed=what == "suppressed")
            book.polled(peer, () if what == "without" else (one,), float(now))
            without[peer] = without[peer] + 1 if what == "without" else 0
            lasts = what == "without" and suppressed[peer] and without[peer] < 2
            suppressed[peer] = what == "suppressed" or lasts
            there = there or what != "without"
            if what == "without" and there and all(count >= 2 for count in without.values()):
                there = False
        assert (FAULT in book.entries) is there
        if there:
            assert book.entries[FAULT].suppressed == any(suppressed.values())
        else:
            without = {"http://a": 0, "http://b": 0}
            suppressed = {"http://a": False, "http://b": False}
