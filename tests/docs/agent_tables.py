"""The tables of the agent's pages, made from the code that they describe.

    python -m tests.docs.agent_tables    (writes them into docs/)

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; the rest of a page is prose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from prometheus_client import Metric

from node_agent.contract import (
    ConditionStatus,
    ConditionType,
    Fault,
    FaultKind,
    FaultReport,
    Instance,
    Past,
    Reason,
    Severity,
    Truncated,
)
from node_agent.health.conditions import SOURCES, View
from node_agent.health.rules import BEYOND_A_RESET, LEVEL_SUBCODES, RULES, Clear, Rule
from node_agent.health.signals import SIGNALS
from node_agent.publish.counters import DEFAULT_FILES, Field, load_counters, load_fields
from node_agent.publish.device_families import DEVICE_FAMILIES
from node_agent.publish.metrics import FAMILIES, SelfMetrics
from node_agent.publish.page import PAGE_FAMILIES
from node_agent.settings import definitions


ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
RULES_SOURCE: Final = ROOT / "node-agent" / "node_agent" / "health" / "rules.py"
PAGES: Final = (
    DOCS / "contract.md",
    DOCS / "agent" / "health.md",
    DOCS / "agent" / "metrics.md",
    DOCS / "agent" / "settings.md",
)
_SUFFIX: Final = {"counter": "_total", "info": "_info"}
_BLOCK: Final = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Write the tables into the pages."""
    for page in PAGES:
        page.write_text(with_tables(page.read_text("utf-8")), "utf-8")


def with_tables(text: str) -> str:
    """The page with its tables as the code has them now."""
    return _BLOCK.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}{match[3]}", text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(_escaped, line))} |\n" for line in lines)


def settings_table() -> str:
    rows = (
        [
            f"`{d.flag}`",
            f"`{d.variable}`",
            d.kind,
            f"`{d.default}`" if d.default != "" else "",
            d.doc,
        ]
        for d in definitions()
    )
    return table(("flag", "variable", "kind", "default", "meaning"), rows)


def rules_table() -> str:
    rows = (
        [
            rule.name,
            _matches(rule),
            ", ".join(f"{r.type} `{r.reason or '*'}`" for r in rule.raises) or "nothing",
            ", ".join(sorted(rule.cleared_by)),
        ]
        for rule in RULES
    )
    return table(("fault", "is", "raises", "ends by"), rows)


def clears_table() -> str:
    return table(("evidence", "means"), ([f"`{c.value}`", _doc_of(c.name)] for c in Clear))


def beyond_table() -> str:
    return ", ".join(f"`{action}`" for action in sorted(BEYOND_A_RESET)) + "\n"


def sources_table() -> str:
    rows = (
        [
            kind,
            _views(s.raisers),
            " or ".join(_views(needed) for needed in s.needed),
            _views(s.heard) if s.heard else "",
            s.fine,
        ]
        for kind, s in SOURCES.items()
    )
    head = ("condition", "can be raised by", "`False` needs", "and not away", "`False` means")
    return table(head, rows)


def signals_table() -> str:
    rows = ([f"`{s.level}`", s.severity, s.raises, s.ends] for s in SIGNALS)
    return table(("fault", "severity", "begins", "ends"), rows)


def families_table() -> str:
    return table(("name", "type", "meaning"), ([f"`{f.name}`", f.kind, f.doc] for f in FAMILIES))


def device_families_table() -> str:
    rows = sorted([f"`{f.name}`", f.kind, f.doc] for f in DEVICE_FAMILIES)
    return table(("name", "type", "meaning"), rows)


def dcgm_table() -> str:
    fields = load_fields()
    on = {field.name for path in DEFAULT_FILES.values() for field in _on(path)}
    rows: dict[tuple[str, str, str], dict[str, Field]] = {}
    for field in fields.by_name.values():
        spelling = "" if field.line else field.name
        rows.setdefault((field.source, field.quantity, spelling), {})[field.line or "4.8"] = field
    return table(
        ("4.8 line", "unit", "4.9 line", "unit", "type", "default"),
        (_dcgm_row(row.get("4.8"), row.get("4.9"), on) for row in rows.values()),
    )


