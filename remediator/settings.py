"""Settings of the controller's process: where it runs, not what it does.

Each setting is one field here: its name is the flag (``--lease-duration``) and the
variable (``REMEDIATOR_LEASE_DURATION``), its default and its one line of documentation
feed ``--help`` and ``docs/controller/settings.md``. A flag wins over a variable. What
holds for the cluster (mode, guards, channels) is ``RemediatorConfig``, a file, because
it is reviewed like the policies; it is not repeated here.

A misspelt variable would otherwise be ignored in silence, so unknown
``REMEDIATOR_*`` variables are refused.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from enum import StrEnum
from ipaddress import ip_address
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings, SettingsConfigDict

from remediator.policy.quantities import Duration, format_duration


ENV_PREFIX: Final = "REMEDIATOR_"
_MAX_PORT: Final = 65535
_SERVICE_LINK: Final = re.compile(
    r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)",
)
"""What the kubelet adds for each Service of the namespace; one may be called ``remediator``.
https://kubernetes.io/docs/tutorials/services/connect-applications-service/#environment-variables"""


class SettingsError(ValueError):
    """Settings that cannot be used. ``str()`` has one line per problem, naming its source."""


class LogFormat(StrEnum):
    """How log lines look."""

    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


class LogLevel(StrEnum):
    """The least severe lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class PoliciesFrom(StrEnum):
    """Where policies are."""

    FILES = "files"
    CRDS = "crds"
    BOTH = "both"


class Address(NamedTuple):
    """Where to listen. Host "" is every address, port 0 any free one."""

    host: str
    port: int


def parse_listen(value: str) -> Address:
    """Read ``:8080``, ``127.0.0.1:8080`` or ``[::1]:8080``. Raises ValueError."""
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > _MAX_PORT:
        raise ValueError(f"{value!r} is no address: write host:port or :port, such as :8080")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{value!r}: an IPv6 address is written in brackets: [{host}]:{port}")
    return Address(host.strip("[]"), int(port))


def _checked_listen(value: str) -> str:
    parse_listen(value)
    return value


def _checked_ip(value: str) -> str:
    if value:
        try:
            ip_address(value)
        except ValueError:
            raise ValueError(f"{value!r} is no IP address") from None
    return value


class Settings(BaseSettings):
    """All settings of ``remediator``. Made by :func:`load_settings`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        validate_default=True,
    )

    policies: str = Field(
        default="policies",
        description="Folder or file with RemediationPolicy files; watched for changes.",
    )
    policies_from: PoliciesFrom = Field(
        default=PoliciesFrom.FILES,
        description="Where policies are: files, RemediationPolicy objects in the namespace, both.",
    )
    config: str = Field(
        default="",
        description="RemediatorConfig file (mode, guards, channels); watched for changes. Empty:"
        " the safe defaults.",
    )
    kubeconfig: str = Field(
        default="",
        description="Kubeconfig file. Empty: the pod's service account, else $KUBECONFIG or"
        " ~/.kube/config.",
    )
    context: str = Field(default="", description="Context of the kubeconfig. Empty: its current.")
    namespace: str = Field(
        default="gpu-remediator",
        pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
        description="Namespace of the Lease and of the ConfigMaps for state, status and control.",
    )
    listen: Annotated[str, AfterValidator(_checked_listen)] = Field(
        default=":8080",
        description="Address of /healthz, /readyz and /metrics, as host:port.",
    )
    webhook_listen: Annotated[str, AfterValidator(_checked_listen)] = Field(
        default=":9095",
        description="Address of /alertmanager, if RemediatorConfig has a webhook, as host:port.",
    )
    pod_ip: Annotated[str, AfterValidator(_checked_ip)] = Field(
        default="",
        description="Address of this pod. Given, the leader makes itself the one endpoint of the"
        " Service gpu-remediator-webhook.",
    )
    identity: str = Field(
        default="",
        max_length=253,
        description="Name of this replica in the Lease, and of no other. Empty: host name and a"
        " random suffix.",
    )
    lease_name: str = Field(
        default="gpu-remediator",
        pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$",
        description="Name of the Lease by which replicas elect their leader.",
    )
    lease_duration: Duration = Field(
        default=15.0,
        description="How long followers wait for a leader that no longer renews.",
    )
    renew_deadline: Duration = Field(
        default=10.0,
        description="A leader that could not renew for this long stops writing and exits.",
    )
    retry_period: Duration = Field(
        default=2.0,
        description="Time between two attempts to take or renew the Lease.",
    )
    workers: int = Field(
        default=16,
        ge=1,
        le=256,
        description="Nodes whose changes are written at the same time.",
    )
    log_format: LogFormat = Field(
        default=LogFormat.AUTO,
        description="auto: console in a terminal, else json.",
    )
    log_level: LogLevel = Field(
        default=LogLevel.INFO,
        description="The least severe log lines that are written.",
    )

    @model_validator(mode="after")
    def _lease_times_fit(self) -> Self:
        """As `LeaseTimings` of the elector demands: a leader ends before its lease does."""
        if self.lease_duration <= self.renew_deadline:
            raise ValueError(
                f"lease-duration ({format_duration(self.lease_duration)}) must be longer than"
                f" renew-deadline ({format_duration(self.renew_deadline)})",
            )
        if not 0 < 2 * self.retry_period <= self.renew_deadline:
            raise ValueError(
                f"retry-period ({format_duration(self.retry_period)}) must be at most half of"
                f" renew-deadline ({format_duration(self.renew_deadline)}), and not 0",
            )
        return self

    @property
    def address(self) -> Address:
        """``listen``, taken apart."""
        return parse_listen(self.listen)


