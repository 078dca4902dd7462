"""One line of the kernel log to one report, for every wording drivers 450-595 print.

``NVRM: Xid (PCI:dddd:bb:dd[.f][ GPU-I:n[ GPU-CI:n]]): N[, pid=P][, name=S][, text]``
``nvidia-nvswitchK: SXid (PCI:dddd:bb:dd.f): N[, Fatal|Non-fatal][, Link n] text``
``NVRM: GPU dddd:bb:dd.f: GPU has fallen off the bus.`` (without any Xid)

The grammar is read piece by piece, each piece optional, never by one regular
expression: a wording that a future driver changes then costs one field, not the line.
Nothing here raises, whatever the bytes; a line that is not a report gives None.
Source of the grammar: NVIDIA's open kernel modules and public reports.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from node_agent.contract import FaultKind, Reason, Severity
from node_agent.xid.catalogue import NVLINK5_CODES, Action, Catalogue, Verdict


if TYPE_CHECKING:
    from node_agent.xid.catalogue import RecoveryAction

MAX_TEXT: Final = 4096
"""Characters looked at. The kernel's own records end at 1 KiB."""
MAX_MESSAGE: Final = 200
"""Characters of the driver's text kept in a report."""
_MAX_NAME: Final = 64
_MAX_UNIT: Final = 32
_MAX_CODE_DIGITS: Final = 9

FALLEN_OFF_BUS: Final = 79
RECOVERY_ACTION_CHANGED: Final = 154

_XID: Final = "NVRM: Xid ("
_SXID: Final = " SXid ("
_IDENTITY: Final = "NVRM: GPU at PCI:"
_LOST: Final = "fallen off the bus"
_CAUSE: Final = " caused by previous Xid "

_PCI = re.compile(
    r"(?:PCI:)?([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?", re.ASCII
)
_INSTANCE = re.compile(r" GPU-(C?)I:(\d{1,4})", re.ASCII)
_LINK = re.compile(r"[Ll]ink (-?\d{1,3})(?!\d)", re.ASCII)
_WORD = re.compile(r"\b(Non-?fatal|Fatal)\b", re.ASCII | re.IGNORECASE)
_HEX = re.compile(r"0x([0-9a-fA-F]{1,8})(?![0-9a-fA-F])", re.ASCII)
_RECOVERY = re.compile(r"\bto 0x([0-9a-fA-F]{1,4}) \(([^()]{0,64})\)", re.ASCII)
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_CONTINUATION = re.compile(r"(?:Data \{|Severity (\d) Engine instance )", re.ASCII)


@dataclass(frozen=True, slots=True)
class XidReport:
    """What one line says, with what the catalogue says about it.

    ``pci`` is ``dddd:bb:dd.f`` in lower-case hex, empty only where the line names no
    device. ``code`` is None for ``FaultKind.LOST``. ``subcode`` is the NVLink 5 unit of
    144-150. ``fatal`` is the literal word of the line. ``recovery`` is set for an Xid
    154 whose action could be read: :attr:`recovery_reason` None then means "None", the
    positive evidence that the driver asks for nothing any more. ``continuation`` marks
    the second and third line of one SXid, which count nothing.
    """

    kind: FaultKind
    pci: str
    severity: Severity
    action: Action
    code: int | None = None
    subcode: str = ""
    application: bool = False
    pid: int | None = None
    process: str = ""
    gi: int | None = None
    ci: int | None = None
    caused_by: int | None = None
    link: int | None = None
    fatal: bool | None = None
    recovery: RecoveryAction | None = None
    gpu_uuid: str = ""
    message: str = ""
    continuation: bool = False

    @property
    def recovery_reason(self) -> Reason | None:
        """The contract's reason for the recovery action, None for "None" or no 154."""
        return self.recovery.reason if self.recovery else None


