"""Counters files in DCGM-Exporter's format, as people have them."""

from pathlib import Path

import pytest

from node_agent.publish.counters import DEFAULT_FILES, CountersError, load_counters
from tests.unit.agent.publish.builders import FIELDS, counters


DEFAULT_NAMES = (
    "SM_CLOCK",
    "MEM_CLOCK",
    "MEMORY_TEMP",
    "GPU_TEMP",
    "POWER_USAGE",
    "TOTAL_ENERGY_CONSUMPTION",
    "PCIE_REPLAY_COUNTER",
    "GPU_UTIL",
    "MEM_COPY_UTIL",
    "ENC_UTIL",
    "DEC_UTIL",
    "XID_ERRORS",
    "FB_FREE",
    "FB_USED",
    "FB_RESERVED",
    "NVLINK_BANDWIDTH_TOTAL",
    "VGPU_LICENSE_STATUS",
    "UNCORRECTABLE_REMAPPED_ROWS",
    "CORRECTABLE_REMAPPED_ROWS",
    "ROW_REMAP_FAILURE",
)
DEFAULT_PROF = (
    "GR_ENGINE_ACTIVE",
    "PIPE_TENSOR_ACTIVE",
    "DRAM_ACTIVE",
    "PCIE_TX_BYTES",
    "PCIE_RX_BYTES",
)


def test_the_defaults_are_their_25_families_and_the_driver_label() -> None:
    on = counters()
    names = {counter.family.name for counter in on.metrics}
    assert names == {f"DCGM_FI_DEV_{n}" for n in DEFAULT_NAMES} | {
        f"DCGM_FI_PROF_{n}" for n in DEFAULT_PROF
    }
    assert len(names) == 25
    assert [field.name for field in on.labels] == ["DCGM_FI_DRIVER_VERSION"]


def test_the_new_line_has_new_names_and_no_old_one_whose_unit_changed() -> None:
    old = {c.field.quantity: c.field for c in counters().metrics}
    new = {c.field.quantity: c.field for c in counters(line="4.9").metrics}
    assert set(old) <= set(new)
    changed = {q for q in old if old[q].unit != new[q].unit}
    assert len(changed) == 11
    assert all(old[q].name != new[q].name for q in changed)
    assert [f.name for f in counters(line="4.9").labels] == ["DCGM_FI_SYSTEM_DRIVER_VERSION"]


def test_every_commented_line_of_the_defaults_can_be_switched_on() -> None:
    for path in DEFAULT_FILES.values():
        lines = path.read_text("utf-8").splitlines()
        on = "\n".join(
            line.removeprefix("# ") if line.startswith("# DCGM_") else line for line in lines
        )
        parsed = counters(on)
        assert len(parsed.metrics) + len(parsed.labels) > 80
        assert not parsed.skipped


def test_a_file_is_read_as_theirs_is() -> None:
    on = counters(
        "# Format,,\n\n   \n"
        "DCGM_FI_DEV_DEC_UTIL ,     gauge, Decoder utilization (in %).\n"
        "  # a comment that is indented\n"
        'DCGM_FI_DEV_GPU_TEMP, gauge, "In C, of the die."\n'
        "DCGM_FI_DEV_FB_USED, gauge, In MiB, as used, by all\r\n"
        "DCGM_FI_DEV_SERIAL, label, Serial\n"
    )
    assert [(c.family.name, c.family.doc) for c in on.metrics] == [
        ("DCGM_FI_DEV_DEC_UTIL", "Decoder utilization (in %)."),
        ("DCGM_FI_DEV_GPU_TEMP", "In C, of the die."),
        ("DCGM_FI_DEV_FB_USED", "In MiB, as used, by all"),
    ]
    assert [field.name for field in on.labels] == ["DCGM_FI_DEV_SERIAL"]


def test_the_file_decides_about_the_type() -> None:
    text = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL, counter, As it was.\n"
    assert counters(text).metrics[0].family.kind == "counter"


@pytest.mark.parametrize(
    "name",
    [
        "DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT",
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0",
        "DCGM_FI_DEV_CPU_UTIL_TOTAL",
        "DCGM_EXP_P2P_STATUS",
        "DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE",
        "DCGM_FI_DEV_VGPU_UTILIZATIONS",
    ],
)
def test_what_nvml_cannot_fill_is_skipped_and_named(name: str) -> None:
    on = counters(f"{name}, gauge, Theirs.\nDCGM_FI_DEV_GPU_TEMP, gauge, T.\n")
    assert on.skipped == (name,)
    assert len(on.metrics) == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "DCGM_FI_DEV_GPU_TMP, gauge, T.",
            "unknown field 'DCGM_FI_DEV_GPU_TMP'; did you mean DCGM_FI_DEV_GPU_TEMP",
        ),
        ("DCGM_FI_DEV_GPU_TEMP, gauge", "expected `field, type, help`"),
        ("DCGM_FI_DEV_GPU_TEMP, guage, T.", "type 'guage' is none of gauge, counter, label"),
        ("DCGM_FI_DEV_GPU_TEMP, label, T.", "is a gauge, it cannot be a label"),
        ("DCGM_FI_DEV_SERIAL, gauge, S.", "is a label, it cannot be a gauge"),
        ("DCGM_FI_DEV_FB_USED, gauge, F.", "stands in line 1 already"),
    ],
)
def test_a_mistake_names_its_line(line: str, says: str) -> None:
    with pytest.raises(CountersError, match="counters, line 2: ") as error:
        counters(f"DCGM_FI_DEV_FB_USED, gauge, F.\n{line}\n")
    assert says in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CountersError, match=r"cannot read the counters file .*none\.csv"):
        load_counters(tmp_path / "none.csv", FIELDS)


def test_a_name_has_one_unit() -> None:
    for field in FIELDS.by_name.values():
        if field.name.endswith("_BYTES"):
            assert field.unit in {"B", "B/s"}, field.name
        if field.name.endswith("_RATIO"):
            assert field.unit == "ratio", field.name
        if field.name.endswith("_HERTZ"):
            assert field.unit == "Hz", field.name
