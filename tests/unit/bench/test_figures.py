"""Figures are what was measured, and the last line is one JSON object."""

from __future__ import annotations

import json
import os
import time

import pytest

from tests.bench.figures import cpu_seconds, finish, memory_mb, percentile


@pytest.mark.parametrize(
    ("percent", "expected"), [(50, 50.0), (99, 99.0), (100, 100.0), (0, 1.0)], ids=str
)
def test_a_percentile_is_a_value_that_was_measured(percent: float, expected: float) -> None:
    assert percentile([float(value) for value in range(100, 0, -1)], percent) == expected


def test_the_99th_percentile_of_few_values_is_the_worst() -> None:
    assert percentile([3.0, 1.0, 2.0], 99) == 3.0


def test_the_last_line_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    finish({"n": 3, "ratio": 1.23456})
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"n": 3, "ratio": 1.235}


def test_memory_and_processor_time_are_of_the_process() -> None:
    before = cpu_seconds(os.getpid())
    while time.process_time() < before + 0.05:
        pass
    assert cpu_seconds(os.getpid()) > before
    assert 5 < memory_mb(os.getpid()) <= memory_mb(os.getpid(), "VmHWM")