def normalize_pci(text: str) -> str:
    """The first PCI address in a text as ``dddd:bb:dd.f``, or an empty string.

    NVML writes the domain with eight digits, the kernel with four and often without
    the function; a GPU is function 0.
    """
    match = _PCI.search(text)
    return _pci_of(match) if match else ""


def is_report_like(text: str) -> bool:
    """Whether a line claims to be an Xid or SXid, so that a failed parse is worth counting."""
    return "NVRM: Xid " in text or _SXID in text


def parse_identity(text: str) -> tuple[str, str] | None:
    """``(pci, uuid)`` of the driver's "GPU at PCI:…" line, printed before its first Xid."""
    start = text.find(_IDENTITY)
    if start < 0:
        return None
    pci = normalize_pci(text[start : start + 64])
    uuid = _UUID.search(text, start, start + 128)
    return (pci, uuid.group()) if pci and uuid else None


def parse(text: str | bytes, *, catalogue: Catalogue) -> XidReport | None:
    """Parse one line (a log prefix in front is ignored). None if it reports no fault."""
    if isinstance(text, bytes):
        text = text[:MAX_TEXT].decode("utf-8", "replace")
    text = text[:MAX_TEXT]
    start = text.find(_XID)
    if start >= 0:
        return _parse_xid(text[start + len(_XID) :], catalogue)
    start = text.find(_SXID)
    if start >= 0 and "nvswitch" in text[:start]:
        return _parse_sxid(text[start + len(_SXID) :], catalogue)
    if _LOST in text and "NVRM: " in text:
        return _parse_lost(text[text.find("NVRM: ") :], catalogue)
    return None


def _parse_xid(rest: str, catalogue: Catalogue) -> XidReport | None:
    head = _split_head(rest)
    if head is None:
        return None
    address, pci, code, body = head
    gi, ci = _instances(address)
    pid, process, body = _process(body)
    body, caused_by = _cause(body)
    subcode, fatal, recovery = "", None, None
    if code in NVLINK5_CODES:
        subcode, fatal, verdict = _nvlink5(code, body, catalogue)
    elif code == RECOVERY_ACTION_CHANGED:
        recovery, verdict = _recovery(body, catalogue)
    else:
        verdict = catalogue.of_xid(code)
    return XidReport(
        kind=FaultKind.XID,
        pci=pci,
        severity=verdict.severity,
        action=verdict.action,
        code=code,
        subcode=subcode,
        application=verdict.application,
        pid=pid,
        process=process,
        gi=gi,
        ci=ci,
        caused_by=caused_by,
        link=_link(body),
        fatal=fatal,
        recovery=recovery,
        message=_message(body) or verdict.text,
    )


def _parse_sxid(rest: str, catalogue: Catalogue) -> XidReport | None:
    head = _split_head(rest)
    if head is None:
        return None
    _, pci, code, body = head
    word = _WORD.match(body)
    fatal = _is_fatal(word.group(1)) if word else None
    continuation = _CONTINUATION.match(body)
    if continuation and continuation.group(1):
        fatal = continuation.group(1) != "0"
    verdict = catalogue.of_sxid(code, fatal=fatal)
    return XidReport(
        kind=FaultKind.SXID,
        pci=pci,
        severity=verdict.severity,
        action=verdict.action,
        code=code,
        link=_link(body),
        fatal=fatal,
        message=_message(body) or verdict.text,
        continuation=continuation is not None,
    )


def _parse_lost(text: str, catalogue: Catalogue) -> XidReport | None:
    """A GPU that fell off the bus, in one line, without an Xid. Advice as for Xid 79."""
    pci = normalize_pci(text)
    if not pci:
        return None
    return lost_report(pci, _message(text.removeprefix("NVRM: ")), catalogue=catalogue)


def lost_report(pci: str, message: str, *, catalogue: Catalogue) -> XidReport:
    """A report of a GPU off the bus that named no code."""
    verdict = catalogue.of_xid(FALLEN_OFF_BUS)
    return XidReport(
        kind=FaultKind.LOST,
        pci=pci,
        severity=Severity.FATAL,
        action=verdict.action,
        message=message,
    )


