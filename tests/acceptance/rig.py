"""The machine of a run: the real one, or a fake driver on which the run is rehearsed.

What differs is here only: the agent's settings, who provokes a fault, what loads the GPU.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, Self

from testbed.fake_nvml import FakeNvml
from testbed.gpunode import Agent, GpuMachine
from tests.acceptance.pods import Pods
from tests.acceptance.receiver import Receiver


NODE: Final = "acceptance"
READY: Final = 6
"""Processes that wait with a context of their own, so that a fault does not wait for one."""
_PROCESS_SECONDS: Final = 60.0
_DEFAULTS: Final = {
    "pci_interval": "60s",
    "pci_confirm": "2s",
    "node_interval": "30s",
    "nvml_interval": "10s",
    "nvml_slow_interval": "60s",
    "nvml_timeout": "10s",
    "log_level": "debug",
}
QUICK: Final = {"nvml_interval": "1s", "nvml_slow_interval": "1s", "metrics_interval": "1s"}


class Fault(NamedTuple):
    """One provoked fault: when the kernel was launched and when the error came back."""

    pid: int
    kind: str
    launched: float
    returned: float
    error: str


class Rig(Protocol):
    """A machine with a GPU."""

    folder: Path
    env: Mapping[str, str]
    kmsg: Path
    tracefs: Path
    real: bool

    def agent(self, receiver: Receiver, pods: Pods, settings: Mapping[str, str]) -> Agent:
        """The real agent, not started."""

    def fault(self, kind: str, *, library: str = "") -> Fault:
        """Provoke one, now."""

    def load(self, kind: str) -> Load | None:
        """Load the GPU; None if that cannot be done here."""

    @property
    def boot_id(self) -> str:
        """Of the running kernel."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(self, *_: object) -> None:
        """End what was started."""


class Load:
    """A process that keeps the GPU busy."""

    def __init__(self, kind: str, pods: Pods) -> None:
        self._process = _start("tests.acceptance.load", kind)
        self.pid = self._process.pid
        pods.take(self.pid)
        _line(self._process, "ready")

    def stop(self) -> list[float]:
        """End it. What it achieved in each whole second."""
        out, _ = self._process.communicate("\n", timeout=_PROCESS_SECONDS)
        return [json.loads(line)["per_second"] for line in out.splitlines() if line]


class RealRig:
    """This machine."""

    env: Mapping[str, str]
    real = True
    kmsg = Path("/dev/kmsg")
    tracefs = Path("/sys/kernel/tracing")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {}
        self.pods: Pods | None = None
        self._waiting: dict[tuple[str, str], deque[subprocess.Popen[str]]] = {}

    @property
    def boot_id(self) -> str:
        """Of the running kernel."""
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()

    def __enter__(self) -> Self:
        """Nothing to begin with."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes that still wait."""
        for process in itertools.chain.from_iterable(self._waiting.values()):
            process.kill()
            process.wait()

    def agent(self, receiver: Receiver, pods: Pods, settings: Mapping[str, str]) -> Agent:
        """With everything of this machine."""
        return Agent(
            GpuMachine(_fresh(self.folder, "agent"), gpus=0),
            node=NODE,
            url=receiver.url,
            token="none",
            ca_file=receiver.ca_file,
            settings={
                **_DEFAULTS,
                "kernel_log": "auto",
                "kernel_log_path": "",
                "boot_id_path": "/proc/sys/kernel/random/boot_id",
                "sysfs_root": "/sys",
                "tracefs": str(self.tracefs),
                "nvml": "true",
                "kubelet_folder": str(pods.kubelet_folder) if not pods.trouble else "",
                "pod_log_folder": str(pods.log_folder),
                **settings,
            },
        )

    def prepare(self, kind: str, library: str = "", *, count: int = READY) -> None:
        """Let processes make their contexts, so that they wait for the word."""
        waiting = self._waiting.setdefault((kind, library), deque())
        while len(waiting) < count:
            waiting.append(_start("tests.acceptance.faulty", kind, library))
            if self.pods is not None:
                self.pods.take(waiting[-1].pid)

    def fault(self, kind: str, *, library: str = "") -> Fault:
        """Provoke one by a process of its own."""
        self.prepare(kind, library, count=1)
        process = self._waiting[kind, library].popleft()
        _line(process, "ready")
        out, _ = process.communicate("\n", timeout=_PROCESS_SECONDS)
        return Fault(**json.loads(out.splitlines()[-1]))

    def load(self, kind: str) -> Load | None:
        """A known load; without PyTorch only `spin`."""
        assert self.pods is not None
        try:
            return Load(kind, self.pods)
        except RuntimeError as error:
            (self.folder / f"load-{kind}.txt").write_text(str(error))
            return Load("spin", self.pods) if kind == "matmul" else None


class FakeRig:
    """A fake driver, a kernel log that is a file: rehearses the script, measures nothing real."""

    real = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machine = GpuMachine(_fresh(folder, "machine"), gpus=1)
        self.driver: FakeNvml = self.machine.install_driver()
        self.env = self.driver.env
        self.kmsg = self.machine.kernel_log
        self.tracefs = self.machine.tracefs
        self.pods: Pods | None = None
        self._pids = itertools.count(1000)

    @property
    def boot_id(self) -> str:
        """Of the fake machine."""
        return self.machine.boot_id

    def __enter__(self) -> Self:
        """Nothing to begin with."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""

    def agent(self, receiver: Receiver, pods: Pods, settings: Mapping[str, str]) -> Agent:
        """On the fake driver."""
        del pods
        return Agent(
            self.machine,
            node=NODE,
            url=receiver.url,
            token="none",
            ca_file=receiver.ca_file,
            settings={**_DEFAULTS, **settings},
            driver=self.driver,
        )

    def prepare(self, kind: str, library: str = "", *, count: int = READY) -> None:
        """Nothing has to be prepared."""

    def fault(self, kind: str, *, library: str = "") -> Fault:
        """The kernel's lines, and NVML's event 20 ms later."""
        del library
        pid, at = next(self._pids), time.monotonic()
        for code in {"unmapped": (31,), "misaligned": (13,), "both": (13, 31)}[kind]:
            self.machine.xid(code, "made up", pid=str(pid))
            time.sleep(0.02)
            self.driver.event(0, data=code)
        return Fault(pid, kind, at, time.monotonic(), "made up")

    def load(self, kind: str) -> Load | None:
        """There is nothing to load."""
        del kind
        return None


@contextmanager
def running(agent: Agent) -> Iterator[Agent]:
    """Start it, stop it, and keep its log."""
    try:
        agent.start(timeout=60)
        yield agent
    finally:
        agent.stop()
        agent.process.close()


def _fresh(folder: Path, name: str) -> Path:
    for number in itertools.count():
        path = folder / f"{name}-{number}"
        if not path.exists():
            path.mkdir(parents=True)
            return path
    raise AssertionError


def _start(module: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *(a for a in arguments if a)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )


def _line(process: subprocess.Popen[str], wanted: str) -> None:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if line != wanted:
        rest: tuple[Any, Any] = process.communicate(timeout=_PROCESS_SECONDS)
        raise RuntimeError(f"{process.args!r}: {line!r}\n{rest[1][-2000:]}")
