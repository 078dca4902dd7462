"""The webhook's answers: what is repeated, what is dropped, and that nothing keeps it busy."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import socket
import ssl
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from remediator.policy.sources import WebhookTls
from remediator.signals.alertbook import BookFullError
from remediator.signals.alerts import Report
from remediator.web.server import Server
from remediator.web.tls import ReloadingTls, TlsError
from remediator.web.webhook import MAX_BODY, TOKEN_LASTS, Token, make_webhook
from testbed.certificates import make_certificates


TOKEN = {"Authorization": "Bearer secret"}
ODD = {"status": "firing", "labels": {"a": "b"}, "startsAt": "2026-01-01T00:00:00Z"}
"""An alert of which the tests spoil one field."""


class Desk:
    """What stands behind the webhook."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, Report]] = []
        self.codes: list[int] = []
        self.called: asyncio.Queue[int] = asyncio.Queue()
        self.trouble = ""
        self.full = False

    def accept(self, source: str, report: Report) -> None:
        if self.full:
            raise BookFullError
        self.taken.append((source, report))

    def webhook_called(self, code: int, *, firing: int = 0, resolved: int = 0) -> None:
        del firing, resolved
        self.codes.append(code)
        self.called.put_nowait(code)

    def connection_dropped(self, reason: str) -> None:
        raise AssertionError(reason)  # the door's, and not the application's


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("secret\n")
    return tmp_path / "token"


@pytest.fixture
def no_token(token: Path) -> Path:
    token.unlink()
    return token


@pytest.fixture
async def client(desk: Desk, token: Path) -> AsyncIterator[aiohttp.ClientSession]:
    app = make_webhook(
        sources=("main", "other"),
        accept=desk.accept,
        ready={"leader": lambda: desk.trouble},
        token=Token(str(token)),
        observer=desk,
        body_seconds=0.3,
    )
    async with (
        Server(app, host="127.0.0.1", port=0) as server,
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as made,
    ):
        yield made


def payload(**changes: Any) -> dict[str, Any]:
    """As Alertmanager 0.31 sends it, with fields that we do not know."""
    alert = {
        "status": "firing",
        "labels": {"alertname": "Fault", "node": "n1"},
        "annotations": {"summary": "x"},
        "startsAt": "2026-12-02T14:46:35.123456789Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus/graph",
        "fingerprint": "5d41402abc4b2a76",
    }
    return {
        "version": "4",
        "groupKey": "{}:{}",
        "truncatedAlerts": 3,
        "status": "firing",
        "receiver": "remediator",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager",
        "notification_reason": "new",
        "alerts": [alert, {**alert, "labels": {"alertname": "Old"}, "status": "resolved"}],
        **changes,
    }


async def post(
    client: aiohttp.ClientSession, body: Any = None, path: str = "/alertmanager", **options: Any
) -> tuple[int, str]:
    data = body if isinstance(body, bytes) else json.dumps(body or payload()).encode()
    async with client.post(path, data=data, **{"headers": TOKEN, **options}) as response:
        return response.status, await response.text()


async def test_a_call_is_taken_with_each_alert_by_its_own_status(
    client: aiohttp.ClientSession, desk: Desk
) -> None:
    assert (await post(client))[0] == 200
    ((source, report),) = desk.taken
    assert source == "main"
    assert [one.name for one in report.firing] == ["Fault"]
    assert report.resolved == ((("alertname", "Old"),),)
    assert report.left_out == 3


async def test_the_path_names_the_alertmanager(client: aiohttp.ClientSession, desk: Desk) -> None:
    assert (await post(client, path="/alertmanager/other"))[0] == 200
    assert desk.taken[0][0] == "other"
    code, text = await post(client, path="/alertmanager/none")
    assert (code, "main, other" in text) == (404, True)


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Bearer wrong", "Basic c2VjcmV0", "secret", "Bearer sécret"],
)
async def test_without_the_token_it_is_401_and_nothing_is_taken(
    client: aiohttp.ClientSession, desk: Desk, header: str
) -> None:
    assert (await post(client, headers={"Authorization": header}))[0] == 401
    assert desk.taken == []


async def test_a_token_of_bytes_that_are_no_text_is_another_one(
    client: aiohttp.ClientSession, desk: Desk
) -> None:
    url = client._base_url
    assert url is not None
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"POST /alertmanager HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n")
    writer.write(b"Authorization: Bearer \xff\xfe\r\n\r\n{}")
    status = await reader.readline()
    writer.close()
    await writer.wait_closed()
    assert status.startswith(b"HTTP/1.1 401 ")
    assert desk.taken == []


