"""Every word that `status` says of a node is explained."""

from pathlib import Path

import pytest

from remediator.decide.decision import HELD_BY_NO_GUARD, NodePhase
from remediator.decide.guards import GUARD_NAMES


DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "operations.md"


@pytest.mark.parametrize("name", [*GUARD_NAMES, *HELD_BY_NO_GUARD])
def test_what_can_hold_is_explained(name: str) -> None:
    assert f"\n| `{name}` | " in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("phase", NodePhase)
def test_where_a_node_stands_is_explained(phase: NodePhase) -> None:
    section = (DOCS / "cli.md").read_text(encoding="utf-8").partition("| `PHASE` |")[2]
    assert f"\n| `{phase}` | " in section.partition("\n\n")[0]
