"""`policy test`, `policy explain`, `simulate`, `replay` and `policy convert` without a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from remediator.cli.root import app
from remediator.lab import nodes as on
from remediator.lab.tape import encode_change, encode_header
from tests.unit.lab.build import faulty


ROOT = Path(__file__).parents[3]
POLICIES = str(ROOT / "policies")
START = 1_767_614_400.0
runner = CliRunner()

TEST = """\
apiVersion: gpu-remediator.io/v1alpha1
kind: PolicyTest
spec:
  policies: [p.yaml]
  tests:
    - name: good
      timeline: [{at: 5m, xid: {code: 79}}]
      expect: {steps: [{step: cordon, at: 5m}]}
    - name: bad
      timeline: [{at: 5m, xid: {code: 79}}]
      quiet: true
"""
POLICY = """\
apiVersion: gpu-remediator.io/v1alpha1
kind: RemediationPolicy
metadata: {name: p}
spec:
  when:
    - xid: {codes: [79]}
    - all:
        - condition: {type: GPULost, for: 10m}
        - any: [{xid: {codes: [48]}}, {alert: {name: Lost}}]
  steps: [{cordon: {}}, {notify: {to: [log]}}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "p.yaml").write_text(POLICY)
    (tmp_path / "p.test.yaml").write_text(TEST)
    return tmp_path


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    """Two nodes; one has Xid 79 after ten minutes, and is well again after an hour."""
    lines = [encode_header(START, 2)]
    for name in ("gpu-1", "gpu-2"):
        node = on.well_node(name, now=START, labels={"nvidia.com/gpu.present": "true"})
        lines.append(encode_change(None, node, 0.0) or "")
        for at in range(300, 7200, 300):
            known = node
            node = on.beaten(node, now=START + at)
            if name == "gpu-1" and at == 600:
                node = faulty(node, START + at)
            if name == "gpu-1" and at == 3600:
                node = on.cleared(node, now=START + at)
            lines.append(encode_change(known, node, float(at)) or "")
    lines[1:] = sorted(lines[1:], key=lambda line: float(json.loads(line)["t"]))
    path = tmp_path / "day.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def call(*arguments: str | Path) -> tuple[int, str]:
    result = runner.invoke(app, [str(one) for one in arguments])
    return result.exit_code, result.output


