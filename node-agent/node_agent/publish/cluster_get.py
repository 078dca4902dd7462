"""The way from the attribution of pods to the API server, over the agent's one client."""

from __future__ import annotations

from typing import Final

from node_agent.attribution.cluster import ClusterReadError, Get
from node_agent.publish.node_api import ApiError, ApiRefusedError, NodeApi, NodeMissingError


_ROLES: Final = {
    "pods": "deploy/agent/optional/pods.yaml",
    "resourceslices.resource.k8s.io": "deploy/agent/optional/resource-slices.yaml",
}


def cluster_get(api: NodeApi) -> Get:
    """A GET whose errors say which optional role is missing."""

    async def get(path: str, resource: str) -> bytes:
        try:
            return await api.list_objects(path, resource=resource)
        except ApiError as error:
            failed = ClusterReadError(_said(error, resource))
            failed.retry_after = error.retry_after
            raise failed from error

    return get


def _said(error: ApiError, resource: str) -> str:
    if isinstance(error, ApiRefusedError):
        role = _ROLES.get(resource, "deploy/agent/optional")
        return f"the agent may not list {resource}: apply {role}, or take it out of cluster_lookups"
    if isinstance(error, NodeMissingError):  # 404: the API server knows no such resource
        return (
            f"this API server does not serve {resource}; ResourceSlices of version v1 come with "
            "Kubernetes 1.34"
        )
    return str(error)
