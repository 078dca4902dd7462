"""What a device id of the kubelet means: every form that NVIDIA GPUs are handed out under.

| form | from |
|---|---|
| ``GPU-<uuid>`` | NVIDIA's device plugin |
| ``GPU-<uuid>::<n>``, ``MIG-<uuid>::<n>`` | the same, time-slicing and MPS replicas |
| ``GPU-<uuid>-<n>`` | vGPU schedulers that number their shares so (HAMi) |
| ``MIG-<uuid>`` | a MIG device, driver 470 and newer |
| ``MIG-GPU-<uuid>/<gi>/<ci>`` | a MIG device, older drivers |
| ``nvidia<minor>[/gi<gi>][/vgpu<n>]`` | GKE |

A GKE number is that of ``/dev/nvidia<minor>``, which is not NVML's index on many machines.
Pure.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class DeviceId(NamedTuple):
    """One parsed id: exactly one of ``gpu``, ``mig`` and ``minor`` is given.

    ``gpu`` and ``mig`` are UUIDs in lower case, with their prefix. ``replica`` is the share
    of a device that several containers hold, empty for the whole.
    """

    gpu: str = ""
    mig: str = ""
    minor: int | None = None
    gi: int | None = None
    ci: int | None = None
    replica: str = ""


_UUID: Final = r"[0-9a-z]{8}(?:-[0-9a-z]{4}){3}-[0-9a-z]{12}"
_FORMS: Final = tuple(
    re.compile(form)
    for form in (
        rf"(?P<gpu>gpu-{_UUID})(?:(?:::|-)(?P<replica>\d{{1,6}}))?",
        rf"(?P<mig>mig-{_UUID})(?:::(?P<replica>\d{{1,6}}))?",
        rf"mig-(?P<gpu>gpu-{_UUID})/(?P<gi>\d{{1,3}})/(?P<ci>\d{{1,3}})(?:::(?P<replica>\d{{1,6}}))?",
        r"nvidia(?P<minor>\d{1,3})(?:/gi(?P<gi>\d{1,3}))?(?:/vgpu(?P<replica>\d{1,6}))?",
    )
)
_MAX_LENGTH: Final = 128


def parse_device_id(text: str) -> DeviceId | None:
    """Read a device id; None for a form that is not known."""
    if len(text) > _MAX_LENGTH or not text.isascii():
        return None
    lower = text.lower()
    for form in _FORMS:
        found = form.fullmatch(lower)
        if found is not None:
            parts = found.groupdict()
            return DeviceId(
                gpu=parts.get("gpu") or "",
                mig=parts.get("mig") or "",
                minor=_number(parts.get("minor")),
                gi=_number(parts.get("gi")),
                ci=_number(parts.get("ci")),
                replica=parts.get("replica") or "",
            )
    return None


def parse_cdi_name(name: str) -> DeviceId | None:
    """The device in a CDI name such as ``nvidia.com/gpu=GPU-<uuid>``.

    Only names that carry a UUID are read. What else stands behind ``=`` is the driver's own
    affair (a claim's uid, an index that changes when a device falls off).
    """
    _, _, device = name.partition("=")
    found = parse_device_id(device)
    return found if found is not None and found.minor is None else None


def _number(text: str | None) -> int | None:
    return int(text) if text else None


class Patterns:
    """Names to choose by: exact, or with a ``*`` at the end for all that begin so.

    Args:
        listed: comma-separated, blanks around names ignored.

    Raises:
        ValueError: a ``*`` that is not at the end.
    """

    def __init__(self, listed: str) -> None:
        names = [name.strip() for name in listed.split(",") if name.strip()]
        for name in names:
            if "*" in name[:-1]:
                raise ValueError(f"{name!r}: a * may stand at the end only")
        self._exact = frozenset(name for name in names if not name.endswith("*"))
        self._prefixes = tuple(name[:-1] for name in names if name.endswith("*"))

    def __bool__(self) -> bool:
        """Whether anything can match."""
        return bool(self._exact or self._prefixes)

    def match(self, name: str) -> bool:
        """Whether the name is chosen."""
        return name in self._exact or name.startswith(self._prefixes)
