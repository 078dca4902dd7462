"""Alerts that we send to real Alertmanagers: routed, grouped, resolved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from remediator.act.channels.alertmanager import AlertmanagerSender
from remediator.act.envelope import RefusedError, pack
from remediator.decide.decision import SendMessage, Urgency
from remediator.decide.topics import Topics
from remediator.policy.channels import AlertmanagerChannel
from testbed.monitoring import Pair


pytestmark = pytest.mark.cluster
SESSION = "0f3c9a5{}-19b2c3d4e5f"


@pytest.fixture
def pair(tmp_path: Path) -> Any:
    with Pair(tmp_path) as made:
        yield made


def message(node: int, **more: Any) -> SendMessage:
    fields: dict[str, Any] = {
        "key": f"{SESSION.format(node)}/bus/1",
        "to": ("am",),
        "title": f"n{node}: Xid 79",
        "text": "cordoned",
        "node": f"n{node}",
        "policy": "bus",
        "urgency": Urgency.WARNING,
    }
    return SendMessage(**{**fields, **more})


def end(node: int, **more: Any) -> SendMessage:
    return message(
        node, key=f"{SESSION.format(node)}/bus/end", resolves=True, urgency=Urgency.INFO, **more
    )


async def send(pair: Pair, topics: Topics, *messages: SendMessage, dry_run: bool = False) -> None:
    spec = AlertmanagerChannel.model_validate({"urls": pair.urls, "labels": {"team": "gpu"}})
    envelope = pack(messages, channel="am", dry_run=dry_run, created=1_700_000_000.0)
    async with aiohttp.ClientSession() as session:
        await AlertmanagerSender(spec, session=session, topics=topics).send(envelope)


def firing(pair: Pair) -> list[tuple[str, str]]:
    """Node and severity of what fires, the same at both peers."""
    first, second = (
        sorted((one["labels"]["node"], one["labels"]["severity"]) for one in peer.alerts())
        for peer in pair.both
    )
    assert first == second
    return first


async def test_an_alert_fires_with_labels_to_route_by_until_the_session_ends(pair: Pair) -> None:
    topics = Topics()
    await send(pair, topics, message(1))
    (alert,) = pair.first.alerts()
    assert alert["labels"] == {
        "alertname": "GpuRemediation",
        "node": "n1",
        "policy": "bus",
        "severity": "warning",
        "team": "gpu",
    }
    assert alert["annotations"]["summary"] == "n1: Xid 79"
    assert alert["annotations"]["session"] == SESSION.format(1)

    await send(pair, topics, message(1, key=f"{SESSION.format(1)}/bus/2", urgency=Urgency.CRITICAL))
    assert firing(pair) == [("n1", "critical"), ("n1", "warning")]
    await send(pair, topics, end(1))

    assert firing(pair) == []


async def test_another_leader_ends_what_it_does_not_remember(pair: Pair) -> None:
    await send(pair, Topics(), message(1), message(2))
    assert firing(pair) == [("n1", "warning"), ("n2", "warning")]

    await send(pair, Topics(), end(1), end(2))

    assert firing(pair) == []


async def test_a_restarted_alertmanager_hears_of_what_is_open_again(pair: Pair) -> None:
    topics = Topics()
    await send(pair, topics, message(1), message(2))
    await send(pair, topics, end(2))
    for peer in pair.both:
        peer.stop()
    for peer in pair.both:
        peer.start()
    assert firing(pair) == []

    spec = AlertmanagerChannel.model_validate({"urls": pair.urls})
    async with aiohttp.ClientSession() as session:
        await AlertmanagerSender(spec, session=session, topics=topics).renew("am")

    assert firing(pair) == [("n1", "warning")]


async def test_a_node_that_is_gone_ends_the_alerts_of_all_policies(pair: Pair) -> None:
    topics = Topics()
    await send(pair, topics, message(1))
    await send(pair, topics, message(1, policy="heat"))

    await send(pair, topics, end(1, policy=""))

    assert firing(pair) == []


async def test_a_dry_run_is_another_alert(pair: Pair) -> None:
    topics = Topics()
    await send(pair, topics, message(1))
    await send(pair, topics, message(1), dry_run=True)
    await send(pair, topics, end(1), dry_run=True)

    (alert,) = pair.first.alerts()
    assert "dry_run" not in alert["labels"]


async def test_one_peer_is_enough(pair: Pair) -> None:
    pair.second.stop()

    await send(pair, Topics(), message(1))

    assert len(pair.first.alerts()) == 1


async def test_what_alertmanager_does_not_take_is_refused(pair: Pair) -> None:
    spec = AlertmanagerChannel.model_validate({"urls": [pair.urls[0] + "/nowhere"]})
    async with aiohttp.ClientSession() as session:
        sender = AlertmanagerSender(spec, session=session, topics=Topics())
        with pytest.raises(RefusedError, match="HTTP 404"):
            await sender.send(pack([message(1)], channel="am", dry_run=False, created=1.7e9))
