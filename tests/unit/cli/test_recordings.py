"""Recordings that were interrupted, damaged, begun again, or are written by somebody already."""

from __future__ import annotations

import fcntl
import gzip
import json
import re
import subprocess
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from remediator.cli.root import app
from remediator.decide.facts import AlertFact, ClusterFacts, SourceFact
from remediator.kube.objects import Node
from remediator.lab import nodes as on
from remediator.lab.said import Writer
from remediator.lab.tape import encode_blind, encode_change, encode_header, encode_said
from remediator.signals.sightings import Sightings
from tests.unit.lab.build import faulty


START = 1_767_614_400.0
LATER = START + 7200.0
POLICY = """\
apiVersion: gpu-remediator.io/v1alpha1
kind: RemediationPolicy
metadata: {name: p}
spec:
  when: [{WHEN}]
  steps: [{cordon: {}}, {notify: {to: [log]}}]
"""
runner = CliRunner()


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return policy_of(tmp_path, "xid: {codes: [79]}")


def policy_of(folder: Path, when: str) -> Path:
    path = folder / "p.yaml"
    path.write_text(POLICY.replace("WHEN", when))
    return path


def node_at(now: float, name: str = "gpu-1") -> Node:
    return on.well_node(name, now=now, labels={"nvidia.com/gpu.present": "true"})


def line(old: Node | None, new: Node | None, t: float) -> str:
    return (encode_change(old, new, t) or "") + "\n"


def hours(start: float, *, faulty_from: float | None = None) -> list[str]:
    """Return an hour of one node with its agent."""
    lines, node = [encode_header(start, 1) + "\n"], node_at(start)
    lines.append(line(None, node, 0.0))
    for at in range(300, 3600, 300):
        before, node = node, on.beaten(node, now=start + at)
        if faulty_from == at:
            node = faulty(node, start + at)
        lines.append(line(before, node, float(at)))
    return lines


def call(*arguments: str | Path) -> tuple[int, str]:
    result = runner.invoke(app, [str(one) for one in arguments])
    return result.exit_code, result.output


def replayed(tape: Path, policy: Path) -> dict[str, object]:
    code, output = call("replay", tape, "--policies", policy, "-o", "json")
    assert code == 0, output
    (only,) = json.loads(output)
    return dict(only)


@pytest.mark.parametrize("end", [b'{"t": 3600.0, "node": "gpu-\xc3', b'{"t": 36', bytes(512)])
def test_a_last_line_that_was_cut_off_anywhere_is_left_out(
    tmp_path: Path, policy: Path, end: bytes
) -> None:
    """Within a character, too; and where the disk had room for it, but not yet the line."""
    tape = tmp_path / "day.jsonl"
    tape.write_bytes("".join(hours(START)).encode() + end)
    assert replayed(tape, policy)["seconds"] == 3300.0
    assert call("simulate", "--policies", policy, "--recorded", tape)[0] == 0


def test_damage_within_is_named_to_the_line(tmp_path: Path, policy: Path) -> None:
    tape, lines = tmp_path / "day.jsonl", hours(START)
    tape.write_bytes("".join(lines[:3]).encode() + b'{"t": \xff}\n' + lines[3].encode())
    code, output = call("replay", tape, "--policies", policy)
    assert (code, "line 4: " in output) == (2, True), output


def test_of_a_packed_recording_that_is_damaged_the_rest_can_be_saved(
    tmp_path: Path, policy: Path
) -> None:
    """As by a recorder that died after it had flushed, and another file put behind its own."""
    tape, died = tmp_path / "day.jsonl.gz", BytesIO()
    beats = [encode_blind(1.0 + at % 97, 3600.0 + at) + "\n" for at in range(9000)]
    whole = "".join([*hours(START), *beats])
    with gzip.open(died, "wb") as packing:
        packing.write(whole.encode())
        packing.flush()
        flushed = died.getvalue()
    tape.write_bytes(flushed + gzip.compress("".join(hours(LATER)).encode()))
    code, output = call("replay", tape, "--policies", policy)
    assert code == 2
    assert f"{tape}: damaged: " in output
    save = re.search("can be saved: (zcat .*) > NEW.jsonl", output)
    assert save is not None
    saved = subprocess.run(save[1], shell=True, check=False, capture_output=True)  # noqa: S602
    assert saved.stdout
    assert whole.startswith(saved.stdout.decode())


@pytest.mark.parametrize("name", ["week.jsonl", "week.jsonl.gz"])
def test_a_recording_that_was_begun_again_is_replayed_as_one(
    tmp_path: Path, policy: Path, name: str
) -> None:
    """And what was not seen between its parts is said."""
    tape = tmp_path / name
    for lines in (hours(START), hours(LATER, faulty_from=600.0)):
        text = "".join(lines).encode()
        with tape.open("ab") as file:
            file.write(gzip.compress(text) if name.endswith(".gz") else text)
    found = replayed(tape, policy)
    assert found["cordons"] == [[7800.0, 1]]
    assert found["notes"] == [
        (
            "the recorder saw nothing of the nodes once, 1h5m in all, from 55m on: what these"
            " policies would have done meanwhile is not known"
        )
    ]
    flags = ("simulate", "--policies", policy, "--recorded", tape, "--at")
    said = "note: the recorder saw nothing at that time"
    assert said in call(*flags, "90m")[1]
    assert said not in call(*flags, "30m")[1]


