"""Every line shape that drivers are known to print, and what must be read from it."""

# ruff: noqa: E501 -- log lines stand as they are printed

import random

import pytest

from node_agent.contract import FaultKind, Reason, Severity
from node_agent.xid.catalogue import Action, Catalogue, load_catalogue
from node_agent.xid.parse import MAX_MESSAGE, XidReport, parse, parse_identity


CATALOGUE = load_catalogue()
INFO, WARNING, FATAL = Severity.INFO, Severity.WARNING, Severity.FATAL
UNKNOWN = "pid='<unknown>', name=<unknown>, "

# Provenance: texts are from public reports or the driver's sources; a case marked
# "filled" has an address or process filled in, "composed" is written after the source's
# format string, "synthetic" has no public example at all.
EXAMPLES: dict[str, tuple[str, dict[str, object]]] = {
    "01": (
        (
            f"NVRM: Xid (PCI:0000:38:00): 13, {UNKNOWN}Graphics SM Warp Exception on "
            "(GPC 9, TPC 1, SM 1): Out Of Range Address"
        ),
        {
            "pci": "0000:38:00.0",
            "code": 13,
            "severity": INFO,
            "application": True,
            "pid": None,
            "process": "",
            "message": "Graphics SM Warp Exception on (GPC 9, TPC 1, SM 1): Out Of Range Address",
        },
    ),
    "02": (
        (
            "NVRM: Xid (PCI:0000:00:07): 31, pid=2512125, name=python3.10, Ch 00000008, intr 00000000."
            " MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_8 faulted @ 0x73ac_1c000000. Fault is of type"
            " FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
        ),
        {
            "pci": "0000:00:07.0",
            "code": 31,
            "severity": INFO,
            "pid": 2512125,
            "process": "python3.10",
        },
    ),
    "03": (
        "NVRM: Xid (PCI:0000:00:05): 43, pid=1045242, name=pt_main_thread, Ch 00000008",
        {"code": 43, "severity": INFO, "action": Action.IGNORE, "message": "Ch 00000008"},
    ),
    "04 new wording": (
        "NVRM: Xid (PCI:0009:01:00): 43, pid=3188489, name=trigger_xid, channel 0x0b00000a",
        {"pci": "0009:01:00.0", "code": 43, "pid": 3188489, "message": "channel 0x0b00000a"},
    ),
    "05": (
        (
            "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous"
            " Xid 149"
        ),
        {
            "code": 45,
            "severity": INFO,
            "application": True,
            "pid": 1818990,
            "caused_by": 149,
            "message": "Ch 00000001",
        },
    ),
    "06": (
        (
            f"NVRM: Xid (PCI:0000:52:00): 48, {UNKNOWN}An uncorrectable double bit error (DBE) has been"
            " detected on GPU in the framebuffer at physAddr 0x18f31d80 partition 16, subpartition 3."
        ),
        {"code": 48, "severity": FATAL, "action": Action.WORKFLOW_XID_48, "application": False},
    ),
    "07": (
        "NVRM: Xid (PCI:0000:01:00): 62, 223b6a66 00002100 00000000 20662342 20662ba6",
        {
            "code": 62,
            "severity": FATAL,
            "pid": None,
            "message": "223b6a66 00002100 00000000 20662342 20662ba6",
        },
    ),
    "08 filled": (
        (
            f"NVRM: Xid (PCI:0000:52:00): 63, {UNKNOWN}Row Remapper: New row (0x0000000018f31d80) marked"
            " for remapping, reset gpu to activate."
        ),
        {"code": 63, "severity": WARNING, "action": Action.IGNORE},
    ),
    "09 filled": (
        (
            f"NVRM: Xid (PCI:0000:52:00): 64, {UNKNOWN}Dynamic Page Retirement: Blacklisting failed.  "
            "Page should have been blacklisted on boot(0x0000000000012345)."
        ),
        {"code": 64, "severity": FATAL, "action": Action.RESET_GPU},
    ),
    "10": (
        (
            f"NVRM: Xid (PCI:0003:00:00): 74, {UNKNOWN}NVLink: fatal error detected on link 14"
            "(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
        ),
        {"pci": "0003:00:00.0", "code": 74, "severity": FATAL, "link": 14, "subcode": ""},
    ),
    "11": (
        f"NVRM: Xid (PCI:0000:91:00): 79, {UNKNOWN}GPU has fallen off the bus.",
        {
            "pci": "0000:91:00.0",
            "code": 79,
            "kind": FaultKind.XID,
            "severity": FATAL,
            "action": Action.RESTART_BM,
        },
    ),
    "12 without an Xid": (
        "NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.",
        {
            "pci": "0000:91:00.0",
            "code": None,
            "kind": FaultKind.LOST,
            "severity": FATAL,
            "action": Action.RESTART_BM,
        },
    ),
    "13 in one line": (
        (
            "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:26b5) installed in this system has"
            " fallen off the bus and is not responding to commands."
        ),
        {"pci": "0000:b3:00.0", "code": None, "kind": FaultKind.LOST, "severity": FATAL},
    ),
    "14 MIG": (
        (
            "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9)."
            " RST: No, D-RST: No"
        ),
        {
            "pci": "0000:01:00.0",
            "code": 94,
            "gi": 5,
            "ci": None,
            "severity": WARNING,
            "application": False,
            "pid": 7194,
            "message": "Contained: CE User Channel (0x9). RST: No, D-RST: No",
        },
    ),
    "15 MIG, composed": (
        "NVRM: Xid (PCI:0000:3b:00 GPU-I:01 GPU-CI:02): 13, pid=9, name=a, Graphics Exception",
        {"pci": "0000:3b:00.0", "code": 13, "gi": 1, "ci": 2, "pid": 9, "process": "a"},
    ),
    "16 filled": (
        (
            "NVRM: Xid (PCI:0000:01:00): 95, pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: Yes,"
            " D-RST: No"
        ),
        {"code": 95, "severity": FATAL, "pid": 7062},
    ),
    "17 filled": (
        (
            "NVRM: Xid (PCI:0000:9b:00): 109, pid=1797828, name=pt_main_thread, Ch 00000008,"
            " errorString CTX SWITCH TIMEOUT, Info 0x58005"
        ),
        {"code": 109, "severity": WARNING, "action": Action.RESET_GPU, "process": "pt_main_thread"},
    ),
    "18": (
        (
            "NVRM: Xid (PCI:0000:9b:00): 119, pid=1240590, name=gpud, Timeout after 6s of waiting for"
            " RPC response from GPU4 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20803032 0x58c)."
        ),
        {"code": 119, "severity": FATAL, "pid": 1240590, "process": "gpud"},
    ),
    "19 old wording, filled": (
        (
            "NVRM: Xid (PCI:0000:9b:00): 119, pid=1, name=x, Timeout waiting for RPC from GSP!"
            " Expected function 10."
        ),
        {"code": 119, "severity": FATAL},
    ),
    "20": (
        (
            "NVRM: Xid (PCI:0000:9b:00): 120, GSP kernel exception: store access page fault"
            " (cause:0xf) @ pc:0xffffffff93003d42, partition:4#0"
        ),
        {"code": 120, "severity": FATAL, "pid": None},
    ),
    "21 old wording, filled": (
        "NVRM: Xid (PCI:0000:9b:00): 120, pid=1, name=x, GSP Error: Task 1 raised error code 0x5",
        {"code": 120, "severity": FATAL, "message": "GSP Error: Task 1 raised error code 0x5"},
    ),
    "22 composed": (
        (
            "NVRM: Xid (PCI:0000:9b:00): 140, An uncorrectable ECC error detected (possible firmware"
            " handling failure) DRAM:0, LTC:1, MMU:0, PCIE:0"
        ),
        {"code": 140, "severity": FATAL},
    ),
    "23": (
        (
            "NVRM: Xid (PCI:0000:01:00): 144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008"
            " 0x00000000)"
        ),
        {
            "code": 144,
            "subcode": "SAW_MVB",
            "fatal": False,
            "severity": INFO,
            "action": Action.IGNORE,
            "link": 0,
        },
    ),
    "24": (
        (
            "NVRM: Xid (PCI:0018:01:00): 145, pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal XC0"
            " i0 Link 13 (0x0409a0c2 0x00000008 0x00000000)"
        ),
        {
            "pci": "0018:01:00.0",
            "code": 145,
            "subcode": "RLW_RXPIPE",
            "process": "ray::WorkerDict",
            "fatal": False,
            "severity": INFO,
            "link": 13,
        },
    ),
    "25 cut short": (
        "NVRM: Xid (PCI:0018:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 …)",
        {
            "code": 149,
            "subcode": "NETIR",
            "fatal": True,
            "severity": FATAL,
            "action": Action.RESET_GPU,
            "link": None,
        },
    ),
    "26 double blanks": (
        (
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6"
            " 0x00000000)"
        ),
        {
            "code": 149,
            "subcode": "NETIR_LINK_EVT",
            "fatal": True,
            "severity": FATAL,
            "action": Action.RESET_GPU,
            "link": 8,
        },
    ),
    "27 filled": (
        (
            "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1"
            " (GPU Reset Required)"
        ),
        {"code": 154, "recovery_reason": Reason.GPU_RESET, "severity": FATAL},
    ),
    "28 filled": (
        (
            "NVRM: Xid (PCI:0000:9b:00): 154, pid=1, name=x, GPU recovery action changed from 0x0"
            " (None) to 0x4 (Drain and Reset)"
        ),
        {
            "code": 154,
            "recovery_reason": Reason.DRAIN_AND_RESET,
            "severity": WARNING,
            "action": Action.DRAIN_AND_RESET,
        },
    ),
    "29 before PCI: was printed": (
        "NVRM: Xid (0000:03:00): 14, Channel 00000001",
        {"pci": "0000:03:00.0", "code": 14, "severity": INFO, "message": "Channel 00000001"},
    ),
    "30": (
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        {
            "kind": FaultKind.SXID,
            "pci": "0000:05:00.0",
            "code": 20034,
            "fatal": True,
            "severity": FATAL,
            "link": 30,
            "continuation": False,
        },
    ),
    "31": (
        (
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted"
            " PRIV error (First)"
        ),
        {"kind": FaultKind.SXID, "code": 12028, "fatal": False, "severity": WARNING, "link": 32},
    ),
    "32 filled": (
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Data {0x00140004, 0x00100000}",
        {"kind": FaultKind.SXID, "code": 28006, "continuation": True},
    ),
    "46 without a text": ("NVRM: Xid (PCI:0000:3f:00): 46", {"code": 46, "severity": FATAL}),
    "79 with a function": (
        "NVRM: Xid (PCI:0000:b3:00.0): 79, pid=1234, name=nv-hostengine",
        {"pci": "0000:b3:00.0", "code": 79, "pid": 1234, "process": "nv-hostengine"},
    ),
    "79 with brackets in the name": (
        (
            "NVRM: Xid (PCI:0002:00:00): 79, pid=1582259, name=nvc:[driver], GPU has fallen off the"
            " bus."
        ),
        {"process": "nvc:[driver]", "message": "GPU has fallen off the bus."},
    ),
    "name with blanks": (
        "NVRM: Xid (PCI:0002:00:00): 31, pid=15, name=Web Content/GPU, Ch 00000008",
        {"process": "Web Content/GPU", "message": "Ch 00000008"},
    ),
    "SXid without a link": (
        "nvidia-nvswitch0: SXid (PCI:0004:00:00.0): 26008, SOE Watchdog error",
        {"code": 26008, "fatal": None, "severity": FATAL, "link": None},
    ),
    "SXid detail line": (
        (
            "nvidia-nvswitch0: SXid (PCI:0004:00:00.0): 12033, Severity 1 Engine instance 00"
            " Sub-engine instance 00"
        ),
        {"code": 12033, "continuation": True, "fatal": True},
    ),
    "61 synthetic": ("NVRM: Xid (PCI:0000:01:00): 61, text", {"code": 61, "severity": WARNING}),
    "92 synthetic": ("NVRM: Xid (PCI:0000:01:00): 92, text", {"code": 92, "severity": WARNING}),
    "122 synthetic": ("NVRM: Xid (PCI:0000:01:00): 122, text", {"code": 122, "severity": WARNING}),
    "146 synthetic": (
        "NVRM: Xid (PCI:0000:01:00): 146, TLW_RX Fatal XC0 i0 Link 1 (0x0 0x00000004)",
        {"subcode": "TLW_RX", "severity": FATAL, "action": Action.RESET_GPU},
    ),
    "147 synthetic": (
        "NVRM: Xid (PCI:0000:01:00): 147, TREX Nonfatal XC0 i0 Link 1 (0x0 0x80000000)",
        {"subcode": "TREX", "severity": INFO},
    ),
    "148 synthetic": (
        "NVRM: Xid (PCI:0000:01:00): 148, NVLPW_CTRL Nonfatal XC0 i0 Link 1 (0x0 0x80000000)",
        {"subcode": "NVLPW_CTRL", "severity": INFO},
    ),
    "150 synthetic": (
        "NVRM: Xid (PCI:0000:01:00): 150, MSE_WATCHDOG Fatal XC0 i0 Link 1 (0x0 0x00000000)",
        {"subcode": "MSE_WATCHDOG", "severity": FATAL, "action": Action.RESET_GPU},
    ),
    "unknown code": (
        "NVRM: Xid (PCI:0000:01:00): 999, something new",
        {"code": 999, "severity": WARNING, "action": Action.CONTACT_SUPPORT},
    ),
    "unknown SXid": (
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 99999, something new",
        {"code": 99999, "severity": WARNING},
    ),
    "domain of NVML": ("NVRM: Xid (PCI:00000009:0A:00): 79, x", {"pci": "0009:0a:00.0"}),
}


