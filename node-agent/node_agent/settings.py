"""Settings of the agent: one typed definition, from defaults, a file, environment, flags.

Later sources win: default < JSON file < ``NODE_AGENT_*`` < command line. Every setting is
defined once, here, with its default and its line of documentation;
``docs/agent/settings.md`` is generated from it. A key or a ``NODE_AGENT_*`` variable that
is not known is an error, since a misspelt setting silently ignored is the worst kind.

msgspec, not pydantic: an agent runs on every node, and 10 MB a node add up.

Longer than other modules: half of it are the settings, which have one place.
"""

from __future__ import annotations

import difflib
import re
import socket
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, get_args, get_type_hints

import msgspec
from msgspec import Meta

from node_agent.attribution.device_ids import Patterns
from node_agent.attribution.model import CLUSTER_LOOKUPS
from node_agent.contract import HEARTBEAT_SECONDS
from node_agent.publish.dcgm_rows import HostnameLabel, Names
from node_agent.sources.kernel_log.model import Mode


PREFIX: Final = "NODE_AGENT_"
CONFIG_VARIABLE: Final = f"{PREFIX}CONFIG"


class SettingsError(Exception):
    """A setting is unknown or has a bad value. The text names it, its source and the fix."""


class Duration(float):
    """Seconds, written with a unit: ``100ms``, ``30s``, ``5m``, ``1h``."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Read a text such as ``1h30m``.

        Raises:
            ValueError: no unit, or not a duration.
        """
        if not re.fullmatch(r"(\d+(\.\d+)?(ms|s|m|h))+", text):
            raise ValueError(f"{text!r} is not a duration: write it with a unit, as 100ms, 30s, 5m")
        parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text)
        return cls(sum(float(number) * _UNITS[unit] for number, unit in parts))

    def __str__(self) -> str:
        """The shortest exact way to write it."""
        for unit in ("h", "m", "s"):
            count = float(self) / _UNITS[unit]
            if count >= 1 and count == int(count):
                return f"{int(count)}{unit}"
        return f"{float(self) * 1000:g}ms"


_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class LogFormat(StrEnum):
    """How the agent writes its own log."""

    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


