"""Broken input by the hundred thousand: nothing raises, and what is read is within its bounds.

Real lines and answers are spoiled at random (from a seed, so that a failure comes again). An
ordinary run takes a few seconds; ``CASES=10`` (as in ``make fuzz``) reads 10^6 lines and 10^5
answers, and ``FUZZ_SEED`` chooses other ones.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from node_agent.attribution.build import Sources, build_pod_map
from node_agent.attribution.channel import Channel
from node_agent.attribution.device_ids import Patterns
from node_agent.attribution.pod_resources import LIST_METHOD, decode_list
from node_agent.attribution.wire import WireError
from node_agent.sources.kernel_log import Counters, Moment
from node_agent.sources.kernel_log.grouping import Grouper
from node_agent.sources.kernel_log.kmsg import parse_record
from node_agent.sources.kernel_log.text import LineSplitter, LogText
from node_agent.sources.tracepoint import parse_trace
from node_agent.xid.catalogue import load_catalogue
from node_agent.xid.episodes import DEFAULT_CAPACITY, EpisodeCounter
from node_agent.xid.parse import MAX_MESSAGE, XidReport, parse
from testbed.podresources import KubeletSocket, pod, response
from tests.property.cases import cases
from tests.unit.agent.attribution.builders import DEVICES, GPU0, GPU2, MIG0


LINES: Final = cases(100_000)
SEED: Final = int(os.environ.get("FUZZ_SEED", "1"))
ANSWERS: Final = LINES // 10
CALLS: Final = max(50, LINES // 5000)
CATALOGUE = load_catalogue()
pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(3600)]
NOW = Moment(wall=1_800_000_000.0, boot=1_000_000.0)
PCI = re.compile(r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])?", re.ASCII)
GOOD = [
    line.encode()
    for line in (
        "NVRM: Xid (PCI:0000:38:00): 13, pid='<unknown>', name=<unknown>, Out Of Range Address",
        "NVRM: Xid (PCI:0000:00:06): 31, pid=490, name=python3, channel 0x0a, MMU Fault: ENGINE",
        "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=x, Ch 00000001 caused by previous Xid 9",
        "NVRM: Xid (PCI:0000:01:00): 62, 223b6a66 00002100 00000000 20662342 20662ba6",
        "NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off",
        "NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.",
        "NVRM: The NVIDIA GPU 0000:b3:00.0",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
        "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9).",
        "NVRM: Xid (PCI:0000:3b:00 GPU-I:01 GPU-CI:02): 13, pid=9, name=a, text",
        "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x1)",
        "NVRM: Xid (PCI:0000:9b:00): 154, changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        "NVRM: Xid (0000:03:00): 14, Channel 00000001",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Data {0x00140004, 0x00100000}",
        "NVRM: GPU at PCI:0000:91:00: GPU-991ca6af-7183-dbcc-7426-ca20a423fd21",
        "NVRM: GPU Board Serial Number: 1653924184695",
        "usb 1-1: new high-speed USB device number 7",
    )
]
FRONTS = (b"", b"[   12.345678] ", b"<4>[ 1.0][ T7] ", b"Jan 15 07:59:00 n kernel: ", b"2027-")
TOKENS = (
    *(b"\0", b"\xff", b"\xc3", b"\n", b"\r", b" ", b":", b",", b"(", b")", b"0x", b"-", b"'", b"."),
    *(b"PCI:", b"Xid", b"SXid (", b"NVRM: ", b"pid=", b"name=", b"GPU-I:", b"9" * 40, b"Link "),
    *("\u0661\u0662".encode(), b" caused by previous Xid ", b"x" * 300),
)


CLAIM = {
    "claim_name": "c",
    "claim_namespace": "ml",
    "claim_resources": [
        {
            "cdi_devices": [{"name": f"k8s.gpu.nvidia.com/claim={GPU0}"}],
            "driver_name": "gpu.nvidia.com",
            "pool_name": "n1",
            "device_name": "gpu-0",
        }
    ],
}


def spoilt(text: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """A text with one to four parts of it changed, cut, doubled or taken from another."""
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(len(text) + 1)
        to = min(len(text), at + chance.randrange(12))
        match chance.randrange(6):
            case 0:
                text = text[:at] + bytes((chance.randrange(256),)) + text[at + 1 :]
            case 1:
                text = text[:at] + text[to:]
            case 2:
                text = text[:to] + text[at:]
            case 3:
                text = text[:at] + chance.choice(TOKENS) + text[at:]
            case 4:
                other = chance.choice(others)
                text = text[:at] + other[chance.randrange(len(other) + 1) :]
            case _:
                text = text[:at]
    return text


def lines() -> Iterator[bytes]:
    chance = random.Random(SEED)  # noqa: S311 - repeatable
    for _ in range(LINES):
        front = chance.choice(FRONTS)
        good = chance.choice(GOOD)
        yield front + (good if chance.random() < 0.1 else spoilt(good, chance, GOOD))


def each(texts: Iterator[bytes], read: Callable[[bytes], object]) -> None:
    """Read all; a failure shows the text, which pytest's own trace may cut."""
    for text in texts:
        try:
            read(text)
        except Exception as error:
            raise AssertionError(f"seed {SEED}: {text!r}") from error


