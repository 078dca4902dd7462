"""Our own families about GPUs, in SI units: what stands in a reading, as ``gpu_*``.

One table says which quantity of a reading becomes which sample; ``docs/agent/metrics.md`` is
made from it. A quantity without a value is a sample that is not there.
It is longer than other modules since most of it is that table.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from node_agent.publish.exposition import Family


class Sample(NamedTuple):
    """One quantity as one sample of a family: its own label and its factor to the SI unit.

    ``limit``: the quantity is one of the device's limits, not of its readings.
    """

    family: Family
    quantity: str
    label: tuple[str, str] | None = None
    times: float = 1.0
    limit: bool = False


def _one(name: str, kind: str, doc: str, quantity: str, times: float = 1.0) -> tuple[Sample, ...]:
    return (Sample(Family(name, kind, doc), quantity, times=times),)


def _by(
    name: str,
    kind: str,
    doc: str,
    label: str,
    quantities: dict[str, str],
    *,
    times: float = 1.0,
    limit: bool = False,
) -> tuple[Sample, ...]:
    family = Family(name, kind, doc)
    return tuple(
        Sample(family, quantity, (label, value), times, limit)
        for value, quantity in quantities.items()
    )


_NVLINK_ERRORS: Final = {
    "crc_flit": "nvlink_crc_flit_errors",
    "crc_data": "nvlink_crc_data_errors",
    "replay": "nvlink_replay_errors",
    "recovery": "nvlink_recovery_errors",
    "symbol": "nvlink5_symbol_errors",
    "recovery_failed": "nvlink5_recovery_failed",
}
_PCIE_ERRORS: Final = (
    "correctable_errors",
    "naks_received",
    "receiver_error",
    "bad_tlp",
    "naks_sent",
    "bad_dllp",
    "non_fatal_error",
    "fatal_error",
    "unsupported_req",
    "lcrc_error",
    "lane_error",
    "l0_to_recovery",
)

SAMPLES: Final[tuple[Sample, ...]] = (
    *_by(
        "gpu_temperature_celsius",
        "gauge",
        "Temperature.",
        "sensor",
        {"gpu": "gpu_temp_c", "memory": "memory_temp_c"},
    ),
    *_by(
        "gpu_temperature_limit_celsius",
        "gauge",
        "The device's own temperature limits.",
        "limit",
        {
            "slowdown": "slowdown_c",
            "shutdown": "shutdown_c",
            "operating": "gpu_max_c",
            "memory_operating": "mem_max_c",
        },
        limit=True,
    ),
    *_one(
        "gpu_temperature_margin_celsius",
        "gauge",
        "Distance to the nearest slowdown threshold.",
        "margin_temp_c",
    ),
    *_by(
        "gpu_clock_hertz",
        "gauge",
        "Clock frequency.",
        "domain",
        {"sm": "sm_clock_mhz", "memory": "mem_clock_mhz", "video": "video_clock_mhz"},
        times=1e6,
    ),
    *_by(
        "gpu_utilization_ratio",
        "gauge",
        "Part of the driver's sample period in which this was busy; absent while MIG is on.",
        "engine",
        {
            "gpu": "gpu_util_pct",
            "memory": "mem_util_pct",
            "encoder": "enc_util_pct",
            "decoder": "dec_util_pct",
        },
        times=0.01,
    ),
    *_by(
        "gpu_activity_ratio",
        "gauge",
        "Activity by hardware counters (GPM, Hopper and newer), over the last interval.",
        "unit",
        {
            "graphics": "gpm_graphics_ratio",
            "sm": "gpm_sm_ratio",
            "sm_occupancy": "gpm_sm_occupancy_ratio",
            "tensor": "gpm_tensor_ratio",
            "dram": "gpm_dram_ratio",
            "fp64": "gpm_fp64_ratio",
            "fp32": "gpm_fp32_ratio",
            "fp16": "gpm_fp16_ratio",
        },
    ),
    *_by(
        "gpu_power_watts",
        "gauge",
        "Power draw: the driver's usual figure, its average, and of this moment.",
        "reading",
        {"usage": "power_w", "average": "power_average_w", "instant": "power_instant_w"},
    ),
    *_by(
        "gpu_power_limit_watts",
        "gauge",
        "Power limits: the one that is set, and the one in force.",
        "limit",
        {"set": "power_limit_w", "enforced": "enforced_power_limit_w"},
    ),
    *_one(
        "gpu_energy_joules_total", "counter", "Energy used since the driver was loaded.", "energy_j"
    ),
    *_by(
        "gpu_memory_bytes",
        "gauge",
        "Device memory by what it is used for.",
        "state",
        {"used": "fb_used_bytes", "free": "fb_free_bytes", "reserved": "fb_reserved_bytes"},
    ),
    *_one("gpu_memory_size_bytes", "gauge", "Device memory.", "fb_total_bytes"),
    *_one("gpu_bar1_used_bytes", "gauge", "BAR1 memory in use.", "bar1_used_bytes"),
    *_one("gpu_bar1_size_bytes", "gauge", "BAR1 memory.", "bar1_total_bytes"),
    *(
        Sample(
            Family(
                f"gpu_ecc_{which}_errors_total",
                "counter",
                f"Memory errors that ECC {text}: since driver load (volatile), ever (aggregate).",
            ),
            f"ecc_{short}_{life[:3]}",
            ("lifetime", life),
        )
        for which, short, text in (
            ("corrected", "sbe", "corrected"),
            ("uncorrected", "dbe", "could not correct"),
        )
        for life in ("volatile", "aggregate")
    ),
    *_one("gpu_ecc_enabled", "gauge", "Whether ECC is on.", "ecc_mode"),
    *_by(
        "gpu_remapped_rows_total",
        "counter",
        "Memory rows that were remapped, by the errors that were the cause.",
        "cause",
        {"corrected": "remap_correctable", "uncorrected": "remap_uncorrectable"},
    ),
    *_one(
        "gpu_row_remap_pending", "gauge", "Whether a remap waits for a GPU reset.", "remap_pending"
    ),
    *_one("gpu_row_remap_failure", "gauge", "Whether remapping a row failed.", "remap_failure"),
    *_by(
        "gpu_row_remap_banks",
        "gauge",
        "Memory banks by the spare rows that they have left.",
        "spare",
        {
            "max": "remap_bank_max",
            "high": "remap_bank_high",
            "partial": "remap_bank_partial",
            "low": "remap_bank_low",
            "none": "remap_bank_none",
        },
    ),
    *_by(
        "gpu_retired_pages_total",
        "counter",
        "Memory pages that were retired (before Ampere), by the errors that were the cause.",
        "cause",
        {"corrected": "retired_sbe", "uncorrected": "retired_dbe"},
    ),
    *_one(
        "gpu_retired_pages_pending", "gauge", "Whether a page waits for a reset.", "retired_pending"
    ),
    *_one(
        "gpu_sram_threshold_exceeded",
        "gauge",
        "Whether the SRAM's error threshold was passed.",
        "sram_threshold_exceeded",
    ),
    *_one(
        "gpu_memory_unrepairable",
        "gauge",
        "Whether memory has a fault that cannot be repaired.",
        "unrepairable_memory",
    ),
    *_one(
        "gpu_recovery_action",
        "gauge",
        "What the driver asks for: 0 nothing, 1 GPU reset, 2 node reboot, 3 drain P2P, "
        "4 drain and reset, 5 recover the IMEX domain.",
        "recovery_action",
    ),
    *_by(
        "gpu_throttle_seconds_total",
        "counter",
        "Time for which clocks were held down, by cause.",
        "cause",
        {
            cause: f"violation_{cause}_ns"
            for cause in (
                "power",
                "thermal",
                "sync_boost",
                "board_limit",
                "low_util",
                "reliability",
            )
        },
        times=1e-9,
    ),
    *_one("gpu_performance_state", "gauge", "P-state; 0 is the fastest.", "pstate"),
    *_one("gpu_fan_ratio", "gauge", "Intended fan speed.", "fan_pct", 0.01),
    *_by(
        "gpu_c2c_errors_total",
        "counter",
        "Errors of the chip-to-chip link to the CPU.",
        "counter",
        {
            "interrupt": "c2c_errors_intr",
            "replay": "c2c_errors_replay",
            "replay_back_to_back": "c2c_errors_replay_b2b",
        },
    ),
    *_one("gpu_pcie_replays_total", "counter", "PCIe packets sent again.", "pcie_replay"),
    *_by(
        "gpu_pcie_errors_total",
        "counter",
        "PCIe errors by the driver's counter; a healthy card has some.",
        "counter",
        {name: f"pcie_count_{name}" for name in _PCIE_ERRORS},
    ),
    *_by(
        "gpu_pcie_link_generation",
        "gauge",
        "PCIe generation of the link now; at rest it may be lowered.",
        "state",
        {"current": "pcie_gen"},
    ),
    *_by(
        "gpu_pcie_link_generation",
        "gauge",
        "PCIe generation of the link now; at rest it may be lowered.",
        "state",
        {"max": "pcie_gen_max"},
        limit=True,
    ),
    *_by("gpu_pcie_link_lanes", "gauge", "PCIe lanes in use.", "state", {"current": "pcie_width"}),
    *_by(
        "gpu_pcie_link_lanes",
        "gauge",
        "PCIe lanes in use.",
        "state",
        {"max": "pcie_width_max"},
        limit=True,
    ),
    *_by(
        "gpu_pcie_bytes_per_second",
        "gauge",
        "Traffic over PCIe, as NVML samples it.",
        "direction",
        {"transmit": "pcie_tx_bytes_per_s", "receive": "pcie_rx_bytes_per_s"},
    ),
    *_by(
        "gpu_nvlink_links",
        "gauge",
        "NVLinks by state.",
        "state",
        {"up": "nvlink_up", "down": "nvlink_down"},
    ),
    *_by(
        "gpu_nvlink_bytes_per_second",
        "gauge",
        "Traffic over all NVLinks.",
        "direction",
        {"transmit": "nvlink_tx_bytes_per_s", "receive": "nvlink_rx_bytes_per_s"},
    ),
    *_by(
        "gpu_nvlink_errors_total",
        "counter",
        "NVLink errors of all links.",
        "counter",
        _NVLINK_ERRORS,
    ),
    *_one(
        "gpu_fabric_state",
        "gauge",
        "Fabric: 0 not supported, 1 not started, 2 in progress, 3 completed.",
        "fabric_state",
    ),
    *_one("gpu_fabric_status", "gauge", "NVML code of the fabric's registration.", "fabric_status"),
    *_one("gpu_fabric_health_mask", "gauge", "Health bits of the fabric.", "fabric_health_mask"),
    *_one("gpu_persistence_mode", "gauge", "Whether persistence mode is on.", "persistence_mode"),
    *_one("gpu_inforom_valid", "gauge", "Whether the InfoROM is valid.", "inforom_valid"),
    *_one("gpu_vgpu_licensed", "gauge", "Whether the vGPU licence is valid.", "vgpu_license"),
)

DEVICE_INFO: Final = Family("gpu_device_info", "info", "Identity of each GPU, and the driver.")
MIG_INFO: Final = Family("gpu_mig_instance_info", "info", "The MIG instances of each GPU.")
DEVICE_LOST: Final = Family(
    "gpu_device_lost", "gauge", "1 for a GPU that is expected and is gone or does not answer."
)
FEATURE: Final = Family(
    "gpu_feature_supported",
    "gauge",
    "Whether the device can do this at all: tells absent from not supported.",
)
READ_AT: Final = Family(
    "gpu_reading_timestamp_seconds", "gauge", "When values were last read from the device."
)
READ_ERRORS: Final = Family(
    "gpu_reading_errors", "gauge", "Quantities that could not be read from the device just now."
)
CLOCK_ACTIVE: Final = Family(
    "gpu_clock_event_active", "gauge", "Whether this holds the clocks down now."
)
CLOCK_TRANSITIONS: Final = Family(
    "gpu_clock_event_transitions_total", "counter", "How often this began to hold the clocks down."
)
PROCESSES: Final = Family("gpu_processes", "gauge", "Processes on the device.")
PROCESS_MEMORY: Final = Family("gpu_process_memory_bytes", "gauge", "Device memory of one process.")
PROCESS_SM: Final = Family(
    "gpu_process_sm_utilization_ratio", "gauge", "SM use of one process since the look before."
)
POD_MEMORY: Final = Family(
    "gpu_pod_memory_bytes", "gauge", "Device memory of all processes of one container."
)
POD_SM: Final = Family(
    "gpu_pod_sm_utilization_ratio", "gauge", "SM use of all processes of one container."
)
POD_DEVICE: Final = Family(
    "gpu_pod_device_info", "info", "Which container holds which GPU or MIG instance."
)
NVML_STATE: Final = Family("gpu_nvml_state", "gauge", "1 for how it stands with NVML now.")
NVML_SINCE: Final = Family(
    "gpu_nvml_state_since_timestamp_seconds", "gauge", "Since when it stands so."
)
NVML_CALLS: Final = Family("gpu_nvml_calls_total", "counter", "Calls of NVML functions.")
NVML_ERRORS: Final = Family("gpu_nvml_call_errors_total", "counter", "Calls that failed.")
NVML_SECONDS: Final = Family(
    "gpu_nvml_call_seconds_total", "counter", "Time spent in calls of NVML functions."
)
NVML_LAST: Final = Family("gpu_nvml_call_last_seconds", "gauge", "Time that the latest call took.")
NVML_EVENTS: Final = Family(
    "gpu_nvml_events_total", "counter", "Events of the driver that reached the agent, by kind."
)
NVML_RESTARTS: Final = Family(
    "gpu_nvml_child_restarts_total", "counter", "Replaced NVML child processes."
)
NVML_ABANDONED: Final = Family(
    "gpu_nvml_children_abandoned", "gauge", "NVML child processes that hang and still exist."
)

DEVICE_FAMILIES: Final = (
    *dict.fromkeys(sample.family for sample in SAMPLES),
    DEVICE_INFO,
    MIG_INFO,
    DEVICE_LOST,
    FEATURE,
    READ_AT,
    READ_ERRORS,
    CLOCK_ACTIVE,
    CLOCK_TRANSITIONS,
    PROCESSES,
    PROCESS_MEMORY,
    PROCESS_SM,
    POD_MEMORY,
    POD_SM,
    POD_DEVICE,
    NVML_STATE,
    NVML_SINCE,
    NVML_CALLS,
    NVML_ERRORS,
    NVML_SECONDS,
    NVML_LAST,
    NVML_EVENTS,
    NVML_RESTARTS,
    NVML_ABANDONED,
)