async def test_the_word_bearer_is_read_in_any_case(client: aiohttp.ClientSession) -> None:
    assert (await post(client, headers={"Authorization": "bearer secret"}))[0] == 200


async def test_what_a_retry_may_cure_is_503(client: aiohttp.ClientSession, desk: Desk) -> None:
    desk.trouble = "not the leader"
    assert await post(client) == (503, "leader: not the leader: try again\n")
    desk.trouble = ""
    desk.full = True
    assert (await post(client))[0] == 503
    assert desk.codes == [503, 503]


async def test_only_the_leader_is_ready(client: aiohttp.ClientSession, desk: Desk) -> None:
    async with client.get("/readyz") as response:
        assert response.status == 200
    desk.trouble = "not the leader"
    async with client.get("/readyz") as response:
        assert response.status == 503


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(b"", "no payload", id="empty"),
        pytest.param(b"{", "no payload", id="half"),
        pytest.param(b"[]", "no payload", id="list"),
        pytest.param(b"\xff", "no payload", id="not UTF-8"),
        pytest.param(b"[" * 100_000, "no payload", id="deep"),
        pytest.param(payload(version="5"), "version", id="version"),
        pytest.param(payload(alerts=[{"status": "firing"}]), "labels", id="no labels"),
        pytest.param(payload(alerts="x"), "no payload", id="alerts are text"),
        pytest.param(payload(alerts=[{**ODD, "status": "x"}]), "status", id="status"),
        pytest.param(payload(alerts=[{**ODD, "startsAt": "soon"}]), "no time", id="time"),
    ],
)
async def test_what_no_retry_cures_is_400_and_says_why(
    client: aiohttp.ClientSession, desk: Desk, body: Any, said: str
) -> None:
    code, text = await post(client, body)
    assert (code, said in text) == (400, True), text
    assert desk.taken == []


async def test_too_large_is_413_whatever_the_header_says(
    client: aiohttp.ClientSession, desk: Desk
) -> None:
    large = b" " * (MAX_BODY + 1)
    async with client.post("/alertmanager", data=io.BytesIO(large), headers=TOKEN) as response:
        assert response.status == 413

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(large), 1 << 16):
            yield large[start : start + (1 << 16)]

    async with client.post("/alertmanager", data=chunks(), headers=TOKEN) as response:
        assert response.status == 413
    bomb = gzip.compress(large)
    code, _ = await post(client, bomb, headers={**TOKEN, "Content-Encoding": "gzip"})
    assert code == 413
    assert desk.taken == []


async def test_a_body_that_is_not_encoded_as_it_says_is_400(
    client: aiohttp.ClientSession, desk: Desk
) -> None:
    code, said = await post(client, b"abc", headers={**TOKEN, "Content-Encoding": "gzip"})

    assert (code, "encoded" in said, desk.codes) == (400, True, [400]), said


async def test_a_token_of_ours_that_cannot_be_read_is_said_once_whoever_calls(
    desk: Desk, no_token: Path, client: aiohttp.ClientSession
) -> None:
    """Anybody in the network may call, and would write our log."""
    assert not await asyncio.to_thread(no_token.exists)
    with capture_logs() as lines:
        for _ in range(20):
            async with client.post("/alertmanager", data=b"x") as answer:
                assert answer.status == 503
                assert "our own token cannot be read" in await answer.text()
    assert desk.codes == [503] * 20
    (line,) = lines
    assert (line["event"], line["count"]) == ("webhook_token_unreadable", 1)


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [("POST", "/", 404), ("POST", "/alerts", 404), ("PUT", "/alertmanager", 405)],
)
async def test_whoever_knocks_elsewhere_is_told_where_and_counted(
    client: aiohttp.ClientSession, desk: Desk, method: str, path: str, code: int
) -> None:
    async with client.request(method, path, json=payload(), headers=TOKEN) as response:
        assert response.status == code
        assert "POST to /alertmanager" in await response.text()

    assert desk.codes == [code]


