"""What a controller did on the real API server, and what a replay of its recording makes of it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from remediator.lab.replay import replay
from remediator.lab.tape import decode
from remediator.lab.timeline import DONE, What
from remediator.policy.load import load_config, load_policies
from tests.integration.controller.test_taint import OURS, taints


if TYPE_CHECKING:
    from testbed.api import Json
    from tests.integration.controller.conftest import Replica, Site

pytestmark = pytest.mark.cluster

STATE: Final = "example.com/state"
STEPS: Final[list[Json]] = [{"cordon": {}}, {"taint": {}}, {"label": {"set": {STATE: "bad"}}}]
TAKEN: Final = ["cordon", "taint", "label"]
PROGRAM: Final = "from remediator.cli import main; main()"


@contextmanager
def recorder(site: Site, out: Path, nodes: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Record, from when these nodes are known."""
    kubeconfig = str(site.cluster.kubeconfig_for(site.token))
    flags = ["record", "--out", str(out), "--for", "1h", "--kubeconfig", kubeconfig]
    with subprocess.Popen([sys.executable, "-c", PROGRAM, *flags], text=True) as process:  # noqa: S603
        try:
            site.wait(lambda: all(f'"{one}"' in text_of(out) for one in nodes), "what it records")
            yield process
        finally:
            process.kill()


def text_of(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


def done(site: Site, node: str) -> bool:
    session = site.session(node)
    return session is not None and session["holds"][0].get("state") == "done"


def over(site: Site, node: str) -> bool:
    return site.session(node) is None


def test_a_recording_of_two_recorders_replays_as_the_controller_acted(
    site: Site, run: Callable[..., Replica], tmp_path: Path
) -> None:
    """The first one dies, and a node leaves before the second one begins."""
    site.policy(steps=STEPS)
    names = ("cured", "touched", "replaced", "left", "well", "late")
    cured, touched, replaced, left, well, late = nodes = [
        site.node(name, labels={STATE: "good"}) for name in names
    ]
    for node in nodes:
        site.says(node)
    run()
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    with recorder(site, first, nodes) as died:
        for node in (cured, touched, replaced, left):
            site.says(node, 79)
        for node in (cured, touched, replaced, left):
            site.wait(partial(done, site, node), "the steps")
        site.wait(lambda: text_of(first).count('\\"state\\":\\"done\\"') >= 4, "all of it recorded")
        died.send_signal(signal.SIGKILL)
    site.cluster.delete_node(left)
    nodes.remove(left)
    with recorder(site, second, nodes) as ended:
        site.cluster.patch_node(touched, {"spec": {"taints": None}})
        site.wait(lambda: site.session(touched) is None, "cancelled session")
        site.cluster.delete_node(replaced)
        assert site.node("replaced", labels={STATE: "good"}) == replaced
        site.says(replaced)
        site.says(late, 79)
        site.wait(lambda: done(site, late), "the steps")
        for node in (cured, late):
            site.says(node)
            site.wait(partial(over, site, node), "recovery")
        site.says(replaced, 79)
        site.wait(lambda: done(site, replaced), "the steps")
        site.says(well)
        ended.send_signal(signal.SIGTERM)
        assert ended.wait(20) == 0
    assert OURS not in taints(site, touched)

    text = first.read_text("utf-8") + '{"t":9.0,"node":"cu' + second.read_text("utf-8")
    policies = load_policies([site.policies])
    cluster = load_config(site.folder / "config.yaml")
    found = replay(decode(StringIO(text, newline="\n")), policies=policies, cluster=cluster)
    did = {
        node: [
            one.name
            for one in found.timeline.of(What.STEP, What.UNDONE, What.ENDED)
            if one.node == node and one.result in {"", DONE}
        ]
        for node in (cured, touched, replaced, left, well, late)
    }
    undone = ["uncordon", "untaint", "uncordon"]
    assert did == {
        cured: TAKEN + undone,
        touched: [*TAKEN, "cancel"],
        replaced: TAKEN + TAKEN,
        left: TAKEN,
        well: [],
        late: TAKEN + undone,
    }
    assert any("saw nothing" in note for note in found.notes)