class Option(NamedTuple):
    """One setting as a command line shows it. Values are given to `load_settings` as text."""

    name: str
    """Key for ``load_settings``: ``lease_duration``."""
    flag: str
    """``--lease-duration``."""
    env: str
    """``REMEDIATOR_LEASE_DURATION``."""
    default: str
    """As one writes it: ``15s``; "" is the empty default."""
    help: str
    choices: tuple[str, ...] = ()


def options() -> tuple[Option, ...]:
    """Return every setting, in the order of the class: the one source for flags and docs."""
    return tuple(_option(name) for name in Settings.model_fields)


def load_settings(overrides: Mapping[str, str | None] | None = None) -> Settings:
    """Build the settings from flags, the process's environment and defaults, in this order.

    Args:
        overrides: values of flags by :attr:`Option.name`; None and absent mean not given.

    Raises:
        SettingsError: an unknown variable, or a value that cannot be used.
    """
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    problems = _unknown_variables(os.environ)
    try:
        settings = Settings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        problems += [_sentence(one, given) for one in error.errors()]
        raise SettingsError("\n".join(problems)) from error
    if problems:
        raise SettingsError("\n".join(problems))
    return settings


def reference() -> str:
    """Return the table of ``docs/controller/settings.md``."""
    rows = ["| flag | variable | default | meaning |", "|---|---|---|---|"]
    for option in options():
        default = f"`{option.default}`" if option.default else "(empty)"
        choices = f" One of: {', '.join(option.choices)}." if option.choices else ""
        rows.append(f"| `{option.flag}` | `{option.env}` | {default} | {option.help}{choices} |")
    return "\n".join(rows) + "\n"


def _option(name: str) -> Option:
    field = Settings.model_fields[name]
    kind = field.annotation
    choices = tuple(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else ()
    return Option(
        name=name,
        flag="--" + name.replace("_", "-"),
        env=ENV_PREFIX + name.upper(),
        default=_written(field.default),
        help=field.description or "",
        choices=tuple(str(choice) for choice in choices),
    )


def _written(default: Any) -> str:
    if default is PydanticUndefined:
        return ""
    return format_duration(default) if isinstance(default, float) else str(default)


def _unknown_variables(environ: Mapping[str, str]) -> list[str]:
    known = {option.env for option in options()}
    problems = []
    for variable in sorted(environ):
        rest = variable.removeprefix(ENV_PREFIX)
        if rest == variable or variable in known or _SERVICE_LINK.fullmatch(rest):
            continue
        near = difflib.get_close_matches(variable, known, n=1)
        advice = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
        problems.append(f"{variable} is no setting; {advice}")
    return problems


def _sentence(error: Any, given: Mapping[str, str]) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    if not error["loc"]:
        return message
    option = _option(str(error["loc"][0])) if error["loc"][0] in Settings.model_fields else None
    if option is None:
        return f"{error['loc'][0]} is no setting"
    source = option.flag if option.name in given else option.env
    return f"{source}: {message}"