def _dcgm_row(old: Field | None, new: Field | None, on: set[str]) -> list[str]:
    one = old or new
    assert one is not None
    return [
        f"`{old.name}`" if old else "",
        old.unit if old else "",
        (f"`{new.name}`" if new.name != one.name or not old else "same") if new else "same",
        new.unit if new else "",
        one.kind,
        "on" if any(each and each.name in on for each in (old, new)) else "",
    ]


def _on(path: Path) -> list[Field]:
    counters = load_counters(path, load_fields())
    return [*(counter.field for counter in counters.metrics), *counters.labels]


def self_table() -> str:
    metrics: list[Metric] = sorted(SelfMetrics(node="n").registry.collect(), key=lambda m: m.name)
    rows = (
        [f"`{m.name}{_SUFFIX.get(m.type, '')}`", m.type, m.documentation]
        for m in metrics
        if m.name.startswith("gpu_")
    )
    page = ([f"`{f.name}`", f.kind, f.doc] for f in PAGE_FAMILIES)
    return table(("name", "type", "meaning"), (*rows, *page))


def conditions_table() -> str:
    raised: dict[ConditionType, list[str]] = {kind: [] for kind in ConditionType}
    for rule in RULES:
        for each in rule.raises:
            if each.reason and each.reason not in raised[each.type]:
                raised[each.type].append(each.reason)
    raised[ConditionType.XID_ERROR] = ["Xid<code>", "SXid<code>"]
    raised[ConditionType.RECOVERY_ACTION_REQUIRED] = [
        Reason.GPU_RESET,
        Reason.NODE_REBOOT,
        Reason.DRAIN_P2P,
        Reason.DRAIN_AND_RESET,
        Reason.RECOVER_IMEX_DOMAIN,
        "Xid154",
    ]
    rows = ([kind, ", ".join(f"`{r}`" for r in reasons)] for kind, reasons in raised.items())
    return table(("type", "reasons when `True`, as of this version"), rows)


def words_table() -> str:
    words = {
        "condition type": ConditionType,
        "status": ConditionStatus,
        "reason": Reason,
        "severity": Severity,
        "fault kind": FaultKind,
    }
    rows = ([name, ", ".join(f"`{word}`" for word in each)] for name, each in words.items())
    return table(("what", "words"), rows)


def schema_table() -> str:
    rows = (
        [f"`{struct.__name__}`", f"`{name}`", "yes" if name in _required(struct) else ""]
        for struct in (FaultReport, Fault, Instance, Past, Truncated)
        for name in struct.__struct_encode_fields__
    )
    return table(("object", "field", "always there"), rows)


TABLES: Final = {
    "beyond": beyond_table,
    "clears": clears_table,
    "conditions": conditions_table,
    "dcgm": dcgm_table,
    "device-families": device_families_table,
    "families": families_table,
    "rules": rules_table,
    "schema": schema_table,
    "self": self_table,
    "settings": settings_table,
    "signals": signals_table,
    "sources": sources_table,
    "words": words_table,
}


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def _matches(rule: Rule) -> str:
    parts = [rule.kind.value] if rule.kind else ["any"]
    parts += [", ".join(str(code) for code in sorted(rule.codes))] if rule.codes else []
    if rule.subcodes == LEVEL_SUBCODES:
        parts += ["signal of NVML (below)"]
    elif rule.subcodes:
        parts += [", ".join(sorted(rule.subcodes))]
    parts += [f"severity {rule.severity.value}"] if rule.severity else []
    return " ".join(parts)


def _views(views: frozenset[View]) -> str:
    return ", ".join(sorted(view.value for view in views)) or "nothing yet"


def _doc_of(name: str) -> str:
    """The string under a member of `Clear`, as its source has it."""
    source = RULES_SOURCE.read_text("utf-8")
    found = re.search(rf'    {name} = "[a-z-]+"\n    """(.*?)"""', source, re.DOTALL)
    if found is None:
        raise LookupError(f"{name} has no line of documentation")
    return " ".join(found[1].split())


def _required(struct: type[FaultReport | Fault | Instance | Past | Truncated]) -> set[str]:
    names = dict(zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True))
    optional = struct.__struct_fields__[len(names) - len(struct.__struct_defaults__) :]
    return {encoded for field, encoded in names.items() if field not in optional}


if __name__ == "__main__":
    main()
