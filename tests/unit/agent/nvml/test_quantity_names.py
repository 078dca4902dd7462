"""Who reads a quantity and who makes it agree on its name: a misspelt one would be absent for ever.

Tables name what they read as data. Code is searched: a string with which something called
``values`` or ``limits`` is asked, anywhere in the agent, and in the judges of health every string
that is built like a name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import node_agent
from node_agent.health.growth import GROWING, REMEMBERED
from node_agent.health.levels import LINKS
from node_agent.nvml import enumerate as enumeration
from node_agent.nvml.quantities import CALLS, FIELDS, GPM, LIMIT_FIELDS
from node_agent.publish.counters import load_fields
from node_agent.publish.device_families import SAMPLES


ROOT = Path(node_agent.__file__).parent
LIMITS = {
    *enumeration._THRESHOLDS,
    *(quantity.name for quantity in LIMIT_FIELDS.values()),
    *re.findall(r'limits\["(\w+)"\]', (ROOT / "nvml/enumerate.py").read_text("utf-8")),
}
READINGS = {
    *(quantity.name for call in CALLS for quantity, _ in call.outputs),
    *(field.quantity.name for field in FIELDS),
    *(quantity.name for quantity in GPM.values()),
    "nvlink_rate_bytes_per_s",  # the sum of two others
}
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)+")
FEATURES = {"row_remap"}


def strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def asked(tree: ast.AST) -> Iterator[str]:
    """Strings with which something called ``values`` or ``limits`` is asked."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=of, slice=ast.Constant(value=str(name))):
                pass
            case ast.Call(
                func=ast.Attribute(value=of, attr="get"), args=[ast.Constant(value=str(name)), *_]
            ):
                pass
            case ast.Compare(left=ast.Constant(value=str(name)), comparators=[of]):
                pass
            case _:
                continue
        if ast.unparse(of).rpartition(".")[2] in {"values", "limits"}:
            yield name


def test_what_a_judge_reads_is_made() -> None:
    for module in ("signals", "levels", "growth"):
        tree = ast.parse((ROOT / "health" / f"{module}.py").read_text("utf-8"))
        named = {text for text in strings(tree) if NAME.fullmatch(text)}
        assert named - FEATURES <= READINGS | LIMITS, module
        assert named & READINGS


def test_what_any_code_asks_for_is_made() -> None:
    found = {
        name: path.name
        for path in ROOT.rglob("*.py")
        for name in asked(ast.parse(path.read_text("utf-8")))
    }
    assert {name: of for name, of in found.items() if name not in READINGS | LIMITS} == {}
    assert {"clocks_event_reasons", "recovery_action", "pcie_replay", "pcie_gen_max"} <= set(found)


def test_what_a_table_names_is_made() -> None:
    assert {*GROWING, *REMEMBERED, LINKS} <= READINGS
    for sample in SAMPLES:
        assert sample.quantity in (LIMITS if sample.limit else READINGS), sample.family.name
    for field in load_fields().by_name.values():
        known = {"reading": READINGS, "limit": LIMITS}.get(field.source)
        assert known is None or field.quantity in known, field.name
