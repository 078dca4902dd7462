"""What a code means: severity and advised action, read from ``catalogue.json``.

The file is the only place that knows codes; its ``about`` states the rule by which a
severity was chosen, its ``sources`` where the facts come from. This module reads it
once and answers three questions: an Xid, an SXid, an Xid 144-150 (which is decoded by
the unit that reports and its status word, not by the code alone).

Unknown is kept: a code without a row is a warning with the advice to ask support.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from node_agent.contract import Reason, Severity


class Action(StrEnum):
    """Advised action in one normal form (NVIDIA's immediate actions, plus RESET_FABRIC)."""

    NONE = "NONE"
    IGNORE = "IGNORE"
    RESTART_APP = "RESTART_APP"
    RESET_GPU = "RESET_GPU"
    RESET_FABRIC = "RESET_FABRIC"
    RESTART_VM = "RESTART_VM"
    RESTART_BM = "RESTART_BM"
    DRAIN_P2P = "DRAIN_P2P"
    DRAIN_AND_RESET = "DRAIN_AND_RESET"
    RECOVER_IMEX_DOMAIN = "RECOVER_IMEX_DOMAIN"
    CONTACT_SUPPORT = "CONTACT_SUPPORT"
    CHECK_MECHANICALS = "CHECK_MECHANICALS"
    CHECK_UVM = "CHECK_UVM"
    UPDATE_SWFW = "UPDATE_SWFW"
    WORKFLOW_XID_45 = "WORKFLOW_XID_45"
    WORKFLOW_XID_48 = "WORKFLOW_XID_48"
    WORKFLOW_NVLINK = "WORKFLOW_NVLINK"
    WORKFLOW_NVLINK5 = "WORKFLOW_NVLINK5"
    XID_154 = "XID_154"


NVLINK5_CODES: Final = frozenset(range(144, 151))
"""NVLink 5 errors (Blackwell): the unit and its status decide."""
_IGNORED_WHEN_NONFATAL: Final = frozenset((144, 145, 146, 147, 148))
"""Every catalogued non-fatal status of these is to be ignored, or says so in an Xid 154."""


class Verdict(NamedTuple):
    """What the catalogue says of one report."""

    severity: Severity
    action: Action
    application: bool = False
    text: str = ""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of ``xid`` or ``sxid``. ``driver`` and ``note`` are for people."""

    code: int
    text: str
    severity: Severity
    action: Action
    name: str = ""
    application: bool = False
    driver: str = ""
    note: str = ""

    def verdict(self) -> Verdict:
        """The row as an answer."""
        return Verdict(self.severity, self.action, self.application, self.text)


class RecoveryAction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A recovery action of the driver (Xid 154, NVML field 230). ``reason`` is None for "None"."""

    value: int
    text: str
    reason: Reason | None
    severity: Severity
    action: Action


class NvlinkRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Statuses or subcodes of one unit that share an action. An empty tuple matches any."""

    xid: int
    units: tuple[str, ...]
    action: Action
    statuses: tuple[int, ...] = ()
    subcodes: tuple[int, ...] = ()

    def matches(self, unit: str, subcode: int | None, status: int | None) -> bool:
        """Whether the rule speaks of this report. A word that the line lacks matches any."""
        return (
            unit in self.units
            and (not self.statuses or status is None or status in self.statuses)
            and (not self.subcodes or subcode is None or subcode in self.subcodes)
        )


class _Unknown(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    severity: Severity
    action: Action


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    about: tuple[str, ...]
    sources: tuple[str, ...]
    driver_range: str
    unknown: _Unknown
    xid: tuple[Entry, ...]
    recovery: tuple[RecoveryAction, ...]
    nvlink5_rules: tuple[NvlinkRule, ...]
    sxid: tuple[Entry, ...]


class Catalogue:
    """The file, indexed. Immutable; one instance serves the whole agent."""

    def __init__(self, document: _Document) -> None:
        """Index a decoded document."""
        self.xid = {row.code: row for row in document.xid}
        self.sxid = {row.code: row for row in document.sxid}
        self.recovery = document.recovery
        self.nvlink5_rules = document.nvlink5_rules
        self._rules = {
            code: tuple(rule for rule in document.nvlink5_rules if rule.xid == code)
            for code in NVLINK5_CODES
        }
        self._unknown = Verdict(document.unknown.severity, document.unknown.action)

    def of_xid(self, code: int) -> Verdict:
        """An Xid by its code alone. Use :meth:`of_nvlink5` for 144-150."""
        row = self.xid.get(code)
        return row.verdict() if row else self._unknown

    def of_sxid(self, code: int, *, fatal: bool | None) -> Verdict:
        """An SXid; ``fatal`` is the literal word of the line, None where it has none.

        The word is the driver's own judgement of this very error and wins over the row,
        except that what the row calls harmless stays so under ``Non-fatal``.
        """
        row = self.sxid.get(code)
        verdict = row.verdict() if row else self._unknown
        if fatal is None:
            return verdict
        if fatal:
            return verdict._replace(severity=Severity.FATAL)
        if verdict.severity is Severity.FATAL:
            return verdict._replace(severity=Severity.WARNING)
        return verdict

    def of_nvlink5(
        self,
        code: int,
        *,
        unit: str,
        subcode: int | None,
        status: int | None,
        fatal: bool | None,
    ) -> Verdict:
        """An Xid 144-150 by unit, subcode, status word and the literal fatal word.

        The bits differ between drivers (before and after 575), the word does not: it
        sets the severity, and the rules refine the action. A ``Fatal`` that no rule
        knows stays fatal.
        """
        base = self.of_xid(code)
        action = self._nvlink5_action(code, unit, subcode, status)
        if fatal is None:
            if action is None:
                return base
            return base._replace(severity=_severity_of(action), action=action)
        if fatal:
            if action is Action.IGNORE:
                return base._replace(severity=Severity.WARNING, action=action)
            return base._replace(severity=Severity.FATAL, action=action or Action.RESET_GPU)
        if action is None and code in _IGNORED_WHEN_NONFATAL:
            action = Action.IGNORE
        harmless = action is Action.IGNORE
        return base._replace(
            severity=Severity.INFO if harmless else Severity.WARNING, action=action or base.action
        )

    def recovery_action(self, value: int | None, text: str) -> RecoveryAction | None:
        """The recovery action by its number, else by its words; None if neither is known."""
        for row in self.recovery:
            if value == row.value:
                return row
        wanted = text.casefold()
        return next((row for row in self.recovery if row.text.casefold() == wanted), None)

    def _nvlink5_action(
        self, code: int, unit: str, subcode: int | None, status: int | None
    ) -> Action | None:
        """The action all matching rules agree on. Disagreement means the line was cut short."""
        rules = self._rules.get(code, ())
        found = {rule.action for rule in rules if rule.matches(unit, subcode, status)}
        return found.pop() if len(found) == 1 else None


def _severity_of(action: Action) -> Severity:
    if action is Action.RESET_GPU:
        return Severity.FATAL
    return Severity.INFO if action is Action.IGNORE else Severity.WARNING


def load_catalogue() -> Catalogue:
    """Read the shipped file. A broken file is a broken build and raises at start."""
    # Not importlib.resources: it would cost every agent a megabyte for zipped packages.
    raw = Path(__file__).with_name("catalogue.json").read_bytes()
    return Catalogue(msgspec.json.decode(raw, type=_Document))