def _split_head(rest: str) -> tuple[str, str, int, str] | None:
    """``PCI:…): N, text`` to address, PCI, code and text."""
    address, closed, tail = rest.partition("):")
    match = _PCI.match(address)
    if not closed or match is None:
        return None
    digits, _, body = tail.lstrip(" ").partition(",")
    digits = digits.strip(" .\n")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_CODE_DIGITS):
        # Old drivers may put text right behind the code, without a comma.
        digits, _, body = tail.lstrip(" ").partition(" ")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_CODE_DIGITS):
            return None
    if int(digits) == 0:
        return None  # there is no Xid 0 and no SXid 0
    return address, _pci_of(match), int(digits), body.strip()


def _pci_of(match: re.Match[str]) -> str:
    domain, bus, device, function = match.groups()
    short = domain.lower().lstrip("0").rjust(4, "0")
    return f"{short}:{bus.lower()}:{device.lower()}.{function or '0'}"


def _instances(address: str) -> tuple[int | None, int | None]:
    gi = ci = None
    for is_compute, number in _INSTANCE.findall(address):
        if is_compute:
            ci = int(number)
        else:
            gi = int(number)
    return gi, ci


def _process(body: str) -> tuple[int | None, str, str]:
    """Take ``pid=…`` and ``name=…`` off the front, in either spelling of "unknown"."""
    pid: int | None = None
    name = ""
    if body.startswith("pid="):
        value, _, body = body.partition(",")
        digits = value[len("pid=") :].strip("'\" ")
        if digits.isascii() and digits.isdigit() and len(digits) <= _MAX_CODE_DIGITS:
            pid = int(digits)
        body = body.lstrip(" ")
    if body.startswith("name="):
        # A name may hold blanks, colons and slashes: only comma and blank end it.
        name, _, body = body[len("name=") :].partition(", ")
        name = "" if name.startswith("<unknown>") else _message(name)[:_MAX_NAME]
    return pid, name, body


def _cause(body: str) -> tuple[str, int | None]:
    text, found, number = body.rpartition(_CAUSE)
    digits = number.strip(" .")
    if found and digits.isascii() and digits.isdigit() and len(digits) <= _MAX_CODE_DIGITS:
        return text, int(digits)
    return body, None


def _link(body: str) -> int | None:
    match = _LINK.search(body)
    number = int(match.group(1)) if match else -1
    return number if number >= 0 else None


def _is_fatal(word: str) -> bool:
    return not word.casefold().startswith("non")


def _nvlink5(code: int, body: str, catalogue: Catalogue) -> tuple[str, bool | None, Verdict]:
    """Unit, literal word and verdict of an Xid 144-150."""
    unit = body.split(maxsplit=1)[0][:_MAX_UNIT] if body.strip() else ""
    unit = unit if unit.isascii() and unit.replace("_", "").isalnum() else ""
    word = _WORD.search(body)
    fatal = _is_fatal(word.group(1)) if word else None
    words = _HEX.findall(body)
    subcode = (int(words[0], 16) >> 20) & 0x3F if words else None
    status = int(words[1], 16) if len(words) > 1 else None
    verdict = catalogue.of_nvlink5(code, unit=unit, subcode=subcode, status=status, fatal=fatal)
    return unit, fatal, verdict


def _recovery(body: str, catalogue: Catalogue) -> tuple[RecoveryAction | None, Verdict]:
    """The new recovery action of an Xid 154, None if it cannot be read."""
    match = _RECOVERY.search(body)
    value = int(match.group(1), 16) if match else None
    action = catalogue.recovery_action(value, match.group(2) if match else "")
    verdict = catalogue.of_xid(RECOVERY_ACTION_CHANGED)
    if action is not None:
        verdict = verdict._replace(severity=action.severity, action=action.action)
    return action, verdict


def _message(text: str) -> str:
    text = text.strip()
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"
