"""PagerDuty's Events API v2: one incident for each session, resolved when the session ends.

The deduplication key is the session's id, so that a repeated event changes nothing. What a storm
merged is one incident, under a key of its own, and it is resolved with the last of its sessions.
202 is delivered; 400 is refused; 429 and 5xx are sent again.
https://developer.pagerduty.com/docs/send-alert-event
"""

from __future__ import annotations

import asyncio
import hashlib
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from yarl import URL

from remediator.act.channels.http import post, secret
from remediator.act.channels.sender import TalkingSender
from remediator.act.envelope import Envelope, part_of
from remediator.decide.topics import Part, conversation, followed, opened
from remediator.policy.channels import PagerDutyChannel
from remediator.policy.wording import MAX_TEXT, cut


_MAX_SUMMARY: Final = 1024
_MAX_DEDUP: Final = 255
_MAX_NODES: Final = 200


class PagerDutySender(TalkingSender[PagerDutyChannel]):
    """One PagerDuty service of RemediatorConfig. See `TalkingSender` for the arguments."""

    async def send(self, envelope: Envelope) -> None:
        """Make one attempt. Its parts may arrive twice: events are idempotent by their key."""
        for part in self._topics.parts(_scope(envelope), envelope.messages):
            await self._part(envelope, part)

    async def _part(self, envelope: Envelope, part: Part) -> None:
        mine = part_of(envelope, part.messages)
        if part.topic is not None:
            topic = followed(part.topic, part.messages)
        elif mine.resolves:  # what opened it was forgotten, or went elsewhere
            for one in dict.fromkeys(conversation(message) for message in part.messages):
                await self._event("resolve", _dedup(mine, [one]), mine)
            return
        else:
            conversations = [conversation(message) for message in part.messages]
            topic = opened(_dedup(mine, conversations), part.messages, title=mine.title)
        if topic.over:
            await self._event("resolve", topic.id, mine)
            self._topics.forget(_scope(envelope), topic.id)
            return
        if not mine.resolves:
            await self._event("trigger", topic.id, mine)
        self._topics.put(_scope(envelope), topic)

    async def _event(self, action: str, dedup: str, envelope: Envelope) -> None:
        key = await asyncio.to_thread(secret, self._spec.routing_key_file, "routingKeyFile")
        event: dict[str, Any] = {"routing_key": key, "event_action": action, "dedup_key": dedup}
        if action == "trigger":
            event |= {"client": "gpu-remediator", "payload": _payload(self._words(envelope))}
        await post(
            self._session,
            URL(f"{self._spec.url}/v2/enqueue"),
            msgspec.json.encode(event),
            headers={},
            timeout=self._spec.timeout,
            now=self._wall(),
            secrets=(key,),
        )


def _payload(envelope: Envelope) -> dict[str, Any]:
    nodes = envelope.nodes
    return {
        "summary": cut(envelope.title, _MAX_SUMMARY),
        "source": nodes[0] if len(nodes) == 1 else "gpu-remediator",
        "severity": envelope.urgency.value,
        "timestamp": datetime.fromtimestamp(envelope.created, UTC).isoformat(
            timespec="milliseconds"
        ),
        "component": "gpu",
        "group": envelope.policy or "gpu-remediator",
        "class": "gpu-remediation",
        "custom_details": {
            "text": cut(envelope.text, MAX_TEXT),
            "policy": envelope.policy,
            "nodes": list(nodes[:_MAX_NODES]),
            "key": envelope.key,
            "dry_run": envelope.dry_run,
        },
    }


def _scope(envelope: Envelope) -> str:
    return f"dry-run/{envelope.channel}" if envelope.dry_run else envelope.channel


def _dedup(envelope: Envelope, conversations: list[str]) -> str:
    """Return the key of an incident: the session's id, or one made of all of them."""
    different = sorted(set(conversations))
    key = different[0]
    if len(different) > 1 or len(key) > _MAX_DEDUP - len("dry-run/"):
        key = f"merged/{hashlib.sha256('|'.join(different).encode()).hexdigest()[:32]}"
    return f"dry-run/{key}" if envelope.dry_run else key
