"""Whatever a receiver does, no secret is in an error or a log line; every dry run says so first."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from remediator.act.channels import make_channels
from remediator.act.envelope import RefusedError, RetryLaterError
from remediator.act.outbox import Outbox, Report
from remediator.policy.channels import Channel
from tests.property.cases import cases
from tests.unit.act.channels.conftest import Service, end, envelope, message


KINDS = ("webhook", "slack", "slack-hook", "pagerduty", "alertmanager")


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def channel(kind: str, url: str, secret: str, folder: Path, **more: Any) -> Channel:
    """A channel of a kind whose every secret is, or holds, `secret`."""
    word = write(folder, "word", secret)
    hidden = write(folder, "url", f"{url}/{secret}?k={secret}")
    specs: dict[str, dict[str, Any]] = {
        "webhook": {"webhook": {"urlFile": hidden, "bearerTokenFile": word, "secretFile": word}},
        "slack": {"slack": {"tokenFile": word, "channel": "C1", "apiUrl": url}},
        "slack-hook": {"slack": {"webhookUrlFile": hidden}},
        "pagerduty": {"pagerduty": {"routingKeyFile": word, "url": url}},
        "alertmanager": {"alertmanager": {"urls": [url], "bearerTokenFile": word}},
    }
    return Channel.model_validate(specs[kind] | more)


async def attempt(kind: str, secret: str, status: int, words: str, *, ok: bool) -> tuple[str, Any]:
    """Send by the outbox to a receiver that echoes everything; what was said, and the logs."""

    async def echo(request: web.Request) -> web.Response:
        body = await request.text()
        said = {"ok": ok, "error": f"{words} {secret} {request.path_qs} {body}"}
        return web.Response(
            status=status, text=json.dumps(said), headers={"Location": str(request.url)}
        )

    app = web.Application()
    app.router.add_post("/{path:.*}", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    reports: list[Report] = []
    with tempfile.TemporaryDirectory() as folder, capture_logs() as logs:
        spec = channel(kind, url, secret, Path(folder))
        async with aiohttp.ClientSession() as session:
            made = make_channels({"oncall": spec}, session=session)
            made["oncall"].give_up_after = 0.0
            outbox = Outbox(channels=made, report=reports.append)
            task = asyncio.create_task(outbox.run())
            outbox.submit(message(step=None), dry_run=False)
            await outbox.drain(10)
            task.cancel()
    await runner.cleanup()
    return reports[0].outcome.note + outbox.last_failure, logs


@settings(max_examples=cases(60), deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    secret=st.text("abcdefXYZ0123456789_-", min_size=12, max_size=60).map("s3cr3t".__add__),
    status=st.sampled_from([200, 301, 400, 401, 403, 404, 429, 500, 503]),
    words=st.sampled_from(["", "bad token: ", "x" * 180]),
    ok=st.booleans(),
)
def test_no_secret_is_in_an_error_or_a_log_line(
    kind: str, secret: str, status: int, words: str, *, ok: bool
) -> None:
    said, logs = asyncio.run(attempt(kind, secret, status, words, ok=ok))

    assert secret[:12] not in said
    assert secret[:12] not in str(logs)


async def test_a_defect_of_a_channel_does_not_tell_its_secret() -> None:
    class Broken:
        give_up_after = 0.0
        word = "s3cr3t"

        async def send(self, _: object) -> None:
            raise RuntimeError(self.word)

    reports: list[Report] = []
    with capture_logs() as logs:
        outbox = Outbox(channels={"oncall": Broken()}, report=reports.append)
        task = asyncio.create_task(outbox.run())
        outbox.submit(message(), dry_run=False)
        await outbox.drain(10)
        task.cancel()

    assert "channel_broken" in str(logs)
    assert "s3cr3t" not in str(logs) + reports[0].outcome.note


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", [None, {"title": "{{ urgency }}: {{ title }}", "text": "x"}])
async def test_a_dry_run_says_so_in_its_first_word(
    kind: str,
    template: dict[str, str] | None,
    service: Service,
    session: aiohttp.ClientSession,
    tmp_path: Path,
) -> None:
    service.answer = lambda _path, _body: web.json_response({"ok": True, "ts": "1", "channel": "C"})
    more = {} if template is None else {"template": template}
    made = make_channels(
        {"oncall": channel(kind, service.url, "s3cr3t", tmp_path, **more)}, session=session
    )

    await made["oncall"].send(envelope(message(1), message(2), dry_run=True))

    def first_words(body: Any) -> list[str]:
        if isinstance(body, list):
            return [one["annotations"][key].split()[0] for one in body for key in _ANNOTATIONS]
        if "payload" in body:
            payload = body["payload"]
            return [
                one.split()[0] for one in (payload["summary"], payload["custom_details"]["text"])
            ]
        return [body[key].split()[0] for key in ("title", "text") if key in body]

    words = [word for body in service.bodies for word in first_words(body)]
    assert words
    assert set(words) == {"[dry-run]"}


_ANNOTATIONS = ("summary", "description")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_storm_is_one_call(
    kind: str, service: Service, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    service.answer = lambda _path, _body: web.json_response({"ok": True, "ts": "1", "channel": "C"})
    made = make_channels(
        {"oncall": channel(kind, service.url, "s3cr3t", tmp_path)}, session=session
    )

    await made["oncall"].send(envelope(*(message(node) for node in range(200))))

    assert len(service.got) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_secret_that_is_not_there_yet_is_waited_for(
    kind: str, service: Service, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    spec = channel(kind, service.url, "s3cr3t", tmp_path)
    for name in ("word", "url"):
        (tmp_path / name).unlink()
    made = make_channels({"oncall": spec}, session=session)

    with pytest.raises(RetryLaterError, match="cannot read the file of"):
        await made["oncall"].send(envelope(end()))
    assert not service.got


async def test_names_of_files_begin_in_the_folder_of_the_settings(
    service: Service, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    write(tmp_path, "key", "r0ut1ng")
    spec = Channel.model_validate({"pagerduty": {"routingKeyFile": "key", "url": service.url}})
    made = make_channels({"oncall": spec}, session=session, folder=tmp_path)

    await made["oncall"].send(envelope())

    assert service.bodies[0]["routing_key"] == "r0ut1ng"


@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")  # of a plug-in
async def test_apprise_delivers_and_keeps_its_addresses_to_itself(
    service: Service,
    session: aiohttp.ClientSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = service.url.removeprefix("http://")
    spec = Channel.model_validate(
        {"apprise": {"urlFile": write(tmp_path, "urls", f"# mine\njson://{host}/s3cr3t-path\n")}}
    )
    made = make_channels({"oncall": spec}, session=session)
    await made["oncall"].send(envelope(dry_run=True))
    assert service.bodies[0]["title"] == "[dry-run] n1: Xid 79"

    service.answers = [web.Response(status=500, text="s3cr3t-path")]
    with pytest.raises(RetryLaterError, match="did not reach all of its 1") as caught:
        await made["oncall"].send(envelope())
    write(tmp_path, "urls", "no-such-thing://s3cr3t")
    with pytest.raises(RetryLaterError, match=r"line 1 .* is no Apprise URL") as other:
        await made["oncall"].send(envelope())

    assert "s3cr3t" not in str(caught.value) + str(other.value) + caplog.text


async def test_without_apprise_the_error_says_what_to_install(
    session: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "apprise", None)
    spec = Channel.model_validate({"apprise": {"urlFile": write(tmp_path, "urls", "json://x")}})

    with pytest.raises(RefusedError, match=r"pip install 'gpu-remediator\[apprise\]'"):
        await make_channels({"oncall": spec}, session=session)["oncall"].send(envelope())
