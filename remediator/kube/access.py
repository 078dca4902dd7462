"""From an HTTP request to the words of RBAC: verb, group, resource.

The API server derives its authorization question from the method and the path
(https://kubernetes.io/docs/reference/access-authn-authz/authorization/). Doing
the same here lets every error name the rule that would have allowed the call.
"""

from __future__ import annotations

from typing import NamedTuple


_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


class Access(NamedTuple):
    """What a request asks for, in the words of an RBAC rule.

    `resource` includes the subresource ("nodes/status"). For a path outside the
    resource APIs (`/version`) it is empty and `path` says everything.
    """

    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    path: str

    def __str__(self) -> str:
        """E.g. `patch nodes/status n1`, `list leases in namespace x`, `get /version`."""
        if not self.resource:
            return f"{self.verb} {self.path}"
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        name = f" {self.name}" if self.name else ""
        place = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {resource}{name}{place}"


def access_of(method: str, target: str) -> Access:
    """The RBAC question behind `method` on `target` (a path, with or without a query)."""
    path, _, query = target.partition("?")
    group, parts = _split(path)
    namespace = ""
    # /namespaces/x/pods is about pods; /namespaces/x is about the namespace itself.
    if len(parts) > 2 and parts[0] == "namespaces":  # noqa: PLR2004
        namespace, parts = parts[1], parts[2:]
    name = parts[1] if len(parts) > 1 else ""
    resource = "/".join((parts[0], *parts[2:])) if parts else ""
    verb = _verb(method, name, query) if resource else method.lower()
    return Access(verb, group, resource, namespace, name, path)


def _split(path: str) -> tuple[str, list[str]]:
    """The API group and what follows the version; nothing for other paths."""
    parts = path.strip("/").split("/")
    if parts[0] == "api":
        return "", parts[2:]
    if parts[0] == "apis" and len(parts) > 1:
        return parts[1], parts[3:]
    return "", []


def _verb(method: str, name: str, query: str) -> str:
    if method == "GET":
        if "watch=1" in query or "watch=true" in query:
            return "watch"
        return "get" if name else "list"
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    return _VERBS.get(method, method.lower())


def rbac_rule(access: Access) -> str:
    """The rule that grants `access`, in YAML flow style."""
    if not access.resource:
        return f'{{nonResourceURLs: ["{access.path}"], verbs: ["{access.verb}"]}}'
    return (
        f'{{apiGroups: ["{access.group}"], resources: ["{access.resource}"],'
        f' verbs: ["{access.verb}"]}}'
    )
