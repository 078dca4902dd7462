"""A controller on the real API server, in a thread of this process, on nodes of its own.

In a thread, so that a test can crash it after its n-th write; the same code that
``remediator run`` runs. Signals, exit codes and SIGSTOP are tested with real processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from node_agent.contract import (
    FAULTS_ANNOTATION,
    Fault,
    FaultKind,
    Severity,
    encode_report,
)
from remediator.app import Controller
from remediator.decide.session import HISTORY_ANNOTATION, SESSION_ANNOTATION
from remediator.kube.access import access_of
from remediator.kube.client import connect, load_config
from remediator.kube.errors import Unreachable
from remediator.policy.load import load_config as load_cluster
from remediator.settings import load_settings
from testbed.api import Json
from testbed.cluster import Cluster
from testbed.faultproxy import FaultProxy


from datetime import UTC, datetime, timedelta  # isort: skip


LABEL = "remediator-test"
WRITES = frozenset({"PATCH", "POST", "PUT", "DELETE"})


@dataclass
class Site:
    """A cluster with its policies: what an SRE has in front of them."""

    cluster: Cluster
    folder: Path
    token: str
    boots: dict[str, str] = field(default_factory=dict)

    @property
    def policies(self) -> Path:
        return self.folder / "policies"

    def config(self, mode: str = "Enforce", **spec: Any) -> None:
        """Write RemediatorConfig: only this test's nodes, guards that do not bind."""
        document = {
            "apiVersion": "gpu-remediator.io/v1alpha1",
            "kind": "RemediatorConfig",
            "spec": {
                "mode": mode,
                "gpuNodes": {"matchLabels": {LABEL: self.cluster.namespace}},
                "settling": "0s",
                "budgets": [{"maxUnavailable": "100%", "per": "cluster"}],
                "rates": {"cordon": "1000/1s", "drain": "1000/1s", "job": "1000/1s"},
                "breaker": {"minNodes": 1000},
                **spec,
            },
        }
        (self.folder / "config.yaml").write_text(json.dumps(document), encoding="utf-8")

    def policy(self, name: str = "xid-79", mode: str = "Enforce", **spec: Any) -> None:
        """Write a policy; by default it cordons for Xid 79 and recovers at once."""
        document = {
            "apiVersion": "gpu-remediator.io/v1alpha1",
            "kind": "RemediationPolicy",
            "metadata": {"name": name},
            "spec": {
                "mode": mode,
                "when": [{"xid": {"codes": [79]}}],
                "steps": [{"cordon": {}}],
                "recover": {"for": "0s"},
                **spec,
            },
        }
        self.policies.mkdir(exist_ok=True)
        (self.policies / f"{name}.yaml").write_text(json.dumps(document), encoding="utf-8")

    def node(self, name: str = "", **options: Any) -> str:
        boot = str(uuid.uuid4())
        labels = {LABEL: self.cluster.namespace, **options.pop("labels", {})}
        full = self.cluster.create_node(name, labels=labels, boot_id=boot, **options)
        self.boots[full] = boot
        return full

    def says(self, node: str, *codes: int, status: str = "", ago: float = 0.0) -> None:
        """Report these Xids as the agent would, in its one patch; none: all is well.

        ``ago``: so many seconds ago.
        """
        now = datetime.now(tz=UTC) - timedelta(seconds=ago)
        boot = self.boots[node]
        faults = tuple(
            Fault(
                kind=FaultKind.XID,
                severity=Severity.FATAL,
                first_seen=now,
                last_seen=now,
                pci="0000:9b:00.0",
                code=code,
                boot_id=boot,
            )
            for code in codes
        )
        status = status or ("True" if codes else "False")
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            "type": "GPUXidError",
            "status": status,
            "reason": f"Xid{codes[0]}" if codes else "NoFault",
            "message": uuid.uuid4().hex[:8],
            "lastHeartbeatTime": stamp,
            "lastTransitionTime": stamp,
        }
        self.cluster.patch_node_status(
            node,
            {
                "metadata": {
                    "annotations": {FAULTS_ANNOTATION: encode_report(faults, boot_id=boot)}
                },
                "status": {"conditions": [condition]},
            },
        )

    def replica(self, **options: Any) -> Replica:
        """A controller that is not started yet, and that the caller stops."""
        return Replica(self, **options)

    def session(self, node: str) -> Json | None:
        text = self.cluster.node(node)["metadata"].get("annotations", {}).get(SESSION_ANNOTATION)
        return None if text is None else dict(json.loads(text))

    def overdue(self, node: str) -> None:
        """Have the work of its session begun a day ago: its deadline passes at once."""
        session = self.session(node)
        assert session is not None
        for hold in session["holds"]:
            if "workSince" in hold:
                hold["workSince"] -= 86400.0
        self.cluster.annotate(node, {SESSION_ANNOTATION: json.dumps(session)})

    def history(self, node: str) -> Json:
        text = self.cluster.node(node)["metadata"].get("annotations", {}).get(HISTORY_ANNOTATION)
        return {} if text is None else dict(json.loads(text))

    def cordoned(self, node: str) -> bool:
        return self.cluster.is_unschedulable(node)

    def wait(self, found: Callable[[], Any], what: str) -> Any:
        return self.cluster.wait_for(found, what=what)

    def status(self) -> Json:
        data = self.cluster.configmap("gpu-remediator-status")
        return {} if data is None else dict(json.loads(data["status.json"]))

    def status_of(self, node: str) -> Json | None:
        return next((one for one in self.status().get("nodes", []) if one["node"] == node), None)

    def events(self, node: str) -> list[str]:
        """Reasons of the controller's own Events about this node."""
        return [
            one["reason"]
            for one in self.cluster.events(node)
            if one.get("source", {}).get("component") == "gpu-remediator"
        ]

    def writes_to(self, node: str) -> list[Json]:
        """The controller's writes to this node that the API server answered with success."""
        return [one for one in self.attempts_on(node) if one["responseStatus"]["code"] < 300]

    def attempts_on(self, node: str) -> list[Json]:
        """All of the controller's writes to this node, however they were answered."""
        account = f"system:serviceaccount:{self.cluster.namespace}:gpu-remediator"
        return [
            entry
            for entry in self.cluster.plane.audit_entries()
            if entry["user"]["username"] == account
            and entry.get("objectRef", {}).get("resource") == "nodes"
            and entry["objectRef"].get("name") == node
            and "subresource" not in entry["objectRef"]
            and "responseStatus" in entry
        ]


