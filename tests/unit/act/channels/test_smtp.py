"""Mail to real servers in this process: aiosmtpd, with and without TLS and login."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from remediator.act.channels.smtp import SmtpSender
from remediator.act.envelope import RefusedError, RetryLaterError
from remediator.policy.channels import SmtpChannel
from testbed.certificates import make_certificates
from tests.unit.act.channels.conftest import NOW, end, envelope, message


Serve = Callable[..., Awaitable[int]]
PASSWORD = "s3cr3t-passw0rd"


class Box:
    """What the server does with a mail: keep it, or answer as it is told."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.answers: list[str] = []
        self.greylisted: set[str] = set()
        self.reached: list[list[str]] = []

    async def handle_DATA(  # noqa: N802 - aiosmtpd's name
        self, server: SMTP, session: Session, mail: Envelope
    ) -> str:
        del server, session
        if self.answers:
            return self.answers.pop(0)
        assert isinstance(mail.content, bytes)
        parsed = message_from_bytes(mail.content, policy=default)
        assert isinstance(parsed, EmailMessage)
        self.mails.append(parsed)
        self.reached.append(mail.rcpt_tos)
        return "250 OK"

    async def handle_RCPT(  # noqa: N802 - as above
        self, server: SMTP, session: Session, mail: Envelope, address: str, options: list[str]
    ) -> str:
        del server, session, options
        if address.startswith("nobody"):
            return "550 no such user"
        if address in self.greylisted:
            return "451 come back in a minute"
        mail.rcpt_tos.append(address)
        return "250 OK"


@pytest.fixture
def box() -> Box:
    return Box()


@pytest.fixture
async def serve(box: Box) -> AsyncIterator[Callable[..., Awaitable[int]]]:
    started: list[asyncio.Server] = []

    async def serve(**options: Any) -> int:
        server = await asyncio.get_running_loop().create_server(
            lambda: SMTP(box, enable_SMTPUTF8=True, **options), "127.0.0.1", 0
        )
        started.append(server)
        return int(server.sockets[0].getsockname()[1])

    yield serve
    for one in started:
        one.close()


def sender(port: int, **more: Any) -> SmtpSender:
    keys = {
        "host": "127.0.0.1",
        "port": port,
        "security": "none",
        "sender": "gpu@example.com",
        "to": ["sre@example.com"],
        **more,
    }
    return SmtpSender(SmtpChannel.model_validate(keys), wall=lambda: NOW)


async def test_a_mail_says_what_happened_and_a_session_is_a_thread(box: Box, serve: Serve) -> None:
    channel = sender(await serve())

    await channel.send(envelope(message(text="Xid 79 \N{EM DASH} fell off the bus")))
    await channel.send(envelope(end()))
    await channel.send(envelope(message(2)))

    first, last, other = box.mails
    assert first["Subject"] == "n1: Xid 79"
    assert first["Auto-Submitted"] == "auto-generated"
    assert "Xid 79 \N{EM DASH} fell off the bus" in first.get_content()
    assert "policy: bus" in first.get_content()
    assert first["References"] == last["References"] != other["References"]
    assert first["Message-ID"] != last["Message-ID"]


async def test_the_same_message_again_is_the_same_mail(box: Box, serve: Serve) -> None:
    channel = sender(await serve())
    await channel.send(envelope())
    await channel.send(envelope())
    await channel.send(envelope(dry_run=True))

    again, dry = box.mails[1], box.mails[2]
    assert box.mails[0]["Message-ID"] == again["Message-ID"] != dry["Message-ID"]
    assert dry["Subject"].split()[0] == dry.get_content().split()[0] == "[dry-run]"
    assert dry["References"] != again["References"]


async def test_a_storm_is_one_mail(box: Box, serve: Serve) -> None:
    await sender(await serve()).send(envelope(*(message(node) for node in range(40))))

    (mail,) = box.mails
    assert mail["Subject"].startswith("40 nodes")
    assert "- n39:" in mail.get_content()