def within_bounds(report: XidReport) -> None:
    assert PCI.fullmatch(report.pci)
    assert report.code is None or 0 < report.code < 10**9
    assert len(report.message) <= MAX_MESSAGE
    assert len(report.process) <= 64
    assert report.pid is None or 0 <= report.pid < 2**32
    assert all(number is None or 0 <= number < 10_000 for number in (report.gi, report.ci))


def test_spoilt_lines() -> None:
    found = 0

    def read(line: bytes) -> None:
        nonlocal found
        report = parse(line, catalogue=CATALOGUE)
        if report is not None:
            found += 1
            within_bounds(report)

    each(lines(), read)
    assert found > LINES / 10, "hardly anything was like a line of the driver"


def test_spoilt_records_of_kmsg_and_of_the_tracepoint() -> None:
    def read(line: bytes) -> None:
        parse_record(b"4,359,44115545,c;" + line)
        parse_record(line)
        trace = b"  <idle>-0  [003] d.h1.  12.345678: nvidia_dev_xid: " + line
        parse_trace(trace.decode("utf-8", "replace"), now=NOW, catalogue=CATALOGUE)

    each(lines(), read)


def test_a_whole_log_of_spoilt_lines_is_counted_in_bounded_memory() -> None:
    counters, episodes = Counters(), EpisodeCounter()
    grouper = Grouper(catalogue=CATALOGUE, counters=counters)
    text, splitter = LogText(grouper=grouper, counters=counters), LineSplitter()
    chance = random.Random(SEED)  # noqa: S311 - repeatable
    seen = 0

    def read(line: bytes) -> None:
        nonlocal seen
        piece = line + b"\n" * (chance.random() < 0.95)
        text.read(splitter.push(piece), NOW, live=chance.random() < 0.5)
        for one in grouper.take():
            within_bounds(one.report)
            episodes.add(one.report, first=one.first, last=one.last, lines=one.lines)
            seen += one.lines
        grouper.take_identities()

    each(lines(), read)
    assert 0 < seen <= counters.matched
    assert len(episodes) <= DEFAULT_CAPACITY


def answers() -> Iterator[bytes]:
    chance = random.Random(SEED)  # noqa: S311 - repeatable
    good = [
        response(listed).SerializeToString()
        for listed in (
            [pod("train-0", [GPU0]), pod("train-1", [f"{GPU2}::3", MIG0, "nvidia0/gi7/vgpu0"])],
            [pod("of-dra", claims=[CLAIM])],
            [],
        )
    ]
    for _ in range(ANSWERS):
        yield spoilt(chance.choice(good), chance, good)


def test_spoilt_answers_of_the_kubelet() -> None:
    wanted = Patterns("nvidia.com/*").match

    def read(answer: bytes) -> None:
        with contextlib.suppress(WireError):
            build_pod_map(Sources(pods=decode_list(answer, wanted=wanted), devices=DEVICES))

    each(answers(), read)


async def test_spoilt_answers_over_a_real_connection(tmp_path: Path) -> None:
    wanted = Patterns("nvidia.com/*").match
    with KubeletSocket(tmp_path) as kubelet:
        channel = Channel(path=kubelet.socket, max_reply=16 * 1024 * 1024)
        for answer in itertools.islice(answers(), CALLS):
            kubelet.raw = answer
            assert await channel.call(LIST_METHOD, b"", timeout=20) == answer
            with contextlib.suppress(WireError):
                decode_list(answer, wanted=wanted)
        channel.close()
