"""PagerDuty's channel against a server that keeps incidents by their key, as Events v2 does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from remediator.act.channels.pagerduty import PagerDutySender
from remediator.act.envelope import RefusedError, RetryLaterError
from remediator.decide.topics import Topics
from remediator.policy.channels import PagerDutyChannel
from tests.unit.act.channels.conftest import NOW, SESSION, Service, end, envelope, message


KEY = "r0ut1ngk3ys3cr3t"


class PagerDuty:
    """Open incidents by deduplication key, and how many there ever were."""

    def __init__(self, service: Service) -> None:
        self.open: dict[str, Any] = {}
        self.ever = 0
        service.answer = self.answer

    def answer(self, path: str, body: Any) -> web.Response:
        if path != "/v2/enqueue" or body.get("routing_key") != KEY:
            return web.json_response({"status": "invalid event"}, status=400)
        key = body["dedup_key"]
        if body["event_action"] == "trigger":
            payload = body["payload"]
            if not {"summary", "source", "severity"} <= set(payload):
                return web.json_response({"status": "invalid event"}, status=400)
            self.ever += key not in self.open
            self.open[key] = payload
        else:
            self.open.pop(key, None)
        return web.json_response({"status": "success", "dedup_key": key}, status=202)


@pytest.fixture
def pagerduty(service: Service) -> PagerDuty:
    return PagerDuty(service)


@pytest.fixture
def make(
    service: Service, session: aiohttp.ClientSession, secret_file: Callable[[str], str]
) -> Callable[..., PagerDutySender]:
    def make(topics: Topics | None = None) -> PagerDutySender:
        spec = PagerDutyChannel.model_validate(
            {"routingKeyFile": secret_file(KEY), "url": service.url}
        )
        return PagerDutySender(spec, session=session, topics=topics or Topics(), wall=lambda: NOW)

    return make


async def test_a_session_is_an_incident(
    pagerduty: PagerDuty, make: Callable[..., PagerDutySender]
) -> None:
    sender = make()

    await sender.send(envelope())
    await sender.send(envelope())  # the same once more: its answer was lost
    await sender.send(envelope(message(what="2", title="n1: drain failed")))

    assert pagerduty.ever == 1
    payload = pagerduty.open[SESSION.format(1)]
    assert payload["summary"] == "n1: drain failed"
    assert (payload["source"], payload["severity"]) == ("n1", "warning")
    await sender.send(envelope(end()))
    assert not pagerduty.open


async def test_an_end_resolves_though_all_was_forgotten(
    pagerduty: PagerDuty, make: Callable[..., PagerDutySender]
) -> None:
    await make().send(envelope(message(1)))
    await make().send(envelope(message(2)))

    await make().send(envelope(end(1), end(2)))

    assert not pagerduty.open


async def test_a_storm_is_one_incident_until_its_last_session_ends(
    pagerduty: PagerDuty, make: Callable[..., PagerDutySender]
) -> None:
    topics = Topics()
    await make(topics).send(envelope(*(message(node) for node in range(9))))
    await make(topics).send(envelope(*(end(node) for node in range(8))))

    assert len(pagerduty.open) == pagerduty.ever == 1
    after = Topics()
    after.restore(topics.state())
    await make(after).send(envelope(end(8)))
    assert not pagerduty.open


async def test_one_policy_that_lets_go_does_not_resolve_what_another_holds(
    pagerduty: PagerDuty, make: Callable[..., PagerDutySender]
) -> None:
    sender = make()
    await sender.send(envelope(message()))
    await sender.send(envelope(message(what="x", policy="heat")))

    await sender.send(envelope(end(policy="heat")))
    assert len(pagerduty.open) == 1
    await sender.send(envelope(end()))

    assert not pagerduty.open


async def test_a_node_that_is_gone_resolves_all(
    pagerduty: PagerDuty, make: Callable[..., PagerDutySender]
) -> None:
    sender = make()
    await sender.send(envelope(message()))
    await sender.send(envelope(message(what="x", policy="heat")))

    await sender.send(envelope(end(policy="")))

    assert not pagerduty.open


async def test_a_dry_run_is_an_incident_of_its_own(
    pagerduty: PagerDuty, make: Callable[..., PagerDutySender]
) -> None:
    sender = make()
    await sender.send(envelope())
    await sender.send(envelope(dry_run=True))

    assert pagerduty.open[f"dry-run/{SESSION.format(1)}"]["summary"].split()[0] == "[dry-run]"
    await sender.send(envelope(end(), dry_run=True))
    assert list(pagerduty.open) == [SESSION.format(1)]


@pytest.mark.parametrize(
    ("status", "kind"), [(400, RefusedError), (429, RetryLaterError), (502, RetryLaterError)]
)
async def test_only_202_is_delivered(
    service: Service, make: Callable[..., PagerDutySender], status: int, kind: type[Exception]
) -> None:
    service.answers = [web.Response(status=status, text=f"bad {KEY}", headers={"Retry-After": "9"})]

    with pytest.raises(kind, match=f"HTTP {status}") as caught:
        await make().send(envelope())

    assert KEY not in str(caught.value)
