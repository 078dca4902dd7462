"""Where alerts and answers to queries come from: Alertmanagers, Prometheus servers, our webhook.

Secrets stand in files and are read anew at each use, so that a rotated one is used at once.
The poll of every Alertmanager peer is the truth; the webhook makes a new alert known sooner.
"""

from __future__ import annotations

import posixpath
from typing import Annotated, Any, Final, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from remediator.policy.base import Model, schema_keywords
from remediator.policy.quantities import Duration
from remediator.policy.when import LabelName, SourceName


ALERT_NODE_LABELS: Final = (
    "exported_node",
    "node",
    "kubernetes_node",
    "nodename",
    "Hostname",
    "hostname",
    "instance",
)
"""Labels of an alert that may name a node, the most trusted first."""
EXPORTER_JOBS: Final = (
    "dcgm-exporter",
    "nvidia-dcgm-exporter",
    "gpu-remediator-node-agent",
    "node-exporter",
)
"""Jobs whose pods speak of the node that they run on."""
SCRAPER_JOBS: Final = ("kube-state-metrics", "blackbox", "blackbox-exporter")
"""Jobs that speak of others: of their pods' own node, nothing is meant."""
MAX_PEERS: Final = 16
SHORTEST_TIMEOUT: Final = 0.1
SOURCE_URL_PATTERN: Final = r"^https?://[^\s?#]+$"


def _names_nobody(url: str) -> str:
    """Refuse credentials: an address stands in the status and in the log, and so in this error."""
    if "@" in url.split("/")[2]:
        raise ValueError(
            "an address holds no credentials, it is shown to people: write username and"
            " passwordFile, or bearerTokenFile, under access"
        )
    return url


Url = Annotated[
    str, Field(pattern=SOURCE_URL_PATTERN, max_length=2048), AfterValidator(_names_nobody)
]