def test_what_a_second_recorder_saw_before_the_end_of_the_first_counts(
    tmp_path: Path, policy: Path
) -> None:
    """They ran at once, each into a file of its own."""
    tape = tmp_path / "both.jsonl"
    tape.write_text("".join([*hours(START), *hours(START - 60.0, faulty_from=3300.0)]))
    found = replayed(tape, policy)
    assert (found["cordons"], found["notes"]) == ([[3300.0, 1]], [])


def test_a_node_that_left_while_nobody_recorded_is_gone(tmp_path: Path, policy: Path) -> None:
    tape = tmp_path / "week.jsonl"
    sick = faulty(node_at(START, "gpu-9"), START)
    first = [*hours(START), line(None, sick, 3500.0)]
    tape.write_text("".join([*first, *hours(LATER)]))
    found = replayed(tape, policy)
    assert found["cordons"] == [[3500.0, 1]]
    assert found["out"] == [[3500.0, 1], [7500.0, 0]]
    seen = call("simulate", "--policies", policy, "--recorded", tape)
    assert "gpu-9" not in seen[1], seen


def test_the_longest_of_several_gaps_is_named(tmp_path: Path, policy: Path) -> None:
    tape = tmp_path / "day.jsonl"
    gaps = [encode_blind(40.0, 3400.0) + "\n", encode_blind(3600.0, 7200.0) + "\n"]
    tape.write_text("".join([*hours(START), *gaps]))
    (note,) = json.loads(json.dumps(replayed(tape, policy)["notes"]))
    assert "nothing of the nodes 2 times, 1h40s in all, the longest from 1h on" in note


def alert_on(node: str, now: float) -> Sightings:
    labels = {"alertname": "Lost", "node": node}
    fact = AlertFact(source="main", name="Lost", labels=labels, since=now, seen=now, starts_at=now)
    well = {"alertmanager/main": SourceFact(ok=True, since=now, alive=True)}
    around = ClusterFacts(alerts=(fact,), sources=well, heard={"alertmanager/main": now})
    return Sightings(around, {node: (fact,)}, {})


@pytest.mark.parametrize("told_again", [False, True])
@pytest.mark.parametrize("seen_gone", [False, True])
def test_an_alert_about_a_node_is_none_about_the_next_of_its_name(
    tmp_path: Path, *, seen_gone: bool, told_again: bool
) -> None:
    """A recorder says it within a second; until then nobody acts on the new node."""
    policy = policy_of(tmp_path, "alert: {name: Lost}")
    node, writer = node_at(START), Writer({})
    other = msgspec.structs.replace(node, uid="another")
    said = writer.difference(alert_on("gpu-1", START + 1))
    lines = [encode_header(START, 1) + "\n", line(None, node, 0.0)]
    lines += [] if said is None else [encode_said(said, 400.0) + "\n"]
    lines += [line(node, None, 800.0)] if seen_gone else []
    lines.append(line(None if seen_gone else node, other, 900.0))
    if not told_again:
        gone = writer.difference(replace(alert_on("", START + 1), alerts={}))
        lines += [] if gone is None else [encode_said(gone, 900.5) + "\n"]
    lines.append(line(other, on.beaten(other, now=START + 1000), 1000.0))
    tape = tmp_path / "day.jsonl"
    tape.write_text("".join(lines))
    assert replayed(tape, policy)["cordons"] == [[400.0, 1], *([[901.0, 2]] if told_again else [])]


@pytest.mark.parametrize("begun_again", [False, True])
def test_what_a_recorder_was_told_the_next_one_does_not_know(
    tmp_path: Path, *, begun_again: bool
) -> None:
    policy = policy_of(tmp_path, "alert: {name: Lost}")
    said = Writer({}).difference(alert_on("gpu-1", START + 1))
    assert said is not None
    first = [*hours(START), encode_said(said, 3400.0) + "\n"]
    tape = tmp_path / "day.jsonl"
    tape.write_text("".join([*first, *(hours(LATER) if begun_again else ())]))
    output = call("policy", "explain", "gpu-1", "--policies", policy, "--recorded", tape)[1]
    assert ("p (DryRun): matches\n" in output) is not begun_again
    assert ("cannot be told: no alert names this node" in output) is begun_again
    assert replayed(tape, policy)["cordons"] == [[3400.0, 1]]


@pytest.mark.parametrize("name", ["day.jsonl", "day.jsonl.gz"])
def test_two_recorders_do_not_write_one_file(tmp_path: Path, name: str) -> None:
    out, kubeconfig = tmp_path / name, tmp_path / "config"
    kubeconfig.write_text("{}")
    with out.open("wb") as other:
        other.write(b"line\n")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        code, output = call("record", "--out", out, "--force", "--kubeconfig", kubeconfig)
    assert code == 2
    assert f"{out}: another process records into it; name another file" in output
    assert out.read_bytes() == b"line\n"
