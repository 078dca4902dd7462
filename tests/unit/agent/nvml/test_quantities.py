"""What a number of NVML may become, and that the tables hang together."""

import re

import pytest

from node_agent.nvml.quantities import (
    CALLS,
    FIELDS,
    GPM,
    LIMIT_FIELDS,
    OutOfRangeError,
    Quantity,
    as_signed,
    bit_error_rate,
    rate,
)


ROWS = {
    quantity.name: quantity
    for quantity in (
        *(out[0] for call in CALLS for out in call.outputs),
        *(field.quantity for field in FIELDS),
        *GPM.values(),
        *LIMIT_FIELDS.values(),
    )
}


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("gpu_temp_c", 644245923),
        ("gpu_temp_c", 201),
        ("memory_temp_c", 255),
        ("gpu_util_pct", 101),
        ("power_w", -14),
        ("pstate", 32),
        ("pcie_gen", 0),
        ("pcie_replay", -1),
        ("gpm_sm_ratio", 250.0),
    ],
)
def test_what_cannot_be_true_is_refused_and_named(name: str, raw: float) -> None:
    with pytest.raises(OutOfRangeError, match=re.escape(str(raw))):
        ROWS[name].convert(raw)


@pytest.mark.parametrize(
    "raw", [0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0x7FFFFFF0, 2147483644, 9223372036854775794]
)
@pytest.mark.parametrize("name", ["gpu_util_pct", "energy_j", "fb_used_bytes", "gpu_temp_c"])
def test_what_stands_for_no_value_is_absent(name: str, raw: int) -> None:
    assert ROWS[name].convert(raw) is None


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("power_w", 86759, 86.759),
        ("energy_j", 987654321, 987654.321),
        ("gpm_tensor_ratio", 4.0, 0.04),
        ("gpm_pcie_tx_bytes_per_s", 10.0, 10 * 1024 * 1024),
        ("nvlink_tx_bytes_per_s", 3.0, 3072.0),
        ("violation_power_ns", 10**18, 1e18),
        ("margin_temp_c", -3, -3),
    ],
)
def test_units(name: str, raw: float, value: float) -> None:
    assert ROWS[name].convert(raw) == pytest.approx(value)


def test_a_negative_limit_handed_out_as_unsigned() -> None:
    assert as_signed(4294967288) == -8
    assert as_signed(92) == 92


def test_bit_error_rate() -> None:
    assert bit_error_rate(0x10F) == pytest.approx(1e-15)
    assert bit_error_rate(0) == 0


def test_a_counter_that_fell_has_no_rate() -> None:
    assert rate((10.0, 100), (12.0, 300)) == pytest.approx(100.0)
    assert rate((10.0, 300), (12.0, 100)) is None
    assert rate((10.0, 300), (10.0, 400)) is None


def test_every_name_states_one_unit() -> None:
    """A quantity in two rows (what older and newer drivers offer) has one range in both."""
    seen: dict[str, Quantity] = {}
    for call in CALLS:
        for quantity, _ in call.outputs:
            assert seen.setdefault(quantity.name, quantity) == quantity