def one(text: str | bytes, catalogue: Catalogue = CATALOGUE) -> XidReport:
    report = parse(text, catalogue=catalogue)
    assert report is not None, text
    return report


@pytest.mark.parametrize(("line", "expected"), EXAMPLES.values(), ids=EXAMPLES.keys())
def test_fields_of_every_known_shape(line: str, expected: dict[str, object]) -> None:
    report = one(line)
    assert {name: getattr(report, name) for name in expected} == expected
    assert one(f"[12345.678901] {line}".encode()) == report, "a log prefix changes nothing"


@pytest.mark.parametrize(
    ("change", "reason", "severity"),
    [
        ("from 0x1 (GPU Reset Required) to 0x0 (None)", None, INFO),
        ("from 0x0 (None) to 0x2 (Node Reboot Required)", Reason.NODE_REBOOT, FATAL),
        ("from 0x0 (None) to 0x3 (Drain P2P)", Reason.DRAIN_P2P, WARNING),
        ("from 0x0 (None) to 0x5 (Recover IMEX Domain)", Reason.RECOVER_IMEX_DOMAIN, WARNING),
        ("from 0x0 (None) to 0x9 (GPU Reset Required)", Reason.GPU_RESET, FATAL),
    ],
)
def test_a_changed_recovery_action_is_read_from_its_text(
    change: str, reason: Reason | None, severity: Severity
) -> None:
    report = one(f"NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed {change}")
    assert report.recovery is not None
    assert (report.recovery_reason, report.severity) == (reason, severity)


