"""The compatible families: names, labels and values as DCGM-Exporter's users expect them."""

from __future__ import annotations

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from node_agent.attribution.model import DraRef
from node_agent.health.fold import observe
from node_agent.health.state import NodeHealth
from node_agent.nvml.model import Reading
from node_agent.publish.dcgm_rows import HostnameLabel, LabelOptions, Names
from tests.unit.agent.health.builders import xid
from tests.unit.agent.publish.builders import (
    FIELDS,
    MIB,
    NOW,
    POD,
    VALUES,
    World,
    counters,
    device,
    everything,
    mig,
    pci,
    pods,
    uuid,
    view,
)


LIMITS = {f.quantity for f in FIELDS.by_name.values() if f.source == "limit"}
IDENTITY = (
    f'gpu="0",UUID="{uuid(0)}",pci_bus_id="0000{pci(0).upper()}",device="nvidia0",'
    'modelName="NVIDIA H200"'
)
MADE = """
DCGM_FI_DEV_XID_ERRORS, gauge, X.
DCGM_EXP_XID_ERRORS_COUNT, gauge, C.
DCGM_EXP_XID_ERRORS_TOTAL, counter, T.
DCGM_EXP_CLOCK_EVENTS_COUNT, gauge, C.
DCGM_EXP_CLOCK_EVENTS_TOTAL, counter, C.
DCGM_EXP_GPU_HEALTH_STATUS, gauge, H.
DCGM_FI_DRIVER_VERSION, label, D.
"""


def with_xids(health: NodeHealth, *lines: tuple[int, float]) -> NodeHealth:
    return observe(health, [xid(code, at) for code, at in lines], boot_id="b")


# -- lines as they are in the wild --------------------------------------------------------------


def test_a_line_has_their_labels_in_their_order() -> None:
    world = World()
    world.pods = pods(POD)
    assert world.lines("DCGM_FI_DEV_GPU_TEMP") == [
        (
            f'DCGM_FI_DEV_GPU_TEMP{{{IDENTITY},Hostname="n1",DCGM_FI_DRIVER_VERSION="570.86.15",'
            'container="train",namespace="ml",pod="job-0"} 41'
        )
    ]


def test_head_of_a_family() -> None:
    text = World().text()
    head = (
        "# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).\n"
        "# TYPE DCGM_FI_DEV_GPU_TEMP gauge\nDCGM_FI_DEV_GPU_TEMP{"
    )
    assert text.count(head) == 1


@pytest.mark.parametrize(
    ("names", "choice", "label"),
    [
        (Names.OLD, HostnameLabel.AUTO, 'Hostname="n1"'),
        (Names.NEW, HostnameLabel.AUTO, 'hostname="n1"'),
        (Names.OLD, HostnameLabel.SMALL, 'hostname="n1"'),
        (Names.NEW, HostnameLabel.CAPITAL, 'Hostname="n1"'),
        (Names.OLD, HostnameLabel.NONE, ""),
    ],
)
def test_the_hostname_label_can_be_chosen(names: Names, choice: HostnameLabel, label: str) -> None:
    world = World(
        on=counters("DCGM_FI_DEV_GPU_TEMP, gauge, T.\n"),
        options=LabelOptions("n1", choice.text(names)),
    )
    comma = "," if label else ""
    assert world.lines("DCGM_") == [f"DCGM_FI_DEV_GPU_TEMP{{{IDENTITY}{comma}{label}}} 41"]


def test_old_label_names() -> None:
    world = World(
        on=counters("DCGM_FI_DEV_GPU_TEMP, gauge, T.\n"),
        options=LabelOptions("n1", "Hostname", old_labels=True),
    )
    world.pods = pods(POD)
    identity = IDENTITY.replace("UUID=", "uuid=")
    assert world.lines("DCGM_") == [
        (
            f'DCGM_FI_DEV_GPU_TEMP{{{identity},Hostname="n1",'
            'container_name="train",pod_name="job-0",pod_namespace="ml"} 41'
        )
    ]