async def test_a_title_cannot_add_a_header(box: Box, serve: Serve) -> None:
    await sender(await serve()).send(envelope(message(title="a\r\nBcc: all@example.com")))

    assert box.mails[0]["Bcc"] is None


@pytest.mark.parametrize(
    ("answer", "kind"),
    [("451 busy", RetryLaterError), ("552 too much", RefusedError)],
)
async def test_4xx_is_later_and_5xx_is_never(
    box: Box, serve: Serve, answer: str, kind: type[Exception]
) -> None:
    box.answers = [answer]

    with pytest.raises(kind, match=answer[:3]):
        await sender(await serve()).send(envelope())


async def test_who_does_not_get_it_is_named(box: Box, serve: Serve) -> None:
    port = await serve()

    with pytest.raises(RefusedError, match=r"nobody@example\.com"):
        await sender(port, to=["sre@example.com", "nobody@example.com"]).send(envelope())
    with pytest.raises(RefusedError, match=r"nobody@example\.com \(550\)"):
        await sender(port, to=["nobody@example.com"]).send(envelope())

    assert len(box.mails) == 1


@pytest.mark.parametrize("others", [[], ["nobody@example.com"]], ids=["alone", "beside another"])
async def test_who_is_to_be_asked_again_is_and_the_others_get_no_second_mail(
    box: Box, serve: Serve, others: list[str]
) -> None:
    channel = sender(await serve(), to=["sre@example.com", "late@example.com", *others])
    box.greylisted = {"late@example.com"}

    for _ in range(2):
        with pytest.raises(RetryLaterError, match=r"now for late@example\.com"):
            await channel.send(envelope())
    box.greylisted, box.answers = set(), ["451 busy"]
    with pytest.raises(RetryLaterError, match="451"):
        await channel.send(envelope())  # an attempt that fails as a whole makes nobody forgotten
    if others:
        with pytest.raises(RefusedError, match=r"nobody@example\.com"):
            await channel.send(envelope())
    else:
        await channel.send(envelope())

    assert box.reached == [["sre@example.com"], ["late@example.com"]]
    assert box.mails[0]["To"] == box.mails[1]["To"]


async def test_a_server_that_is_away_is_tried_again() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and listens not
        with pytest.raises(RetryLaterError, match="cannot be used"):
            await sender(taken.getsockname()[1]).send(envelope())


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder, {"ca": ["mail"]})
    return folder


def _login(server: SMTP, session: Session, mail: Envelope, kind: str, data: Any) -> AuthResult:
    del server, session, mail, kind
    assert isinstance(data, LoginPassword)
    return AuthResult(success=data.password == PASSWORD.encode(), handled=False)


async def test_starttls_then_login_with_the_password_of_the_file(
    box: Box, serve: Serve, tmp_path: Path, issued: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued / "mail.pem", issued / "mail.key")
    port = await serve(
        tls_context=context, require_starttls=True, authenticator=_login, auth_required=True
    )
    (tmp_path / "password").write_text(PASSWORD + "\n")
    login = {"username": "gpu", "passwordFile": str(tmp_path / "password")}
    safe = {"security": "starttls", "caFile": str(issued / "ca.pem"), **login}

    await sender(port, **safe).send(envelope())
    assert len(box.mails) == 1

    with pytest.raises(RetryLaterError, match="certificate is not trusted"):
        await sender(port, **safe | {"caFile": None}).send(envelope())
    (tmp_path / "password").write_text("wrong-s3cr3t")
    with pytest.raises(RefusedError, match="535") as caught:
        await sender(port, **safe).send(envelope())
    assert "s3cr3t" not in str(caught.value)


async def test_starttls_is_never_left_out(box: Box, serve: Serve) -> None:
    with pytest.raises((RetryLaterError, RefusedError)):
        await sender(await serve(), security="starttls").send(envelope())

    assert box.mails == []
