"""Alerts as Alertmanager tells them: by its API (v2), and by its webhook (payload version 4).

What we do not know is ignored, what we need is checked, and nothing is guessed: an alert
without readable labels or times is an error of the whole text, because half of the truth of a
poll would make the other half look resolved.

https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml
https://prometheus.io/docs/alerting/latest/configuration/#webhook_config
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final

import msgspec


WEBHOOK_VERSION: Final = "4"
ALERT_NAME: Final = "alertname"
MAX_ALERTS: Final = 50_000
"""Of one Alertmanager. More is a broken rule: nobody looks at so many."""
MAX_LABELS: Final = 200
"""Of one alert."""

Identity = tuple[tuple[str, str], ...]
"""All labels of an alert, in order: what Alertmanager takes for one alert."""


class AlertsUnreadableError(ValueError):
    """A text that no retry would make readable; ``str()`` says why."""


class Alert(msgspec.Struct, frozen=True, gc=False):
    """One firing alert.

    ``starts_at`` and ``updated_at``: epoch seconds by the clocks of Prometheus and Alertmanager;
    the latter 0 where it is not told. ``suppressed``: silenced, or inhibited by another alert.
    """

    identity: Identity
    starts_at: float
    updated_at: float = 0.0
    suppressed: bool = False

    @property
    def name(self) -> str:
        """Its ``alertname``; "" if it has none."""
        return next((value for key, value in self.identity if key == ALERT_NAME), "")

    def has(self, labels: Mapping[str, str]) -> bool:
        """Tell whether all of these labels are its own."""
        return labels.items() <= set(self.identity) if labels else True


class Report(msgspec.Struct, frozen=True):
    """What one call of the webhook says: which alerts fire, and which no longer do.

    ``left_out``: alerts that the receiver's ``max_alerts`` kept out of the call.
    """

    firing: tuple[Alert, ...]
    resolved: tuple[Identity, ...]
    left_out: int = 0


class _State(msgspec.Struct):
    state: str
    silenced_by: list[str] | None = msgspec.field(default=None, name="silencedBy")
    inhibited_by: list[str] | None = msgspec.field(default=None, name="inhibitedBy")


class _Polled(msgspec.Struct):
    labels: dict[str, str]
    starts_at: str = msgspec.field(name="startsAt")
    status: _State
    updated_at: str = msgspec.field(default="", name="updatedAt")


class _Told(msgspec.Struct):
    status: str
    labels: dict[str, str]
    starts_at: str = msgspec.field(name="startsAt")


class _Payload(msgspec.Struct):
    version: str
    alerts: list[_Told]
    left_out: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(default=0, name="truncatedAlerts")


_POLL: Final = msgspec.json.Decoder(list[_Polled])
_PAYLOAD: Final = msgspec.json.Decoder(_Payload)


def decode_poll(body: bytes) -> tuple[Alert, ...]:
    """Read the answer of ``/api/v2/alerts``. Raises AlertsUnreadableError."""
    try:
        found = _POLL.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise AlertsUnreadableError(f"the answer is no list of alerts: {error}") from error
    if len(found) > MAX_ALERTS:
        raise AlertsUnreadableError(f"{len(found)} alerts, and at most {MAX_ALERTS} are read")
    return tuple(
        Alert(
            identity=_identity(one.labels),
            starts_at=_seconds(one.starts_at),
            updated_at=_seconds(one.updated_at) if one.updated_at else 0.0,
            suppressed=bool(
                one.status.state == "suppressed"
                or one.status.silenced_by
                or one.status.inhibited_by
            ),
        )
        for one in found
    )


def decode_webhook(body: bytes) -> Report:
    """Read the payload of a webhook. Raises AlertsUnreadableError.

    The state of each alert counts, not that of the group: it fires if any of them does.
    """
    try:
        payload = _PAYLOAD.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise AlertsUnreadableError(f"this is no payload of Alertmanager: {error}") from error
    if payload.version != WEBHOOK_VERSION:
        raise AlertsUnreadableError(
            f"the payload is of version {payload.version[:20]!r}, this program reads"
            f" {WEBHOOK_VERSION}"
        )
    if len(payload.alerts) > MAX_ALERTS:
        raise AlertsUnreadableError(f"more than {MAX_ALERTS} alerts in one payload")
    firing, resolved = [], []
    for one in payload.alerts:
        identity = _identity(one.labels)
        if one.status == "firing":
            firing.append(Alert(identity=identity, starts_at=_seconds(one.starts_at)))
        elif one.status == "resolved":
            resolved.append(identity)
        else:
            raise AlertsUnreadableError(f"an alert's status is {one.status[:20]!r}")
    return Report(firing=tuple(firing), resolved=tuple(resolved), left_out=payload.left_out)


def _identity(labels: dict[str, str]) -> Identity:
    if not labels:
        raise AlertsUnreadableError("an alert has no labels")
    if len(labels) > MAX_LABELS:
        raise AlertsUnreadableError(f"an alert has more than {MAX_LABELS} labels")
    return tuple(sorted(labels.items()))


def _seconds(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise AlertsUnreadableError(f"{text[:40]!r} is no time") from None
    if found.tzinfo is None:
        raise AlertsUnreadableError(f"{text[:40]!r} has no time zone")
    try:
        return found.timestamp()
    except (OverflowError, ValueError):
        raise AlertsUnreadableError(f"{text[:40]!r} is no time") from None