class Replica:
    """One controller in a thread.

    Args:
        site: what it works on.
        identity: in the Lease; the same one takes over from itself without waiting.
        crash_after: die after this many writes to the API server, Lease not counted.
        crash_on: die after the first of them with this text in its body.
        server: another address, such as a proxy's.
    """

    def __init__(
        self,
        site: Site,
        *,
        identity: str = "one",
        crash_after: int | None = None,
        crash_on: bytes = b"",
        server: str | None = None,
        **settings: str,
    ) -> None:
        self.crashed = threading.Event()
        self.leading = threading.Event()
        self.writes: list[str] = []
        self.error: BaseException | None = None
        self._site = site
        self._crash_after = crash_after
        self._crash_on = crash_on
        self._mortal = crash_after is not None or bool(crash_on)
        self._server = server
        self._settings = load_settings(
            {
                "policies": str(site.policies),
                "config": str(site.folder / "config.yaml"),
                "kubeconfig": str(site.cluster.kubeconfig_for(site.token)),
                "namespace": site.cluster.namespace,
                "listen": "127.0.0.1:0",
                "identity": identity,
                "lease_duration": "2m",  # however slow the machine, nobody loses the lease
                "renew_deadline": "1m",
                "retry_period": "500ms",
                **settings,
            }
        )
        self._dead = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)

    @property
    def port(self) -> int:
        return self.controller.port

    def start(self) -> Replica:
        self._thread.start()
        self._ready.wait(60)
        return self

    def stop(self, timeout: float = 60.0) -> None:
        """End in order, as SIGTERM does."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
        self.join(timeout)

    def join(self, timeout: float = 60.0) -> None:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the controller did not end"

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.error = error
        finally:
            self._ready.set()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        config = await load_config(kubeconfig=self._settings.kubeconfig)
        if self._server is not None:
            config.server = self._server
        cluster = load_cluster(Path(self._settings.config))
        self.controller = controller = Controller(
            settings=self._settings, cluster=cluster, config=config, connect=self._connect
        )
        self._ready.set()
        if not self._mortal:
            await controller.run(self._stop)
            return
        self._death = asyncio.Event()
        work = asyncio.create_task(controller.run(self._stop))
        death = asyncio.create_task(self._death.wait())
        await asyncio.wait({work, death}, return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        death.cancel()
        await asyncio.wait({work})
        if not work.cancelled() and work.exception() is not None and not self._dead:
            raise work.exception()  # type: ignore[misc]

    @contextlib.asynccontextmanager
    async def _connect(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        async with connect(*args, **options) as api:
            if self._mortal:
                self._spy(api)
            yield api

    def _spy(self, api: Any) -> None:
        """Let this process "die" right after a write was answered by the server."""
        send = api.request

        async def request(method: str, target: str, *args: Any, **options: Any) -> bytes:
            if self._dead:
                raise Unreachable(access_of(method, target))
            answer: bytes = await send(method, target, *args, **options)
            if method in WRITES and "/leases" not in target:
                self.writes.append(f"{method} {target}")
                dies = self._crash_on and any(
                    isinstance(one, bytes) and self._crash_on in one for one in args
                )
                if dies or len(self.writes) == self._crash_after:
                    self._dead = True
                    self.crashed.set()
                    self._death.set()
                    await asyncio.Event().wait()
            return answer

        api.request = request


class Succession:
    """A controller that dies right after its n-th write, and the one that then goes on."""

    def __init__(self, site: Site, run: Callable[..., Replica], writes: int) -> None:
        self._site = site
        self._run = run
        self._mortal = run(crash_after=writes)
        self._heirs: list[Replica] = []

    @property
    def crashed(self) -> bool:
        return self._mortal.crashed.is_set()

    def reach(self, goal: Callable[[], bool], what: str, node: str, *codes: int) -> None:
        """Wait, while the node's agent sends heartbeats and a dead controller is replaced."""

        def look() -> bool:
            if self.crashed and not self._heirs:
                self._mortal.join()
                self._heirs.append(self._run())
            self._site.says(node, *codes)
            return goal()

        self._site.wait(look, what)


