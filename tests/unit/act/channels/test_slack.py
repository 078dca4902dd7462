"""Slack's channel against a server that keeps threads and answers as the Web API does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from remediator.act.channels.slack import SlackSender
from remediator.act.envelope import RefusedError, RetryLaterError
from remediator.decide.topics import Topics
from remediator.policy.channels import SlackChannel
from tests.unit.act.channels.conftest import NOW, Service, end, envelope, message


TOKEN = "xoxb-s3cr3t-t0ken"


class Slack:
    """What the Web API knows: messages by ts, replies by thread."""

    def __init__(self, service: Service) -> None:
        self.texts: dict[str, str] = {}
        self.replies: dict[str, list[str]] = {}
        self.service = service
        service.answer = self.answer

    def answer(self, path: str, body: Any) -> web.Response:
        if path.endswith("chat.update"):
            if body["ts"] not in self.texts:
                return web.json_response({"ok": False, "error": "message_not_found"})
            self.texts[body["ts"]] = body["text"]
            return web.json_response({"ok": True, "ts": body["ts"], "channel": "C1"})
        if thread := body.get("thread_ts"):
            if thread not in self.texts:
                return web.json_response({"ok": False, "error": "thread_not_found"})
            self.replies[thread].append(body["text"])
            return web.json_response({"ok": True, "ts": "9.9", "channel": "C1"})
        ts = f"{len(self.texts) + 1}.0"
        self.texts[ts], self.replies[ts] = body["text"], []
        return web.json_response({"ok": True, "ts": ts, "channel": "C1"})


@pytest.fixture
def slack(service: Service) -> Slack:
    return Slack(service)


@pytest.fixture
def make(
    service: Service, session: aiohttp.ClientSession, secret_file: Callable[[str], str]
) -> Callable[..., SlackSender]:
    def make(topics: Topics | None = None) -> SlackSender:
        spec = SlackChannel.model_validate(
            {"tokenFile": secret_file(TOKEN), "channel": "#gpus", "apiUrl": service.url}
        )
        return SlackSender(spec, session=session, topics=topics or Topics(), wall=lambda: NOW)

    return make


async def test_a_session_is_a_thread_whose_first_message_says_how_it_stands(
    slack: Slack, make: Callable[..., SlackSender]
) -> None:
    sender = make()

    await sender.send(envelope(message()))
    await sender.send(envelope(message(what="2/failed", title="n1: drain failed")))
    assert slack.texts["1.0"] == ":warning: *n1: Xid 79*\nnow: n1: drain failed"
    await sender.send(envelope(end()))

    assert slack.texts == {"1.0": ":white_check_mark: *n1: Xid 79*\nover: n1: session ended"}
    assert [text.splitlines()[0] for text in slack.replies["1.0"]] == [
        ":warning: *n1: drain failed*",
        ":white_check_mark: *n1: session ended*",
    ]
    path, headers, body = slack.service.got[0]
    assert path == "/chat.postMessage"
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert body["channel"] == "#gpus"
    assert body["metadata"]["event_payload"]["key"] == message().key


async def test_the_next_leader_goes_on_in_the_same_thread(
    slack: Slack, make: Callable[..., SlackSender]
) -> None:
    before, after = Topics(), Topics()
    await make(before).send(envelope())
    after.restore(before.state())

    await make(after).send(envelope(end()))

    assert len(slack.texts) == 1
    assert len(slack.replies["1.0"]) == 1


async def test_a_storm_is_one_message_and_is_over_with_its_last_node(
    slack: Slack, make: Callable[..., SlackSender]
) -> None:
    sender = make()

    await sender.send(envelope(*(message(node) for node in range(3))))
    await sender.send(envelope(end(0), end(1)))
    assert slack.texts["1.0"].endswith("2 of 3 are over")
    await sender.send(envelope(end(2)))

    assert len(slack.texts) == 1
    assert "over: n2: session ended" in slack.texts["1.0"]


async def test_two_policies_on_a_node_share_the_thread_and_one_end_is_not_the_end(
    slack: Slack, make: Callable[..., SlackSender]
) -> None:
    sender = make()
    await sender.send(envelope(message()))
    await sender.send(envelope(message(what="x", policy="heat")))

    await sender.send(envelope(end(policy="heat")))

    assert ":white_check_mark:" not in slack.texts["1.0"]


async def test_a_part_that_arrived_is_not_sent_again(
    slack: Slack, make: Callable[..., SlackSender]
) -> None:
    sender = make()
    await sender.send(envelope())
    reply = envelope(end())
    slack.service.answers = [
        web.json_response({"ok": True, "ts": "2.0", "channel": "C1"}),
        web.Response(status=429, headers={"Retry-After": "30"}),
    ]

    with pytest.raises(RetryLaterError) as caught:
        await sender.send(reply)
    await sender.send(reply)

    assert caught.value.after == 30.0
    assert [path for path, _, _ in slack.service.got] == [
        "/chat.postMessage",
        "/chat.postMessage",
        "/chat.update",
        "/chat.update",
    ]


async def test_a_thread_that_somebody_deleted_is_begun_anew(
    slack: Slack, make: Callable[..., SlackSender]
) -> None:
    sender = make()
    await sender.send(envelope())
    slack.texts.clear()

    await sender.send(envelope(message(what="2")))

    assert len(slack.texts) == 1


@pytest.mark.parametrize("error", ["edit_window_closed", "cant_update_message"])
async def test_a_first_message_that_may_not_be_edited_is_no_failure_and_its_thread_goes_on(
    slack: Slack, make: Callable[..., SlackSender], error: str
) -> None:
    sender = make()
    await sender.send(envelope())
    for message_ in (message(what="2/failed", title="n1: drain failed"), end()):
        slack.service.answers = [
            web.json_response({"ok": True, "ts": "2.0", "channel": "C1"}),
            web.json_response({"ok": False, "error": error}),
        ]
        await sender.send(envelope(message_))

    replies = [body for path, _, body in slack.service.got if "thread_ts" in body]
    assert [one["thread_ts"] for one in replies] == ["1.0", "1.0"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("ratelimited", RetryLaterError),
        ("internal_error", RetryLaterError),
        ("invalid_auth", RefusedError),
        ("not_in_channel", RefusedError),
        (f"odd {TOKEN}", RefusedError),
    ],
)
async def test_ok_false_is_no_success(
    service: Service, make: Callable[..., SlackSender], error: str, kind: type[Exception]
) -> None:
    service.answers = [web.json_response({"ok": False, "error": error})]

    with pytest.raises(kind, match=r"chat\.postMessage") as caught:
        await make().send(envelope())

    assert "s3cr3t" not in str(caught.value)


async def test_a_dry_run_says_so_first_and_has_threads_of_its_own(
    slack: Slack, make: Callable[..., SlackSender]
) -> None:
    sender = make()
    await sender.send(envelope())
    await sender.send(envelope(dry_run=True))
    await sender.send(envelope(end(), dry_run=True))

    assert slack.replies["1.0"] == []
    texts = [slack.texts["2.0"], *slack.replies["2.0"]]
    assert [text.split()[0] for text in texts] == ["[dry-run]", "[dry-run]"]


async def test_no_text_can_call_people(slack: Slack, make: Callable[..., SlackSender]) -> None:
    await make().send(envelope(message(text="<!channel> & co")))

    assert slack.texts["1.0"].endswith("&lt;!channel&gt; &amp; co")


async def test_an_incoming_webhook_gets_each_message(
    service: Service, session: aiohttp.ClientSession, secret_file: Callable[[str], str]
) -> None:
    path = secret_file(f"{service.url}/services/T0/B0/s3cr3t")
    spec = SlackChannel.model_validate({"webhookUrlFile": path})
    sender = SlackSender(spec, session=session, topics=Topics())
    service.answers = [web.Response(text="ok"), web.Response(status=403, text="/s3cr3t: no")]

    await sender.send(envelope())
    with pytest.raises(RefusedError) as caught:
        await sender.send(envelope(end()))

    assert service.bodies[0] == {
        "text": ":warning: *n1: Xid 79*\npolicy bus holds this node (cordoned)"
    }
    assert service.got[0][0] == "/services/T0/B0/s3cr3t"
    assert "T0/B0" not in str(caught.value)
