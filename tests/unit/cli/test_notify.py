"""`remediator notify test`: what a person is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from remediator.cli import notify
from remediator.cli.root import app


CONFIG = """\
apiVersion: gpu-remediator.io/v1alpha1
kind: RemediatorConfig
spec:
  channels:
    own: {log: {}, template: {title: "{{ nodes[3] }}{{ title }}"}}
    pager: {pagerduty: {routingKeyFile: secrets/key}}
"""


@pytest.fixture(autouse=True)
def _log_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "configure_logging", lambda: None)


def run(tmp_path: Path, *arguments: str, config: str = CONFIG) -> tuple[int, str]:
    path = tmp_path / "config.yaml"
    path.write_text(config)
    result = CliRunner().invoke(app, ["notify", "test", *arguments, "--config", str(path)])
    return result.exit_code, result.output


def test_a_channel_that_takes_it_is_said_so(tmp_path: Path) -> None:
    fine = CONFIG.replace("{{ nodes[3] }}", "")

    code, said = run(tmp_path, "own", "--dry-run", config=fine)

    assert code == 0
    assert "own took the test message, and its end" in said


def test_no_such_channel_is_bad_input_and_names_those_that_there_are(tmp_path: Path) -> None:
    code, said = run(tmp_path, "nope", config=CONFIG.replace("{{ nodes[3] }}", ""))

    assert code == 2
    assert "there is no channel nope: the file has log, own, pager" in said


def test_without_a_file_there_is_only_the_log() -> None:
    result = CliRunner().invoke(app, ["notify", "test", "slack"])
    assert result.exit_code == 2
    assert (
        "error: there is no channel slack: give the file that has it by --config" in result.output
    )


def test_a_receiver_that_does_not_take_it_is_an_error_that_says_why(tmp_path: Path) -> None:
    code, said = run(tmp_path, "pager", config=CONFIG.replace("{{ nodes[3] }}", ""))

    assert code == 1
    assert "pager did not take it now: cannot read the file of routingKeyFile" in said
    assert str(tmp_path / "secrets/key") in said


def test_a_template_that_cannot_be_used_is_found_in_the_file(tmp_path: Path) -> None:
    code, said = run(tmp_path, "own")

    assert code == 2
    assert "title is no usable template" in said
