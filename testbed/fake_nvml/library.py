"""Builds the fake library once, and the handle by which a test speaks for the driver."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from testbed.fake_nvml.models import MIB, MODELS, identity


NO_ID: Final = 0xFFFFFFFF
"""What NVML gives as an instance id when an event concerns the whole GPU."""
_SOURCE: Final = Path(__file__).with_name("nvml.c")
_FLAGS: Final = (
    *("-std=gnu11", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"),
    *("-fvisibility=hidden", "-pthread", "-Wl,-soname,libnvidia-ml.so.1"),
)


class CompilerMissingError(Exception):
    """There is no C compiler; the message says what to install."""


def build() -> Path:
    """Compile the library into the cache, unless it is there. Returns its folder.

    Raises:
        CompilerMissingError: no `gcc` on PATH.
    """
    tag = hashlib.sha256(_SOURCE.read_bytes() + repr(_FLAGS).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-remediator"
    folder = cache / f"fake-nvml-{tag}"
    if (folder / "libnvidia-ml.so.1").exists():
        return folder
    compiler = shutil.which("gcc")
    if compiler is None:
        raise CompilerMissingError("the fake libnvidia-ml.so.1 needs gcc: install it")
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"draft-{os.getpid()}"
    subprocess.run([compiler, *_FLAGS, "-o", str(draft), str(_SOURCE)], check=True)
    draft.rename(folder / "libnvidia-ml.so.1")
    return folder


class FakeNvml:
    """A driver and its GPUs, made of one script file. Changes work at once.

    Args:
        folder: where the script is written; it is made.
        model: a key of `testbed.fake_nvml.models.MODELS`, for all GPUs.
        gpus: how many there are.
    """

    def __init__(self, folder: Path, *, model: str = "H200", gpus: int = 2) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.library = build()
        self.script = folder / "nvml.script"
        self.events = folder / "nvml.script.events"
        self.shutdown_log = folder / "nvml.shutdowns"
        self.proc = folder / "proc"
        self.devices = folder / "dev"
        self._keys: dict[str, object] = {
            "driver_version": "580.159.04",
            "nvml_version": "13.580.159.04",
            "cuda": 13000,
            "gpus": 0,
        }
        self.events.touch()
        self.devices.mkdir(exist_ok=True)
        (self.devices / "nvidiactl").touch()
        for _ in range(gpus):
            self.add_gpu(model)

    @property
    def env(self) -> Mapping[str, str]:
        """What a process needs in its environment to meet this driver."""
        return {
            "LD_LIBRARY_PATH": str(self.library),
            "FAKE_NVML_SCRIPT": str(self.script),
            "FAKE_NVML_SHUTDOWN_LOG": str(self.shutdown_log),
        }

    @property
    def shutdowns(self) -> int:
        """How often a process has closed its handles properly."""
        return len(self.shutdown_log.read_text().splitlines()) if self.shutdown_log.exists() else 0

    def uuid(self, gpu: int) -> str:
        """The UUID of a GPU, by its index."""
        return str(self._keys[f"{gpu}.uuid"])

    def set(self, gpu: int | None = None, /, **values: object) -> None:
        """Set keys of one GPU, or of the driver when `gpu` is None; None removes a key."""
        prefix = "" if gpu is None else f"{gpu}."
        for name, value in values.items():
            self._put(prefix + name, value)
        self._write()

    def field(self, gpu: int, number: int, value: object, *, scope: int = 0) -> None:
        """Set what field id `number` answers: a number, `type:number`, `err:code`, or None."""
        self._put(f"{gpu}.f{number}" + (f".{scope}" if scope else ""), value)
        self._write()

    def fail(self, function: str, code: int | None, *, gpu: int | None = None) -> None:
        """Let an NVML function return `code` from now on; None lets it work again."""
        self._put(_scoped(gpu, f"ret.{function}"), code)
        self._write()

    def hang(self, function: str, *, gpu: int | None = None, hangs: bool = True) -> None:
        """Let an NVML function not return, until called with `hangs` False."""
        self._put(_scoped(gpu, f"hang.{function}"), 1 if hangs else None)
        self._write()

    def lose(self, gpu: int, *, lost: bool = True) -> None:
        """The GPU falls off the bus (every call answers GPU_IS_LOST), or comes back."""
        self.set(gpu, lost=1 if lost else None)

    def event(
        self, gpu: int, *, bits: int = 0x8, data: int = 0, gi: int = NO_ID, ci: int = NO_ID
    ) -> None:
        """The driver reports an event; with the defaults, an Xid whose code is `data`."""
        with self.events.open("a", encoding="ascii") as file:
            file.write(f"{gpu} {bits:x} {data} {gi} {ci}\n")

    def add_gpu(self, model: str = "H200") -> int:
        """One more GPU is bound to the driver. Returns its index."""
        gpu = int(str(self._keys["gpus"]))
        for name, value in (*MODELS[model].items(), *identity(gpu).items()):
            self._put(f"{gpu}.{name}", value)
        self._put("gpus", gpu + 1)
        self._bound(gpu).mkdir(parents=True)
        self._write()
        return gpu

    def remove_gpu(self) -> None:
        """The GPU with the highest index is unbound from the driver."""
        gpu = int(str(self._keys["gpus"])) - 1
        self._bound(gpu).rmdir()
        self._put("gpus", gpu)
        self._write()

    def set_mig(self, gpu: int, *instances: tuple[int, int, str]) -> None:
        """Partition a GPU into `(gi, ci, profile)`; without any, MIG is switched off."""
        for key in [key for key in self._keys if key.startswith((f"{gpu}.mig", f"{gpu}.gi"))]:
            del self._keys[key]
        on = 1 if instances else 0
        self._put(f"{gpu}.mig_current", on)
        self._put(f"{gpu}.mig_pending", on)
        for number, (gi, ci, profile) in enumerate(instances):
            prefix = f"{gpu}.mig{number}"
            self._put(f"{prefix}.uuid", f"MIG-{gpu:08x}-{gi:04x}-{ci:04x}-0000-ca20a423fd21")
            self._put(f"{prefix}.gi", gi)
            self._put(f"{prefix}.ci", ci)
            self._put(f"{prefix}.name", f"{self._keys[f'{gpu}.name']} MIG {profile}")
            self._share(gpu, number, gi, profile)
        self._write()

    def _share(self, gpu: int, number: int, gi: int, profile: str) -> None:
        """What an instance has of its own: memory, and activity where there is GPM."""
        gigabytes = re.search(r"\.(\d+)gb", profile)
        total = int(gigabytes[1]) * 1024 if gigabytes else 1024
        for name, mebibytes in (("total", total), ("used", 16), ("reserved", 8)):
            self._put(f"{gpu}.mig{number}.fb_{name}", mebibytes * MIB)
        for key, value in list(self._keys.items()):
            if re.fullmatch(rf"{gpu}\.gpm\d+", key):
                self._put(f"{gpu}.gi{gi}.{key.partition('.')[2]}", value)

    def process(
        self,
        gpu: int,
        *,
        pid: int,
        memory: int,
        kind: str = "compute",
        util: int = 0,
        gi: int = NO_ID,
        ci: int = NO_ID,
    ) -> None:
        """One more process uses a GPU; `kind` is compute, graphics or mps."""
        number = sum(key.startswith(f"{gpu}.{kind}") for key in self._keys)
        self.set(gpu, **{f"{kind}{number}": f"{pid} {memory} {gi} {ci} {util}"})

    def _bound(self, gpu: int) -> Path:
        pci = str(self._keys[f"{gpu}.pci"]).lower()[4:]
        return self.proc / "driver" / "nvidia" / "gpus" / pci

    def _put(self, key: str, value: object) -> None:
        if value is None:
            self._keys.pop(key, None)
        else:
            self._keys[key] = value

    def _write(self) -> None:
        draft = self.script.with_suffix(".draft")
        draft.write_text("".join(f"{key} {value}\n" for key, value in self._keys.items()), "utf-8")
        draft.rename(self.script)


def _scoped(gpu: int | None, key: str) -> str:
    return key if gpu is None else f"{gpu}.{key}"
