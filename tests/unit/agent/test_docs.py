"""The agent's pages say what the code does: their tables are made from it."""

import re
from pathlib import Path

import pytest

from node_agent.contract import ConditionType, Reason
from tests.docs.agent_tables import PAGES, TABLES, with_tables


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_up_to_date(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text == with_tables(text), "run: python -m tests.docs.agent_tables"


def test_every_table_stands_somewhere() -> None:
    texts = "".join(page.read_text("utf-8") for page in PAGES)
    assert [name for name in TABLES if f"<!-- table: {name} -->" not in texts] == []


@pytest.mark.parametrize("word", [*ConditionType, *Reason])
def test_every_word_of_the_contract_is_on_its_page(word: str) -> None:
    page = next(page for page in PAGES if page.name == "contract.md")
    assert f"`{word}`" in page.read_text("utf-8")


DIFFERENCES = Path("docs/agent/known-differences.md")


def test_every_test_that_the_page_of_differences_names_is_there() -> None:
    written = "".join(path.read_text("utf-8") for path in Path("tests").rglob("test_*.py"))
    there = set(re.findall(r"def (test_\w+)\(", written))
    named = set(re.findall(r"`(test_\w+)`", DIFFERENCES.read_text("utf-8")))
    assert len(named) > 50
    assert named - there == set()


def test_every_difference_has_its_proof() -> None:
    text = DIFFERENCES.read_text("utf-8")
    differences, _, reports = text.partition("## Where they were reported")
    rows = [line.strip("| ").split(" | ") for line in differences.splitlines() if "| " in line]
    rows = [row for row in rows if row[0] not in {"---", "what others do"}]
    assert len(rows) > 50
    for row in rows:
        assert len(row) == 3, row
        assert re.search(r"`test_\w+|`make |\.py`|cannot ", row[2]), row
    # The defects that were collected when this was built: 36 kinds.
    assert len(re.findall(r"[\w-]*#\d+", reports)) >= 95
