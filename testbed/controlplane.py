"""etcd, kube-apiserver and kube-controller-manager as one object, on 127.0.0.1 only.

Invariants: every port is chosen at start, every file lies in one temporary folder, RBAC is on,
every server ends with this process, however that ends. Nodes have no kubelet here, so nothing
but the test changes a node's `Ready` condition (see `_NODE_GRACE`).

    with ControlPlane() as plane:
        Api(plane.url, token=plane.admin_token, ca_file=plane.ca_file).get("/api/v1/nodes")
"""

import json
import secrets
import shutil
import signal
import ssl
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from testbed.api import Api, Json
from testbed.binaries import provide
from testbed.processes import Child, ServerFailedError, free_port


_START_ATTEMPTS = 4
_START_TIMEOUT = 60.0  # seconds; takes about 3 on an idle machine
# The controllers that a remediation meets: PodDisruptionBudget status, default service accounts,
# the taints of cordoned and unready nodes and what those evict, replacement pods; and the type
# check of admission policies.
_CONTROLLERS = (
    "disruption-controller",
    "serviceaccount-controller",
    "replicaset-controller",
    "deployment-controller",
    "garbage-collector-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "taint-eviction-controller",
    "validatingadmissionpolicy-status-controller",
)
# A node without a kubelet sends no heartbeat and would turn NotReady, Unknown and be tainted
# after 50 s. With this grace it stays as the test left it, and still gets the taints that belong
# to the `Ready` status that a test sets.
_NODE_GRACE = "24h"
_AUDIT_POLICY: Json = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Request", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        {"level": "None"},
    ],
}


