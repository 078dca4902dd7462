"""The webhook step against a real HTTP server that misbehaves."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from remediator.act import webhook_step
from remediator.act.signing import SIGNATURE_HEADER
from remediator.act.webhook_step import LONGEST_RETRY_AFTER, WebhookWorker
from remediator.decide.decision import Outcome, Work
from remediator.policy.steps import Step
from remediator.policy.templates import Endpoint


SECRET = "not-a-real-one"
STAMP = 1_800_000_000


class Receiver:
    """A server that answers as it is told, and notes what it got."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[web.Response] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.got.append((dict(request.headers), await request.read()))
        return self.answers.pop(0) if self.answers else web.Response(text="taken")


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/reset", receiver.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/reset"
    yield receiver
    await runner.cleanup()


class Clock:
    def now(self) -> float:
        return STAMP + 0.7


class Bench:
    """A step that calls the receiver, and how it ended."""

    def __init__(self, receiver: Receiver, folder: Path) -> None:
        self.receiver, self.folder = receiver, folder
        self.said: list[str] = []
        self.calls: list[tuple[str, bool | None, str]] = []
        (folder / "secret").write_text(f"{SECRET}\n")

    def work(self, **data: str) -> Work:
        step = {"webhook": {"to": "service", "data": data}}
        return Work(
            key="s1/p/2",
            node="gpu-1",
            uid="uid-1",
            policy="p",
            step=2,
            action="webhook",
            spec=Step.model_validate(step),
            session="s1",
            attempt=1,
            since=0.0,
            deadline=STAMP + 100.0,
        )

    async def call(self, work: Work, **spec: Any) -> Outcome:
        given = {"url": self.receiver.url, "secretFile": str(self.folder / "secret")} | spec
        endpoints = {"service": Endpoint.model_validate(given)}
        async with aiohttp.ClientSession() as session:
            worker = WebhookWorker(
                endpoints=endpoints,
                session=session,
                clock=Clock(),
                called=lambda *call: self.calls.append(call),
            )
            return await worker.run(work, say=self.said.append)


@pytest.fixture
def bench(receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(webhook_step, "FIRST_RETRY", 0.01)
    return Bench(receiver, tmp_path)


async def test_a_receiver_can_tell_that_it_is_us_and_that_it_is_the_same(bench: Bench) -> None:
    bench.receiver.answers = [web.Response(status=503, text="busy")]
    outcome = await bench.call(bench.work(what="reset of {node}", key="{uid}"))
    assert outcome == Outcome(key="s1/p/2", delivered=True, note="service: HTTP 200: taken")
    assert "HTTP 503: busy" in bench.said[0]
    assert bench.calls == [
        ("service", False, "HTTP 503: busy"),
        ("service", True, "HTTP 200: taken"),
    ]
    (first, body), (second, again) = bench.receiver.got
    assert body == again
    assert first["Idempotency-Key"] == second["Idempotency-Key"] == "s1/p/2"
    signed = hmac.new(SECRET.encode(), f"{STAMP}.".encode() + body, hashlib.sha256).hexdigest()
    assert first[SIGNATURE_HEADER] == f"t={STAMP},v1={signed}"
    assert json.loads(body) == {
        "version": 1,
        "key": "s1/p/2",
        "node": "gpu-1",
        "uid": "uid-1",
        "policy": "p",
        "session": "s1",
        "step": 2,
        "attempt": 1,
        "data": {"what": "reset of gpu-1", "key": "uid-1"},
    }


async def test_nobody_is_called_behind_the_deadline(bench: Bench) -> None:
    outcome = await bench.call(replace(bench.work(), deadline=STAMP))
    assert (outcome.delivered, outcome.late) == (False, True)
    assert "its time was over" in outcome.note
    assert bench.receiver.got == []


@pytest.mark.parametrize("status", [400, 403, 404, 422, 302])
async def test_what_is_refused_or_sent_elsewhere_failed(bench: Bench, status: int) -> None:
    headers = {"Location": bench.receiver.url}
    bench.receiver.answers = [web.Response(status=status, text="no", headers=headers)]
    outcome = await bench.call(bench.work())
    assert not outcome.delivered
    assert f"HTTP {status}: no" in outcome.note
    assert len(bench.receiver.got) == 1


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502])
async def test_what_may_pass_is_tried_again(bench: Bench, status: int) -> None:
    bench.receiver.answers = [web.Response(status=status)]
    assert (await bench.call(bench.work())).delivered


@pytest.mark.parametrize(("asked", "waits"), [("2", 2.0), ("86400", LONGEST_RETRY_AFTER)])
async def test_a_receiver_may_ask_for_time(bench: Bench, asked: str, waits: float) -> None:
    bench.receiver.answers = [web.Response(status=503, headers={"Retry-After": asked})]
    calling = asyncio.create_task(bench.call(bench.work()))
    while not bench.said:  # noqa: ASYNC110 - until it has tried once
        await asyncio.sleep(0.01)
    calling.cancel()
    assert bench.said[0].endswith(f"tried again in {waits:g} s")


async def test_a_receiver_that_repeats_secrets_tells_nobody(bench: Bench) -> None:
    (bench.folder / "url").write_text(f"{bench.receiver.url}?token=t0ken-of-url")
    given = {"url": None, "urlFile": str(bench.folder / "url")}
    said = f"no route /reset?token=t0ken-of-url, and who is {SECRET}?"
    bench.receiver.answers = [web.Response(status=500, text=said), web.Response(text=said)]

    outcome = await bench.call(bench.work(), **given)

    told = f"{outcome.note} {bench.said} {bench.calls}"
    assert "no route" in told
    assert "t0ken" not in told
    assert SECRET not in told


async def test_secret_and_url_may_come_later(bench: Bench) -> None:
    secret, url = bench.folder / "later", bench.folder / "url"
    given = {"url": None, "urlFile": str(url), "secretFile": str(secret)}
    calling = asyncio.create_task(bench.call(bench.work(), **given))
    while not bench.said:  # noqa: ASYNC110 - until it has tried once
        await asyncio.sleep(0.01)
    assert "cannot read the file of urlFile" in bench.said[0]
    url.write_text(bench.receiver.url)
    secret.write_text("")
    while "secretFile" not in bench.said[-1]:  # noqa: ASYNC110 - until it has tried again
        await asyncio.sleep(0.01)
    secret.write_text(SECRET)
    assert (await calling).delivered


async def test_an_endpoint_that_does_not_answer_is_named_without_its_address(
    bench: Bench,
) -> None:
    given = {"url": "http://127.0.0.1:9/hidden", "timeout": "100ms"}
    calling = asyncio.create_task(bench.call(bench.work(), **given))
    while not bench.said:  # noqa: ASYNC110 - until it has tried once
        await asyncio.sleep(0.01)
    calling.cancel()
    assert "service has not taken it yet" in bench.said[0]
    assert "hidden" not in bench.said[0]


async def test_an_unknown_endpoint_fails_at_once(bench: Bench) -> None:
    work = bench.work()
    async with aiohttp.ClientSession() as session:
        worker = WebhookWorker(endpoints={}, session=session, clock=Clock())
        outcome = await worker.run(work, say=bench.said.append)
    assert not outcome.delivered
    assert "spec.endpoints" in outcome.note