def test_an_instance_of_mig_has_its_profile_and_only_its_own_values() -> None:
    gpu = device(mig_enabled=True, mig=(mig(7, "1g.10gb"), mig(7, "1g.10gb", ci=1), mig(9)))
    own = Reading("MIG-7-1", NOW, {"fb_used_bytes": 512.0 * MIB})
    world = World(on=counters("DCGM_FI_DEV_FB_USED, gauge, F.\nDCGM_FI_DEV_GPU_TEMP, gauge, T.\n"))
    world.nvml = view(gpu, readings={"MIG-7-1": own})
    world.pods = pods(POD, gi=7)
    assert world.lines("DCGM_") == [
        (
            f'DCGM_FI_DEV_FB_USED{{{IDENTITY},GPU_I_PROFILE="1g.10gb",GPU_I_ID="7",Hostname="n1",'
            'container="train",namespace="ml",pod="job-0"} 512'
        ),
        f'DCGM_FI_DEV_GPU_TEMP{{{IDENTITY},Hostname="n1"}} 41',
    ]


def test_pod_labels_claims_and_uid() -> None:
    claim = DraRef(
        claim="c", claim_namespace="ml", driver="gpu.nvidia.com", pool="n1", device="gpu-0"
    )
    pod = msgspec.structs.replace(POD, labels=(("app.kubernetes.io/name", 'a"b'),), dra=claim)
    world = World(
        on=counters("DCGM_FI_DEV_GPU_TEMP, gauge, T.\n"),
        options=LabelOptions("n1", "", pod_uid=True),
    )
    world.pods = pods(pod)
    (line,) = world.lines("DCGM_")
    assert line.removeprefix(f"DCGM_FI_DEV_GPU_TEMP{{{IDENTITY},") == (
        r'app_kubernetes_io_name="a\"b",container="train",dra_claim_name="c",'
        'dra_claim_namespace="ml",dra_device_name="gpu-0",dra_driver_name="gpu.nvidia.com",'
        'dra_pool_name="n1",namespace="ml",pod="job-0",pod_uid="u-1"} 41'
    )


def test_a_shared_gpu_has_one_row_unless_one_a_pod_is_wanted() -> None:
    other = msgspec.structs.replace(POD, name="job-1", vgpu="1")
    on = counters("DCGM_FI_DEV_GPU_UTIL, gauge, U.\n")
    world = World(on=on)
    world.pods = pods(POD, other)
    (line,) = world.lines("DCGM_")
    assert "pod=" not in line
    world = World(on=on, options=LabelOptions("n1", row_per_pod=True))
    world.pods = pods(POD, other)
    assert [line.partition("pod=")[2] for line in world.lines("DCGM_")] == [
        '"job-0"} 37',
        '"job-1",vgpu="1"} 37',
    ]


# -- values -------------------------------------------------------------------------------------


def values_of(world: World) -> dict[str, str]:
    return {line.partition("{")[0]: line.rpartition(" ")[2] for line in world.lines("DCGM_")}