@pytest.fixture
def site_on(tmp_path: Path) -> Callable[[Cluster], Site]:
    """Make a site on any cluster: Enforce mode and one policy for Xid 79; no node yet."""

    def make(cluster: Cluster) -> Site:
        made = Site(cluster, tmp_path, cluster.controller_token())
        made.config()
        made.policy()
        return made

    return make


@pytest.fixture
def site(cluster: Cluster, site_on: Callable[[Cluster], Site]) -> Site:
    """A site on the shared server."""
    return site_on(cluster)


@pytest.fixture
def proxy(site: Site) -> Iterator[FaultProxy]:
    """A proxy before the shared server."""
    with proxy_of(site.cluster) as made:
        yield made


@contextlib.contextmanager
def proxy_of(cluster: Cluster) -> Iterator[FaultProxy]:
    """A proxy before a cluster's server, on an event loop of its own."""
    made = FaultProxy(cluster.plane.url, ca_file=cluster.plane.ca_file)
    opened, loops = threading.Event(), list[asyncio.AbstractEventLoop]()
    end = asyncio.Event()

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with made:
            opened.set()
            await end.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert opened.wait(10)
    try:
        yield made
    finally:
        loops[0].call_soon_threadsafe(end.set)
        thread.join(10)


@pytest.fixture
def run(site: Site) -> Iterator[Callable[..., Replica]]:
    """Start replicas; those that still run are stopped in the end."""
    replicas: list[Replica] = []

    def start(**options: Any) -> Replica:
        replicas.append(Replica(site, **options).start())
        return replicas[-1]

    yield start
    for replica in replicas:
        replica.stop()
    broken = [replica.error for replica in replicas if replica.error is not None]
    assert not broken, broken


@pytest.fixture
def succession(site: Site, run: Callable[..., Replica]) -> Callable[[int], Succession]:
    """Start a controller that dies after so many writes.

    How many writes a session takes is not fixed (records are merged, conflicts come again), but
    each takes two at least: a test goes on with further nodes until the crash has come.
    """
    return lambda writes: Succession(site, run, writes)
