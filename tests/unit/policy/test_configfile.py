"""RemediatorConfig follows its file: a good version is told of, a bad one changes nothing."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from remediator.policy.cluster import ClusterSpec
from remediator.policy.configfile import ConfigFile
from remediator.policy.load import load_config


HEAD = "apiVersion: gpu-remediator.io/v1alpha1\nkind: RemediatorConfig\nspec: "


class Disk:
    """The file, and a time of modification that every write moves on."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "config.yaml"
        self._at = 1_000_000_000
        self.write("{settling: 1m}")
        self.config = ConfigFile(self.path, in_force=load_config(self.path))

    def write(self, spec: str) -> None:
        self.path.write_text(HEAD + spec, encoding="utf-8")
        self._at += 10
        os.utime(self.path, (self._at, self._at))

    async def looks(self, times: int = 2) -> None:
        """Let it look until what was written has come to rest."""
        for _ in range(times):
            await self.config.look()


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


async def test_what_was_read_at_the_start_is_no_change(disk: Disk) -> None:
    await disk.looks(5)
    assert not disk.config.changed.is_set()


async def test_another_version_is_told_of_once_it_came_to_rest(disk: Disk) -> None:
    await disk.looks()
    disk.write("{settling: 2m}")
    await disk.looks(1)
    assert not disk.config.changed.is_set(), "it may be half-written"
    await disk.looks(1)
    assert disk.config.changed.is_set()
    assert disk.config.in_force.settling == 60.0, "nothing is in force before it is taken"
    assert disk.config.take().settling == 120.0
    assert not disk.config.changed.is_set()


async def test_other_words_for_the_same_are_no_change(disk: Disk) -> None:
    disk.write("{settling: 60s}")
    await disk.looks()
    assert not disk.config.changed.is_set()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{setling: 1m}", "setling"),
        ("{settling: 1", "config.yaml:"),
        ("{alertsTo: [x]}", "x is no"),
    ],
    ids=["unknown key", "no YAML", "unknown channel"],
)
async def test_an_error_changes_nothing_and_is_said_until_it_is_mended(
    disk: Disk, text: str, says: str
) -> None:
    disk.write(text)
    await disk.looks()
    assert says in disk.config.problem
    assert str(disk.path) in disk.config.problem
    assert not disk.config.changed.is_set()
    assert disk.config.take().settling == 60.0

    disk.write("{settling: 1m}")
    await disk.looks()
    assert disk.config.problem == ""
    assert not disk.config.changed.is_set()


async def test_a_file_that_is_gone_changes_nothing(disk: Disk) -> None:
    disk.path.unlink()
    await disk.looks()
    assert disk.config.problem
    assert not disk.config.changed.is_set()
    disk.write("{settling: 3m}")
    await disk.looks()
    assert disk.config.problem == ""
    assert disk.config.take().settling == 180.0


async def test_a_change_that_is_taken_back_in_time_is_none(disk: Disk) -> None:
    disk.write("{settling: 2m}")
    await disk.looks()
    disk.write("{settling: 1m}")
    await disk.looks()
    assert not disk.config.changed.is_set()


async def test_who_is_about_to_act_reads_it_at_once(disk: Disk) -> None:
    await disk.looks()
    disk.write("{settling: 2m}")
    await disk.config.refresh()
    assert disk.config.changed.is_set()


async def test_what_cannot_be_served_is_said_and_not_tried_again_before_it_changes(
    disk: Disk,
) -> None:
    disk.write("{settling: 2m}")
    await disk.looks()
    before = disk.config.in_force
    disk.config.take()
    assert disk.config.go_back(before, "the port is taken") is before
    assert disk.config.in_force.settling == 60.0
    await disk.looks()
    await disk.config.refresh()
    assert "the port is taken" in disk.config.problem
    assert not disk.config.changed.is_set()

    disk.write("{settling: 2m}")
    await disk.looks()
    assert disk.config.changed.is_set(), "written again: it may be possible now"
    assert disk.config.problem == ""


async def test_a_newer_version_counts_more_than_why_the_last_one_failed(disk: Disk) -> None:
    disk.write("{settling: 2m}")
    await disk.looks()
    before = disk.config.in_force
    disk.config.take()
    disk.write("{settling: 3m}")
    await disk.looks()
    disk.config.go_back(before, "the port is taken")
    assert disk.config.problem == ""
    assert disk.config.changed.is_set()
    assert disk.config.take().settling == 180.0


async def test_without_a_file_nothing_ever_changes() -> None:
    config = ConfigFile(None, in_force=ClusterSpec())
    await asyncio.wait_for(config.follow(), 1)
    await config.look()
    await config.refresh()
    assert not config.changed.is_set()
