"""The webhook channel against a real HTTP server that misbehaves."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from remediator.act.channels import make_channels
from remediator.act.channels.webhook import WebhookSender
from remediator.act.envelope import RefusedError, RetryLaterError, pack
from remediator.act.outbox import Outbox, Report
from remediator.decide.decision import SendMessage, Urgency
from remediator.policy.channels import Channel, WebhookChannel


MESSAGES = tuple(
    SendMessage(
        key=f"s{number}/1",
        to=("oncall",),
        title=f"n{number} cordoned",
        text="Xid 79",
        node=f"n{number}",
        policy="bus",
        urgency=Urgency.CRITICAL,
    )
    for number in range(2)
)
ENVELOPE = pack(MESSAGES[:1], channel="oncall", dry_run=False, created=1_800_000_000.0)


class Receiver:
    """A server that answers as it is told, and notes what it got."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], Any]] = []
        self.answers: list[Callable[[web.Request], Awaitable[web.StreamResponse]]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.got.append((dict(request.headers), await request.json()))
        if self.answers:
            return await self.answers.pop(0)(request)
        return web.Response(status=204)

    def will(self, status: int, *, text: str = "", **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}

        async def answer(_: web.Request) -> web.Response:
            return web.Response(status=status, text=text, headers=named)

        self.answers.append(answer)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/hook", receiver.handle)
    app.router.add_post("/elsewhere", receiver.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield receiver
    await runner.cleanup()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def sender(session: aiohttp.ClientSession, **spec: object) -> WebhookSender:
    return WebhookSender(
        WebhookChannel.model_validate({"timeout": "30s", **spec}),
        session=session,
        wall=lambda: 1_800_000_000.0,
    )


async def test_the_payload_is_version_1(receiver: Receiver, session: aiohttp.ClientSession) -> None:
    envelope = pack(MESSAGES, channel="oncall", dry_run=True, created=1_800_000_000.25)

    await sender(session, url=receiver.url).send(envelope)

    ((headers, body),) = receiver.got
    assert body == {
        "version": 1,
        "key": envelope.key,
        "channel": "oncall",
        "time": "2027-01-15T08:00:00.250+00:00",
        "title": "[dry-run] 2 nodes: ... cordoned",
        "text": "[dry-run] 2 nodes within a few seconds:\n- n0: Xid 79\n- n1: Xid 79",
        "urgency": "critical",
        "resolves": False,
        "dryRun": True,
        "policy": "bus",
        "nodes": ["n0", "n1"],
        "messages": [
            {"key": "s0/1", "node": "n0", "kind": "", "title": "n0 cordoned", "text": "Xid 79"},
            {"key": "s1/1", "node": "n1", "kind": "", "title": "n1 cordoned", "text": "Xid 79"},
        ],
    }
    assert headers["Content-Type"] == "application/json"
    assert headers["Idempotency-Key"] == envelope.key
    assert "Authorization" not in headers


async def test_url_and_token_are_read_at_each_attempt(
    receiver: Receiver, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    (tmp_path / "url").write_text("not yet\n")
    channel = sender(
        session, urlFile=str(tmp_path / "url"), bearerTokenFile=str(tmp_path / "token")
    )

    with pytest.raises(RetryLaterError, match="urlFile"):
        await channel.send(ENVELOPE)
    (tmp_path / "url").write_text(receiver.url + "\n")
    with pytest.raises(RetryLaterError, match="cannot read the file of bearerTokenFile"):
        await channel.send(ENVELOPE)
    for token in ("first", "second"):
        (tmp_path / "token").write_text(token + "\n")
        await channel.send(ENVELOPE)

    assert [headers["Authorization"] for headers, _ in receiver.got] == [
        "Bearer first",
        "Bearer second",
    ]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503])
async def test_these_are_worth_another_attempt(
    receiver: Receiver, session: aiohttp.ClientSession, status: int
) -> None:
    receiver.will(status, text="busy\nnow", Retry_After="17")

    with pytest.raises(RetryLaterError, match=f"HTTP {status}: busy now") as caught:
        await sender(session, url=receiver.url).send(ENVELOPE)

    assert caught.value.after == 17.0


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(formatdate(1_800_000_090, usegmt=True), 90.0), ("soon", 0.0), ("", 0.0), ("-5", 0.0)],
)
async def test_a_retry_after_that_is_a_date_or_nonsense(
    receiver: Receiver, session: aiohttp.ClientSession, header: str, seconds: float
) -> None:
    receiver.will(429, Retry_After=header)

    with pytest.raises(RetryLaterError) as caught:
        await sender(session, url=receiver.url).send(ENVELOPE)

    assert caught.value.after == seconds


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 413, 422])
async def test_these_are_not(
    receiver: Receiver, session: aiohttp.ClientSession, status: int
) -> None:
    receiver.will(status, text="x" * 10_000)

    with pytest.raises(RefusedError, match=f"HTTP {status}: x+$") as caught:
        await sender(session, url=receiver.url).send(ENVELOPE)

    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(
    receiver: Receiver, session: aiohttp.ClientSession, status: int
) -> None:
    receiver.will(status, Location="/elsewhere")

    with pytest.raises(RefusedError, match="redirects are not followed"):
        await sender(session, url=receiver.url).send(ENVELOPE)

    assert len(receiver.got) == 1


