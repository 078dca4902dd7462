"""Settings come from four places, later ones win, and what is unknown or bad is refused."""

from pathlib import Path

import msgspec
import pytest

from node_agent.settings import (
    Duration,
    Settings,
    SettingsError,
    definitions,
    load_settings,
)
from node_agent.sources.kernel_log import Mode


def test_nothing_given_gives_the_defaults() -> None:
    assert load_settings(environ={"PATH": "/bin"}) == Settings()


def test_file_then_environment_then_flags(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"node_name": "file", "heartbeat": "1m", "kernel_log": "kmsg"}')
    settings = load_settings(
        environ={
            "NODE_AGENT_CONFIG": str(file),
            "NODE_AGENT_NODE_NAME": "env",
            "NODE_AGENT_EXPECTED_GPUS": "8",
        },
        flags={"heartbeat": "2m"},
    )
    assert (settings.node_name, settings.expected_gpus) == ("env", 8)
    assert settings.heartbeat == Duration(120)
    assert settings.kernel_log is Mode.KMSG


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        (
            {"NODE_AGENT_HEARTBAET": "5m"},
            "unknown environment variable NODE_AGENT_HEARTBAET; did you mean NODE_AGENT_HEARTBEAT?",
        ),
        ({"NODE_AGENT_HEARTBEAT": "5"}, "the environment: heartbeat: '5' is not a duration"),
        ({"NODE_AGENT_HEARTBEAT": "1s"}, "heartbeat: at least 10s is needed"),
        ({"NODE_AGENT_KERNEL_LOG": "kmgs"}, "the environment: kernel_log: Invalid enum value"),
        ({"NODE_AGENT_EXPECTED_GPUS": "-1"}, "the environment: expected_gpus: Expected `int` >= 0"),
        ({"NODE_AGENT_LISTEN": "nowhere"}, "listen: 'nowhere' is not host:port"),
        ({"NODE_AGENT_LISTEN": "127.0.0.1:99999"}, "is not host:port"),
        ({"NODE_AGENT_CONFIG": "/no/such/file"}, "cannot read /no/such/file"),
    ],
)
def test_bad_variables_are_refused_with_the_fix(environ: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load_settings(environ=environ)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"nodename": "x"}', "unknown setting nodename; did you mean node_name?"),
        ("[]", "expected one JSON object"),
        ("{", "is not JSON"),
        ('{"heartbeat": 300}', "heartbeat: write a duration as text with a unit"),
    ],
)
def test_bad_files_are_refused_with_their_name(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "agent.json"
    file.write_text(content)
    with pytest.raises(SettingsError) as raised:
        load_settings(environ={}, config=str(file))
    assert says in str(raised.value)
    assert str(file) in str(raised.value)


def test_variables_that_kubernetes_sets_for_a_service_are_left_alone() -> None:
    environ = {
        "NODE_AGENT_SERVICE_HOST": "10.0.0.1",
        "NODE_AGENT_SERVICE_PORT": "9400",
        "NODE_AGENT_SERVICE_PORT_METRICS": "9400",
        "NODE_AGENT_PORT": "tcp://10.0.0.1:9400",
        "NODE_AGENT_PORT_9400_TCP_ADDR": "10.0.0.1",
    }
    assert load_settings(environ=environ) == Settings()


@pytest.mark.parametrize(
    ("text", "seconds"), [("100ms", 0.1), ("30s", 30), ("5m", 300), ("1h30m", 5400), ("1.5s", 1.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert Duration.parse(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "m", "-5m", "5 m", "5d", "1e3s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        Duration.parse(text)


def test_every_setting_has_a_flag_a_variable_a_line_and_a_default_that_reads_back() -> None:
    for each in definitions():
        assert each.doc.endswith(".")
        assert each.flag.startswith("--")
        environ = {each.variable: str(each.default)}
        assert load_settings(environ=environ) == Settings(), each.name


def test_the_listen_address_takes_ipv6_and_a_bare_port() -> None:
    assert msgspec.structs.replace(Settings(), listen="[::1]:80").listen_address == ("::1", 80)
    assert msgspec.structs.replace(Settings(), listen=":80").listen_address == ("0.0.0.0", 80)  # noqa: S104
