"""The fault families: readable by others."""

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from node_agent.health.conditions import View, ViewState, desired
from node_agent.health.fold import observe, scanned
from node_agent.health.merge import Merger
from node_agent.health.state import NodeHealth
from node_agent.publish.exposition import Format, merged, text_of
from node_agent.publish.metrics import FAMILIES, SelfMetrics, source_blocks, state_blocks
from node_agent.sources.kernel_log import Counters, SourceState
from node_agent.sources.pci_sysfs import Device, DeviceClass
from tests.unit.agent.health.builders import GPU, OTHER_GPU, RESET_WANTED, sxid, xid


VIEWS = dict.fromkeys(View, ViewState(up=True))
DEVICES = (
    Device(GPU, DeviceClass.GPU, answers=True),
    Device(OTHER_GPU, DeviceClass.GPU, answers=False),
)


def health() -> NodeHealth:
    lines = [xid(79, 1.0, lines=3), xid(31, 2.0), xid(154, 2.5, RESET_WANTED), sxid(20034, 3.0)]
    return observe(
        scanned(NodeHealth(), DEVICES, expected_gpus=0, now=1.0), lines, boot_id="boot-1"
    )


def render(
    state: NodeHealth, counters: Counters | None = None, merger: Merger | None = None
) -> str:
    blocks, _ = merged(
        (
            *state_blocks(
                state,
                devices=DEVICES,
                conditions=desired(state, VIEWS, written=(), indexes={}).conditions,
                views=VIEWS,
                counters=counters or Counters(),
                source=SourceState("file", working=True),
            ),
            *source_blocks(merger or Merger(pods_of=lambda _: ())),
        )
    )
    return text_of(blocks, Format.TEXT)


def samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(sample.labels.get(k, "") for k in ("xid", "sxid", "class", "action"))): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_parser_of_others_reads_what_the_state_says() -> None:
    found = samples(render(health()))
    assert found["gpu_xid_errors_total", "79", "", "", ""] == 1
    assert found["gpu_xid_lines_total", "79", "", "", ""] == 3
    assert found["gpu_sxid_errors_total", "", "20034", "", ""] == 1
    assert found["gpu_recovery_action_required", "", "", "", "GPUReset"] == 1
    assert found["gpu_devices_expected", "", "", "gpu", ""] == 2
    assert found["gpu_devices_seen", "", "", "gpu", ""] == 1
    assert found["gpu_devices_lost", "", "", "gpu", ""] == 1


def test_what_the_log_met_and_what_found_no_room_is_counted() -> None:
    counters = Counters(rotations=1, truncations=2, earlier_boot=3)
    found = samples(render(health(), counters, Merger(pods_of=lambda _: (), dropped=4)))
    for name, number in (
        ("gpu_kernel_log_rotations_total", 1),
        ("gpu_kernel_log_truncations_total", 2),
        ("gpu_kernel_log_earlier_boot_total", 3),
        ("gpu_fault_unmerged_total", 4),
        ("gpu_fault_episodes_forgotten_total", 0),
    ):
        assert found[name, "", "", "", ""] == number


def test_every_family_is_there_with_help_and_no_other() -> None:
    families = list(text_string_to_metric_families(render(health())))
    names = {f.name + ("_total" if f.type == "counter" else "") for f in families}
    assert names == {family.name for family in FAMILIES}
    assert all(family.documentation for family in families)


def test_odd_label_values_are_escaped() -> None:
    state = observe(NodeHealth(), [xid(79, 1.0)], boot_id="b")
    key, fault = next(iter(state.faults.items()))

    odd = msgspec.structs.replace(fault, subcode='a"b\\c\nd')
    state = msgspec.structs.replace(state, faults={key: odd})
    families = text_string_to_metric_families(render(state))
    active = next(f for f in families if f.name == "gpu_fault_active")
    assert active.samples[0].labels["subcode"] == 'a"b\\c\nd'


@pytest.mark.parametrize("name", ["gpu_agent_build_info", "process_resident_memory_bytes"])
def test_self_metrics_have_a_registry_of_their_own(name: str) -> None:
    text = text_of(SelfMetrics(node="n").blocks(), Format.TEXT)
    assert name in {family.name for family in text_string_to_metric_families(text)}
    SelfMetrics(node="n")  # a second one does not clash with the first
