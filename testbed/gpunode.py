"""A GPU machine made of files, and a node-agent that takes it for real.

The files are what an agent looks at: a kernel log, this boot's id, PCI devices in sysfs, the
service account's folder, the driver's tracepoints, and, with a `FakeNvml`, NVIDIA's library.
Break the machine by writing to them; `reboot()` does what a reboot does to them. The agent is
the real program, started as a process of its own with the identity that it would have in a pod.
"""

import contextlib
import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from node_agent.sources.tracepoint import EVENTS, INSTANCE
from testbed.fake_nvml import FakeNvml
from testbed.processes import Child, ServerFailedError


BANNER = "[    0.000000] Linux version 6.8.0-79-generic (build@host) (gcc 13) #79-Ubuntu SMP"
_VENDOR = "0x10de"
_GPU_CLASS = "0x030200"
_NVSWITCH_CLASS = "0x068000"
_CONFIG = bytes.fromhex("de103523") + bytes(60)
_GONE = b"\xff" * 64


class GpuMachine:
    """The files of one machine.

    Args:
        folder: where they are made.
        gpus: how many GPUs are on PCI.
        switches: how many NVSwitches.
    """

    def __init__(self, folder: Path, *, gpus: int = 8, switches: int = 0) -> None:
        self.folder = folder
        self.kernel_log = folder / "kern.log"
        self.boot_id_file = folder / "boot_id"
        self.sysfs = folder / "sys"
        self.state_file = folder / "state" / "node-agent.json"
        self.socket = folder / "agent.sock"
        self.kubelet = folder / "kubelet"
        self.tracefs = folder / "tracing"
        self._devices = self.sysfs / "bus" / "pci" / "devices"
        self._devices.mkdir(parents=True)
        self.gpus = [f"0000:{0x18 + 8 * number:02x}:00.0" for number in range(gpus)]
        self.switches = [f"0000:{number:02x}:00.0" for number in range(5, 5 + switches)]
        for pci in self.gpus:
            self.plug(pci)
        for pci in self.switches:
            self.plug(pci, device_class=_NVSWITCH_CLASS)
        self._booted = time.monotonic()
        self.reboot()

    @property
    def boot_id(self) -> str:
        """This boot's id."""
        return self.boot_id_file.read_text("ascii").strip()

    def reboot(self) -> str:
        """A new boot id, and the boot banner in the log. Returns the id."""
        self.boot_id_file.write_text(f"{uuid.uuid4()}\n", "ascii")
        self._booted = time.monotonic()
        self._append(BANNER + "\n")
        return self.boot_id

    def install_driver(self, *, model: str = "H200") -> FakeNvml:
        """NVIDIA's library, with a GPU for each one that is on PCI."""
        return FakeNvml(self.folder / "driver", model=model, gpus=len(self.gpus))

    def install_tracepoints(self, *names: str) -> Path:
        """The driver's tracepoints; write lines to the FIFO that is returned."""
        instance = self.tracefs / "instances" / INSTANCE
        for path in names or EVENTS:
            for folder in (self.tracefs, instance):
                (folder / "events" / path).mkdir(parents=True)
        os.mkfifo(instance / "trace_pipe")
        return instance / "trace_pipe"

    def log(self, *lines: str) -> None:
        """The kernel prints these lines, in one write."""
        stamp = time.monotonic() - self._booted
        self._append("".join(f"[{stamp:12.6f}] {line}\n" for line in lines))

    def xid(self, code: int, text: str, *, gpu: int = 0, pid: str = "'<unknown>'") -> None:
        """The driver reports an Xid of GPU number `gpu`."""
        self.log(xid_line(self.gpus[gpu], code, text, pid=pid))

    def fall_off_bus(self, gpu: int = 0) -> None:
        """Xid 79; the device stays listed and answers no more."""
        (self._devices / self.gpus[gpu] / "config").write_bytes(_GONE)
        self.xid(79, "GPU has fallen off the bus.", gpu=gpu)

    def unplug(self, pci: str) -> None:
        """The device is gone from PCI."""
        shutil.rmtree(self._devices / pci)

    def plug(self, pci: str, *, device_class: str = _GPU_CLASS) -> None:
        """The device is on PCI and answers."""
        device = self._devices / pci
        device.mkdir(exist_ok=True)
        (device / "vendor").write_text(f"{_VENDOR}\n", "ascii")
        (device / "class").write_text(f"{device_class}\n", "ascii")
        (device / "config").write_bytes(_CONFIG)

    def _append(self, text: str) -> None:
        with self.kernel_log.open("a", encoding="utf-8") as file:
            file.write(text)


def xid_line(pci: str, code: int, text: str, *, pid: str = "'<unknown>'") -> str:
    """The driver's line about an Xid, without the kernel's time."""
    return f"NVRM: Xid (PCI:{pci.rpartition('.')[0]}): {code}, pid={pid}, name=<unknown>, {text}"


