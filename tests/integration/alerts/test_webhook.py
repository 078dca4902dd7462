"""The webhook called by a real Alertmanager: with its token, by the leader only."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from remediator.web.door import Patience
from testbed.certificates import make_certificates
from testbed.monitoring import Pair
from testbed.processes import free_port
from tests.integration.alerts.conftest import ALERT, main
from tests.integration.controller.conftest import Replica, Site


pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

Run = Callable[..., Replica]
TOKEN = "a-shared-secret"
SLOW = {"interval": "1h", "goneAfter": "1h"}
"""Polls that come too late to help."""


class Hook:
    """The webhook of this test: its port, its token's file, and who may call it."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.token = folder / "token"
        self.token.write_text(f"{TOKEN}\n", encoding="utf-8")
        self.spec = {"bearerTokenFile": "token"}  # beside RemediatorConfig
        self.theirs = folder / "their-token"
        self.theirs.write_text(TOKEN, encoding="utf-8")

    @property
    def receiver(self) -> dict[str, Any]:
        return {
            "url": f"http://127.0.0.1:{self.port}/alertmanager",
            "http_config": {
                "authorization": {"type": "Bearer", "credentials_file": str(self.theirs)}
            },
            "send_resolved": True,
            "max_alerts": 0,
        }

    @property
    def secure_receiver(self) -> dict[str, Any]:
        """By TLS, with a certificate in place of the token."""
        folder = self.theirs.parent
        files = {"ca_file": "their-ca", "cert_file": "their-crt", "key_file": "their-key"}
        return {
            **self.receiver,
            "url": f"https://127.0.0.1:{self.port}/alertmanager",
            "http_config": {"tls_config": {key: str(folder / name) for key, name in files.items()}},
        }

    @property
    def listen(self) -> str:
        return f"127.0.0.1:{self.port}"


@pytest.fixture
def hook(tmp_path: Path) -> Hook:
    return Hook(tmp_path)


def reload(pair: Pair) -> None:
    for peer in pair.both:
        peer.stop()
        peer.start()


def test_a_real_alertmanager_tells_of_an_alert_long_before_the_next_poll(
    site: Site, pair: Pair, run: Run, hook: Hook
) -> None:
    pair.configure(webhook=hook.receiver)
    reload(pair)
    pair.fire(alertname="Watchdog")
    site.config(alertmanagers=[main(pair, **SLOW)], webhook=hook.spec)
    site.policy("fallen", when=[{"alert": {"name": ALERT}}])
    faulty = site.node()
    replica = run(webhook_listen=hook.listen)
    site.wait(lambda: not _trouble(site), "a good poll of both peers")
    pair.fire(alertname=ALERT, node=faulty)
    site.wait(lambda: site.cordoned(faulty), "cordon")
    assert 'webhook_requests_total{code="200"}' in _metrics(replica)


def test_a_crowd_that_only_holds_on_keeps_no_alertmanager_out(
    site: Site, pair: Pair, run: Run, hook: Hook
) -> None:
    pair.configure(webhook=hook.receiver)
    reload(pair)
    pair.fire(alertname="Watchdog")
    site.config(alertmanagers=[main(pair, **SLOW)], webhook=hook.spec)
    site.policy("fallen", when=[{"alert": {"name": ALERT}}])
    faulty = site.node()
    replica = run(webhook_listen=hook.listen)
    site.wait(lambda: not _trouble(site), "a good poll of both peers")
    with ExitStack() as crowd:
        slow = [_half_a_header(hook, crowd) for _ in range(2 * Patience().most)]
        pair.fire(alertname=ALERT, node=faulty)
        site.wait(lambda: site.cordoned(faulty), "cordon")
        assert _gone(slow[0]), "who has waited longest made room"
        assert 'webhook_connections_dropped_total{reason="crowd"}' in _metrics(replica)


def _half_a_header(hook: Hook, crowd: ExitStack) -> socket.socket:
    made = crowd.enter_context(socket.create_connection(("127.0.0.1", hook.port), timeout=5))
    made.sendall(b"POST /alertmanager HTTP/1.1\r\nX-Slow: ")
    return made


