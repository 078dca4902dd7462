"""Reads what a GPU instance of MIG has of its own: its memory and, by GPM, its activity.

Everything else (temperature, power, clocks, errors) is the GPU's, and stands there once.
Several compute instances of one GPU instance share its memory: the first one is asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from node_agent.nvml.collect import Handle
from node_agent.nvml.findings import Findings
from node_agent.nvml.gpm import GpmReader
from node_agent.nvml.model import MigInstance
from node_agent.nvml.protocol import Group, Values
from node_agent.nvml.quantities import MEMORY
from node_agent.nvml.watch import Watch


class Instance(NamedTuple):
    """One MIG device, with the handle under which NVML knows it."""

    of: MigInstance
    raw: Any


def first_of_each(instances: Iterable[Instance]) -> list[Instance]:
    """One MIG device for each GPU instance."""
    found: dict[int, Instance] = {}
    for instance in instances:
        found.setdefault(instance.of.gi, instance)
    return list(found.values())


class InstanceReader:
    """Reads one GPU instance.

    Args:
        nvml: the ``pynvml`` module.
        watch: makes the calls.
        gpu: the GPU that it is a part of.
        instance: the instance.
    """

    def __init__(self, *, nvml: Any, watch: Watch, gpu: Handle, instance: Instance) -> None:
        self._nvml = nvml
        self._watch = watch
        self._about = f"gpu {gpu.index}"
        self._instance = instance
        self._gpm = (
            GpmReader(
                nvml=nvml,
                watch=watch,
                about=self._about,
                fill=nvml.nvmlGpmMigSampleGet,
                of=(gpu.raw, instance.of.gi),
            )
            if gpu.gpm
            else None
        )

    def read(self, group: Group) -> Values | None:
        """Everything of this group that there is now; None for a group that it has nothing of.

        Raises:
            GpuLostError: the GPU is lost.
        """
        findings = Findings()
        if group is Group.FAST:
            self._read_memory(findings)
        elif group is Group.GPM and self._gpm is not None:
            self._gpm.read(findings)
        else:
            return None
        uuid = self._instance.of.uuid
        return Values(uuid, group, findings.values, findings.errors, lost=False)

    def close(self) -> None:
        """Free what NVML allocated."""
        if self._gpm is not None:
            self._gpm.close()

    def _read_memory(self, findings: Findings) -> None:
        nvml = self._nvml
        names = [quantity.name for quantity, _ in MEMORY]
        try:
            memory = self._watch.call(
                nvml.nvmlDeviceGetMemoryInfo,
                self._instance.raw,
                nvml.nvmlMemory_v2,
                about=self._about,
            )
        except nvml.NVMLError as error:
            findings.failed(error, names)
            return
        for quantity, attribute in MEMORY:
            findings.keep(quantity, getattr(memory, attribute))
