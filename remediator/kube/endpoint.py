"""The leader as the one endpoint of a Service that has no selector.

Readiness is of a pod and holds for every Service: a follower that were not ready would keep a
rollout from ending, and the disruption budget would count it as lost. So the leader alone stands
in the EndpointSlice, which it writes itself when its term begins. Its successor replaces it; in
between, calls meet nobody, and Alertmanager repeats them.
https://kubernetes.io/docs/concepts/services-networking/service/#services-without-selectors
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

import msgspec

from remediator.kube.transport import JSON


if TYPE_CHECKING:
    from collections.abc import Callable

    from remediator.kube.transport import ApiClient

SERVICE: Final = "gpu-remediator-webhook"
SLICE: Final = "gpu-remediator-webhook-leader"
PORT_NAME: Final = "webhook"
_APPLY: Final = "application/apply-patch+yaml"
_MANAGER: Final = "gpu-remediator"


async def point_to(
    api: ApiClient, *, namespace: str, ip: str, port: int, check: Callable[[], None]
) -> None:
    """Make an address the one endpoint of :data:`SERVICE`. Raises ApiError.

    Args:
        api: the transport.
        namespace: of the Service.
        ip: of this pod.
        port: where its webhook listens.
        check: called right before the write; raises when we may not write.
    """
    body = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": SLICE,
            "namespace": namespace,
            "labels": {
                "kubernetes.io/service-name": SERVICE,
                "endpointslice.kubernetes.io/managed-by": "gpu-remediator.io",
                "app.kubernetes.io/part-of": "gpu-remediator",
            },
        },
        "addressType": f"IPv{ip_address(ip).version}",
        "endpoints": [{"addresses": [ip], "conditions": {"ready": True}}],
        "ports": [{"name": PORT_NAME, "port": port, "protocol": "TCP"}],
    }
    target = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/{SLICE}"
    check()
    await api.request(
        "PATCH",
        f"{target}?fieldManager={_MANAGER}&force=true",
        msgspec.json.encode(body),
        content_type=_APPLY,
        accept=JSON,
    )