class LogLevel(StrEnum):
    """From which level on the agent writes its own log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _doc(text: str) -> Meta:
    return Meta(description=text)


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings. Durations carry their unit, paths are of this process's file system."""

    node_name: Annotated[str, _doc("Name of the Node object; empty: this machine's host name.")] = (
        ""
    )
    kernel_log: Annotated[
        Mode,
        _doc("Kernel log to read: `auto` (kmsg, else syslog, else file), or the one to use."),
    ] = Mode.AUTO
    kernel_log_path: Annotated[
        str,
        _doc(
            "File or FIFO to read for `file` and `fifo`, last resort of `auto`; empty: the first "
            "of /var/log/kern.log, messages and syslog that exists."
        ),
    ] = ""
    kmsg_path: Annotated[str, _doc("The kernel's own log device.")] = "/dev/kmsg"
    boot_id_path: Annotated[str, _doc("File with this boot's id.")] = (
        "/proc/sys/kernel/random/boot_id"
    )
    sysfs_root: Annotated[str, _doc("Where sysfs is mounted; PCI devices are looked up there.")] = (
        "/sys"
    )
    expected_gpus: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="GPUs this node must have; 0: as many as were ever seen on it. Set it to "
            "notice a GPU that was missing from the first day.",
        ),
    ] = 0
    pci_interval: Annotated[Duration, _doc("How often PCI devices are looked at, at least 1s.")] = (
        Duration(60)
    )
    pci_confirm: Annotated[
        Duration,
        _doc("A device that is missing must be missing again after this long to count as lost."),
    ] = Duration(2)
    state_file: Annotated[str, _doc("File that remembers open faults; put it on a hostPath.")] = (
        "/var/lib/gpu-remediator/node-agent.json"
    )
    socket: Annotated[str, _doc("Local socket for `node-agent set-healthy`; empty: none.")] = (
        "/run/gpu-remediator/node-agent.sock"
    )
    listen: Annotated[
        str, _doc("Address and port of /metrics, /healthz and /readyz; port 0: any free one.")
    ] = "0.0.0.0:9400"
    metrics_interval: Annotated[
        Duration,
        _doc("How often new values show on /metrics, at least 1s; a fault shows at once."),
    ] = Duration(5)
    dcgm_names: Annotated[
        Names,
        _doc("Release line of DCGM-Exporter whose default families, names and units are used."),
    ] = Names.OLD
    dcgm_counters: Annotated[
        str,
        _doc(
            "Counters file in DCGM-Exporter's CSV format that says which DCGM families are on; "
            "empty: the defaults of `dcgm_names`."
        ),
    ] = ""
    dcgm_hostname_label: Annotated[
        HostnameLabel,
        _doc("Spelling of the node name's label; `auto`: `Hostname` for 4.8, `hostname` for 4.9."),
    ] = HostnameLabel.AUTO
    dcgm_old_labels: Annotated[
        bool,
        _doc("DCGM-Exporter's old label names: uuid, pod_name, pod_namespace, container_name."),
    ] = False
    dcgm_row_per_pod: Annotated[
        bool,
        _doc("A GPU that pods share has its DCGM rows once for each pod: sums count it twice."),
    ] = False
    dcgm_pod_uid: Annotated[bool, _doc("Also the label pod_uid on DCGM rows.")] = False
    kubeconfig: Annotated[
        str, _doc("Kubeconfig to use outside a cluster; empty: the pod's service account.")
    ] = ""
    context: Annotated[str, _doc("Context of the kubeconfig; empty: its current one.")] = ""
    service_account: Annotated[
        str, _doc("Folder with the pod's `token` and `ca.crt`, re-read when they are rotated.")
    ] = "/var/run/secrets/kubernetes.io/serviceaccount"
    heartbeat: Annotated[
        Duration,
        _doc("How often unchanged conditions are written again, with 10 % jitter; at least 10s."),
    ] = Duration(HEARTBEAT_SECONDS)
    coalesce: Annotated[
        Duration, _doc("After a write, changes are collected for this long before the next one.")
    ] = Duration(0.1)
    counts_interval: Annotated[
        Duration, _doc("At most one write in this time when nothing but counts has changed.")
    ] = Duration(10)
    node_interval: Annotated[
        Duration,
        _doc(
            "How often the Node is read for `set-healthy` and the kubelet's boot id while a "
            "fault is open; a well node is not read between heartbeats."
        ),
    ] = Duration(30)
    request_timeout: Annotated[Duration, _doc("Deadline of one request to the API server.")] = (
        Duration(10)
    )
    info_age: Annotated[
        Duration, _doc("Informational faults are forgotten when not seen for this long.")
    ] = Duration(3600)
    nvml: Annotated[bool, _doc("Read the GPUs by NVML, in a child process.")] = True
    nvml_interval: Annotated[
        Duration,
        _doc("How often temperatures, clocks, memory, error counts are read, at least 1s."),
    ] = Duration(10)
    nvml_slow_interval: Annotated[
        Duration,
        _doc("How often what costs the driver more is read (energy, PCIe, NVLink), at least 1s."),
    ] = Duration(60)
    nvml_timeout: Annotated[
        Duration,
        _doc("A call of NVML that takes longer hangs: the child is replaced, the node told."),
    ] = Duration(10)
    dev_root: Annotated[str, _doc("Where the GPUs' device nodes are.")] = "/dev"
    restart_for_new_gpu: Annotated[
        bool,
        _doc(
            "End the agent, to be started anew, when the driver has a GPU that has no device node "
            "in this container: a runtime gives nodes only when a container starts."
        ),
    ] = False
    tracefs: Annotated[
        str,
        _doc("Where tracefs is mounted, for the driver's tracepoints (575 and newer); empty: off."),
    ] = "/sys/kernel/tracing"
    kubelet_folder: Annotated[
        str,
        _doc(
            "The kubelet's folder; pods are learned from its `pod-resources/kubelet.sock`. k0s "
            "and MicroK8s have another one. Empty: do not ask the kubelet."
        ),
    ] = "/var/lib/kubelet"
    pods_interval: Annotated[
        Duration,
        _doc("How often the kubelet is asked for pods when nothing happens, at least 1s."),
    ] = Duration(30)
    gpu_resources: Annotated[
        str,
        _doc(
            "Resource names that are GPUs, comma-separated, `*` at an end for all that begin so. "
            "Add the names that your device plugin gives."
        ),
    ] = "nvidia.com/gpu,nvidia.com/gpu.shared,nvidia.com/mig-*"
    proc_root: Annotated[
        str, _doc("The host's procfs, to find the pods of processes; it needs hostPID.")
    ] = "/proc"
    pod_log_folder: Annotated[
        str,
        _doc(
            "Folder with the kubelet's `pods` and `containers`: names of pods by uid. Only names "
            "of entries are read, no logs. Empty: do not look."
        ),
    ] = "/var/log"
    cluster_lookups: Annotated[
        str,
        _doc(
            "What to ask the API server about this node: `pods` (uid, labels, phase), "
            "`resource_slices` (DRA devices); comma-separated. Each needs its role of "
            "deploy/agent/optional."
        ),
    ] = ""
    pod_labels: Annotated[
        str,
        _doc("Labels of pods to take over, comma-separated, `*` at an end for all that begin so."),
    ] = ""
    log_format: Annotated[
        LogFormat, _doc("Own log: `json`, `console`, or `auto` (console in a terminal).")
    ] = LogFormat.AUTO
    log_level: Annotated[LogLevel, _doc("Own log: the lowest level that is written.")] = (
        LogLevel.INFO
    )

    @property
    def node(self) -> str:
        """The Node's name."""
        return self.node_name or socket.gethostname().lower()

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port of ``listen``."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - `:9400` means all


