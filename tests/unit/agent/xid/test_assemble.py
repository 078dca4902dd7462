"""What spans lines: UUIDs, the three-line "fallen off the bus", an SXid's details."""

from node_agent.contract import FaultKind, Severity
from node_agent.xid.assemble import LineAssembler
from node_agent.xid.catalogue import load_catalogue
from node_agent.xid.parse import XidReport


CATALOGUE = load_catalogue()
UUID = "GPU-991ca6af-7183-dbcc-7426-ca20a423fd21"


def lost_lines(pci: str) -> list[str]:
    return [
        f"NVRM: The NVIDIA GPU {pci}",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ]


def feed(*lines: str) -> list[XidReport]:
    assembler = LineAssembler(catalogue=CATALOGUE)
    return [report for line in lines if (report := assembler.feed(line)) is not None]


def test_three_lines_make_one_lost_gpu() -> None:
    (report,) = feed(*lost_lines("0000:b3:00.0"))
    assert (report.kind, report.pci, report.code) == (FaultKind.LOST, "0000:b3:00.0", None)
    assert report.severity is Severity.FATAL


def test_other_lines_in_between_do_no_harm() -> None:
    one, two, three = lost_lines("0000:b3:00.0")
    noise = "NVRM: Xid (PCI:0000:01:00): 43, pid=1, name=x, Ch 00000008"
    reports = feed(one, noise, two, "NVRM: something else", three)
    assert [r.kind for r in reports] == [FaultKind.XID, FaultKind.LOST]


def test_two_gpus_whose_lines_interleave_are_both_found() -> None:
    pairs = zip(lost_lines("0000:b3:00.0"), lost_lines("0000:c4:00.0"), strict=True)
    reports = feed(*(line for pair in pairs for line in pair))
    assert [r.pci for r in reports] == ["0000:b3:00.0", "0000:c4:00.0"]


def test_an_unsupported_gpu_is_not_a_lost_one() -> None:
    reports = feed(
        "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:0fff)",
        "NVRM: installed in this system is not supported by the driver",
        *lost_lines("0000:b3:00.0"),
    )
    assert [r.pci for r in reports] == ["0000:b3:00.0"]


def test_a_lost_gpu_whose_first_line_is_missing_is_still_reported() -> None:
    (report,) = feed(lost_lines("0000:b3:00.0")[2])
    assert (report.kind, report.pci) == (FaultKind.LOST, "")


def test_the_uuid_line_names_the_gpu_of_later_lines() -> None:
    reports = feed(
        f"NVRM: GPU at PCI:0000:00:06: {UUID}",
        "NVRM: GPU Board Serial Number: 1653924184695",
        "NVRM: Xid (PCI:0000:00:06): 31, pid=490, name=python3, channel 0x0000000a",
        "NVRM: Xid (PCI:0000:00:07): 31, pid=490, name=python3, channel 0x0000000a",
    )
    assert [r.gpu_uuid for r in reports] == [UUID, ""]


def test_an_sxids_detail_lines_count_nothing() -> None:
    head = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, "
    reports = feed(
        head + "Non-fatal, Link 46 MC TS crumbstore MCTO (First)",
        head + "Severity 0 Engine instance 46 Sub-engine instance 00",
        head + "Data {0x00140004, 0x00100000}",
    )
    assert len(reports) == 1


def test_a_detail_line_whose_head_was_lost_counts() -> None:
    head = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12033, "
    reports = feed(
        head + "Severity 1 Engine instance 00 Sub-engine instance 00", head + "Data {0x0}"
    )
    assert [(r.code, r.severity) for r in reports] == [(12033, Severity.FATAL)]


def test_unreadable_lines_are_counted() -> None:
    assembler = LineAssembler(catalogue=CATALOGUE)
    assert assembler.feed("NVRM: Xid (PCI:0000:01:00): abc") is None
    assert assembler.feed("NVRM: Xid : 32") is None
    assert assembler.feed("NVRM: hello") is None
    assert assembler.malformed == 2


def test_memory_stays_bounded() -> None:
    assembler = LineAssembler(catalogue=CATALOGUE)
    for n in range(5000):
        assembler.feed(f"NVRM: The NVIDIA GPU {n:04x}:b3:00.0")
        assembler.feed(f"NVRM: GPU at PCI:{n:04x}:00:06: {UUID}")
        assembler.feed(f"nvidia-nvswitch3: SXid (PCI:{n:04x}:c1:00.0): 1, Fatal, x")
    assert len(assembler._pending) <= 16
    assert len(assembler.identities) <= 256
    assert len(assembler._switch_faults) <= 256
