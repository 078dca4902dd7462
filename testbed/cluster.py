"""Nodes, pods and identities of one test on a control plane that many tests share.

Invariants: every node's name begins with the cluster's prefix and is gone after `close()`; the
two programs never run as administrator but with pod-bound tokens of their own service accounts,
as in a real cluster; a node's `Ready` condition is what the test set.

A node here is the API object that a GPU node's kubelet and device plugin would have made; there
is no kubelet behind it.
"""

import asyncio
import itertools
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from testbed import manifests, objects
from testbed.api import Api, ApiError, Json
from testbed.controlplane import ControlPlane


T = TypeVar("T")
_TOKEN_SECONDS = 3600
_POLL = 0.02  # seconds
PATIENCE = 60.0
"""Seconds until something that does not happen is an error, on however slow a machine."""
_OURS = {"app.kubernetes.io/part-of": "gpu-remediator"}
"""As in the manifests of `deploy/`: a drain leaves these pods where they are."""


class Cluster:
    """A namespace, a family of nodes, and tokens for both programs.

    Args:
        plane: a started control plane.
        namespace: where the service accounts, leases and ConfigMaps live; made if missing.
        prefix: begins the name of each node; unique on this server.
    """

    def __init__(
        self,
        plane: ControlPlane,
        *,
        namespace: str = manifests.SYSTEM_NAMESPACE,
        prefix: str = "gpu-",
    ) -> None:
        self.plane = plane
        self.api: Api = plane.api()
        self.namespace = namespace
        self.prefix = prefix
        self._numbers = itertools.count(1)
        self._elsewhere: list[Json] = []

    # -- installation ----------------------------------------------------------------------

    def install(self) -> None:
        """Apply the service accounts and roles of `deploy/` in this cluster's namespace."""
        self._elsewhere = manifests.install(self.api, self.namespace)

    def install_admission(self) -> None:
        """Apply the agent's admission policies and wait until they refuse what they must.

        Needs `install()`. Takes a second or two; also of use after a restart of the API server.
        """
        manifests.install_admission(self.api)
        self.wait_for_admission()

    def wait_for_admission(self, *, timeout: float = PATIENCE) -> None:
        """Return when both policies of the agent are active."""
        name = self.create_node()
        agent = self.api.with_token(self.agent_token(name))
        foreign = {"metadata": {"labels": {"probe": "true"}}}
        event = self.event_about("some-other-node")

        def refused() -> bool:
            return _refused(
                lambda: agent.patch(f"/api/v1/nodes/{name}/status", foreign, dryRun="All")
            ) and _refused(
                lambda: agent.create("/api/v1/namespaces/default/events", event, dryRun="All")
            )

        try:
            self.wait_for(refused, what="the agent's admission policies", timeout=timeout)
        finally:
            agent.close()
            self.delete_node(name)

    def close(self) -> None:
        """Delete the nodes with this prefix, this namespace's pods and the cluster-wide roles."""
        for name in self.pods():
            self.delete_pod(name)
        for name in self.nodes():
            self.delete_node(name)
        manifests.delete(self.api, self._elsewhere)
        self._elsewhere = []
        self.api.close()

    # -- identities ------------------------------------------------------------------------

    def agent_token(self, node: str | None) -> str:
        """A token of the node-agent on this node; of `None`, one that is bound to no node."""
        return self.token_for(manifests.AGENT_ACCOUNT, node=node)

    def controller_token(self) -> str:
        """A pod-bound token of the controller."""
        return self.token_for(manifests.CONTROLLER_ACCOUNT)

    def token_for(self, account: str, *, node: str | None = None, bound: bool = True) -> str:
        """A token of a service account of this namespace, bound to a pod made for it.

        Args:
            account: the service account's name.
            node: the pod's node; its name is then in the token, as the kubelet would have it.
            bound: False for a token that is bound to no pod at all.
        """
        spec: Json = {"expirationSeconds": _TOKEN_SECONDS}
        if bound:
            pod = self.create_pod(node=node, service_account=account, labels=_OURS)
            uid = self.pod(pod)["metadata"]["uid"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(self.api.create(path, body)["status"]["token"])

    def kubeconfig_for(self, token: str, *, url: str = "") -> Path:
        """A kubeconfig file with this token, in the control plane's folder.

        `url`: of a proxy that has the API server's certificate.
        """
        path = self.plane.folder / f"{uuid.uuid4().hex[:8]}.kubeconfig"
        return self.plane.kubeconfig(path, token=token, namespace=self.namespace, url=url)

    # -- nodes -----------------------------------------------------------------------------

    def create_node(
        self,
        name: str = "",
        *,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        boot_id: str = "",
        gpus: int = 8,
        ready: str = "True",
        spec: Json | None = None,
        extra_status: Json | None = None,
    ) -> str:
        """Create a GPU node and return its full name.

        Args:
            name: what follows the prefix; default is a running number.
            labels: added to those of a GPU node; an empty value removes one of them.
            annotations: of the new node.
            boot_id: `status.nodeInfo.bootID`; default is a new one.
            gpus: capacity and allocatable of `nvidia.com/gpu`.
            ready: status of the condition `Ready`: `True`, `False` or `Unknown`.
            spec: such as `{"unschedulable": True}`.
            extra_status: merged over the status, as images for a large node.
        """
        number = next(self._numbers)
        full = f"{self.prefix}{name or number}"
        body = objects.node(
            full,
            number=number,
            labels=labels or {},
            annotations=annotations or {},
            boot_id=boot_id,
            gpus=gpus,
            ready=ready,
            spec=spec or {},
            extra_status=extra_status or {},
        )
        self.api.create("/api/v1/nodes", body)
        return full

    def create_nodes(
        self,
        count: int,
        *,
        labels: Mapping[str, str] | None = None,
        extra_status: Json | None = None,
        threads: int = 8,
    ) -> list[str]:
        """Create many equal nodes, several at a time; about 500 a second on two cores."""

        def create(_: int) -> str:
            return self.create_node(labels=labels, extra_status=extra_status)

        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(create, range(count)))

    def node(self, name: str) -> Json:
        """The Node object now."""
        return self.api.get(f"/api/v1/nodes/{name}")

    def nodes(self) -> dict[str, Json]:
        """This cluster's Node objects by name."""
        return {
            item["metadata"]["name"]: item
            for item in self.api.get("/api/v1/nodes")["items"]
            if item["metadata"]["name"].startswith(self.prefix)
        }

    def patch_node(self, name: str, body: Json) -> Json:
        """Strategic-merge patch as administrator."""
        return self.api.patch(f"/api/v1/nodes/{name}", body)

    def patch_node_status(self, name: str, body: Json) -> Json:
        """Strategic-merge patch of the status subresource as administrator."""
        return self.api.patch(f"/api/v1/nodes/{name}/status", body)

    def delete_node(self, name: str) -> None:
        """Delete the Node object; no error if it is gone."""
        self.api.delete(f"/api/v1/nodes/{name}")

    def cordon(self, name: str, *, unschedulable: bool = True) -> Json:
        """Cordon as a person with `kubectl cordon` would."""
        return self.patch_node(name, {"spec": {"unschedulable": unschedulable or None}})

    def uncordon(self, name: str) -> Json:
        """Uncordon as a person with `kubectl uncordon` would."""
        return self.cordon(name, unschedulable=False)

    def is_unschedulable(self, name: str) -> bool:
        """Whether the node is cordoned now, by anyone."""
        return bool(self.node(name)["spec"].get("unschedulable"))

    def annotate(self, name: str, annotations: Mapping[str, str | None]) -> Json:
        """Set annotations as administrator; `None` removes one."""
        return self.patch_node(name, {"metadata": {"annotations": dict(annotations)}})

    def label(self, name: str, labels: Mapping[str, str | None]) -> Json:
        """Set labels as administrator; `None` removes one."""
        return self.patch_node(name, {"metadata": {"labels": dict(labels)}})

    def set_condition(
        self, name: str, kind: str, status: str, *, reason: str = "Test", message: str = ""
    ) -> Json:
        """Write one condition as administrator, with both times now."""
        condition = objects.condition(kind, status, reason=reason, message=message)
        return self.patch_node_status(name, {"status": {"conditions": [condition]}})

    def set_ready(self, name: str, status: str) -> Json:
        """Set `Ready` to `True`, `False` or `Unknown`; the node's taints follow by themselves."""
        return self.set_condition(name, "Ready", status, reason="KubeletTest")

    def set_boot_id(self, name: str, boot_id: str) -> Json:
        """Give the node another boot id, as after a reboot."""
        return self.patch_node_status(name, {"status": {"nodeInfo": {"bootID": boot_id}}})

    # -- pods, Events, versions ------------------------------------------------------------

    def create_pod(
        self,
        name: str = "",
        *,
        node: str | None = None,
        service_account: str = manifests.CONTROLLER_ACCOUNT,
        labels: Mapping[str, str] | None = None,
        owner: Json | None = None,
        running: bool = False,
        gpus: int = 0,
        grace: int = 0,
        annotations: Mapping[str, str] | None = None,
        extra_spec: Json | None = None,
    ) -> str:
        """Create a pod of this namespace, bound to `node` at once, and return its name.

        Args:
            name: default is a new one.
            node: None leaves it pending; there is no scheduler.
            service_account: default is the controller's, which exists after `install()`.
            labels: of the pod.
            owner: an entry of `ownerReferences`.
            running: report it Running and Ready, as its kubelet would.
            gpus: limit of `nvidia.com/gpu`.
            grace: seconds to end; with 0 it goes at once, without need of a kubelet.
            annotations: of the pod.
            extra_spec: merged over the spec, as volumes.
        """
        name = name or f"pod-{uuid.uuid4().hex[:8]}"
        pod = objects.pod(
            name,
            node=node,
            service_account=service_account,
            labels=labels or {},
            annotations=annotations or {},
            owner=owner,
            gpus=gpus,
            grace=grace,
            extra_spec=extra_spec or {},
        )
        self.api.create(f"/api/v1/namespaces/{self.namespace}/pods", pod)
        if running:
            ready = {"type": "Ready", "status": "True"}
            self.api.patch(
                f"/api/v1/namespaces/{self.namespace}/pods/{name}/status",
                {"status": {"phase": "Running", "conditions": [ready]}},
            )
        return name

    def pod(self, name: str) -> Json:
        """The Pod object now."""
        return self.api.get(f"/api/v1/namespaces/{self.namespace}/pods/{name}")

    def pods(self) -> dict[str, Json]:
        """The Pod objects of this namespace by name."""
        items = self.api.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return {item["metadata"]["name"]: item for item in items}

    def delete_pod(self, name: str) -> None:
        """Delete the pod at once; no error if it is gone."""
        self.api.delete(f"/api/v1/namespaces/{self.namespace}/pods/{name}")

    def configmap(self, name: str) -> dict[str, str] | None:
        """The data of a ConfigMap of this namespace; None if there is none."""
        try:
            found = self.api.get(f"/api/v1/namespaces/{self.namespace}/configmaps/{name}")
        except ApiError as error:
            if error.status == 404:  # noqa: PLR2004
                return None
            raise
        return dict(found.get("data", {}))

    def events(self, node: str) -> list[Json]:
        """The Events about this node."""
        selector = f"involvedObject.kind=Node,involvedObject.name={node}"
        found = self.api.get("/api/v1/namespaces/default/events", fieldSelector=selector)
        return list(found["items"])

    def event_about(self, node: str) -> Json:
        """A core/v1 Event about a node, as the agent would create it."""
        return objects.event_about(node)

    def resource_versions(self) -> dict[str, str]:
        """`resourceVersion` of each of this cluster's nodes and pods: equal means not written."""
        objects = {
            **{f"Node/{name}": item for name, item in self.nodes().items()},
            **{f"Pod/{name}": item for name, item in self.pods().items()},
        }
        return {key: str(item["metadata"]["resourceVersion"]) for key, item in objects.items()}

    def wait_for(self, found: Callable[[], T | None], *, what: str, timeout: float = PATIENCE) -> T:
        """Call `found` until its answer is true and return that.

        Raises:
            TimeoutError: names `what`, after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            answer = found()
            if answer:
                return answer
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {timeout:g} s")
            time.sleep(_POLL)

    async def eventually(
        self,
        found: Callable[[], T | None],
        *,
        what: str,
        timeout: float = PATIENCE,  # noqa: ASYNC109  # as in wait_for
    ) -> T:
        """`wait_for` for a test whose program under test runs on the same event loop.

        `found` runs in a thread, so a server that hangs does not stop the loop.
        """
        deadline = time.monotonic() + timeout
        while True:
            answer = await asyncio.to_thread(found)
            if answer:
                return answer
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {timeout:g} s")
            await asyncio.sleep(_POLL)


def _refused(request: Callable[[], object]) -> bool:
    try:
        request()
    except ApiError as error:
        if error.status in {403, 422}:
            return True
        raise
    return False
