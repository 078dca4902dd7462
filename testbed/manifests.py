"""Manifests of `deploy/` applied as a cluster's administrator would, by server-side apply.

`install()` gives the two programs their service accounts in any namespace, so that each test has
its own leases and ConfigMaps on a shared server.
"""

import copy
from collections.abc import Iterable, Iterator
from pathlib import Path

from ruamel.yaml import YAML

from testbed.api import APPLY_PATCH, Api, ApiError, Json


DEPLOY = Path(__file__).parent.parent / "deploy"
SYSTEM_NAMESPACE = "gpu-remediator"
AGENT_ACCOUNT = "gpu-remediator-node-agent"
CONTROLLER_ACCOUNT = "gpu-remediator"
_ACCESS = ("agent/rbac.yaml", "controller/rbac.yaml", "operator/rbac.yaml")
_ADMISSION = "agent/admission.yaml"


def read(path: Path) -> list[Json]:
    """The documents of a YAML file."""
    with path.open(encoding="utf-8") as file:
        return [document for document in YAML(typ="safe", pure=True).load_all(file) if document]


def apply(api: Api, documents: Iterable[Json]) -> None:
    """Server-side apply each document, in this order.

    Raises:
        ApiError: the server refused one.
    """
    paths = _Discovery(api)
    for document in documents:
        api.patch(
            paths.of(document),
            document,
            content_type=APPLY_PATCH,
            fieldManager="kubectl",
            force="true",
        )


def install(api: Api, namespace: str) -> list[Json]:
    """Service accounts and RBAC of both programs and of the operator role, in `namespace`.

    Returns:
        What was applied outside `namespace`, for the caller to delete.
    """
    documents: list[Json] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    ]
    documents += [d for file in _ACCESS for d in relocated(read(DEPLOY / file), namespace)]
    apply(api, documents)
    return [d for d in documents[1:] if d["metadata"].get("namespace") != namespace]


def install_admission(api: Api) -> None:
    """The agent's admission policies and their bindings; active a second or two later."""
    apply(api, read(DEPLOY / _ADMISSION))


def install_crds(api: Api) -> None:
    """The two kinds of objects of our own; served a moment later."""
    apply(
        api, [document for file in sorted((DEPLOY / "crds").iterdir()) for document in read(file)]
    )


def delete(api: Api, documents: Iterable[Json]) -> None:
    """Delete what `install()` returned."""
    paths = _Discovery(api)
    for document in documents:
        api.delete(paths.of(document))


def relocated(documents: Iterable[Json], namespace: str) -> Iterator[Json]:
    """The same objects for an installation in another namespace.

    Objects that are not inside the namespace get its name as a suffix, so that installations
    live side by side.
    """
    if namespace == SYSTEM_NAMESPACE:
        yield from documents
        return
    for original in documents:
        document = copy.deepcopy(original)
        metadata = document["metadata"]
        if metadata.get("namespace") == SYSTEM_NAMESPACE:
            metadata["namespace"] = namespace
        else:
            metadata["name"] += f"-{namespace}"
            if "roleRef" in document:
                document["roleRef"]["name"] += f"-{namespace}"
        for subject in document.get("subjects", ()):
            subject["namespace"] = namespace
        yield document


class _Discovery:
    """Where objects of a kind live, asked of the server once for each group version."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._resources: dict[str, list[Json]] = {}

    def of(self, document: Json) -> str:
        version, kind = document["apiVersion"], document["kind"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if root not in self._resources:
            self._resources[root] = self._api.get(root)["resources"]
        for resource in self._resources[root]:
            if resource["kind"] == kind and "/" not in resource["name"]:
                return self._path(root, resource, document["metadata"])
        raise ApiError("GET", root, 404, {"message": f"the server has no kind {kind}"})

    def _path(self, root: str, resource: Json, metadata: Json) -> str:
        scope = ""
        if resource["namespaced"]:
            scope = f"/namespaces/{metadata.get('namespace', 'default')}"
        return f"{root}{scope}/{resource['name']}/{metadata['name']}"
