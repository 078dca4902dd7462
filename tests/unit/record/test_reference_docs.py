"""Documentation that restates the code says the same. `UPDATE_DOCS=1` writes it anew."""

import ast
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import remediator
from remediator import settings
from remediator.decide.guards import GUARDS
from remediator.record import events, metrics


ROOT = Path(__file__).parents[3]
OPERATIONS = ROOT / "docs" / "operations.md"


@pytest.mark.parametrize(
    ("page", "name", "reference"),
    [
        ("docs/controller/settings.md", "settings", settings.reference),
        ("docs/controller/metrics.md", "metrics", metrics.reference),
        ("docs/operations.md", "events", events.reference),
    ],
)
def test_generated_tables_are_current(page: str, name: str, reference: Callable[[], str]) -> None:
    path = ROOT / page
    text = path.read_text()
    current = re.sub(
        rf"(<!-- begin: {name} -->\n).*?(<!-- end: {name} -->)",
        lambda match: match[1] + reference() + match[2],
        text,
        flags=re.DOTALL,
    )
    if os.environ.get("UPDATE_DOCS"):
        path.write_text(current)

    assert f"<!-- begin: {name} -->" in text
    assert path.read_text() == current, f"{page} is old: run UPDATE_DOCS=1 pytest {__file__}"


def log_events() -> Iterator[str]:
    """The name of each warning and error that the controller can log."""
    for path in Path(remediator.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr in {"warning", "error", "exception"}
                and ast.unparse(call.func.value) == "_log"
            ):
                (name, *_) = call.args
                assert isinstance(name, ast.Constant), f"{path}: an event name is a constant"
                yield str(name.value)


def test_every_warning_and_error_of_the_log_is_explained() -> None:
    explained = set(re.findall(r"`([^`\n]+)`", OPERATIONS.read_text()))

    assert set(log_events()) - explained == set()


def test_every_guard_is_explained() -> None:
    text = OPERATIONS.read_text()

    for guard in GUARDS:
        name = guard.__name__.replace("_", "-")
        assert f"| `{name}` |" in text


def test_every_metric_that_an_alert_uses_exists() -> None:
    text = (ROOT / "docs" / "controller" / "metrics.md").read_text()
    used = set(re.findall(r"\((remediation_\w+|leader|watch_last\w+)", text))

    assert used
    assert used <= set(re.findall(r"`(\w+)`", metrics.reference()))