async def test_a_hanging_receiver_has_a_deadline(
    receiver: Receiver, session: aiohttp.ClientSession
) -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    receiver.answers.append(hang)

    with pytest.raises(RetryLaterError, match=r"no answer within 0.5 s"):
        await sender(session, url=receiver.url, timeout="500ms").send(ENVELOPE)


async def test_an_answer_that_drips_for_ever_has_one_too(
    receiver: Receiver, session: aiohttp.ClientSession
) -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=500)
        await response.prepare(request)
        while True:
            await response.write(b"x")
            await asyncio.sleep(0.05)

    receiver.answers.append(drip)

    with pytest.raises(RetryLaterError):
        await sender(session, url=receiver.url, timeout="500ms").send(ENVELOPE)


async def test_a_connection_that_breaks_or_is_refused_is_worth_another_attempt(
    receiver: Receiver, session: aiohttp.ClientSession, unused_tcp_port: int
) -> None:
    async def cut(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    receiver.answers.append(cut)

    with pytest.raises(RetryLaterError, match="the connection failed"):
        await sender(session, url=receiver.url).send(ENVELOPE)
    with pytest.raises(RetryLaterError, match=f"no connection to 127.0.0.1:{unused_tcp_port}"):
        await sender(session, url=f"http://127.0.0.1:{unused_tcp_port}/x").send(ENVELOPE)


async def test_an_untrusted_certificate_is_not_accepted(
    receiver: Receiver, session: aiohttp.ClientSession
) -> None:
    with pytest.raises(RetryLaterError):
        await sender(session, url=receiver.url.replace("http:", "https:")).send(ENVELOPE)

    assert receiver.got == []


async def test_a_body_is_signed_with_the_secret_of_the_file(
    receiver: Receiver, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    (tmp_path / "hmac").write_text("a secret of any bytes\n")

    await sender(session, url=receiver.url, secretFile=str(tmp_path / "hmac")).send(ENVELOPE)

    ((headers, body),) = receiver.got
    signed = f"1800000000.{json.dumps(body, separators=(',', ':'))}".encode()
    expected = hmac.new(b"a secret of any bytes", signed, hashlib.sha256).hexdigest()
    assert headers["X-Gpu-Remediator-Signature"] == f"t=1800000000,v1={expected}"


async def test_a_bad_day_ends_well_and_no_secret_is_logged(
    receiver: Receiver, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """The whole way: outbox, retries, a receiver that fails twice, and in the end one message."""
    (tmp_path / "token").write_text("s3cr3t-t0ken")
    (tmp_path / "url").write_text(receiver.url + "?k=s3cr3t-url")
    spec = Channel.model_validate(
        {
            "webhook": {
                "urlFile": str(tmp_path / "url"),
                "bearerTokenFile": str(tmp_path / "token"),
            }
        }
    )
    receiver.will(500)
    receiver.will(429, Retry_After="1")
    reports: list[Report] = []
    done = asyncio.Event()

    def report(one: Report) -> None:
        reports.append(one)
        done.set()

    with capture_logs() as logs:
        outbox = Outbox(
            channels=make_channels({"oncall": spec}, session=session),
            report=report,
            sleep=lambda _: asyncio.sleep(0),
        )
        task = asyncio.create_task(outbox.run())
        outbox.submit(MESSAGES[0], dry_run=False)
        await asyncio.wait_for(done.wait(), 10)
        task.cancel()

    assert len({headers["Idempotency-Key"] for headers, _ in receiver.got}) == 1
    assert len(receiver.got) == 3
    assert [one.outcome.delivered for one in reports] == [True]
    assert "s3cr3t" not in str(logs)


async def test_the_log_channel_always_exists(session: aiohttp.ClientSession) -> None:
    channels = make_channels({}, session=session)

    with capture_logs() as logs:
        await channels["log"].send(ENVELOPE)

    assert logs[0]["log_level"] == "error"  # a critical message
    assert logs[0]["nodes"] == ["n0"]
    assert logs[0]["title"] == "n0 cordoned"