def _gone(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_a_wrong_token_is_refused_and_counted(site: Site, pair: Pair, run: Run, hook: Hook) -> None:
    hook.theirs.write_text("another", encoding="utf-8")
    pair.configure(webhook=hook.receiver)
    reload(pair)
    site.config(alertmanagers=[main(pair, watchdog=None, **SLOW)], webhook=hook.spec)
    site.policy("fallen", when=[{"alert": {"name": ALERT}}])
    faulty = site.node()
    replica = run(webhook_listen=hook.listen)
    site.wait(lambda: not _trouble(site), "a good poll of both peers")
    pair.fire(alertname=ALERT, node=faulty)
    site.wait(lambda: 'webhook_requests_total{code="401"}' in _metrics(replica), "the refusal")
    assert not site.cordoned(faulty)


def test_alertmanagers_are_known_by_certificates_that_are_renewed_under_both_sides(
    site: Site, pair: Pair, run: Run, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remediator.web.tls.LOOK_SECONDS", 0.1)
    issued = site.folder / "issued"
    issued.mkdir()
    make_certificates(issued, {"ca1": ["server1", "peer1"], "ca2": ["server2", "peer2"]})
    show(issued, site.folder, "server1", trusts="ca1")
    show(issued, hook.theirs.parent, "peer2", trusts="ca1", prefix="their-")
    pair.configure(webhook=hook.secure_receiver)
    reload(pair)
    pair.fire(alertname="Watchdog")
    tls = {"certFile": "crt", "keyFile": "key", "clientCaFile": "ca"}
    site.config(alertmanagers=[main(pair, **SLOW)], webhook={"tls": tls})
    site.policy("fallen", when=[{"alert": {"name": ALERT}}])
    first, second = site.node(), site.node()
    replica = run(webhook_listen=hook.listen)
    site.wait(lambda: not _trouble(site), "a good poll of both peers")
    pair.fire(alertname=ALERT, node=first)
    counted = 'webhook_connections_dropped_total{reason="handshake"}'
    site.wait(lambda: counted in _metrics(replica), "the refusal of a stranger")
    assert not site.cordoned(first)

    show(issued, hook.theirs.parent, "peer1", trusts="ca1", prefix="their-")
    site.wait(lambda: site.cordoned(first), "cordon: they try again")

    with capture_logs() as lines:
        show(issued, site.folder, "server2", trusts="ca2")
        site.wait(lambda: any(one["event"] == "certificate_reloaded" for one in lines), "renewal")
    show(issued, hook.theirs.parent, "peer2", trusts="ca2", prefix="their-")
    pair.fire(alertname=ALERT, node=second)
    site.wait(lambda: site.cordoned(second), "cordon by the renewed certificates")


def show(issued: Path, folder: Path, name: str, *, trusts: str, prefix: str = "") -> None:
    """Put a certificate, its key and an authority where one side reads them."""
    for source, target in (
        (f"{trusts}.pem", "ca"),
        (f"{name}.key", "key"),
        (f"{name}.pem", "crt"),
    ):
        new = folder / f".{prefix}{target}"
        new.write_bytes((issued / source).read_bytes())
        new.replace(folder / f"{prefix}{target}")


def test_an_alertmanager_repeats_what_a_follower_refused_until_a_leader_takes_it(
    site: Site, pair: Pair, run: Run, hook: Hook
) -> None:
    """Only followers are there when it fires; the polls come too late to help."""
    pair.configure(webhook=hook.receiver)
    reload(pair)
    pair.fire(alertname="Watchdog")
    site.config(alertmanagers=[main(pair, **SLOW)], webhook=hook.spec)
    site.policy("fallen", when=[{"alert": {"name": ALERT}}])
    faulty = site.node()
    leader = run(identity="leader")
    site.wait(lambda: site.status().get("leader") == "leader", "the first leader")
    follower = run(identity="follower", webhook_listen=hook.listen)
    site.wait(lambda: _code(hook, "/readyz") == 503, "a follower that is not ready")
    pair.fire(alertname=ALERT, node=faulty)
    site.wait(lambda: 'webhook_requests_total{code="503"}' in _metrics(follower), "a refusal")
    leader.stop()
    site.wait(lambda: site.cordoned(faulty), "cordon")
    assert _code(hook, "/readyz") == 200


def test_webhook_only_alerts_end_when_they_are_resolved(site: Site, run: Run, hook: Hook) -> None:
    site.config(alertmanagers=[{"name": "main", "webhookOnly": True}], webhook=hook.spec)
    site.policy("fallen", when=[{"alert": {"name": ALERT}}])
    faulty, *later = (site.node() for _ in range(3))
    run(webhook_listen=hook.listen)
    site.wait(lambda: _code(hook, "/readyz") == 200, "the leader")
    assert _tell(hook, _payload(faulty)) == 200
    site.wait(lambda: site.cordoned(faulty), "cordon")
    assert _tell(hook, _payload(faulty, status="resolved")) == 200
    for node in later:
        assert _tell(hook, _payload(node)) == 200
        site.wait(partial(site.cordoned, node), "what was told after it")
    assert site.cordoned(faulty), "the end of an alert of an unproven source is no recovery"


def test_the_leader_is_the_one_endpoint_of_the_service(
    site: Site, pair: Pair, run: Run, hook: Hook
) -> None:
    site.config(alertmanagers=[main(pair)], webhook=hook.spec)
    site.policy("fallen", when=[{"alert": {"name": ALERT}}])
    with capture_logs() as logs:
        first = run(identity="one", webhook_listen=hook.listen, pod_ip="10.9.8.7")
        site.wait(lambda: _endpoints(site) == [("10.9.8.7", hook.port)], "the first leader")
        site.wait(lambda: [one for one in logs if one.get("action") == "announce"], "its line")
    (line,) = [one for one in logs if one.get("action") == "announce"]
    assert (line["result"], line["after"]) == ("done", {"leads": "one"})
    other = Hook(site.folder)
    run(identity="two", webhook_listen=other.listen, pod_ip="10.9.8.8")
    site.wait(lambda: _code(other, "/readyz") == 503, "the follower")
    assert _endpoints(site) == [("10.9.8.7", hook.port)]
    first.stop()
    site.wait(lambda: _endpoints(site) == [("10.9.8.8", other.port)], "its successor")


def _endpoints(site: Site) -> list[tuple[str, int]]:
    path = f"/apis/discovery.k8s.io/v1/namespaces/{site.cluster.namespace}/endpointslices"
    return [
        (endpoint["addresses"][0], one["ports"][0]["port"])
        for one in site.cluster.api.get(path)["items"]
        for endpoint in one["endpoints"]
        if one["metadata"]["labels"]["kubernetes.io/service-name"] == "gpu-remediator-webhook"
    ]


def _trouble(site: Site) -> bool:
    status = site.status()
    return not status or any("alertmanager/main" in note for note in status.get("notes", ()))


def _metrics(replica: Replica) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{replica.port}/metrics", timeout=5) as page:
        return str(page.read().decode())


def _code(hook: Hook, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{hook.listen}{path}", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def _tell(hook: Hook, payload: dict[str, Any]) -> int:
    request = urllib.request.Request(
        f"http://{hook.listen}/alertmanager", json.dumps(payload).encode()
    )
    request.add_header("Authorization", f"Bearer {TOKEN}")
    with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310 - our own server
        return int(answer.status)


def _payload(node: str, *, status: str = "firing") -> dict[str, Any]:
    alert = {
        "status": status,
        "labels": {"alertname": ALERT, "node": node},
        "startsAt": "2099-01-01T00:00:00Z",
        "endsAt": "0001-01-01T00:00:00Z",
    }
    return {"version": "4", "status": status, "alerts": [alert]}
