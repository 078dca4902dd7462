"""Which source is taken, and what a refused one says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from node_agent.sources.kernel_log import Mode, source


if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Follow  # type: ignore[import-not-found]


@pytest.mark.parametrize(
    ("works", "chosen"),
    [({"kmsg", "syslog"}, "kmsg"), ({"syslog"}, "syslog"), (set(), "file")],
)
async def test_auto_takes_the_first_that_works(
    follow: Follow,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    works: set[str],
    chosen: str,
) -> None:
    monkeypatch.setattr(source, "can_open_kmsg", lambda _: "kmsg" in works)
    monkeypatch.setattr(source, "can_read_ring", lambda: "syslog" in works)
    async with follow(Mode.AUTO, tmp_path / "missing") as log:
        await log.until_state(lambda state: state.reason != "not started")
        assert log.log.state.source == chosen


def test_a_plain_file_is_no_kmsg(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.touch()
    assert not source.can_open_kmsg(path)
    assert not source.can_open_kmsg(tmp_path / "missing")


async def test_a_refused_source_says_what_is_missing(follow: Follow, tmp_path: Path) -> None:
    async with follow(Mode.KMSG, tmp_path / "missing") as log:
        await log.until_state(lambda state: state.reason != "not started")
        assert not log.log.state.working
        assert "No such file" in log.log.state.reason
        assert "CAP_SYSLOG" in log.log.state.reason
        assert log.states == [log.log.state], "said once"


def test_the_boot_id_is_read_or_empty(tmp_path: Path) -> None:
    path = tmp_path / "boot_id"
    path.write_text("3f587860-4c14\n")
    assert source.read_boot_id(path) == "3f587860-4c14"
    assert source.read_boot_id(tmp_path / "missing") == ""
