"""Mail, by a server that takes it: plain text, one thread for each session.

The Message-ID is made from the message's key, so that a mail that is sent again is known as the
same one; ``References`` is made from the session, so that mail programs keep a thread without any
memory of ours. STARTTLS and TLS verify the certificate. 4xx is sent again, 5xx is refused: also
where a server says so of some addresses alone (greylisting). Who has a mail gets no second one.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime

import aiosmtplib

from remediator.act.channels.http import scrub, secret_bytes, wall
from remediator.act.channels.words import Words, as_they_are
from remediator.act.envelope import Envelope, RefusedError, RetryLaterError
from remediator.decide.topics import conversation
from remediator.policy.channels import SmtpChannel
from remediator.policy.wording import MAX_TEXT, MAX_TITLE, cut


_PERMANENT = 500
_MAX_SAID = 200
_MAX_TAKEN = 1000
"""Mails of which it is remembered who has them, while they are not through."""


class SmtpSender:
    """One mail channel of RemediatorConfig.

    Args:
        spec: server, addresses, login.
        words: gives an envelope the channel's own words.
        wall: epoch seconds, for the date.
    """

    def __init__(
        self,
        spec: SmtpChannel,
        *,
        words: Words = as_they_are,
        wall: Callable[[], float] = wall,
    ) -> None:
        self.give_up_after = spec.give_up_after
        self._spec = spec
        self._words = words
        self._wall = wall
        self._taken: OrderedDict[str, frozenset[str]] = OrderedDict()
        """By key, who has a mail that others do not have yet."""

    async def send(self, envelope: Envelope) -> None:
        """Make one attempt, for those who do not have it. Raises RetryLaterError, RefusedError."""
        have = self._taken.get(envelope.key, frozenset())
        to = [one for one in self._spec.to if one not in have]
        refused = await self._attempt(envelope, to)
        if not refused:
            self._taken.pop(envelope.key, None)
            return
        self._taken[envelope.key] = have | (set(to) - refused.keys())
        while len(self._taken) > _MAX_TAKEN:
            self._taken.popitem(last=False)
        names, later = ", ".join(sorted(refused)), min(refused.values()) < _PERMANENT
        kind, when = (RetryLaterError, " now") if later else (RefusedError, "")
        raise kind(f"the mail server does not take it{when} for {names} ({min(refused.values())})")

    async def _attempt(self, envelope: Envelope, to: list[str]) -> dict[str, int]:
        """Send to these, and return the codes by which some of them were refused."""
        spec, password = self._spec, None
        if spec.password_file:
            found = await asyncio.to_thread(secret_bytes, spec.password_file, "passwordFile")
            password = found.decode(errors="replace")
        mail = mail_of(self._words(envelope), spec, now=self._wall())
        try:
            async with asyncio.timeout(spec.timeout):
                refused, _ = await aiosmtplib.send(
                    mail,
                    sender=spec.sender,
                    recipients=to,
                    hostname=spec.host,
                    port=spec.port,
                    username=spec.username,
                    password=password,
                    timeout=spec.timeout,
                    use_tls=spec.security == "tls",
                    start_tls=spec.security == "starttls",
                    tls_context=await asyncio.to_thread(_trust, spec.ca_file),
                )
        except TimeoutError:
            raise RetryLaterError(f"the mail server took longer than {spec.timeout:g} s") from None
        except aiosmtplib.SMTPRecipientsRefused as error:  # all of them
            return {one.recipient: one.code for one in error.recipients}
        except (aiosmtplib.SMTPException, OSError, ValueError) as error:
            raise _meaning(error, (password or "",)) from None  # its text may hold the password
        return {address: code for address, (code, _) in refused.items()}


def mail_of(envelope: Envelope, spec: SmtpChannel, *, now: float) -> EmailMessage:
    """Return the mail for an envelope."""
    domain = spec.sender.rpartition("@")[2]
    thread = {conversation(one) for one in envelope.messages}
    mail = EmailMessage()
    mail["From"] = spec.sender
    mail["To"] = ", ".join(spec.to)
    mail["Subject"] = cut(" ".join(envelope.title.split()), MAX_TITLE)
    mail["Date"] = format_datetime(datetime.fromtimestamp(now, UTC))
    mail["Message-ID"] = _identity(envelope.key, domain)
    if len(thread) == 1:
        name = f"dry-run/{thread.pop()}" if envelope.dry_run else thread.pop()
        mail["In-Reply-To"] = mail["References"] = _identity(f"thread/{name}", domain)
    mail["Auto-Submitted"] = "auto-generated"  # no "out of office" answers: RFC 3834
    mail["X-Gpu-Remediator-Key"] = "".join(c if c.isprintable() else "_" for c in envelope.key)
    nodes = ", ".join(envelope.nodes)
    mail.set_content(
        f"{cut(envelope.text, MAX_TEXT)}\n\n"
        f"nodes: {nodes or 'none'}\npolicy: {envelope.policy or 'none'}\n"
        f"urgency: {envelope.urgency.value}\n"
    )
    return mail


def _identity(name: str, domain: str) -> str:
    return f"<{hashlib.sha256(name.encode()).hexdigest()[:40]}@{domain}>"


def _trust(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as error:
        raise RetryLaterError(
            f"cannot use the file of caFile ({ca_file}): {type(error).__name__}"
        ) from error


def _meaning(error: Exception, secrets: tuple[str, ...]) -> RetryLaterError | RefusedError:
    """Say what a failure means for the next attempt."""
    if isinstance(error, aiosmtplib.SMTPResponseException):
        said = " ".join(scrub(error.message, secrets).split())[:_MAX_SAID]
        said = f"SMTP {error.code}: {said}"
        return RefusedError(said) if error.code >= _PERMANENT else RetryLaterError(said)
    if isinstance(error, ssl.SSLError) or "certificate" in str(error).lower():
        return RetryLaterError("TLS with the mail server failed: its certificate is not trusted")
    return RetryLaterError(f"the mail server cannot be used ({type(error).__name__})")
