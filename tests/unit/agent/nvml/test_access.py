"""Whether the driver refuses us, or is not there."""

import errno
import os
from pathlib import Path

import pytest

from node_agent.nvml.access import bound_gpus, denied, driver_loaded


def test_a_node_that_opens_is_not_denied(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert denied(tmp_path) == ""


def test_a_missing_node_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "nvidiactl") in denied(tmp_path)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES])
def test_a_node_that_the_device_cgroup_refuses(tmp_path: Path, number: int) -> None:
    def refuse(path: str, _flags: int) -> int:
        raise OSError(number, os.strerror(number), path)

    assert "device cgroup" in denied(tmp_path, open_file=refuse)


def test_another_error_is_not_taken_for_denial(tmp_path: Path) -> None:
    def fail(path: str, _flags: int) -> int:
        raise OSError(errno.EIO, "I/O error", path)

    assert denied(tmp_path, open_file=fail) == ""


def test_what_the_driver_shows_in_proc(tmp_path: Path) -> None:
    assert not driver_loaded(tmp_path)
    assert bound_gpus(tmp_path) is None
    folder = tmp_path / "driver" / "nvidia"
    (folder / "gpus" / "0000:18:00.0").mkdir(parents=True)
    (folder / "version").touch()
    assert driver_loaded(tmp_path)
    assert bound_gpus(tmp_path) == ("0000:18:00.0",)
