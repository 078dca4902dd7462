"""The state file: what was written comes back; what cannot be read is kept and said."""

from pathlib import Path

import pytest

from node_agent.health.fold import observe, scanned
from node_agent.health.state import NodeHealth
from node_agent.health.store import StoreError, load, save
from node_agent.sources.kernel_log import Position
from node_agent.sources.pci_sysfs import Device, DeviceClass
from tests.unit.agent.health.builders import GPU, RESET_WANTED, xid


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    health = NodeHealth(
        boot_id="boot-1", position=Position("file", "boot-1", inode=7, offset=900), answered="x"
    )
    health = observe(health, [xid(79, 1.25), xid(154, 2.5, RESET_WANTED)], boot_id="boot-1")
    health = scanned(health, [Device(GPU, DeviceClass.GPU, answers=True)], expected_gpus=0, now=1.0)
    save(tmp_path / "new" / "state.json", health)
    loaded = load(tmp_path / "new" / "state.json")
    assert loaded.health == health
    assert not loaded.fresh


def test_no_file_is_a_first_start(tmp_path: Path) -> None:
    loaded = load(tmp_path / "state.json")
    assert (loaded.health, loaded.fresh, loaded.lost, loaded.note) == (
        NodeHealth(),
        True,
        False,
        "",
    )


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"version":1,"faults":{"a"', id="cut-off"),
        pytest.param(b"\x00" * 100, id="zeros"),
        pytest.param(b'{"version":1,"faults":[]}', id="another-shape"),
        pytest.param(b'{"version":2}', id="a-newer-version"),
        pytest.param(b"[]", id="no-object"),
        pytest.param(b'{"version":1,"x":' + b"[" * 100_000, id="nested-too-deep"),
        pytest.param(
            b'{"version":1,"faults":{"x":{"kind":"xid","severity":"fatal","firstSeen":1e300,'
            b'"lastSeen":1.0}}}',
            id="a-time-beyond-the-calendar",
        ),
    ],
)
def test_a_bad_file_is_kept_aside_and_said_and_the_state_knows_that_it_forgot(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    loaded = load(path)
    assert (loaded.health.forgotten, loaded.fresh, loaded.lost) == (True, True, True)
    assert "state.json.corrupt" in loaded.note
    assert (tmp_path / "state.json.corrupt").read_bytes() == content
    assert not path.exists()


def test_a_failed_write_says_where_and_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    save(path, NodeHealth(boot_id="old"))
    (tmp_path / ".state.json.new").mkdir()  # the temporary name is taken by a folder
    with pytest.raises(StoreError, match=r"cannot write the state file .*state\.json"):
        save(path, NodeHealth(boot_id="new"))
    assert load(path).health.boot_id == "old"