@pytest.mark.parametrize("text", ["154 (", "154", "154, changed to 0x9 (Something Else)"])
def test_an_unreadable_recovery_action_is_not_taken_for_none(text: str) -> None:
    report = one(f"NVRM: Xid (PCI:0000:9b:00): {text}")
    assert report.code == 154
    assert report.recovery is None
    assert report.severity is WARNING


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid : 32",
        "NVRM: Xid (PCI:0000:01:00): abc",
        "NVRM: Xid (PCI:0000:01:00): INVALID, text",
        "NVRM: Xid (PCI:0000:01:00): ",
        "NVRM: Xid (PCI:0000:01:00) 79",
        "NVRM: Xid (PCI:zzzz:01:00): 79",
        "NVRM: Xid (PCI:0000:01:00): ²",
        "NVRM: Xid (PCI:0000:01:00): 79999999999999999999",
        "NVRM: GPU Board Serial Number: 1653924184695",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        "NVRM: fallen off the bus and is not responding to commands.",
        "usb 1-1: fallen off the bus",
        "",
    ],
)
def test_what_is_no_report_gives_none(line: str) -> None:
    assert parse(line, catalogue=CATALOGUE) is None


def test_a_literal_fatal_that_no_rule_knows_stays_fatal() -> None:
    report = one("NVRM: Xid (PCI:0000:01:00): 145, RLW_NEW Fatal XC0 i0 Link 1 (0x0 0x00000001)")
    assert report.severity is FATAL
    assert report.action is Action.RESET_GPU


