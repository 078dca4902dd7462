"""How the child's messages become the view."""

from node_agent.nvml import view as fold
from node_agent.nvml.model import Device, Driver, NvmlState, Reading
from node_agent.nvml.protocol import Calls, Enumerated, Group, Values


DRIVER = Driver("580.1", "13.580", "13.0")


def device(index: int) -> Device:
    return Device(
        index=index, uuid=f"GPU-{index}", pci=f"0000:{index:02x}:00.0", pci_nvml="", name="H200"
    )


def enumerated(*indexes: int, lost: int | None = None) -> Enumerated:
    unanswered = {} if lost is None else {lost: "GPU is lost"}
    devices = tuple(device(index) for index in indexes)
    return Enumerated(1, DRIVER, devices, unanswered, lost is not None, None)


def values(index: int, group: Group, *, lost: bool = False, **numbers: float) -> Values:
    return Values(f"GPU-{index}", group, numbers, {}, lost)


def test_groups_do_not_overwrite_each_other() -> None:
    parts = fold.enumerated(fold.Parts(), enumerated(0))
    parts = fold.read(parts, values(0, Group.SLOW, energy_j=5.0), now=1.0)
    parts = fold.read(parts, values(0, Group.FAST, gpu_temp_c=40.0, power_w=7.0), now=2.0)
    parts = fold.read(parts, values(0, Group.FAST, gpu_temp_c=41.0), now=3.0)
    reading = parts.view.readings["GPU-0"]
    assert reading == Reading("GPU-0", 3.0, {"energy_j": 5.0, "gpu_temp_c": 41.0})


def test_a_lost_device_keeps_its_last_values_and_their_age() -> None:
    parts = fold.enumerated(fold.Parts(), enumerated(0, 1))
    parts = fold.read(parts, values(1, Group.FAST, gpu_temp_c=40.0), now=1.0)
    parts = fold.read(parts, values(1, Group.FAST, lost=True), now=9.0)
    assert parts.view.lost == ("GPU-1",)
    assert parts.view.readings["GPU-1"].at == 1.0
    parts = fold.read(parts, values(1, Group.FAST, gpu_temp_c=30.0), now=20.0)
    assert parts.view.lost == ()


def test_a_device_that_an_enumeration_cannot_open_is_the_lost_one() -> None:
    parts = fold.enumerated(fold.Parts(), enumerated(0, 1, 2))
    parts = fold.enumerated(parts, enumerated(0, 2, lost=1))
    assert parts.view.lost == ("GPU-1",)
    assert [one.index for one in parts.view.devices] == [0, 1, 2]
    assert parts.view.unanswered == {1: "GPU is lost"}


def test_a_device_that_was_unbound_is_gone_and_not_lost() -> None:
    parts = fold.enumerated(fold.Parts(), enumerated(0, 1))
    parts = fold.read(parts, values(1, Group.FAST, gpu_temp_c=40.0), now=1.0)
    parts = fold.enumerated(parts, enumerated(0))
    assert parts.view.lost == ()
    assert [one.uuid for one in parts.view.devices] == ["GPU-0"]
    assert parts.view.readings == {}


def test_since_moves_only_with_the_state() -> None:
    parts = fold.in_state(fold.Parts(), NvmlState.HUNG, "a", now=5.0, call="nvmlX")
    parts = fold.in_state(parts, NvmlState.HUNG, "b", now=9.0, call="nvmlX")
    assert (parts.view.since, parts.view.why, parts.view.hung_call) == (5.0, "b", "nvmlX")
    assert fold.in_state(parts, NvmlState.OK, "", now=10.0).view.hung_call == ""


def test_calls_add_up() -> None:
    parts = fold.counted(fold.Parts(), {"nvmlX": Calls(2, 1, 0.5, 0.3)})
    parts = fold.counted(parts, {"nvmlX": Calls(1, 0, 0.1, 0.1)})
    total = parts.view.calls["nvmlX"]
    assert (total.count, total.errors, total.last_seconds) == (3, 1, 0.1)
