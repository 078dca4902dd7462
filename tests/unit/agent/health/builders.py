"""Short ways to say what a kernel log said."""

from node_agent.contract import FaultKind
from node_agent.health.faults import Seen
from node_agent.xid.catalogue import load_catalogue
from node_agent.xid.parse import XidReport, parse


CATALOGUE = load_catalogue()
GPU = "0000:18:00.0"
OTHER_GPU = "0000:20:00.0"
SWITCH = "0000:05:00.0"
TEXTS = {
    63: "Row Remapper: New row (0x0000000018f31d80) marked for remapping, reset gpu to activate.",
    64: "Row Remapper: Failed to remap",
    79: "GPU has fallen off the bus.",
}
RESET_WANTED = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
RESET_DONE = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"


def xid_report(code: int, text: str = "", *, pci: str = GPU) -> XidReport:
    """The report of a line as the driver prints it."""
    line = f"NVRM: Xid (PCI:{pci[:-2]}): {code}, {text or TEXTS.get(code, 'some text')}"
    report = parse(line, catalogue=CATALOGUE)
    assert report is not None
    return report


def xid(
    code: int, at: float, text: str = "", *, pci: str = GPU, lines: int = 1, new: bool = True
) -> Seen:
    """Lines of an Xid at `at` (epoch seconds)."""
    report = xid_report(code, text, pci=pci)
    return Seen(report=report, first=at, last=at, lines=lines, new_episode=new)


def sxid(code: int, at: float, *, fatal: bool = True) -> Seen:
    """A line of an NVSwitch."""
    word = "Fatal" if fatal else "Non-fatal"
    line = f"nvidia-nvswitch0: SXid (PCI:{SWITCH}): {code}, {word}, Link 30 LTSSM Fault Up"
    report = parse(line, catalogue=CATALOGUE)
    assert report is not None
    assert report.kind is FaultKind.SXID
    return Seen(report=report, first=at, last=at)