def test_the_literal_word_is_worth_more_than_a_rule_of_another_driver() -> None:
    line = "NVRM: Xid (PCI:0001:00:00): 145, RLW_REMAP {} XC1 i0 Link 10 (0x00000004 0x00000040)"
    assert one(line.format("Fatal")).severity is FATAL
    assert one(line.format("Nonfatal")).severity is WARNING


def test_a_message_is_bounded_and_printable() -> None:
    report = one("NVRM: Xid (PCI:0000:01:00): 13, a\x1b[31mb" + "x" * 5000)
    assert len(report.message) == MAX_MESSAGE
    assert report.message.isprintable()


def test_the_uuid_line_before_the_first_xid() -> None:
    uuid = "GPU-991ca6af-7183-dbcc-7426-ca20a423fd21"
    assert parse_identity(f"NVRM: GPU at PCI:0000:00:06: {uuid}") == ("0000:00:06.0", uuid)
    assert parse_identity("NVRM: GPU at PCI:0000:00:06: GPU-99") is None


def test_a_hundred_thousand_mutated_lines_never_raise() -> None:
    """Budgeted fuzzing: bytes flipped, cut, doubled and swapped in real lines."""
    dice = random.Random(20)  # noqa: S311 -- repeatable on purpose
    lines = [line.encode() for line, _ in EXAMPLES.values()]
    for _ in range(100_000):
        raw = bytearray(dice.choice(lines))
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(raw) + 1)
            match dice.randrange(4):
                case 0:
                    raw[at:at] = bytes([dice.randrange(256)])
                case 1:
                    del raw[at : at + dice.randint(1, 9)]
                case 2:
                    raw[at:at] = dice.choice(lines)[: dice.randrange(40)]
                case _:
                    raw[at : at + 1] = dice.choice([b"0", b",", b"(", b")", b"\xff", b"\0", b" "])
        report = parse(bytes(raw), catalogue=CATALOGUE)
        if report is not None:
            assert len(report.message) <= MAX_MESSAGE
            assert report.kind in {FaultKind.XID, FaultKind.SXID, FaultKind.LOST}
