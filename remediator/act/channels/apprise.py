"""Whatever Apprise can reach: Teams, Discord, Telegram, and a hundred more. An extra.

Apprise tells only whether all went well, so whatever fails is sent again, to all services of the
channel: give each service a channel of its own where that matters. Its URLs hold secrets, and its
log lines may hold them: they are kept out of ours. https://github.com/caronc/apprise
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, Final

from remediator.act.channels.words import Words, as_they_are
from remediator.act.envelope import Envelope, RefusedError, RetryLaterError
from remediator.decide.decision import Urgency
from remediator.policy.channels import AppriseChannel


MAX_FILE: Final = 64 * 1024
MISSING: Final = "Apprise is not installed: pip install 'gpu-remediator[apprise]'"


class AppriseSender:
    """One channel of RemediatorConfig that Apprise serves."""

    def __init__(self, spec: AppriseChannel, *, words: Words = as_they_are) -> None:
        self.give_up_after = spec.give_up_after
        self._spec = spec
        self._words = words

    async def send(self, envelope: Envelope) -> None:
        """Make one attempt. Raises RetryLaterError or RefusedError."""
        own = self._words(envelope)
        services = await asyncio.to_thread(_services, self._spec.url_file)
        try:
            async with asyncio.timeout(self._spec.timeout):
                well = await services.async_notify(
                    title=own.title, body=own.text, notify_type=_kind(own), body_format="text"
                )
        except TimeoutError:
            raise RetryLaterError(f"no answer within {self._spec.timeout:g} s") from None
        except Exception as error:  # noqa: BLE001 - of a hundred plug-ins; its text may hold a URL
            raise RetryLaterError(f"Apprise failed ({type(error).__name__})") from None
        if not well:
            raise RetryLaterError(f"Apprise did not reach all of its {len(services)} services")


def _services(path: str) -> Any:
    """Return Apprise with the services of a file; blocking."""
    try:
        import apprise  # noqa: PLC0415 - an extra, of 10 MB
    except ImportError:
        raise RefusedError(MISSING) from None
    _keep_quiet(logging.getLogger("apprise"))
    try:
        text = Path(path).read_text(encoding="utf-8")[:MAX_FILE]
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise RetryLaterError(f"cannot read the file of urlFile ({path}): {why}") from error
    # No file of settings, no plug-in from disk, no attachment: only what the lines say.
    asset = apprise.AppriseAsset(async_mode=True, plugin_paths=[])
    services = apprise.Apprise(asset=asset)
    for number, line in enumerate(text.splitlines(), start=1):
        url = line.strip()
        if url and not url.startswith("#") and not services.add(url):
            raise RetryLaterError(f"line {number} of the file of urlFile is no Apprise URL")
    if not len(services):
        raise RetryLaterError(f"the file of urlFile ({path}) holds no Apprise URL")
    return services


def _keep_quiet(logger: logging.Logger) -> None:
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def _kind(envelope: Envelope) -> str:
    kinds = {Urgency.INFO: "info", Urgency.WARNING: "warning", Urgency.CRITICAL: "failure"}
    return "success" if envelope.resolves else kinds[envelope.urgency]
