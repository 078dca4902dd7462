"""The kernel log as a source of faults: kmsg, syslog(2), a plain file or a FIFO.

``KernelLog.run(deliver)`` reads whichever works and hands on batches of sightings.
"""

from node_agent.sources.kernel_log.model import (
    Batch,
    Clock,
    Counters,
    Mode,
    Moment,
    Position,
    Sighting,
    SourceState,
    SystemClock,
)
from node_agent.sources.kernel_log.source import KernelLog, KernelLogPaths


__all__ = [
    "Batch",
    "Clock",
    "Counters",
    "KernelLog",
    "KernelLogPaths",
    "Mode",
    "Moment",
    "Position",
    "Sighting",
    "SourceState",
    "SystemClock",
]
