"""KWOK (sigs.k8s.io/kwok): the kubelets of as many nodes as one asks for, without their machines.

Its nodes send the heartbeats that kubelets send, their pods run, those of Jobs complete, and
evicted pods end. What they do is in `kwok.stages.yaml`. It has an identity of its own, with the
rights of kubelets and no more, so that an audit log tells its writes from everyone else's.

Left out on purpose: the node leases. 5,000 kubelets renew theirs 500 times a second, which is
more than an API server, its clients and KWOK together can do on two cores; nothing here reads
them (see `controlplane._NODE_GRACE`).

    with ControlPlane() as plane, Kwok(plane):
        Cluster(plane).create_node(labels=LABEL)
"""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from testbed import manifests
from testbed.api import Json
from testbed.binaries import provide
from testbed.controlplane import ControlPlane, answers
from testbed.processes import Child, free_port


LABEL: Final[Mapping[str, str]] = {"kwok.x-k8s.io/node": "fake"}
"""Of the nodes that it manages."""
ENDS_AFTER: Final = "testbed.gpu-remediator.io/ends-after"
"""Annotation of a pod: how long its containers need to end, such as `250ms`; default a second.

Once the pod is deleted; that of a Job, once it runs.
"""
_STAGES: Final = Path(__file__).with_name("kwok.stages.yaml")
_START_TIMEOUT: Final = 60.0
_NAMESPACE: Final = "kube-system"
_RULES: Final[list[Json]] = [
    {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]},
    {
        "apiGroups": [""],
        "resources": ["nodes/status", "pods/status"],
        "verbs": ["patch"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]},
]


class Kwok:
    """One KWOK controller on a started control plane; a context manager.

    Args:
        plane: where.
        label: of the nodes that it manages.
    """

    def __init__(self, plane: ControlPlane, *, label: Mapping[str, str] = LABEL) -> None:
        self._plane = plane
        self._label = ",".join(f"{key}={value}" for key, value in label.items())
        self._child: Child | None = None

    def __enter__(self) -> Self:
        """Start it and wait until it watches.

        Raises:
            ServerFailedError: it did not start; with the end of its log.
            BinaryUnavailableError: it is missing and cannot be built.
        """
        folder = self._plane.folder / "kwok"
        folder.mkdir(exist_ok=True)
        kubeconfig = self._plane.kubeconfig(folder / "kubeconfig", token=self._identity())
        address = f"127.0.0.1:{free_port()}"
        argv = [
            str(provide("kwok")),
            f"--config={_STAGES}",
            f"--kubeconfig={kubeconfig}",
            f"--manage-nodes-with-label-selector={self._label}",
            "--manage-all-nodes=false",
            "--node-lease-duration-seconds=0",
            f"--server-address={address}",
        ]
        child = Child("kwok", argv, log=folder / "kwok.log")
        self._child = child
        child.start()
        try:
            child.wait_until(lambda: answers(f"http://{address}/healthz"), timeout=_START_TIMEOUT)
        except BaseException:
            child.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it; its nodes and pods stay as they are."""
        if self._child is not None:
            self._child.close()
            self._child = None

    @property
    def process(self) -> Child:
        """The process, for a look at its log or at what it costs."""
        if self._child is None:
            raise RuntimeError("KWOK is not started")
        return self._child

    def _identity(self) -> str:
        """A token of its own service account."""
        api = self._plane.api()
        try:
            manifests.apply(api, _documents())
            path = f"/api/v1/namespaces/{_NAMESPACE}/serviceaccounts/kwok/token"
            request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
            answer = api.create(path, {**request, "spec": {"expirationSeconds": 86_400}})
        finally:
            api.close()
        return str(answer["status"]["token"])


def _documents() -> list[Json]:
    account = {"kind": "ServiceAccount", "name": "kwok", "namespace": _NAMESPACE}
    rbac = "rbac.authorization.k8s.io"
    return [
        # The server makes this one itself, some time after it is ready.
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "kwok", "namespace": _NAMESPACE},
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "kwok"},
            "rules": _RULES,
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "kwok"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "kwok"},
            "subjects": [account],
        },
    ]