async def test_what_anybody_could_provoke_fills_no_log(
    client: aiohttp.ClientSession, desk: Desk
) -> None:
    with capture_logs() as lines:
        for _ in range(5):
            await post(client, headers={"Authorization": "Bearer guess"})

    assert desk.codes == [401] * 5
    assert [(one["event"], one["code"]) for one in lines] == [("webhook_refused", 401)]


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", id="TLS"),
        pytest.param(b"hello\r\n\r\n", id="no HTTP"),
        pytest.param(b"POST / HTTP/1.1\r\nAuthorization: Bearer s3cr3t\x00\r\n\r\n", id="zero"),
    ],
)
async def test_what_is_no_request_is_counted_and_leaves_no_traceback(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    counted: list[int] = []
    app = web.Application()
    with capture_logs() as lines:
        async with Server(
            app, host="127.0.0.1", port=0, on_unreadable=lambda: counted.append(400)
        ) as server:
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(sent)
                assert b" 400 " in await reader.readline()
                writer.close()

    assert counted == [400] * 3
    assert [one["event"] for one in lines] == ["requests_unreadable"]
    assert "s3cr3t" not in str(lines)
    assert caplog.records == []


async def test_a_caller_that_goes_amid_its_body_leaves_no_traceback(
    client: aiohttp.ClientSession, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    assert client._base_url is not None
    port = client._base_url.port
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /alertmanager HTTP/1.1\r\nAuthorization: Bearer secret\r\nHost: x\r\n")
    writer.write(b"Content-Length: 100\r\n\r\nabc")
    await writer.drain()
    writer.transport.abort()
    async with asyncio.timeout(10):
        assert await desk.called.get() == 503
    assert caplog.records == []


async def test_an_error_of_our_own_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_: web.Request) -> web.Response:
        raise ZeroDivisionError

    app = web.Application()
    app.router.add_get("/", broken)
    async with (
        Server(app, host="127.0.0.1", port=0) as server,
        aiohttp.ClientSession() as client,
        client.get(f"http://127.0.0.1:{server.port}/") as response,
    ):
        assert response.status == 500

    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


async def test_a_slow_sender_is_asked_to_try_again_and_keeps_nobody_waiting(
    client: aiohttp.ClientSession, desk: Desk
) -> None:
    async def trickle() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.05)

    async def slow() -> int:
        try:
            async with client.post("/alertmanager", data=trickle(), headers=TOKEN) as response:
                return response.status
        except aiohttp.ClientError:
            return 503  # it was cut off while it was still sending: the same to a sender

    slow_ones = [asyncio.create_task(slow()) for _ in range(20)]
    assert (await post(client))[0] == 200
    assert set(await asyncio.gather(*slow_ones)) == {503}
    assert desk.codes.count(503) == 20


async def test_a_token_that_cannot_be_read_loses_no_alert(
    client: aiohttp.ClientSession, token: Path
) -> None:
    await asyncio.to_thread(token.unlink)
    assert (await post(client))[0] == 503


def test_a_rotated_token_is_known_within_a_second(token: Path) -> None:
    now = [0.0]
    known = Token(str(token), clock=lambda: now[0])
    assert known.admits("Bearer secret")
    token.write_text("next")
    now[0] += TOKEN_LASTS + 0.1
    assert known.admits("Bearer next")
    assert not known.admits("Bearer secret")


# -- TLS -----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities, and what they signed."""
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder, {"ca1": ["server1", "caller1"], "ca2": ["server2", "caller2"]})
    return folder


class Certificates:
    """The files of a server, as a mounted secret has them."""

    def __init__(self, issued: Path, folder: Path) -> None:
        self.issued, self.folder = issued, folder
        self.show("server1")
        self.trust("ca1")

    def show(self, name: str) -> None:
        """Renew the server's certificate."""
        for source, target in ((".pem", "tls.crt"), (".key", "tls.key")):
            self._put(f"{name}{source}", target)

    def trust(self, authority: str) -> None:
        """Change whose callers are let in."""
        self._put(f"{authority}.pem", "clients.pem")

    def pair(self, name: str) -> tuple[Path, Path]:
        return self.issued / f"{name}.pem", self.issued / f"{name}.key"

    def _put(self, source: str, target: str) -> None:
        new = self.folder / f".{target}"
        new.write_bytes((self.issued / source).read_bytes())
        new.replace(self.folder / target)


@pytest.fixture
def certificates(issued: Path, tmp_path: Path) -> Certificates:
    return Certificates(issued, tmp_path)


def tls_of(folder: Path, *, clients: bool) -> ReloadingTls:
    spec = {"certFile": str(folder / "tls.crt"), "keyFile": str(folder / "tls.key")}
    if clients:
        spec["clientCaFile"] = str(folder / "clients.pem")
    return ReloadingTls(WebhookTls.model_validate(spec))


async def _call(server: Server, trusts: Path, shows: tuple[Path, Path] | None = None) -> int:
    context = ssl.create_default_context(cafile=str(trusts))
    if shows is not None:
        context.load_cert_chain(*map(str, shows))
    async with aiohttp.ClientSession() as session:
        url = f"https://127.0.0.1:{server.port}/alertmanager"
        async with session.post(url, json=payload(), ssl=context) as response:
            return response.status


