"""The way in for the rest of the controller: connect, and mirror nodes or ConfigMaps.

Nobody else imports `transport`; what the outside needs of it is an `ApiClient` to
hand on, and the few kinds of reflector that the controller runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from remediator.kube.codec import Codec, NodeNarrower, WireConfigMap, WireNode
from remediator.kube.config import load_config
from remediator.kube.configmap import CONFIGMAPS
from remediator.kube.custom import CUSTOM, custom_path
from remediator.kube.pods import PODS, PODS_PATH, on_node
from remediator.kube.reflector import Reflector, ReflectorTimings
from remediator.kube.transport import DEFAULT_TIMEOUT, ApiClient


if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from remediator.kube.config import ApiConfig
    from remediator.kube.custom import CustomObject, WireCustom
    from remediator.kube.objects import ConfigMap, Node
    from remediator.kube.pods import Pod, WirePod
    from remediator.kube.store import Store

__all__ = [
    "ApiClient",
    "configmap_reflector",
    "connect",
    "custom_reflector",
    "load_config",
    "node_reflector",
    "pod_reflector",
]


@contextlib.asynccontextmanager
async def connect(
    config: ApiConfig,
    *,
    timeout: float = DEFAULT_TIMEOUT,  # noqa: ASYNC109 - the deadline of each call
    max_connections: int = 64,
) -> AsyncIterator[ApiClient]:
    """A pool of connections to the server of `config`; see `ApiClient`."""
    async with ApiClient(config, timeout=timeout, max_connections=max_connections) as api:
        yield api


def node_reflector(
    api: ApiClient,
    store: Store[Node],
    *,
    other_annotations: int = 0,
    label_selector: str = "",
    timings: ReflectorTimings | None = None,
    on_gap: Callable[[float], None] = lambda _seconds: None,
    failed: Callable[[], None] = lambda: None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Reflector[WireNode, Node]:
    """Mirrors the cluster's nodes (or those that `label_selector` selects) into `store`.

    `other_annotations`: keep those of others, too, each up to this many characters.
    """
    return Reflector(
        api=api,
        path="/api/v1/nodes",
        codec=Codec(WireNode, NodeNarrower(others_up_to=other_annotations)),
        store=store,
        selector={"labelSelector": label_selector} if label_selector else None,
        timings=timings,
        on_gap=on_gap,
        failed=failed,
        sleep=sleep,
    )


def configmap_reflector(
    api: ApiClient,
    store: Store[ConfigMap],
    *,
    namespace: str,
    name: str,
    timings: ReflectorTimings | None = None,
    failed: Callable[[], None] = lambda: None,
) -> Reflector[WireConfigMap, ConfigMap]:
    """Mirrors one ConfigMap into `store`, which is empty while there is none.

    Needs the verbs `list` and `watch` on that ConfigMap; RBAC can restrict them to its
    name, since a list with the field selector `metadata.name` counts as naming it.
    """
    return Reflector(
        api=api,
        path=f"/api/v1/namespaces/{namespace}/configmaps",
        codec=CONFIGMAPS,
        store=store,
        selector={"fieldSelector": f"metadata.name={name}"},
        timings=timings,
        failed=failed,
    )


def pod_reflector(
    api: ApiClient, store: Store[Pod], *, node: str, timings: ReflectorTimings | None = None
) -> Reflector[WirePod, Pod]:
    """Mirrors the pods of one node into `store`, by ``namespace/name``."""
    return Reflector(
        api=api, path=PODS_PATH, codec=PODS, store=store, selector=on_node(node), timings=timings
    )


def custom_reflector(
    api: ApiClient,
    store: Store[CustomObject],
    *,
    namespace: str,
    plural: str,
    timings: ReflectorTimings | None = None,
    failed: Callable[[], None] = lambda: None,
) -> Reflector[WireCustom, CustomObject]:
    """Mirrors the objects of one of our own kinds in a namespace into `store`.

    Where the API server does not know the kind, `last_error` is a `NotFound`.
    """
    path = custom_path(namespace, plural)
    return Reflector(api=api, path=path, codec=CUSTOM, store=store, timings=timings, failed=failed)