class Agent:
    """The real node-agent on such a machine; a context manager, or `start()` and `stop()`.

    Args:
        machine: its files.
        node: name of the Node object.
        url: the API server.
        token: the agent's own, bound to a pod on this node.
        ca_file: what it has to trust.
        settings: more settings by name, as they are written in `NODE_AGENT_<NAME>`.
        driver: NVIDIA's library and driver of this machine; None: the agent does without.
        program: the module that is run, and its arguments before those of the agent.
    """

    def __init__(
        self,
        machine: GpuMachine,
        *,
        node: str,
        url: str,
        token: str,
        ca_file: Path,
        settings: Mapping[str, str] | None = None,
        driver: FakeNvml | None = None,
        program: Sequence[str] = ("node_agent.cli",),
    ) -> None:
        self.machine = machine
        self.account = machine.folder / "serviceaccount"
        self.account.mkdir(exist_ok=True)
        (self.account / "token").write_text(token, "ascii")
        shutil.copy(ca_file, self.account / "ca.crt")
        self._values = {
            "node_name": node,
            "kernel_log": "file",
            "kernel_log_path": str(machine.kernel_log),
            "boot_id_path": str(machine.boot_id_file),
            "sysfs_root": str(machine.sysfs),
            "state_file": str(machine.state_file),
            "socket": str(machine.socket),
            "service_account": str(self.account),
            "listen": "127.0.0.1:0",
            "pci_confirm": "50ms",
            "pci_interval": "1s",
            "node_interval": "500ms",
            "log_format": "json",
            "kubelet_folder": str(machine.kubelet),
            "tracefs": str(machine.tracefs),
            "nvml": "false",
            **(_of_driver(driver) if driver is not None else {}),
            **(settings or {}),
        }
        address = urlsplit(url)
        self._environ = {
            "KUBERNETES_SERVICE_HOST": address.hostname or "",
            "KUBERNETES_SERVICE_PORT": str(address.port),
            **(driver.env if driver is not None else {}),
        }
        # By flags, not by variables: `Child` hands on our own environment.
        argv = [sys.executable, "-m", *program, "run"]
        argv += [f"--{name.replace('_', '-')}={value}" for name, value in self._values.items()]
        env = [f"{name}={value}" for name, value in self._environ.items()]
        self._log_file = machine.folder / "agent.log"
        self.process = Child("node-agent", ["/usr/bin/env", *env, *argv], log=self._log_file)
        self._log_start = 0

    @property
    def log_text(self) -> str:
        """What the agent has logged since its last start."""
        if not self._log_file.exists():
            return ""
        return self._log_file.read_bytes()[self._log_start :].decode(errors="replace")

    @property
    def port(self) -> int:
        """Where `/metrics` is served."""
        found = re.search(r'"port": (\d+)', self.log_text)
        if found is None:
            raise ServerFailedError(f"the agent serves nothing yet:\n{self.process.log_tail()}")
        return int(found.group(1))

    def start(self, *, wait: bool = True, timeout: float = 60.0) -> Self:
        """Start it; return when its first full check stands on the Node (if `wait`)."""
        self._log_start = self._log_file.stat().st_size if self._log_file.exists() else 0
        self.process.start()
        if wait:
            self.process.wait_until(self.is_ready, timeout=timeout)
        return self

    def stop(self) -> None:
        """SIGTERM, and wait."""
        self.process.stop()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.stop(grace=0)

    def signal(self, number: signal.Signals) -> None:
        """Such as SIGSTOP."""
        self.process.signal(number)

    def __enter__(self) -> Self:
        """Start it and wait until it is ready."""
        try:
            return self.start()
        except BaseException:
            self.process.close()
            raise

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.stop()
        self.process.close()

    def is_ready(self) -> bool:
        """Whether `/readyz` says so."""
        with contextlib.suppress(OSError, ServerFailedError, http.client.HTTPException):
            return self.get("/readyz")[0] == 200  # noqa: PLR2004
        return False

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of one of its pages."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """Its samples, as `name{labels}` to value."""
        lines = self.get("/metrics")[1].splitlines()
        samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def set_healthy(self, before: str = "") -> subprocess.CompletedProcess[str]:
        """`node-agent set-healthy` beside the agent."""
        before_flag = [f"--before={before}"] if before else []
        return self.command("set-healthy", f"--socket={self.machine.socket}", *before_flag)

    def release(self, time: str) -> subprocess.CompletedProcess[str]:
        """`node-agent release` beside the agent."""
        return self.command("release", f"--socket={self.machine.socket}", time)

    def show(self, command: str, *options: str) -> subprocess.CompletedProcess[str]:
        """`node-agent check` or `faults` beside the agent, with its settings."""
        names = FAULTS_SETTINGS if command == "faults" else self._values.keys()
        flags = [f"--{name.replace('_', '-')}={self._values[name]}" for name in names]
        return self.command(command, *flags, *options)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Any command of the agent's, in its environment."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith("NODE_AGENT_")}
        return subprocess.run(
            [sys.executable, "-m", "node_agent.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**environ, **self._environ},
        )


FAULTS_SETTINGS = ("node_name", "service_account")


def _of_driver(driver: FakeNvml) -> dict[str, str]:
    return {
        "nvml": "true",
        "proc_root": str(driver.proc),
        "dev_root": str(driver.devices),
        "nvml_interval": "1s",
        "nvml_slow_interval": "1s",
        "nvml_timeout": "1s",
    }