async def test_a_renewed_certificate_is_shown_without_a_restart(
    certificates: Certificates, desk: Desk, tmp_path: Path, issued: Path
) -> None:
    tls = tls_of(tmp_path, clients=False)
    app = make_webhook(
        sources=("main",), accept=desk.accept, ready={}, token=Token(None), observer=desk
    )
    async with Server(app, host="127.0.0.1", port=0, tls=tls.context) as server:
        assert await _call(server, issued / "ca1.pem") == 200
        certificates.show("server2")
        assert await asyncio.to_thread(tls.reload)
        assert await _call(server, issued / "ca2.pem") == 200
        (tmp_path / "tls.key").write_text("half")
        assert not await asyncio.to_thread(tls.reload)
        assert await _call(server, issued / "ca2.pem") == 200


async def test_callers_show_a_certificate_and_authorities_can_change(
    certificates: Certificates, desk: Desk, tmp_path: Path
) -> None:
    ca, old, new = (
        certificates.issued / "ca1.pem",
        certificates.pair("caller1"),
        certificates.pair("caller2"),
    )
    tls = tls_of(tmp_path, clients=True)
    app = make_webhook(
        sources=("main",), accept=desk.accept, ready={}, token=Token(None), observer=desk
    )
    dropped: list[str] = []
    async with Server(
        app, host="127.0.0.1", port=0, tls=tls.context, on_drop=dropped.append
    ) as server:
        assert await _call(server, ca, old) == 200
        with capture_logs() as lines:
            for refused in (None, new):
                with pytest.raises(aiohttp.ClientError):
                    await _call(server, ca, refused)
        assert dropped == ["handshake", "handshake"]
        assert [one["event"] for one in lines] == ["tls_handshakes_failed"]
        certificates.trust("ca2")
        assert await asyncio.to_thread(tls.reload)
        assert await _call(server, ca, new) == 200
        with pytest.raises(aiohttp.ClientError):
            await _call(server, ca, old)


class Caller:
    """Calls by connections that go on with the session of the one before; blocking."""

    def __init__(self, trusts: Path, shows: tuple[Path, Path]) -> None:
        self.context = ssl.create_default_context(cafile=str(trusts))
        self.context.load_cert_chain(*map(str, shows))
        self.session: ssl.SSLSession | None = None

    def call(self, port: int) -> str:
        """Return the answer's first line, "" if we were refused."""
        request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        wrap = partial(self.context.wrap_socket, server_hostname="127.0.0.1", session=self.session)
        try:
            with (
                socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
                wrap(plain) as wrapped,
            ):
                wrapped.sendall(request)
                said = wrapped.recv(4096)  # with it come the tickets, if there are any
                self.session = wrapped.session
        except OSError:
            return ""
        return said.decode().partition("\r\n")[0]


async def test_a_caller_whose_authority_was_removed_cannot_go_on_with_an_earlier_session(
    certificates: Certificates, desk: Desk, tmp_path: Path
) -> None:
    caller = Caller(certificates.issued / "ca1.pem", certificates.pair("caller1"))
    tls = tls_of(tmp_path, clients=True)
    app = make_webhook(
        sources=("main",), accept=desk.accept, ready={}, token=Token(None), observer=desk
    )
    async with Server(app, host="127.0.0.1", port=0, tls=tls.context) as server:
        assert await asyncio.to_thread(caller.call, server.port)
        certificates.trust("ca2")
        assert await asyncio.to_thread(tls.reload)
        assert await asyncio.to_thread(caller.call, server.port) == ""


@pytest.mark.parametrize("clients", [True, False])
async def test_whoever_must_show_a_certificate_needs_tls_1_3(
    certificates: Certificates, desk: Desk, tmp_path: Path, *, clients: bool
) -> None:
    caller = Caller(certificates.issued / "ca1.pem", certificates.pair("caller1"))
    caller.context.maximum_version = ssl.TLSVersion.TLSv1_2
    tls = tls_of(tmp_path, clients=clients)
    app = make_webhook(
        sources=("main",), accept=desk.accept, ready={}, token=Token(None), observer=desk
    )
    async with Server(app, host="127.0.0.1", port=0, tls=tls.context) as server:
        said = await asyncio.to_thread(caller.call, server.port)
        assert bool(said) is not clients


def test_files_that_cannot_be_used_at_the_start_are_named(tmp_path: Path) -> None:
    with pytest.raises(TlsError, match=r"tls\.crt"):
        tls_of(tmp_path, clients=False)
