"""Channels of messages: what kinds there are, and what each needs to be told.

A channel is exactly one kind. Whatever is secret stands in a file of its own, which is read at
each attempt, so that a rotated secret is used at once; relative names of files begin in the folder
of RemediatorConfig. How each kind sends is in ``remediator.act.channels``.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from remediator.policy.base import Model, schema_keywords
from remediator.policy.quantities import Duration
from remediator.policy.sources import MAX_PEERS, Url
from remediator.policy.when import LabelName


URL_PATTERN: Final = r"^https?://"
SLACK_API: Final = "https://slack.com/api"
PAGERDUTY_API: Final = "https://events.pagerduty.com"
MAX_TEMPLATE: Final = 4096
"""Characters of a template of messages."""
MAX_GROUP_WAIT: Final = 60.0

ONE_LINE_PATTERN: Final = r"^[^\r\n]+$"
MAIL_PATTERN: Final = r"^[^@\s<>,]+@[^@\s<>,]+$"
SLACK_CHANNEL_PATTERN: Final = r"^[#A-Za-z0-9][^\s]{0,80}$"

_OneLine = Annotated[str, Field(min_length=1, max_length=254, pattern=ONE_LINE_PATTERN)]
_Address = Annotated[str, Field(max_length=254, pattern=MAIL_PATTERN)]


class Attempts(Model):
    """What holds for every kind that sends something over the network."""

    timeout: Duration = Field(default=10.0, description="Deadline of one attempt.")
    give_up_after: Duration = Field(default=3600.0, description="Retries end after this long.")


class LogChannel(Model):
    """Messages go to the controller's log."""


class WebhookChannel(Attempts):
    """Messages are POSTed as JSON. Secrets come from files, never from this one."""

    model_config = schema_keywords(oneOf=[{"required": ["url"]}, {"required": ["urlFile"]}])

    url: str | None = Field(
        default=None, pattern=URL_PATTERN, description="Where to. It, or `urlFile`."
    )
    url_file: str | None = Field(default=None, description="File that holds the URL.")
    bearer_token_file: str | None = Field(default=None, description="File that holds a token.")
    secret_file: str | None = Field(
        default=None, description="File that holds the secret of an HMAC SHA-256 signature."
    )

    @model_validator(mode="after")
    def _one_url(self) -> Self:
        if (self.url is None) == (self.url_file is None):
            raise ValueError("a webhook needs exactly one of: url, urlFile")
        return self