def test_policy_test_fails_with_a_diff_and_writes_junit(folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "junit.xml"
    code, output = call("policy", "test", folder, "--junit", report)
    assert code == 1
    assert f"FAIL {folder}/p.test.yaml:9: bad" in output
    assert "- expected  nothing is done, told or held" in output
    assert "1 passed, 1 failed, in 1 file" in output
    root = ET.parse(report).getroot()  # noqa: S314 - our own text
    assert (root.get("tests"), root.get("failures")) == ("2", "1")


def test_junit_has_an_error_for_a_file_that_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "junit.xml"
    (folder / "broken.test.yaml").write_text("kind: RemediationPolicy\n")
    assert call("policy", "test", folder, "--junit", report)[0] == 2
    root = ET.parse(report).getroot()  # noqa: S314 - our own text
    assert root.get("errors") == "1"
    (error,) = root.iter("error")
    assert "broken.test.yaml" in error.attrib["message"]


def test_explain_of_a_disabled_policy_says_so(folder: Path, tape: Path) -> None:
    file = next(folder.glob("p.yaml"))
    file.write_text(file.read_text().replace("spec:", "spec:\n  mode: Disabled", 1))
    flags = ("--policies", folder, "--recorded", tape, "--policy", "p")
    code, output = call("policy", "explain", "gpu-1", *flags)
    assert code == 2
    assert "policy p is Disabled" in output


def test_policy_test_runs_what_is_asked_for(folder: Path) -> None:
    code, output = call("policy", "test", folder, "--only", "good", "-v")
    assert code == 0
    assert "step cordon done (p)" in output
    code, output = call("policy", "test", folder, "--only", "good", "-o", "json")
    assert json.loads(output)["ok"] is True


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.test.yaml", "kind: RemediationPolicy\n", "not a PolicyTest"),
        ("x.test.yaml", TEST.replace("p.yaml", "gone.yaml"), "there is no such file"),
        ("readme.txt", "", "no test found"),
    ],
)
def test_policy_test_of_what_cannot_be_read_is_2(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    code, output = call("policy", "test", tmp_path)
    assert code == 2
    assert said in output


def test_the_schema_of_tests_is_printed(folder: Path) -> None:
    code, output = call("policy", "schema", "--kind", "PolicyTest")
    assert code == 0
    schema = json.loads(output)
    assert schema["properties"]["kind"] == {"const": "PolicyTest", "type": "string"}
    assert folder.exists()


def test_replay_compares_two_sets_of_policies(folder: Path, tape: Path, tmp_path: Path) -> None:
    picture = tmp_path / "p.svg"
    found = call("replay", tape, "--policies", folder, "--against", POLICIES, "--plot", picture)
    assert found[0] == 0, found[1]
    assert "step cordon" in found[1]
    assert "node hours out" in found[1]
    assert ET.parse(picture).getroot().tag.endswith("svg")  # noqa: S314 - our own text
    again = call("replay", tape, "--policies", folder, "--against", POLICIES, "--plot", picture)
    assert again == found


def test_the_replay_on_the_page_is_what_the_command_prints(
    folder: Path, tape: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every row."""
    head = f"{POLICY.partition('    - all:')[0]}"
    monkeypatch.chdir(folder)
    for name, steps in (
        ("old", "[{cordon: {}}, {notify: {to: [log]}}]"),
        ("new", "[{notify: {to: [log]}}, {approve: {}}, {cordon: {}}]"),
    ):
        (folder / name).mkdir()
        (folder / name / "p.yaml").write_text(f"{head}  steps: {steps}\n")
    code, output = call("replay", tape.name, "--policies", "old/", "--against", "new/")
    assert code == 0
    page = (ROOT / "docs" / "policies" / "simulate.md").read_text("utf-8")
    shown = "\n".join(line.rstrip() for line in output.strip().splitlines())
    assert f"$ remediator replay day.jsonl --policies old/ --against new/\n{shown}\n```" in page


def test_replay_as_json_counts_capacity(folder: Path, tape: Path) -> None:
    code, output = call("replay", tape, "--policies", folder, "-o", "json")
    assert code == 0
    (only,) = json.loads(output)
    assert only["figures"]["step cordon"] == 1
    assert only["out"] == [[600.0, 1], [4200.0, 0]]
    assert only["figures"]["node hours out"] == 1.0


def test_replay_says_above_the_table_what_it_assumes(folder: Path, tape: Path) -> None:
    file = folder / "p.yaml"
    steps = "steps: [{cordon: {}}, {approve: {}}, {job: {template: r, success: reboot}}]"
    file.write_text(f"{POLICY.partition('  steps:')[0]}  {steps}\n")
    code, output = call("replay", tape, "--policies", file, "--assume", "reboot=20m")
    assert code == 0
    assert "assumed, see --assume: reboot 20m, approval 15m" in output
    assert "failed steps            0" in output
    code, output = call(
        "replay", tape, "--policies", file, "--assume", "reboot=never", "-o", "json"
    )
    (only,) = json.loads(output)
    assert only["assumed"] == {"reboot": None, "approval": 900.0}
    assert (code, only["cordons"], only["drains"]) == (0, [[600.0, 1]], [])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--plot", "x.png"], "pictures are SVG"),
        (["--assume", "coffee=1m"], "--assume coffee=1m: write NAME=TIME or NAME=never"),
        (["--policies", "gone"], "there is no such file"),
        (["--config", "gone.yaml"], "there is no such file"),
    ],
)
def test_replay_of_bad_input_is_2(
    folder: Path, tape: Path, arguments: list[str], said: str
) -> None:
    code, output = call("replay", tape, "--policies", folder, *arguments)
    assert code == 2
    assert said in output


def test_a_file_that_is_no_recording_is_named(folder: Path) -> None:
    code, output = call("replay", folder / "p.yaml", "--policies", folder)
    assert code == 2
    assert "this is no recording" in output


def test_simulate_looks_at_a_recording_at_a_time(folder: Path, tape: Path) -> None:
    code, output = call("simulate", "--policies", folder, "--recorded", tape, "--at", "30m")
    assert code == 0
    assert "gpu-1  in-session  p        cordon (p), notify (p)" in output
    code, output = call("simulate", "--policies", folder, "--recorded", tape)
    assert "nothing would be done" in output


def test_a_time_past_the_end_of_a_recording_is_refused(folder: Path, tape: Path) -> None:
    flags = ("--policies", folder, "--recorded", tape, "--at")
    for command in (("simulate",), ("policy", "explain", "gpu-1")):
        code, output = call(*command, *flags, "36h")
        assert code == 2
        assert "--at 1d12h is past the end of" in output
        assert "its last line is 1h55m after its first" in output
    assert call("simulate", *flags, "1h55m")[0] == 0


def test_a_time_when_a_recording_had_not_seen_all_nodes_yet_is_said(
    folder: Path, tape: Path
) -> None:
    header, first, second, *rest = tape.read_text().splitlines()
    later = second.replace('"t":0.0', '"t":0.5')
    tape.write_text("\n".join([header, first, later, *rest]) + "\n")
    flags = ("--policies", folder, "--recorded", tape, "--at")
    said = "note: the recording had seen 1 of 2 nodes by then"
    assert said in call("simulate", *flags, "0s")[1]
    assert "had seen" not in call("simulate", *flags, "1s")[1]


def test_a_silent_agent_is_said_where_it_reports_nothing(folder: Path, tape: Path) -> None:
    """What it said last is no proof, and the clause cannot be told."""
    begun = tape.read_text().splitlines()[:3]
    end = json.dumps({"t": 3600.0, "node": "gpu-2", "set": {"labels": {"rack": "r1"}}})
    tape.write_text("\n".join([*begun, end]) + "\n")
    flags = ("--policies", folder, "--recorded", tape)
    output = call("policy", "explain", "gpu-1", *flags)[1]
    silent = "has been silent for 1h, so that proves nothing"
    assert f"cannot be told: the agent reports no code, and {silent}" in output
    assert f"cannot be told: GPULost is False (NoFault); its agent {silent}" in output
    assert "silent for" not in call("policy", "explain", "gpu-1", *flags, "--at", "0s")[1]


def test_simulate_as_written_respects_dry_run(folder: Path, tape: Path) -> None:
    flags = ("--policies", folder, "--recorded", tape, "--at", "30m", "--as-written")
    code, output = call("simulate", *flags, "-o", "json")
    assert code == 0
    assert [one["node"] for one in json.loads(output)["nodes"]] == ["gpu-1"]


def test_explain_tells_every_clause(folder: Path, tape: Path) -> None:
    flags = ("--policies", folder, "--recorded", tape, "--at", "11m")
    code, output = call("policy", "explain", "gpu-1", *flags)
    assert code == 0
    lines = [line.strip() for line in output.splitlines()]
    assert "p (DryRun): matches" in lines
    assert "when[0].xid (codes 79) holds: Xid 79 on 0000:9b:00.0" in lines
    pending = next(line for line in lines if line.startswith("when[1].all[0].condition"))
    assert "holds, not for long enough yet" in pending
    assert "look again in 9m" in pending
    absent = next(line for line in lines if line.startswith("when[1].all[1].any[1].alert"))
    assert "cannot be told: no alert names this node" in absent


def test_explain_says_what_the_policy_would_do_and_how_far_it_would_get(
    folder: Path, tape: Path
) -> None:
    flags = ("--policies", folder, "--recorded", tape, "--at", "11m")
    output = call("policy", "explain", "gpu-1", *flags)[1]
    assert "  would do now, if it were enforced: cordon, notify\n" in output
    assert "  then it is at 2/2 done\n" in output
    (policy,) = json.loads(call("policy", "explain", "gpu-1", *flags, "-o", "json")[1])["policies"]
    assert policy["steps"] == ["cordon", "notify"]
    well = call("policy", "explain", "gpu-2", *flags)[1]
    assert "would do" not in well


REQUEST = "gpu-remediator.io/request"
MODE = "gpu-remediator.io/mode"


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        (
            {MODE: "disabled"},
            "nothing is done here: the node says gpu-remediator.io/mode: disabled",
        ),
        ({MODE: "dry-run"}, "would do now, in dry-run alone: cordon, notify"),
    ],
    ids=["disabled", "dry-run"],
)
def test_explain_says_what_the_node_itself_stops(
    folder: Path, tape: Path, annotations: dict[str, str], said: str
) -> None:
    _annotate(tape, annotations)
    flags = ("--policies", folder, "--recorded", tape)
    output = call("policy", "explain", "gpu-1", *flags)[1]
    assert f"  {said}" in output
    assert "if it were enforced: cordon" not in output


def test_what_is_printed_as_json_is_json_whatever_is_written_on_a_node(
    folder: Path, tape: Path
) -> None:
    """A defect of an annotation is logged by the reader of nodes, and not among the output."""
    _annotate(tape, {REQUEST: "{", MODE: "\x1b[2K"})
    flags = ("--policies", folder, "--recorded", tape, "-o", "json")
    simulated = call("simulate", *flags)[1]
    assert {one["node"] for one in json.loads(simulated)["nodes"]} == {"gpu-1"}
    assert json.loads(call("policy", "explain", "gpu-1", *flags)[1])["leftAlone"]


def test_a_drain_that_would_fail_because_the_node_takes_pods_is_said(
    folder: Path, tape: Path
) -> None:
    steps = "steps: [{cordon: {}}, {notify: {to: [log]}}]"
    (folder / "p.yaml").write_text(POLICY.replace(steps, "steps: [{drain: {}}]"))
    flags = ("--policies", folder, "--recorded", tape, "--at", "11m")
    said = "the node takes new pods, so it would fail: cordon first"
    assert said in call("simulate", *flags)[1]
    (folder / "p.yaml").write_text(POLICY.replace(steps, "steps: [{cordon: {}}, {drain: {}}]"))
    assert said not in call("simulate", *flags)[1]


def _annotate(tape: Path, annotations: dict[str, str]) -> None:
    """Have the recording end while gpu-1 is faulty, with these annotations."""
    begun = [
        line
        for line in tape.read_text().splitlines()
        if "t" not in (one := json.loads(line)) or one["t"] < 700
    ]
    end = json.dumps({"t": 700.0, "node": "gpu-1", "set": {"annotations": annotations}})
    tape.write_text("\n".join([*begun, end]) + "\n")


def test_explain_as_json_is_for_programs(folder: Path, tape: Path) -> None:
    flags = ("--policies", folder, "--recorded", tape)
    code, output = call("policy", "explain", "gpu-1", *flags, "-o", "json")
    assert code == 0
    (policy,) = json.loads(output)["policies"]
    assert (policy["policy"], policy["matches"]) == ("p", False)
    assert {one["path"] for one in policy["clauses"]} >= {"when[0]", "when[0].xid"}


@pytest.mark.parametrize(
    ("node", "policy", "said"),
    [
        ("gpu-9", "p", "there is no node gpu-9; near to that: gpu-2, gpu-1"),
        ("gpu-1", "q", "there is no policy q"),
    ],
)
def test_explain_of_what_is_not_there_is_2(
    folder: Path, tape: Path, node: str, policy: str, said: str
) -> None:
    flags = ("--policies", folder, "--recorded", tape, "--policy", policy)
    code, output = call("policy", "explain", node, *flags)
    assert code == 2
    assert said in output


def test_convert_reads_files_and_refuses_others(tmp_path: Path) -> None:
    path = tmp_path / "args"
    path.write_text("KernelDeadlock=True,10m")
    code, output = call("policy", "convert", "draino", path)
    assert code == 0
    assert "kind: RemediationPolicy" in output
    path.write_text("--dry-run")
    assert call("policy", "convert", "draino", path)[0] == 2
    code, output = call("policy", "convert", "kured", path)
    assert code == 2
    assert "none of: npd, eks, draino" in output


@pytest.mark.parametrize(
    ("flags", "code"), [((), 0), (("--strict",), 2), (("--strict", "--rule", "late-notify"), 0)]
)
def test_warnings_fail_only_where_they_are_asked_to(
    tmp_path: Path, flags: tuple[str, ...], code: int
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(POLICY.replace("steps:", "recover: {for: 1s}\n  steps:"))
    found = call("policy", "check", path, *flags)
    assert found[0] == code
    assert ("warning [quick-recovery]" in found[1]) is ("--rule" not in flags)


def test_a_rule_that_is_none_is_named(folder: Path) -> None:
    code, output = call("policy", "check", folder / "p.yaml", "--rule", "late-notfy")
    assert code == 2
    assert "did you mean late-notify?" in output


def test_record_does_not_overwrite(tmp_path: Path, folder: Path) -> None:
    out = folder / "p.yaml"
    code, output = call("record", "--out", out, "--for", "1s")
    assert code == 2
    assert "--force overwrites it" in output
    assert out.read_text() == POLICY
    code, _ = call("record", "--out", tmp_path / "new", "--for", "soon")
    assert code == 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "which policies? --policies FILE|DIR, or --policies-from crds"),
        (("--policies-from", "both"), "which policies?"),
        (("--policies-from", "git"), "--policies-from git: write one of files, crds, both"),
        (("--policies-from", "crds", "--policies", POLICIES), "reads no files"),
        (("--policies-from", "crds", "--recorded", "x"), "a recording holds no policies"),
    ],
)
def test_where_policies_are_must_be_said_and_fit_together(
    flags: tuple[str, ...], said: str
) -> None:
    for command in (("simulate",), ("policy", "explain", "gpu-1")):
        code, output = call(*command, *flags)
        assert code == 2
        assert said in output


def test_a_recording_without_alerts_is_said_to_those_who_ask_for_them(
    folder: Path, tape: Path
) -> None:
    said = "note: the recording holds no alerts: p cannot be told by them"
    assert said in call("simulate", "--policies", folder, "--recorded", tape)[1]
    file = folder / "p.yaml"
    file.write_text(POLICY.replace("{alert: {name: Lost}}", "{xid: {codes: [48]}}"))
    assert said not in call("simulate", "--policies", folder, "--recorded", tape)[1]


def test_a_recording_that_never_began_leaves_no_file(tmp_path: Path, folder: Path) -> None:
    out, kubeconfig = tmp_path / "new.gz", tmp_path / "config"
    kubeconfig.write_text("{}")
    code, output = call("record", "--out", out, "--kubeconfig", kubeconfig)
    assert (code, out.exists()) == (1, False), output
    code, output = call("record", "--out", out, "--policies", tmp_path / "none")
    assert (code, out.exists()) == (2, False)
    assert "there is no such file or folder" in output
    assert folder.exists()


@pytest.mark.parametrize("name", ["old.jsonl", "old.jsonl.gz"])
def test_a_recording_that_never_began_leaves_the_old_one(tmp_path: Path, name: str) -> None:
    out, kubeconfig = tmp_path / name, tmp_path / "config"
    out.write_bytes(b"the recording of the day when it happened")
    kubeconfig.write_text("{}")
    code, output = call("record", "--out", out, "--force", "--kubeconfig", kubeconfig)
    assert (code, out.read_bytes()) == (1, b"the recording of the day when it happened"), output


def test_what_cannot_be_written_is_told_before_a_cluster_is_asked(tmp_path: Path) -> None:
    out = tmp_path / "nowhere" / "new.jsonl"
    code, output = call("record", "--out", out, "--kubeconfig", tmp_path / "none")
    assert code == 2
    assert "No such file or directory" in output