class Definition(NamedTuple):
    """One setting as people see it."""

    name: str
    kind: str
    default: object
    doc: str

    @property
    def flag(self) -> str:
        """Its command-line flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return PREFIX + self.name.upper()


def definitions() -> Iterator[Definition]:
    """All settings in the order of their definition."""
    hints = get_type_hints(Settings, include_extras=True)
    for field in msgspec.structs.fields(Settings):
        base, meta = get_args(hints[field.name])[:2]
        kind = " | ".join(base) if issubclass(base, StrEnum) else _KINDS[base]
        yield Definition(field.name, kind, field.default, meta.description)


# The kubelet sets such variables in every pod beside a Service of the name `node-agent`.
_SERVICE_LINK: Final = re.compile(
    rf"{PREFIX}(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"
)
_KINDS: Final[dict[type, str]] = {
    str: "text",
    int: "number",
    bool: "true | false",
    Duration: "duration",
}


def load_settings(
    *, environ: Mapping[str, str], flags: Mapping[str, str] | None = None, config: str = ""
) -> Settings:
    """Merge all sources into checked settings.

    Args:
        environ: the environment; only ``NODE_AGENT_*`` is looked at.
        flags: settings of the command line by name.
        config: path of a JSON file with an object of settings; empty: ``NODE_AGENT_CONFIG``.

    Raises:
        SettingsError: the first thing that is wrong.
    """
    path = config or environ.get(CONFIG_VARIABLE, "")
    layers: list[tuple[str, Mapping[str, Any]]] = []
    if path:
        layers.append((path, _read_file(path)))
    layers.append(("the environment", _read_environment(environ)))
    layers.append(("the command line", flags or {}))
    values: dict[str, Any] = {}
    for source, layer in layers:
        for name, value in layer.items():
            _check_one(name, value, source)
        values.update(layer)
    settings = msgspec.convert(values, Settings, strict=False, dec_hook=_decode)
    _check(settings)
    return settings


def _read_file(path: str) -> Mapping[str, Any]:
    try:
        values = msgspec.json.decode(Path(path).read_bytes())
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise SettingsError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: expected one JSON object of settings")
    return values


def _read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    names = {d.variable: d.name for d in definitions()}
    values = {}
    for variable, value in environ.items():
        if not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if _SERVICE_LINK.fullmatch(variable):
            continue
        if variable not in names:
            known = [*names, CONFIG_VARIABLE]
            raise SettingsError(f"unknown environment variable {variable}{_hint(variable, known)}")
        values[names[variable]] = value
    return values


def _check_one(name: str, value: object, source: str) -> None:
    """Check one value by itself, so that the message can name its source."""
    known = [d.name for d in definitions()]
    if name not in known:
        raise SettingsError(f"{source}: unknown setting {name}{_hint(name, known)}")
    try:
        msgspec.convert({name: value}, Settings, strict=False, dec_hook=_decode)
    except (msgspec.ValidationError, ValueError) as error:
        reason = str(error).removesuffix(f" - at `$.{name}`")
        raise SettingsError(f"{source}: {name}: {reason} (got {value!r})") from error


def _check(settings: Settings) -> None:
    """Limits that a type cannot say."""
    for name, least in _LEAST.items():
        if getattr(settings, name) < least:
            raise SettingsError(f"{name}: at least {Duration(least)} is needed")
    for name in ("gpu_resources", "pod_labels"):
        try:
            Patterns(getattr(settings, name))
        except ValueError as error:
            raise SettingsError(f"{name}: {error}") from error
    for word in filter(None, map(str.strip, settings.cluster_lookups.split(","))):
        if word not in CLUSTER_LOOKUPS:
            known = ", ".join(sorted(CLUSTER_LOOKUPS))
            raise SettingsError(f"cluster_lookups: {word!r} is none of {known}")
    try:
        port = settings.listen_address[1]
    except ValueError:
        port = -1
    if not 0 <= port <= _MAX_PORT:
        raise SettingsError(f"listen: {settings.listen!r} is not host:port, as 0.0.0.0:9400")


_MAX_PORT: Final = 65535
_LEAST: Final = {
    "heartbeat": 10,
    "pci_interval": 1,
    "node_interval": 0.1,
    "metrics_interval": 1,
    "nvml_interval": 1,
    "nvml_slow_interval": 1,
    "nvml_timeout": 1,
    "pods_interval": 1,
}
"""The least that durations may be, in seconds."""


def _decode(kind: type, value: object) -> object:
    if kind is Duration:
        if not isinstance(value, str):
            raise ValueError("write a duration as text with a unit, as 100ms, 30s, 5m")
        return Duration.parse(value)
    raise NotImplementedError(kind)


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else "; `node-agent run --help` lists them all"
