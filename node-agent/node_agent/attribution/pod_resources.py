"""The kubelet's PodResources v1 messages, as far as GPUs are concerned.

Field numbers: k8s.io/kubelet/pkg/apis/podresources/v1/api.proto. Not read: CPUs, memory,
NUMA topology, and the device ids of resources that nobody asked for (a node may have
thousands of them).

``List`` alone is used. ``Get`` is behind a feature gate and asks for one pod at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from node_agent.attribution.wire import Reader, text


LIST_METHOD: Final = "/v1.PodResourcesLister/List"
LIST_REQUEST: Final = b""
"""ListPodResourcesRequest has no fields."""
MAX_FIELDS: Final = 1_000_000


class ClaimDevice(NamedTuple):
    """One device of a claim (ClaimResource). ``cdi``: CDI names, as ``nvidia.com/gpu=...``."""

    driver: str
    pool: str
    device: str
    share_id: str
    cdi: tuple[str, ...]


class Claim(NamedTuple):
    """What a container holds by one ResourceClaim (DynamicResource)."""

    name: str
    namespace: str
    devices: tuple[ClaimDevice, ...]


class Container(NamedTuple):
    """One container: device ids by resource name, and claims."""

    name: str
    devices: tuple[tuple[str, tuple[str, ...]], ...]
    claims: tuple[Claim, ...]


class Pod(NamedTuple):
    """One pod of the answer. The kubelet gives neither its uid nor its phase."""

    namespace: str
    name: str
    containers: tuple[Container, ...]


def decode_list(data: bytes | memoryview, *, wanted: Callable[[str], bool]) -> tuple[Pod, ...]:
    """Read a ListPodResourcesResponse.

    Args:
        data: the message.
        wanted: whether the ids of a resource of this name are to be read.

    Raises:
        WireError: it is none.
    """
    reader = Reader(budget=MAX_FIELDS)
    return tuple(
        _pod(reader, value, wanted)
        for number, value in reader.fields(memoryview(data))
        if number == 1
    )


def _pod(reader: Reader, data: memoryview, wanted: Callable[[str], bool]) -> Pod:
    name = namespace = ""
    containers = []
    for number, value in reader.fields(data):
        if number == 1:
            name = text(value)
        elif number == 2:  # noqa: PLR2004 - numbers of the .proto file, here and below
            namespace = text(value)
        elif number == 3:  # noqa: PLR2004
            containers.append(_container(reader, value, wanted))
    return Pod(namespace, name, tuple(containers))


def _container(reader: Reader, data: memoryview, wanted: Callable[[str], bool]) -> Container:
    name = ""
    devices, claims = [], []
    for number, value in reader.fields(data):
        if number == 1:
            name = text(value)
        elif number == 2:  # noqa: PLR2004
            resource, ids = _devices(reader, value, wanted)
            if ids:
                devices.append((resource, ids))
        elif number == 5:  # noqa: PLR2004
            claims.append(_claim(reader, value))
    return Container(name, tuple(devices), tuple(claims))


def _devices(
    reader: Reader, data: memoryview, wanted: Callable[[str], bool]
) -> tuple[str, tuple[str, ...]]:
    resource = ""
    ids: list[memoryview] = []
    for number, value in reader.fields(data):
        if number == 1:
            resource = text(value)
        elif number == 2:  # noqa: PLR2004
            ids.append(value)
    return resource, tuple(map(text, ids)) if wanted(resource) else ()


def _claim(reader: Reader, data: memoryview) -> Claim:
    name = namespace = ""
    devices = []
    for number, value in reader.fields(data):
        if number == 2:  # noqa: PLR2004
            name = text(value)
        elif number == 3:  # noqa: PLR2004
            namespace = text(value)
        elif number == 4:  # noqa: PLR2004
            devices.append(_claim_device(reader, value))
    return Claim(name, namespace, tuple(devices))


def _claim_device(reader: Reader, data: memoryview) -> ClaimDevice:
    texts: dict[int, str] = {}
    cdi = []
    for number, value in reader.fields(data):
        if number == 1:
            names = [text(name) for field, name in reader.fields(value) if field == 1]
            cdi.append(names[-1] if names else "")
        elif number in _CLAIM_TEXTS:
            texts[number] = text(value)
    driver, pool, device, share = (texts.get(number, "") for number in _CLAIM_TEXTS)
    return ClaimDevice(driver, pool, device, share, tuple(cdi))


_CLAIM_TEXTS: Final = (2, 3, 4, 5)
"""driver_name, pool_name, device_name, share_id."""