def test_values_are_in_their_units_and_printed_as_theirs() -> None:
    found = values_of(World(on=everything("4.8")))
    assert found["DCGM_FI_DEV_SM_CLOCK"] == "1980"
    assert found["DCGM_FI_DEV_POWER_USAGE"] == "86.759000"
    assert found["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == "1234567"
    assert found["DCGM_FI_DEV_FB_FREE"] == "142000"
    assert found["DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"] == "2"
    assert found["DCGM_FI_DEV_GPU_UTIL"] == "37"
    assert found["DCGM_FI_DEV_POWER_VIOLATION"] == "1500000000"
    assert found["DCGM_FI_DEV_SLOWDOWN_TEMP"] == "92"
    assert found["DCGM_FI_PROF_DRAM_ACTIVE"] == "0.500000"


def test_the_new_names_have_the_new_units() -> None:
    found = values_of(World(on=everything("4.9")))
    assert found["DCGM_FI_DEV_SM_CLOCK_HERTZ"] == "1980000000"
    assert found["DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL"] == "1234.567800"
    assert found["DCGM_FI_DEV_FB_USED_BYTES"] == str(1024 * MIB)
    assert found["DCGM_FI_DEV_GPU_UTIL_RATIO"] == "0.370000"
    assert found["DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND"] == "2048000"


def test_a_value_that_is_not_there_is_absent_and_so_is_its_family() -> None:
    world = World()
    world.nvml = view(values={k: v for k, v in VALUES.items() if not k.startswith("gpm_")})
    assert "DCGM_FI_PROF" not in world.text()
    world.nvml = view(values={})
    assert [line.partition("{")[0] for line in world.lines("DCGM_")] == ["DCGM_FI_DEV_XID_ERRORS"]


def test_one_bad_value_costs_that_value() -> None:
    world = World()
    world.nvml = view(values={**VALUES, "gpu_temp_c": float("nan"), "pcie_replay": -1.0})
    found = values_of(world)
    assert "DCGM_FI_DEV_GPU_TEMP" not in found
    assert "DCGM_FI_DEV_PCIE_REPLAY_COUNTER" not in found
    assert len(found) == 23


def test_a_device_that_does_not_answer_keeps_its_xid_row_only() -> None:
    world = World()
    world.nvml = view(device(0), device(1), lost=(uuid(0),))
    of_lost = [line for line in world.lines("DCGM_") if 'gpu="0"' in line]
    assert [line.partition("{")[0] for line in of_lost] == ["DCGM_FI_DEV_XID_ERRORS"]
    assert any('gpu="1"' in line for line in world.lines("DCGM_FI_DEV_GPU_TEMP"))


def test_old_values_go_when_nobody_may_believe_them_any_more() -> None:
    world = World()
    world.now = NOW + 299
    assert "DCGM_FI_DEV_GPU_TEMP" in values_of(world)
    world.now = NOW + 300
    assert "DCGM_FI_DEV_GPU_TEMP" not in values_of(world)


def test_labels_follow_when_a_pod_comes_and_goes() -> None:
    world = World()
    for holders, expected in ((pods(POD), True), (pods(), False), (pods(POD), True)):
        world.pods = holders
        (line,) = world.lines("DCGM_FI_DEV_GPU_TEMP{")
        assert ('pod="job-0"' in line) is expected


# -- what the exporter makes itself ---------------------------------------------------------------


def made(world: World, name: str) -> list[str]:
    marker = 'Hostname="n1",DCGM_FI_DRIVER_VERSION="570.86.15"'
    return [line.partition(marker)[2].lstrip(",") for line in world.lines(f"{name}{{")]


def test_no_xid_yet() -> None:
    world = World(on=counters(MADE))
    assert made(world, "DCGM_FI_DEV_XID_ERRORS") == ['err_code="0",err_msg="No Error"} 0']
    assert made(world, "DCGM_EXP_XID_ERRORS_COUNT") == ['window_size_in_ms="300000"} 0']
    assert made(world, "DCGM_EXP_XID_ERRORS_TOTAL") == []


def test_an_xid_has_its_code_and_words_among_the_sorted_attributes() -> None:
    world = World(on=counters(MADE))
    world.pods = pods(POD)
    world.text()
    world.health = with_xids(world.health, (79, NOW))
    assert made(world, "DCGM_FI_DEV_XID_ERRORS") == [
        (
            'container="train",err_code="79",err_msg="GPU has fallen off the bus",namespace="ml",'
            'pod="job-0"} 79'
        )
    ]


def test_the_last_xid_is_sticky_and_none_hides_behind_another() -> None:
    world = World(on=counters(MADE))
    world.text()
    world.health = with_xids(
        world.health, (31, NOW - 99), (62, NOW - 3), (45, NOW - 2), (31, NOW - 50)
    )
    assert made(world, "DCGM_FI_DEV_XID_ERRORS")[0].endswith("} 45")
    counts = ((31, 2), (62, 1), (45, 1))
    window = [f'window_size_in_ms="300000",xid="{code}"}} {count}' for code, count in counts]
    totals = [f'xid="{code}"}} {count}' for code, count in counts]
    assert sorted(made(world, "DCGM_EXP_XID_ERRORS_COUNT")) == sorted(window)
    assert made(world, "DCGM_EXP_XID_ERRORS_TOTAL") == totals
    world.health = msgspec.structs.replace(world.health, faults={})  # cleared, and long ago
    world.now = NOW + 299
    assert made(world, "DCGM_FI_DEV_XID_ERRORS")[0].endswith("} 45")
    assert made(world, "DCGM_EXP_XID_ERRORS_COUNT") == ['window_size_in_ms="300000"} 0']
    assert made(world, "DCGM_EXP_XID_ERRORS_TOTAL") == totals


def test_what_was_counted_before_the_agent_started_is_not_new() -> None:
    world = World(on=counters(MADE))
    health = with_xids(NodeHealth(boot_id="b"), (79, NOW - 10))
    world.health = health
    assert made(world, "DCGM_EXP_XID_ERRORS_COUNT") == ['window_size_in_ms="300000"} 0']
    # The fault is still open, so it is still what happened last.
    assert made(world, "DCGM_FI_DEV_XID_ERRORS")[0].endswith("} 79")
    world = World(on=counters(MADE))
    world.health = msgspec.structs.replace(health, boot_id="another boot")
    assert made(world, "DCGM_FI_DEV_XID_ERRORS")[0].endswith("} 0")


def test_clock_events_are_looks_in_the_window_and_transitions_in_all() -> None:
    world = World(on=counters(MADE))
    for at, bits in enumerate((0x8, 0x8, 0x0, 0x48, 0x48)):
        reading = Reading(uuid(0), NOW + at, {"clocks_event_reasons": float(bits)})
        world.nvml = view(device(), readings={uuid(0): reading})
        world.page.take_nvml(world.nvml)
        world.page.take_nvml(world.nvml)  # the same look again is no other look
    world.now = NOW + 5
    assert made(world, "DCGM_EXP_CLOCK_EVENTS_COUNT") == [
        'clock_event="hw_slowdown",window_size_in_ms="300000"} 4',
        'clock_event="hw_thermal",window_size_in_ms="300000"} 2',
    ]
    assert 'clock_event="hw_slowdown"} 2' in made(world, "DCGM_EXP_CLOCK_EVENTS_TOTAL")
    assert 'clock_event="hw_thermal"} 1' in made(world, "DCGM_EXP_CLOCK_EVENTS_TOTAL")
    assert 'clock_event="gpu_idle"} 0' in made(world, "DCGM_EXP_CLOCK_EVENTS_TOTAL")
    world.now = NOW + 400
    assert made(world, "DCGM_EXP_CLOCK_EVENTS_COUNT") == ['window_size_in_ms="300000"} 0']


def test_health_status_has_every_watch_and_no_memory_of_what_is_cleared() -> None:
    world = World(on=counters(MADE))
    rows = made(world, "DCGM_EXP_GPU_HEALTH_STATUS")
    watches = (
        "ALL",
        "DRIVER",
        "INFOROM",
        "MCU",
        "MEM",
        "NVLINK",
        "PCIE",
        "PMU",
        "POWER",
        "SM",
        "THERMAL",
    )
    assert rows == [f'health_error_code="DCGM_FR_OK",health_watch="{w}"}} 0' for w in watches]
    world.health = with_xids(world.health, (79, NOW), (31, NOW), (63, NOW))
    changed = [row for row in made(world, "DCGM_EXP_GPU_HEALTH_STATUS") if "FR_OK" not in row]
    assert changed == [
        (
            'health_error_category="HARDWARE_PCIE",health_error_code="DCGM_FR_FALLEN_OFF_BUS",'
            'health_error_severity="RESET",health_watch="ALL"} 20'
        ),
        (
            'health_error_category="HARDWARE_MEMORY",health_error_code="DCGM_FR_PENDING_ROW_REMAP",'
            'health_error_severity="RESET",health_watch="MEM"} 10'
        ),
    ]
    world.health = msgspec.structs.replace(world.health, faults={})
    assert made(world, "DCGM_EXP_GPU_HEALTH_STATUS") == rows


# -- for dashboards and parsers of others -------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["GPU_TEMP", "POWER_USAGE", "SM_CLOCK", "GPU_UTIL", "FB_USED", "PIPE_TENSOR_ACTIVE"],
)
def test_what_dashboard_12239_asks_for_is_there(name: str) -> None:
    world = World()
    world.nvml = view(*(device(index) for index in range(8)))
    families = {f.name: f for f in text_string_to_metric_families(world.text())}
    found = families.get(f"DCGM_FI_DEV_{name}") or families[f"DCGM_FI_PROF_{name}"]
    assert sorted(sample.labels["gpu"] for sample in found.samples) == [str(n) for n in range(8)]


@pytest.mark.parametrize("line", ["4.8", "4.9"])
def test_a_parser_of_others_reads_every_field_there_is(line: str) -> None:
    world = World(on=everything(line))
    quantities = {f.quantity: 1.0 for f in FIELDS.by_name.values() if f.source == "reading"}
    world.nvml = view(device(limits=dict.fromkeys(LIMITS, 1.0)), values=quantities)
    found = {f.name for f in text_string_to_metric_families(world.text())}
    wanted = {f.name for f in FIELDS.by_name.values() if f.line in {"", line} and f.kind != "label"}
    assert {name for name in wanted if name not in found} == {"DCGM_EXP_XID_ERRORS_TOTAL"} - found
