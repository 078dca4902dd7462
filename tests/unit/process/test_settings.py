"""Settings: one definition each, nothing misspelt passes in silence."""

import os

import pytest

from remediator.settings import (
    ENV_PREFIX,
    Address,
    LogFormat,
    Settings,
    SettingsError,
    load_settings,
    options,
    parse_listen,
)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(ENV_PREFIX):
            monkeypatch.delenv(name)


def test_every_setting_is_documented_in_one_line_and_its_default_can_be_given_as_text() -> None:
    for option in options():
        assert option.help.endswith(".")
        assert "\n" not in option.help
        load_settings({option.name: option.default} if option.default else {})


def test_defaults_are_those_of_the_design() -> None:
    settings = load_settings()

    assert settings.address == Address("", 8080)
    lease = (settings.lease_duration, settings.renew_deadline, settings.retry_period)
    assert lease == (15.0, 10.0, 2.0)


def test_a_flag_wins_over_a_variable_and_a_flag_not_given_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REMEDIATOR_WORKERS", "3")
    monkeypatch.setenv("REMEDIATOR_LOG_FORMAT", "json")

    settings = load_settings({"workers": "5", "log_format": None})

    assert settings.workers == 5
    assert settings.log_format is LogFormat.JSON


def test_an_empty_variable_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMEDIATOR_LEASE_DURATION", "")

    assert load_settings().lease_duration == 15.0


def test_a_misspelt_variable_is_refused_with_the_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMEDIATOR_LEASE_DURATON", "20s")

    with pytest.raises(SettingsError, match="did you mean REMEDIATOR_LEASE_DURATION") as caught:
        load_settings()

    assert str(caught.value).startswith("REMEDIATOR_LEASE_DURATON is no setting")


@pytest.mark.parametrize(
    "variable",
    [
        "REMEDIATOR_SERVICE_HOST",
        "REMEDIATOR_SERVICE_PORT_METRICS",
        "REMEDIATOR_PORT",
        "REMEDIATOR_PORT_8080_TCP_ADDR",
        "REMEDIATOR_WEBHOOK_SERVICE_PORT",
    ],
)
def test_the_variables_of_a_service_called_remediator_are_no_settings(
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    monkeypatch.setenv(variable, "tcp://10.0.0.1:8080")

    load_settings()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("lease_duration", "15", "--lease-duration: '15' is no duration: write a number"),
        ("listen", "8080", "--listen: '8080' is no address"),
        ("listen", "::1:8080", "--listen: '::1:8080': an IPv6 address is written in brackets"),
        ("workers", "0", "--workers: Input should be greater than or equal to 1"),
        ("lease_duration", "10s", "lease-duration .10s. must be longer than renew-deadline"),
        ("retry_period", "6s", "retry-period .6s. must be at most half of renew-deadline"),
        ("lease_nmae", "x", "lease_nmae is no setting"),
    ],
)
def test_a_bad_value_is_named_with_its_source(name: str, value: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        load_settings({name: value})


def test_a_bad_variable_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMEDIATOR_WORKERS", "many")

    with pytest.raises(SettingsError, match=r"^REMEDIATOR_WORKERS: "):
        load_settings()


@pytest.mark.parametrize(
    ("text", "address"),
    [(":0", ("", 0)), ("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:443", ("::1", 443))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_listen(text) == address


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().workers = 2  # type: ignore[misc]
