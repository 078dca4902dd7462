"""Every form of device id is read, and nothing else is taken for one."""

import pytest

from node_agent.attribution.device_ids import DeviceId, Patterns, parse_cdi_name, parse_device_id
from tests.unit.agent.attribution.builders import GPU0, MIG0


FORMS = {
    GPU0: DeviceId(gpu=GPU0.lower()),
    GPU0.upper(): DeviceId(gpu=GPU0.lower()),
    f"{GPU0}::3": DeviceId(gpu=GPU0.lower(), replica="3"),
    f"{GPU0}-3": DeviceId(gpu=GPU0.lower(), replica="3"),
    MIG0: DeviceId(mig=MIG0.lower()),
    f"{MIG0}::1": DeviceId(mig=MIG0.lower(), replica="1"),
    f"MIG-{GPU0}/7/0": DeviceId(gpu=GPU0.lower(), gi=7, ci=0),
    f"MIG-{GPU0}/7/0::2": DeviceId(gpu=GPU0.lower(), gi=7, ci=0, replica="2"),
    "nvidia0": DeviceId(minor=0),
    "nvidia15": DeviceId(minor=15),
    "nvidia0/gi7": DeviceId(minor=0, gi=7),
    "nvidia0/vgpu4": DeviceId(minor=0, replica="4"),
    "nvidia0/gi7/vgpu4": DeviceId(minor=0, gi=7, replica="4"),
}


@pytest.mark.parametrize("text", FORMS)
def test_known_forms(text: str) -> None:
    assert parse_device_id(text) == FORMS[text]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "GPU-",
        "GPU-1234",
        f"{GPU0}::",
        f"{GPU0}::x",
        f"{GPU0} ",
        f"MIG-{GPU0}/7",
        "nvidia",
        "nvidia0/gi",
        "nvidia0/vgpu4/gi7",
        "nvidia\u0661",
        "0000:3b:00.0",
        "nvidia" + "0" * 200,
    ],
)
def test_other_texts_are_no_device(text: str) -> None:
    assert parse_device_id(text) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"nvidia.com/gpu={GPU0}", DeviceId(gpu=GPU0.lower())),
        (f"k8s.gpu.nvidia.com/device={MIG0}", DeviceId(mig=MIG0.lower())),
        ("k8s.gpu.nvidia.com/claim=7a1c-gpu-0", None),
        ("nvidia.com/gpu=0", None),
        ("nvidia.com/gpu=0:1", None),
        ("nvidia.com/gpu=nvidia0", None),  # whose number would that be
        ("nonsense", None),
    ],
)
def test_of_cdi_names_only_uuids_are_taken(name: str, expected: DeviceId | None) -> None:
    assert parse_cdi_name(name) == expected


def test_patterns() -> None:
    names = Patterns(" nvidia.com/gpu, nvidia.com/mig-* ,,")
    assert names.match("nvidia.com/gpu")
    assert names.match("nvidia.com/mig-1g.5gb.shared")
    assert not names.match("nvidia.com/gpu.shared")
    assert not names.match("amd.com/gpu")
    assert not Patterns("").match("")
    assert Patterns("*").match("anything")
    with pytest.raises(ValueError, match="at the end only"):
        Patterns("a*b")
