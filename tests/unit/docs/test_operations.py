"""The page for three in the morning explains every word of HELD BY."""

from pathlib import Path

import pytest

from remediator.decide.decision import HELD_BY_NO_GUARD
from remediator.decide.guards import GUARD_NAMES


PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


@pytest.mark.parametrize("name", [*GUARD_NAMES, *HELD_BY_NO_GUARD])
def test_what_can_hold_is_explained(name: str) -> None:
    assert f"\n| `{name}` | " in PAGE.read_text(encoding="utf-8")
