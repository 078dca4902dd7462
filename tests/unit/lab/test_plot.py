"""The picture of a replay: what is drawn is what was counted."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from remediator.lab.assumed import assumptions
from remediator.lab.plot import HEIGHT, PANELS, plot
from remediator.lab.replay import Replayed, replay
from remediator.policy.cluster import ClusterSpec
from tests.unit.lab.test_assumed import SICK_FOR_AN_HOUR, START, policy, tape


def replayed(*steps: dict[str, object]) -> Replayed:
    return replay(
        tape(SICK_FOR_AN_HOUR),
        policies=[policy(*steps)],
        cluster=ClusterSpec(),
        assume=assumptions(),
    )


def lines(picture: str) -> list[str]:
    """Return the step lines, of each panel one for each set of policies."""
    root = ET.fromstring(picture)  # noqa: S314 - our own text
    return [one.attrib["d"] for one in root.iter("{http://www.w3.org/2000/svg}path")]


def rises(path: str) -> int:
    heights = [float(one) for one in re.findall(r"V([\d.]+)", path)]
    first = float(path.split()[1].partition("H")[0])
    return sum(later < earlier for earlier, later in zip([first, *heights], heights, strict=False))


def test_each_panel_has_a_line_for_each_set_of_policies() -> None:
    old, new = replayed({"cordon": {}}, {"drain": {}}), replayed({"notify": {"to": ["log"]}})
    found = lines(plot([("old", old), ("new", new)], title="t"))
    assert len(found) == len(PANELS) * 2
    assert [rises(one) for one in found] == [1, 0, 1, 0, 1, 0]


def test_cordons_and_drains_are_counted_as_they_begin() -> None:
    found = replayed({"cordon": {}}, {"drain": {}})
    assert found.begun("cordon") == [(START + 600, 1)]
    assert found.begun("drain") == [(START + 600, 1)]
    assert found.begun("job") == []


def test_a_name_of_a_folder_is_text() -> None:
    picture = plot([("<a & b>", replayed({"cordon": {}}))], title="x < y")
    root = ET.fromstring(picture)  # noqa: S314 - our own text
    assert root.attrib["height"] == str(HEIGHT)
    assert any("<a & b>" in (one.text or "") for one in root.iter())