class SlackChannel(Attempts):
    """Slack: a thread for each session (`tokenFile`), or plain messages (`webhookUrlFile`)."""

    model_config = schema_keywords(
        oneOf=[{"required": ["tokenFile", "channel"]}, {"required": ["webhookUrlFile"]}]
    )

    token_file: str | None = Field(
        default=None, description="File with a bot's token, of scope `chat:write`."
    )
    channel: str | None = Field(
        default=None,
        pattern=SLACK_CHANNEL_PATTERN,
        description="Where it posts: an id such as C0123456789, or #name.",
    )
    webhook_url_file: str | None = Field(
        default=None, description="File with an incoming webhook's URL: the simple form."
    )
    api_url: Url = Field(default=SLACK_API, description="Slack's Web API, or a proxy of it.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.token_file is None) == (self.webhook_url_file is None):
            raise ValueError("slack needs exactly one of: tokenFile (with channel), webhookUrlFile")
        if (self.token_file is None) != (self.channel is None):
            raise ValueError("tokenFile and channel belong together")
        return self


class PagerDutyChannel(Attempts):
    """PagerDuty's Events API v2: an incident for each session, resolved when it ends."""

    routing_key_file: str = Field(
        min_length=1, description="File with the integration key of a service or event rule."
    )
    url: Url = Field(
        default=PAGERDUTY_API, description="In the EU: https://events.eu.pagerduty.com."
    )


class AlertmanagerChannel(Attempts):
    """Alertmanager's API v2: alerts `GpuRemediation`, for the routes that there already are."""

    urls: tuple[Url, ...] = Field(
        min_length=1,
        max_length=MAX_PEERS,
        strict=False,
        examples=[["http://alertmanager-0:9093", "http://alertmanager-1:9093"]],
        description="Of every peer. One that takes the alert is enough.",
    )
    bearer_token_file: str | None = Field(default=None, description="File that holds a token.")
    labels: dict[LabelName, str] = Field(
        default_factory=dict,
        max_length=30,
        description="On every alert, beside `alertname`, `node`, `policy`, `severity`.",
    )
    lasts: Duration = Field(
        default=86400.0,
        description="An alert ends by itself after this, where no controller renews it any more.",
    )


class SmtpChannel(Attempts):
    """Mail, by a server that takes it: one thread for each session."""

    host: _OneLine = Field(description="Of the mail server.")
    port: int = Field(default=587, ge=1, le=65535, description="Of the mail server.")
    security: Literal["starttls", "tls", "none"] = Field(
        default="starttls",
        description="`starttls` and `tls` verify the certificate; `none` only without a password.",
    )
    sender: _Address = Field(description="Address that mail comes from.")
    to: tuple[_Address, ...] = Field(
        min_length=1, max_length=50, strict=False, description="Addresses that it goes to."
    )
    username: str | None = Field(default=None, description="To log in with.")
    password_file: str | None = Field(default=None, description="File that holds its password.")
    ca_file: str | None = Field(
        default=None, description="Certificates of the authorities we trust. Default: the system's."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if bool(self.username) != bool(self.password_file):
            raise ValueError("username and passwordFile belong together")
        if self.password_file and self.security == "none":
            raise ValueError("a password needs security: starttls or tls")
        return self


class AppriseChannel(Attempts):
    """Any service that Apprise knows. Needs the extra: `pip install 'gpu-remediator[apprise]'`."""

    url_file: str = Field(
        min_length=1, description="File with Apprise URLs, one a line, such as `msteams://...`."
    )


class MessageTemplate(Model):
    """Own words for messages: Jinja2, of which there are values, if, for and a few filters."""

    title: str | None = Field(
        default=None, min_length=1, max_length=MAX_TEMPLATE, description="Default: the built-in."
    )
    text: str | None = Field(
        default=None, min_length=1, max_length=MAX_TEMPLATE, description="Default: the built-in."
    )

    @model_validator(mode="after")
    def _can_be_used(self) -> Self:
        from remediator.policy.wording import WordingError, check  # noqa: PLC0415 - 40 ms of jinja2

        for key in ("title", "text"):
            text = getattr(self, key)
            try:
                if text is not None:
                    check(text)
            except WordingError as error:
                raise ValueError(f"{key} is no usable template: {error}") from error
        return self


CHANNEL_KINDS: Final = (
    "log",
    "webhook",
    "slack",
    "pagerduty",
    "alertmanager",
    "smtp",
    "apprise",
)


class Channel(Model):
    """A named place for messages: exactly one kind."""

    model_config = schema_keywords(oneOf=[{"required": [kind]} for kind in CHANNEL_KINDS])

    log: LogChannel | None = Field(default=None, description="To the controller's log.")
    webhook: WebhookChannel | None = Field(default=None, description="To an HTTP address.")
    slack: SlackChannel | None = Field(default=None, description="To a channel of Slack.")
    pagerduty: PagerDutyChannel | None = Field(default=None, description="To PagerDuty.")
    alertmanager: AlertmanagerChannel | None = Field(
        default=None, description="To an Alertmanager, as alerts."
    )
    smtp: SmtpChannel | None = Field(default=None, description="By mail.")
    apprise: AppriseChannel | None = Field(
        default=None, description="To any service that Apprise knows."
    )
    template: MessageTemplate | None = Field(
        default=None, description="Own words for this channel's messages."
    )
    group_wait: Duration = Field(
        default=0.0,
        le=MAX_GROUP_WAIT,
        description="The first message of a kind waits so long for alike ones, at most `1m`. `0s`:"
        " it goes at once, and those that follow within 5 s become one.",
    )

    @model_validator(mode="after")
    def _exactly_one_kind(self) -> Self:
        given = [kind for kind in CHANNEL_KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"a channel is exactly one of: {', '.join(CHANNEL_KINDS)}")
        return self
