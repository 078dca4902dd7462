"""The agent's pages say what the code does: their tables are made from it."""

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