class ControlPlane:
    """A Kubernetes control plane; a context manager, or `start()` and `stop()`.

    Args:
        audit: write every changing request with its body to a log; see `audit_entries()`.
        apiserver_args: more flags for kube-apiserver, such as a short `--min-request-timeout`.
        controllers: whether kube-controller-manager runs.
        more_controllers: of kube-controller-manager, beside `_CONTROLLERS`.
        keep: keep the folder at the end, for a look at the logs.
    """

    def __init__(
        self,
        *,
        audit: bool = False,
        apiserver_args: Sequence[str] = (),
        controllers: bool = True,
        more_controllers: Sequence[str] = (),
        keep: bool = False,
    ) -> None:
        self.admin_token = secrets.token_urlsafe(24)
        self._audit = audit
        self._apiserver_args = list(apiserver_args)
        self._controllers = (*_CONTROLLERS, *more_controllers) if controllers else ()
        self._keep = keep
        self._folder: Path | None = None
        self._port = 0
        self._children: dict[str, Child] = {}
        self._former_sigterm: Any = None

    # -- what a client needs ---------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """Where all files of this control plane lie."""
        if self._folder is None:
            raise ServerFailedError("the control plane is not started")
        return self._folder

    @property
    def url(self) -> str:
        """The API server's address; the same after `start_apiserver()`."""
        return f"https://127.0.0.1:{self._port}"

    @property
    def ca_file(self) -> Path:
        """The certificate that clients have to trust (self-signed, new with each start)."""
        return self.folder / "certs" / "apiserver.crt"

    def api(self, *, token: str | None = None) -> Api:
        """A client with this token; without one, with the administrator's."""
        return Api(self.url, token=token or self.admin_token, ca_file=self.ca_file)

    def kubeconfig(
        self, path: Path, *, token: str | None = None, namespace: str = "", url: str = ""
    ) -> Path:
        """Write a kubeconfig for this token (default: the administrator) and return its path."""
        cluster = {"server": url or self.url, "certificate-authority": str(self.ca_file)}
        context = {"cluster": "testbed", "user": "testbed"}
        if namespace:
            context["namespace"] = namespace
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "testbed",
            "clusters": [{"name": "testbed", "cluster": cluster}],
            "users": [{"name": "testbed", "user": {"token": token or self.admin_token}}],
            "contexts": [{"name": "testbed", "context": context}],
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(document, indent=2), encoding="utf-8")  # JSON is YAML
        return path

    def audit_entries(self) -> list[Json]:
        """The audit log so far, oldest first. Needs `audit=True`."""
        lines = (self.folder / "audit.log").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    # -- life ------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Start; see `start()`."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop; see `stop()`."""
        self.stop()

    def start(self) -> Self:
        """Start all servers and return when the API server is ready.

        Raises:
            ServerFailedError: with the end of the failing server's log.
            BinaryUnavailableError: a program is missing and cannot be built.
        """
        self._exit_on_sigterm()
        for attempt in range(1, _START_ATTEMPTS + 1):
            self._folder = Path(tempfile.mkdtemp(prefix="gpu-remediator-"))
            try:
                self._start_servers()
            except ServerFailedError as error:
                # Someone else took a port between our choice and the server's bind.
                if "address already in use" in str(error) and attempt < _START_ATTEMPTS:
                    self._end_servers()
                    shutil.rmtree(self.folder, ignore_errors=True)
                    continue
                self._keep = True
                folder = self.folder
                self.stop()
                raise ServerFailedError(f"{error}\n(logs are kept in {folder})") from error
            except BaseException:
                self.stop()
                raise
            break
        return self

    def stop(self) -> None:
        """End every server and remove the folder. Does nothing if nothing runs."""
        self._end_servers()
        if self._folder is not None:
            unwanted = self._folder / "etcd" if self._keep else self._folder
            shutil.rmtree(unwanted, ignore_errors=True)
            self._folder = None
        if self._former_sigterm is not None:
            signal.signal(signal.SIGTERM, self._former_sigterm)
            self._former_sigterm = None

    def stop_apiserver(self, *, grace: float = 10.0) -> None:
        """End kube-apiserver and leave etcd; a grace of 0 is a crash."""
        self._children["kube-apiserver"].stop(grace=grace)

    def start_apiserver(self) -> None:
        """Start kube-apiserver again: same port, certificate and data."""
        self._children["kube-apiserver"].start()
        self._wait_for_apiserver()

    def pause_apiserver(self) -> None:
        """Let kube-apiserver hang: connections stay open, nothing is answered."""
        self._children["kube-apiserver"].signal(signal.SIGSTOP)

    def resume_apiserver(self) -> None:
        """End a `pause_apiserver()`."""
        self._children["kube-apiserver"].signal(signal.SIGCONT)

    def log_tail(self, name: str = "kube-apiserver") -> str:
        """The end of a server's log."""
        return self._children[name].log_tail()

    # -- the servers -----------------------------------------------------------------------

    def _start_servers(self) -> None:
        programs = {name: str(provide(name)) for name in ("etcd", "kube-apiserver")}
        if self._controllers:
            programs["kube-controller-manager"] = str(provide("kube-controller-manager"))
        etcd_url = self._start_etcd(programs["etcd"])
        self._port = free_port()
        self._write_credentials()
        self._spawn("kube-apiserver", [programs["kube-apiserver"], *self._apiserver(etcd_url)])
        self._wait_for_apiserver()
        if self._controllers:
            kubeconfig = self.kubeconfig(self.folder / "admin.kubeconfig")
            argv = [
                programs["kube-controller-manager"],
                *_controller_manager(kubeconfig, self._controllers),
            ]
            self._spawn("kube-controller-manager", argv)

    def _start_etcd(self, program: str) -> str:
        client = f"http://127.0.0.1:{free_port()}"
        peer = f"http://127.0.0.1:{free_port()}"
        argv = [program, "--data-dir", str(self.folder / "etcd")]
        argv += ["--listen-client-urls", client, "--advertise-client-urls", client]
        argv += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        argv += ["--initial-cluster", f"default={peer}", "--unsafe-no-fsync"]
        child = self._spawn("etcd", argv)
        child.wait_until(lambda: answers(f"{client}/health"), timeout=_START_TIMEOUT)
        return client

    def _apiserver(self, etcd_url: str) -> list[str]:
        folder = self.folder
        arguments = [
            f"--etcd-servers={etcd_url}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={folder / 'certs'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            # One file for both: the server derives the public key from the private one.
            f"--service-account-key-file={folder / 'service-accounts.key'}",
            f"--service-account-signing-key-file={folder / 'service-accounts.key'}",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            # It taints a new node until the lifecycle controller has seen it Ready: a write
            # at an unknown time, while tests compare resourceVersions.
            "--disable-admission-plugins=TaintNodesByCondition",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--allow-privileged",
        ]
        if self._audit:
            policy = folder / "audit-policy.json"
            policy.write_text(json.dumps(_AUDIT_POLICY), encoding="utf-8")
            (folder / "audit.log").touch()
            arguments += [f"--audit-policy-file={policy}"]
            arguments += [f"--audit-log-path={folder / 'audit.log'}", "--audit-log-mode=blocking"]
            arguments += ["--audit-log-maxsize=10000"]  # MB: tests read it whole
        return [*arguments, *self._apiserver_args]

    def _write_credentials(self) -> None:
        key = self.folder / "service-accounts.key"
        key.write_text(_new_private_key(), encoding="ascii")
        tokens = self.folder / "tokens.csv"
        tokens.write_text(f'{self.admin_token},admin,admin,"system:masters"\n', encoding="ascii")

    def _spawn(self, name: str, argv: Sequence[str]) -> Child:
        child = Child(name, argv, log=self.folder / f"{name}.log")
        self._children[name] = child
        child.start()
        return child

    def _wait_for_apiserver(self) -> None:
        child = self._children["kube-apiserver"]
        child.wait_until(self.ca_file.exists, timeout=_START_TIMEOUT)
        child.wait_until(self._is_ready, timeout=_START_TIMEOUT)

    def _is_ready(self) -> bool:
        try:
            context = ssl.create_default_context(cafile=str(self.ca_file))
        except ssl.SSLError:  # the certificate is being written
            return False
        return answers(f"{self.url}/readyz", token=self.admin_token, context=context)

    def _end_servers(self) -> None:
        for child in reversed(self._children.values()):
            child.close()
        self._children.clear()

    def _exit_on_sigterm(self) -> None:
        """Make SIGTERM unwind the stack, so that the folder goes too; a handler is left alone.

        The servers end without it (see `processes`).
        """
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._former_sigterm = signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _controller_manager(kubeconfig: Path, controllers: Sequence[str]) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        f"--controllers={','.join(controllers)}",
        f"--node-monitor-grace-period={_NODE_GRACE}",
    ]


def _new_private_key() -> str:
    """A new ECDSA P-256 key as PEM, without need of openssl or a package.

    RFC 5915 lets the public half be absent; Go computes it. Only the private number varies, so
    the rest of the encoding is constant.
    """
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    number = secrets.randbelow(order - 1) + 1
    head, curve = bytes.fromhex("30310201010420"), bytes.fromhex("a00a06082a8648ce3d030107")
    der = head + number.to_bytes(32, "big") + curve
    return ssl.DER_cert_to_PEM_cert(der).replace("CERTIFICATE", "EC PRIVATE KEY")


def answers(url: str, *, token: str = "", context: ssl.SSLContext | None = None) -> bool:
    """Whether a server answers this GET, and not with an error."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  # own server
    try:
        with urllib.request.urlopen(request, timeout=2, context=context):  # noqa: S310
            return True
    except OSError:  # refused, reset, time-out, an HTTP error, a certificate not yet ours
        return False
