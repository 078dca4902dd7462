"""Sources in RemediatorConfig: what does not fit together is an error that says what to write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from remediator.policy.load import parse_config
from remediator.policy.problems import PolicyError
from remediator.policy.sources import rooted


PEERS = ["http://a:9093", "http://b:9093"]
MAIN = {"name": "main", "urls": PEERS}
TOKEN = {"bearerTokenFile": "token"}


def parse(**spec: Any) -> Any:
    document = {
        "apiVersion": "gpu-remediator.io/v1alpha1",
        "kind": "RemediatorConfig",
        "spec": spec,
    }
    return parse_config(json.dumps(document).encode(), file="config.yaml")


def test_the_least_that_is_needed_has_safe_defaults() -> None:
    spec = parse(alertmanagers=[MAIN], webhook=TOKEN, prometheus=[{"name": "p", "url": PEERS[0]}])
    (found,) = spec.alertmanagers
    assert (found.interval, found.gone_after, found.watchdog) == (30.0, 120.0, None)
    assert found.node_from[0] == "exported_node"
    assert found.node_from[-1] == "instance"
    assert spec.prometheus[0].timeout == 10.0


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"webhook": TOKEN}, "webhook needs an entry in alertmanagers"),
        ({"webhook": TOKEN, "alertmanagers": [{"name": "main"}]}, "write webhookOnly: true"),
        ({"alertmanagers": [{"name": "main", "webhookOnly": True}]}, "there is no webhook"),
        ({"alertmanagers": [{**MAIN, "webhookOnly": True}]}, "remove it, or urls"),
        ({"alertmanagers": [MAIN, MAIN]}, "two of the name main"),
        ({"alertmanagers": [{"name": "m", "urls": [PEERS[0]] * 2}]}, "one peer twice"),
        ({"alertmanagers": [{**MAIN, "interval": "100ms"}]}, "interval must be 1s or more"),
        ({"alertmanagers": [{"name": "m", "urls": ["a:9093"]}]}, "urls"),
        (
            {
                "webhook": TOKEN,
                "alertmanagers": [{"name": "m", "webhookOnly": True, "watchdog": {}}],
            },
            "needs urls",
        ),
        ({"alertmanagers": [MAIN], "webhook": {}}, "could report any alert"),
        (
            {
                "alertmanagers": [MAIN],
                "webhook": {"tls": {"certFile": "c", "keyFile": "k"}},
            },
            "could report any alert",
        ),
        (
            {"alertmanagers": [{**MAIN, "access": {**TOKEN, "username": "u"}}]},
            "either bearerTokenFile",
        ),
        ({"alertmanagers": [{**MAIN, "access": {"username": "u"}}]}, "belong together"),
        ({"alertmanagers": [{**MAIN, "access": {"keyFile": "k"}}]}, "belong together"),
        ({"alertmanagers": [{**MAIN, "url": PEERS[0]}]}, "urls"),
        ({"prometheus": [{"name": "p", "url": "http://p", "timeout": "1ms"}]}, "100ms or more"),
        ({"prometheus": [{"name": "p", "url": "http://p?x=1"}]}, "url"),
    ],
)
def test_what_does_not_fit_is_an_error_with_the_way_out(spec: Any, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        parse(**spec)


@pytest.mark.parametrize(
    "spec",
    [
        {"alertmanagers": [{**MAIN, "urls": ["http://a:9093", "https://ann:hunter2@b:9093"]}]},
        {"prometheus": [{"name": "p", "url": "http://ann:hunter2@p/prefix"}]},
        {"prometheus": [{"name": "p", "url": "http://hunter2@p"}]},
    ],
)
def test_a_password_in_an_address_is_refused_and_not_repeated(spec: Any) -> None:
    """Addresses stand in the status and in the log."""
    with pytest.raises(PolicyError, match="passwordFile") as caught:
        parse(**spec)
    assert "hunter2" not in str(caught.value)


def test_an_at_sign_behind_the_host_is_no_password() -> None:
    spec = parse(prometheus=[{"name": "p", "url": "http://p/tenant@eu"}])
    assert spec.prometheus[0].url == "http://p/tenant@eu"


def test_a_webhook_that_may_forget_has_to_say_so() -> None:
    spec = parse(alertmanagers=[{"name": "m", "webhookOnly": True}], webhook=TOKEN)
    assert spec.alertmanagers[0].webhook_only


def test_certificates_of_callers_are_enough() -> None:
    tls = {"certFile": "c", "keyFile": "k", "clientCaFile": "ca"}
    assert parse(alertmanagers=[MAIN], webhook={"tls": tls}).webhook.tls.client_ca_file == "ca"


def test_relative_names_of_files_begin_beside_the_configuration() -> None:
    tls = {"certFile": "tls/c", "keyFile": "/run/k", "clientCaFile": "ca"}
    spec = parse(
        alertmanagers=[{**MAIN, "access": {"bearerTokenFile": "t", "caFile": "/ca"}}],
        webhook={"tls": tls},
    )
    access = rooted(spec.alertmanagers[0], "/etc/x").access
    assert (access.bearer_token_file, access.ca_file) == ("/etc/x/t", "/ca")
    found = rooted(spec.webhook, "/etc/x").tls
    assert (found.cert_file, found.key_file) == ("/etc/x/tls/c", "/run/k")
