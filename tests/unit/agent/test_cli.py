"""The command line is quick, names what is wrong, and says where help is."""

import subprocess
import sys
from importlib.metadata import version

import pytest

from node_agent import __version__
from node_agent.cli import main
from node_agent.settings import definitions


def test_the_version_is_the_distributions() -> None:
    assert version("gpu-remediator") == __version__


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(each.flag in text for each in definitions())


def test_a_bad_setting_is_named_and_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--heartbeat=soon"]) == 2
    assert "heartbeat: 'soon' is not a duration" in capsys.readouterr().err


def test_set_healthy_without_an_agent_says_where_it_looked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["set-healthy", "--socket=/no/such.sock"]) == 1
    assert "no answer from the agent at /no/such.sock" in capsys.readouterr().err


def test_release_takes_a_duration_with_a_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["release", "10"]) == 2
    assert "'10' is not a duration" in capsys.readouterr().err


def test_release_without_an_agent_says_where_it_looked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["release", "10m", "--socket=/no/such.sock"]) == 1
    assert "no answer from the agent at /no/such.sock" in capsys.readouterr().err


def test_faults_outside_a_cluster_says_what_to_give(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["faults"]) == 1
    assert "give a kubeconfig by --kubeconfig" in capsys.readouterr().err


def test_run_outside_a_cluster_says_what_to_give(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["run", "--state-file=/nowhere/state"]) == 1
    assert "give a kubeconfig by --kubeconfig" in capsys.readouterr().err


def test_the_agent_stays_off_the_costly_imports() -> None:
    code = (
        "import sys, node_agent.app, node_agent.cli, node_agent.log; "
        "print(*{m.partition('.')[0] for m in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    assert not {"kubernetes", "pydantic", "remediator", "ruamel", "requests"} & set(
        done.stdout.split()
    )


def test_help_needs_no_http_library() -> None:
    code = "import sys, node_agent.cli; print('aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout == "False\n"
