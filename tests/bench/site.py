"""A control plane, the installed manifests and a real controller process, for benchmarks."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from node_agent.contract import (
    FAULTS_ANNOTATION,
    ConditionStatus,
    ConditionType,
    Fault,
    FaultKind,
    Reason,
    Severity,
    encode_report,
    xid_reason,
)
from testbed.cluster import Cluster
from testbed.controlplane import ControlPlane
from testbed.manifests import install_crds
from testbed.processes import Child


API_VERSION: Final = "gpu-remediator.io/v1alpha1"
TYPES: Final = (
    ConditionType.XID_ERROR,
    ConditionType.RECOVERY_ACTION_REQUIRED,
    ConditionType.LOST,
    ConditionType.MEMORY_DEGRADED,
    ConditionType.INTERCONNECT_DEGRADED,
)
CORDON_ONLY: Final = {
    "mode": "Enforce",
    "when": [{"xid": {"codes": [79]}}],
    "limits": {
        "budget": {"maxUnavailable": "100%", "per": "cluster"},
        "rate": {"cordon": "1000000/1m"},
    },
    "steps": [{"cordon": {}}],
    "recover": {"when": "manual"},
}
"""A policy that cordons at Xid 79, as soon as the cluster's settings allow."""
NEVER_BINDING: Final = {
    "mode": "Enforce",
    "settling": "0s",
    "budgets": [
        {"maxUnavailable": "100%", "per": "pool"},
        {"maxUnavailable": "100%", "per": "zone"},
        {"maxUnavailable": "100%", "per": "cluster"},
    ],
    "rates": {"cordon": "1000000/1m"},
    "breaker": {"minNodes": 1000000, "percent": 100},
}
"""RemediatorConfig in which every guard runs and none ever holds anything."""


class Site:
    """A server with everything of `deploy/` on it; a context manager.

    Args:
        controllers: whether kube-controller-manager runs.
    """

    def __init__(self, *, controllers: bool = True) -> None:
        self.plane = ControlPlane(controllers=controllers)

    def __enter__(self) -> Self:
        self.plane.start()
        try:
            self.cluster = Cluster(self.plane, prefix="gpu-")
            self.cluster.install()
            self.cluster.install_admission()
            install_crds(self.cluster.api)
            self.controller_token = self.cluster.controller_token()
        except BaseException:
            self.plane.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cluster.api.close()
        self.plane.stop()

    @property
    def address(self) -> dict[str, Any]:
        """Arguments of `Wire` for the administrator."""
        return {
            "url": self.plane.url,
            "token": self.plane.admin_token,
            "ca_file": self.plane.ca_file,
        }

    def write(self, file: str, kind: str, spec: object, *, name: str = "bench") -> Path:
        """Write a file of ours into the control plane's folder."""
        path = self.plane.folder / file
        path.parent.mkdir(exist_ok=True)
        document = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}}
        path.write_text(json.dumps({**document, "spec": spec}), encoding="utf-8")
        return path

    def create_nodes(self, bodies: Sequence[dict[str, Any]]) -> None:
        """Create these nodes, several at a time."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda body: self.cluster.api.create("/api/v1/nodes", body), bodies))

    def delete_nodes(self, names: Sequence[str]) -> None:
        """Delete these nodes, several at a time."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(self.cluster.delete_node, names))


class Controller:
    """`remediator run` as a process, with the controller's own identity; a context manager.

    Args:
        site: where.
        policies: file or folder.
        config: RemediatorConfig file; None for the defaults.
        kubeconfig: None for one of the real server.
    """

    def __init__(
        self,
        site: Site,
        *,
        policies: Path,
        config: Path | None,
        kubeconfig: Path | None = None,
    ) -> None:
        folder = site.plane.folder
        kubeconfig = kubeconfig or site.cluster.kubeconfig_for(site.controller_token)
        self._log = folder / "controller.log"
        program = Path(sys.executable).with_name("remediator")
        argv = [str(program), "run", "--identity=bench"]
        argv += [f"--policies={policies}", f"--kubeconfig={kubeconfig}", "--listen=127.0.0.1:0"]
        argv += ["--log-format=json"]
        argv += [f"--config={config}"] if config is not None else []
        self.process = Child("remediator", argv, log=self._log)
        self._start_of_log = 0
        self.sync_seconds = 0.0

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        """What it logged since its last start."""
        return self._log.read_bytes()[self._start_of_log :].decode(errors="replace")

    def __enter__(self) -> Self:
        """Start it and wait until it leads."""
        self._start_of_log = self._log.stat().st_size if self._log.exists() else 0
        started = time.monotonic()
        self.process.start()
        try:
            self.process.wait_until(lambda: '"event": "synced"' in self.log, timeout=120)
            self.sync_seconds = time.monotonic() - started
            self.process.wait_until(lambda: '"policies_in_force"' in self.log, timeout=60)
        except BaseException:
            self.process.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()
        self.process.close()

    def problems(self) -> list[str]:
        """Lines of its log that tell of a bug."""
        return re.findall(r'^.*"(?:decision_failed|job_failed)".*$', self.log, re.MULTILINE)


def conditions(*, bad: bool, boot_id: str) -> tuple[list[dict[str, str]], str]:
    """What an agent says of Xid 79, or of a node that is well: its conditions, its annotation."""
    now = datetime.now(tz=UTC)
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    fault = Fault(
        kind=FaultKind.XID,
        severity=Severity.FATAL,
        first_seen=now,
        last_seen=now,
        times=(now,),
        pci="0000:9b:00.0",
        code=79,
        action="RESTART_BM",
        boot_id=boot_id,
        message="GPU has fallen off the bus.",
    )
    reasons = {
        ConditionType.XID_ERROR: xid_reason(FaultKind.XID, 79),
        ConditionType.LOST: str(Reason.FALLEN_OFF_BUS),
    }
    said = [
        {
            "type": str(kind),
            "status": str(ConditionStatus.TRUE if bad and kind in reasons else "False"),
            "reason": reasons[kind] if bad and kind in reasons else str(Reason.NO_FAULT),
            "message": "0000:9b:00.0: GPU has fallen off the bus"
            if bad and kind in reasons
            else "",
            "lastHeartbeatTime": stamp,
            "lastTransitionTime": stamp,
        }
        for kind in TYPES
    ]
    return said, encode_report((fault,) if bad else (), boot_id=boot_id)


def status_patch(*, bad: bool, boot_id: str) -> bytes:
    """The agent's patch of nodes/status."""
    said, report = conditions(bad=bad, boot_id=boot_id)
    return json.dumps(
        {"metadata": {"annotations": {FAULTS_ANNOTATION: report}}, "status": {"conditions": said}}
    ).encode()
