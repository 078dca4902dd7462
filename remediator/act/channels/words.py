"""An envelope in a channel's own words; in the built-in ones where its template fails.

Of a dry run title and text begin with ``[dry-run]``, whatever a template says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import structlog

from remediator.act.envelope import DRY_RUN_PREFIX, Envelope
from remediator.policy.channels import MessageTemplate
from remediator.policy.wording import MAX_ITEMS, MAX_TEXT, MAX_TITLE, WordingError, cut, render


Words = Callable[[Envelope], Envelope]

_log = structlog.get_logger(__name__)


def as_they_are(envelope: Envelope) -> Envelope:
    """Leave the words alone."""
    return envelope


class OwnWords:
    """Puts a template's words into envelopes.

    Args:
        template: of the channel.
        failed: told the channel's name when a template failed, to be counted.
    """

    def __init__(
        self, template: MessageTemplate, *, failed: Callable[[str], None] = lambda _: None
    ) -> None:
        self._template = template
        self._failed = failed

    def __call__(self, envelope: Envelope) -> Envelope:
        """Return the envelope with the channel's words."""
        words = _words(envelope)
        try:
            title = self._render(self._template.title, words, envelope.title, MAX_TITLE)
            text = self._render(self._template.text, words, envelope.text, MAX_TEXT)
        except WordingError as error:
            _log.error("template_failed", channel=envelope.channel, reason=str(error))
            self._failed(envelope.channel)
            return envelope
        prefix = f"{DRY_RUN_PREFIX} " if envelope.dry_run else ""
        return replace(envelope, title=prefix + title, text=prefix + text)

    def _render(
        self, template: str | None, words: Mapping[str, Any], built_in: str, limit: int
    ) -> str:
        if template is None:
            return _bare(built_in)
        # A title is one line: mail and PagerDuty would refuse, or cut, another.
        said = render(template, words, limit=limit)
        if not said:
            raise WordingError("it says nothing of this message")
        return " ".join(said.split()) if limit == MAX_TITLE else said


def _words(envelope: Envelope) -> dict[str, Any]:
    return {
        "title": _bare(envelope.title),
        "text": cut(_bare(envelope.text), MAX_TEXT),
        "urgency": envelope.urgency.value,
        "resolves": envelope.resolves,
        "dry_run": envelope.dry_run,
        "policy": envelope.policy,
        "channel": envelope.channel,
        "key": envelope.key,
        "time": datetime.fromtimestamp(envelope.created, UTC).isoformat(timespec="milliseconds"),
        "nodes": list(envelope.nodes[:MAX_ITEMS]),
        "count": len(envelope.nodes),
        "messages": [
            {"node": one.node, "title": cut(one.title, MAX_TITLE), "text": cut(one.text, MAX_TEXT)}
            for one in envelope.messages[:MAX_ITEMS]
        ],
    }


def _bare(text: str) -> str:
    return text.removeprefix(DRY_RUN_PREFIX).lstrip() if text.startswith(DRY_RUN_PREFIX) else text
