"""The command line without a cluster: help, policy files, settings, missing kubeconfig."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from remediator.cli.root import app
from remediator.policy.files import find_files


ROOT = Path(__file__).parents[3]
POLICIES = str(ROOT / "policies")
EXAMPLE = str(ROOT / "examples" / "remediator-config.yaml")
BAD = (
    "apiVersion: gpu-remediator.io/v1alpha1\nkind: RemediationPolicy\nmetadata: {name: p}\n"
    "spec:\n  when: [{xid: {codes: [79]}}]\n  stepz: [{cordon: {}}]\n"
)

runner = CliRunner()


def test_help_names_every_command() -> None:
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    for command in [
        "run",
        "status",
        "policy",
        "cancel",
        "release",
        "unfreeze",
        "retry",
        "pause",
        "resume",
        "breaker",
    ]:
        assert f"\n  {command} " in result.output


def test_help_imports_nothing_heavy() -> None:
    """`remediator --help` must answer at once; a fresh interpreter tells what it imports."""
    program = "import sys, remediator.cli.root; print(*sys.modules)"
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    imported = set(done.stdout.split())
    assert "typer" in imported
    heavy = {"kubernetes", "aiohttp", "pydantic", "pydantic_settings", "ruamel.yaml", "structlog"}
    assert not heavy & imported


def test_run_has_a_flag_for_each_setting() -> None:
    from remediator.settings import options  # noqa: PLC0415 - as the command itself does

    result = runner.invoke(app, ["run", "--help"])
    assert result.exit_code == 0
    for option in options():
        assert option.flag in result.output


def test_run_refuses_bad_settings_with_exit_code_2() -> None:
    result = runner.invoke(app, ["run", "--lease-duration", "5"])
    assert result.exit_code == 2
    assert "--lease-duration" in result.output
    assert "is no duration" in result.output


def test_run_refuses_an_unknown_flag() -> None:
    result = runner.invoke(app, ["run", "--lease-durration", "5s"])
    assert result.exit_code == 2
    assert "--lease-durration" in result.output


def test_run_hands_its_flags_to_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    import remediator.app  # noqa: PLC0415 - what `run` imports

    seen: list[object] = []

    def run(settings: object) -> int:
        seen.append(settings)
        return 1

    monkeypatch.setattr(remediator.app, "run", run)
    result = runner.invoke(app, ["run", "--policies", "x", "--lease-duration", "20s"])
    assert result.exit_code == 1
    (settings,) = seen
    assert (settings.policies, settings.lease_duration) == ("x", 20.0)  # type: ignore[attr-defined]


def test_check_of_the_shipped_policies() -> None:
    result = runner.invoke(app, ["policy", "check", POLICIES, "--config", EXAMPLE])
    assert result.exit_code == 0
    shipped = len(find_files([Path(POLICIES)]))
    assert shipped
    assert f"ok: {shipped} policies in {shipped} files, 1 warning\n" in result.output
    # The example has no Alertmanager, which one of them needs.
    assert "dcgm-fallen-off-bus.yaml:18:14: warning [no-source]" in result.output
    assert "not checked" not in result.output
    without = runner.invoke(app, ["policy", "check", POLICIES])
    assert "not checked: whether the channels exist" in without.output


def test_check_points_at_the_character(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(BAD)
    result = runner.invoke(app, ["policy", "check", str(path)])
    assert result.exit_code == 2
    assert (
        f"{path}:6:3: error: spec.stepz: unknown key stepz in spec\n"
        "     6 |   stepz: [{cordon: {}}]\n"
        "       |   ^\n"
        "       = fix: did you mean steps?\n"
    ) in result.output
    assert "2 problems" in result.output


def test_check_as_json(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(BAD)
    result = runner.invoke(app, ["policy", "check", str(path), "-o", "json"])
    assert result.exit_code == 2
    report = json.loads(result.output)
    assert report["ok"] is False
    fields = {"file", "line", "column", "path", "message", "fix", "source", "rule", "severity"}
    assert fields == set(report["problems"][0])
    good = runner.invoke(app, ["policy", "check", POLICIES, "-o", "json"])
    assert json.loads(good.output)["ok"] is True


def test_check_also_reports_a_bad_config(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        "apiVersion: gpu-remediator.io/v1alpha1\nkind: RemediatorConfig\nspec: {mod: Enforce}\n"
    )
    result = runner.invoke(app, ["policy", "check", POLICIES, "--config", str(config)])
    assert result.exit_code == 2
    assert f"{config}:3:8" in result.output
    assert "did you mean mode?" in result.output


@pytest.mark.parametrize(
    ("budget", "code", "said"),
    [("10%", 0, ""), ("100%", 0, "warning [unbounded-budget]"), ("0%", 2, "error [empty-budget]")],
)
def test_check_asks_the_config_itself(tmp_path: Path, budget: str, code: int, said: str) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        "apiVersion: gpu-remediator.io/v1alpha1\nkind: RemediatorConfig\n"
        f"spec:\n  budgets: [{{maxUnavailable: {budget}}}]\n"
    )
    result = runner.invoke(app, ["policy", "check", POLICIES, "--config", str(config)])
    assert result.exit_code == code
    assert said in result.output
    assert (f"{config}:4:" in result.output) is bool(said)


def test_check_of_the_config_alone(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    head = "apiVersion: gpu-remediator.io/v1alpha1\nkind: RemediatorConfig\n"
    config.write_text(head)
    arguments = ["policy", "check", "--config", str(config)]
    assert runner.invoke(app, arguments).output == f"ok: {config}\n"
    config.write_text(f"{head}spec: {{settling: 30d}}\n")
    loose = runner.invoke(app, arguments)
    assert loose.exit_code == 0
    assert f"{config}:3:18: warning [long-settling]" in loose.output
    assert loose.output.endswith(f"ok: {config}, 1 warning\n")
    assert runner.invoke(app, [*arguments, "--strict"]).exit_code == 2
    config.write_text(f"{head}spec: {{budgets: [{{maxUnavailable: 0}}]}}\n")
    assert runner.invoke(app, arguments).exit_code == 2


def test_check_without_any_file_says_what_to_name() -> None:
    result = runner.invoke(app, ["policy", "check"])
    assert result.exit_code == 2
    assert "nothing to check: name policy files, or --config FILE" in result.output


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_check_of_nothing_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    result = runner.invoke(app, ["policy", "check", str(tmp_path / name)])
    assert result.exit_code == 2
    assert str(tmp_path / name) in result.output


def test_schema() -> None:
    result = runner.invoke(app, ["policy", "schema", "--kind", "RemediatorConfig"])
    assert json.loads(result.output)["properties"]["kind"]["const"] == "RemediatorConfig"
    assert runner.invoke(app, ["policy", "schema", "--kind", "Pod"]).exit_code == 2


def test_version() -> None:
    assert runner.invoke(app, ["version"]).output.startswith("remediator 0.")


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["cancel", "n1"],
        ["release", "n1"],
        ["unfreeze", "n1"],
        ["retry", "n1"],
        ["pause"],
        ["resume"],
        ["breaker", "reset", "p"],
    ],
    ids=" ".join,
)
def test_without_a_kubeconfig_one_sentence_says_what_is_missing(
    arguments: list[str], tmp_path: Path
) -> None:
    missing = str(tmp_path / "kubeconfig")
    result = runner.invoke(app, [*arguments, "--kubeconfig", missing])
    assert result.exit_code == 1
    assert result.output.startswith(f"error: the kubeconfig {missing} does not exist")
    assert result.output.count("\n") == 1


def test_an_unknown_output_format_is_bad_input() -> None:
    assert runner.invoke(app, ["status", "-o", "yaml"]).exit_code == 2


def test_a_reason_that_is_too_long_is_refused() -> None:
    result = runner.invoke(app, ["cancel", "n1", "--reason", "é" * 201])
    assert result.exit_code == 2
    assert "at most 200 characters" in result.output