class Access(Model):
    """How we are let in, and whom we trust. Every file is read anew at each use."""

    bearer_token_file: str | None = Field(default=None, description="File that holds a token.")
    username: str | None = Field(default=None, description="For basic authentication.")
    password_file: str | None = Field(default=None, description="File that holds its password.")
    ca_file: str | None = Field(
        default=None, description="Certificates of the authorities we trust. Default: the system's."
    )
    cert_file: str | None = Field(default=None, description="Our own certificate, if asked for.")
    key_file: str | None = Field(default=None, description="Its key.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.bearer_token_file and (self.username or self.password_file):
            raise ValueError("either bearerTokenFile, or username and passwordFile")
        if bool(self.username) != bool(self.password_file):
            raise ValueError("username and passwordFile belong together")
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("certFile and keyFile belong together")
        return self


class Watchdog(Model):
    """An alert that always fires: while it does, its Prometheus lives."""

    name: str = Field(default="Watchdog", min_length=1, description="Its `alertname`.")
    labels: dict[LabelName, str] = Field(
        default_factory=dict, description="Labels and their values; all must be there."
    )
    max_age: Duration = Field(
        default=300.0,
        description="Prometheus sends it anew every minute or so; it proves nothing for longer.",
    )


class Alertmanager(Model):
    """One Alertmanager with all its peers. What any of them silences is silenced."""

    model_config = schema_keywords(
        anyOf=[{"required": ["urls"]}, {"properties": {"webhookOnly": {"const": True}}}]
    )

    name: SourceName = Field(
        description="By which policies and the webhook's path name it: `/alertmanager/NAME`."
    )
    urls: tuple[Url, ...] = Field(
        default=(),
        max_length=MAX_PEERS,
        strict=False,
        examples=[["http://alertmanager-0:9093", "http://alertmanager-1:9093"]],
        description="Of every peer, not of a Service in front of them.",
    )
    access: Access = Field(default_factory=Access, description="Of every peer.")
    interval: Duration = Field(default=30.0, description="Time between two polls of a peer.")
    timeout: Duration = Field(default=10.0, description="Deadline of one poll.")
    gone_after: Duration = Field(
        default=120.0,
        description="An alert that two polls of every peer did not have is gone after this long.",
    )
    labels: dict[LabelName, str] = Field(
        default_factory=dict,
        description="Only alerts with all of these count. Needed where it serves several clusters.",
    )
    watchdog: Watchdog | None = Field(
        default=None,
        description="Without it the absence of an alert proves nothing, and remediations that "
        "alerts began end by hand.",
    )
    node_from: tuple[LabelName, ...] = Field(
        default=ALERT_NODE_LABELS,
        min_length=1,
        strict=False,
        description="Labels that may name a node, the most trusted first.",
    )
    exporter_jobs: tuple[str, ...] = Field(
        default=EXPORTER_JOBS,
        strict=False,
        description="Values of `job` whose pod or pod address stands for the node it runs on.",
    )
    scraper_jobs: tuple[str, ...] = Field(
        default=SCRAPER_JOBS,
        strict=False,
        description="Values of `job` that speak of others: their `instance` and `pod` name no "
        "node, and their `node` none unless it is not merely the node that they run on.",
    )
    webhook_only: bool = Field(
        default=False,
        description="There is nothing to poll: alerts may be forgotten in a restart, silences "
        "are not seen, and remediations that its alerts began end by hand.",
    )

    @model_validator(mode="after")
    def _has_a_truth(self) -> Self:
        if not self.urls and not self.webhook_only:
            raise ValueError(
                "an Alertmanager needs the urls of all its peers: a webhook alone forgets alerts"
                " in a restart and sees no silence. If that is meant, write webhookOnly: true"
            )
        if self.urls and self.webhook_only:
            raise ValueError("webhookOnly says that there is nothing to poll: remove it, or urls")
        if self.webhook_only and self.watchdog is not None:
            raise ValueError("a watchdog is seen by polling: it needs urls")
        if len(set(self.urls)) != len(self.urls):
            raise ValueError("urls names one peer twice")
        if self.interval < 1.0 or self.timeout < SHORTEST_TIMEOUT:
            raise ValueError("interval must be 1s or more, and timeout 100ms or more")
        return self


class Prometheus(Model):
    """One server that answers PromQL: a Prometheus, or whatever speaks its API."""

    name: SourceName = Field(description="By which policies name it.")
    url: Url = Field(
        examples=["http://prometheus:9090"], description="Without `/api/v1`; a prefix is kept."
    )
    access: Access = Field(default_factory=Access, description="How we are let in.")
    timeout: Duration = Field(default=10.0, description="Deadline of one query.")
    max_clock_skew: Duration = Field(
        default=60.0,
        description="A sample that is by more than this younger or older than now is no answer.",
    )
    scraper_jobs: tuple[str, ...] = Field(
        default=SCRAPER_JOBS,
        strict=False,
        description="Values of `job` that speak of others: the `node` of their series names none"
        " unless it is not merely the node that they run on.",
    )

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        base, api, _ = self.url.partition("/api/v1")
        if api:
            raise ValueError(f"its API's path is added to url: write url: {base}")
        if self.timeout < SHORTEST_TIMEOUT:
            raise ValueError("timeout must be 100ms or more")
        return self


class WebhookTls(Model):
    """The certificate that the webhook shows. A renewed one is used without a restart."""

    cert_file: str = Field(description="Certificate, followed by its chain.")
    key_file: str = Field(description="Its key.")
    client_ca_file: str | None = Field(
        default=None, description="Callers must show a certificate of one of these authorities."
    )


class Webhook(Model):
    """Where Alertmanagers send to. Its address is a setting of the process: `--webhook-listen`."""

    bearer_token_file: str | None = Field(
        default=None, description="File that holds the token that callers must know."
    )
    tls: WebhookTls | None = Field(default=None, description="Without it, plain HTTP.")

    @model_validator(mode="after")
    def _asks_who_calls(self) -> Self:
        if self.bearer_token_file is None and (self.tls is None or self.tls.client_ca_file is None):
            raise ValueError(
                "whoever reaches the webhook could report any alert: set bearerTokenFile,"
                " or tls with clientCaFile"
            )
        return self


_FILES: Final = frozenset(
    {
        "bearer_token_file",
        "password_file",
        "ca_file",
        "cert_file",
        "key_file",
        "client_ca_file",
        "url_file",
        "secret_file",
        "token_file",
        "webhook_url_file",
        "routing_key_file",
    }
)
_ModelT = TypeVar("_ModelT", bound=Model)


def rooted(model: _ModelT, folder: str) -> _ModelT:
    """Return a model whose relative names of files begin in a folder: that of RemediatorConfig."""
    changes: dict[str, Any] = {}
    for key in type(model).model_fields:
        value = getattr(model, key)
        if key in _FILES and value is not None:
            changes[key] = posixpath.join(folder, value)
        elif isinstance(value, Model):
            changes[key] = rooted(value, folder)
    return model.model_copy(update=changes)


def check_sources(
    alertmanagers: tuple[Alertmanager, ...],
    prometheus: tuple[Prometheus, ...],
    webhook: Webhook | None,
) -> None:
    """Check what concerns several of them. Raises ValueError."""
    for key, found in (("alertmanagers", alertmanagers), ("prometheus", prometheus)):
        names: list[Any] = [one.name for one in found]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{key} has two of the name {twice}: give one another name")
    if webhook is not None and not alertmanagers:
        raise ValueError(
            "webhook needs an entry in alertmanagers with the urls of all peers to poll: a webhook"
            " alone forgets alerts in a restart. If that is meant, give the entry webhookOnly: true"
        )
    only = [one.name for one in alertmanagers if one.webhook_only]
    if only and webhook is None:
        raise ValueError(f"alertmanagers: {only[0]} has webhookOnly, but there is no webhook")
