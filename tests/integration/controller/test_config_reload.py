"""RemediatorConfig is changed while the controller runs: what takes effect, and what is kept."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from remediator import app
from remediator.policy.configfile import ConfigFile
from testbed.api import Json


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site

pytestmark = pytest.mark.cluster


def lease(site: Site) -> Json:
    path = "/apis/coordination.k8s.io/v1/namespaces"
    return dict(
        site.cluster.api.get(f"{path}/{site.cluster.namespace}/leases/gpu-remediator")["spec"]
    )


def notes(site: Site) -> str:
    return "\n".join(site.status().get("notes", []))


def metric(controller: Replica, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{controller.port}/metrics") as answer:
        text = answer.read().decode()
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


def ready(controller: Replica) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{controller.port}/readyz").close()
    except OSError:  # not yet
        return False
    return True


def in_force(controller: Replica) -> Any:
    return controller.controller._config.in_force


def test_a_change_takes_effect_without_a_restart_and_the_lease_is_kept(
    site: Site, run: Callable[..., Replica]
) -> None:
    site.config("DryRun")
    node = site.node()
    site.says(node)
    controller = run()
    site.says(node, 79)
    site.wait(lambda: (site.status_of(node) or {}).get("phase") == "in-session", "dry-run's plan")
    before, port = lease(site), controller.port
    assert not site.cordoned(node)

    site.config("Enforce")
    site.wait(lambda: site.cordoned(node), "the cordon")

    site.wait(lambda: site.status().get("mode") == "Enforce", "the mode in status")
    after = lease(site)
    assert after["holderIdentity"] == before["holderIdentity"]
    assert after.get("leaseTransitions") == before.get("leaseTransitions")
    assert controller.port == port
    assert metric(controller, "remediation_config_error") == 0.0


def test_sessions_and_messages_under_way_go_on(
    site: Site, run: Callable[..., Replica], receiver: Receiver
) -> None:
    channels = {"hook": {"webhook": {"url": receiver.url}}}
    site.config(channels=channels)
    site.policy(steps=[{"cordon": {}}, {"notify": {"to": ["hook"]}}])
    node, other = site.node(), site.node()
    for one in (node, other):
        site.says(one)
    controller = run()
    site.says(node, 79)
    site.wait(lambda: receiver.got == 1, "the first message")
    session = site.session(node)
    assert session is not None
    receiver.works = False
    site.says(other, 79)
    site.wait(lambda: receiver.refused, "a message that does not arrive")

    site.config(channels=channels, remediations={"keep": 7})
    site.wait(lambda: in_force(controller).remediations.keep == 7, "the new configuration")
    receiver.works = True
    site.wait(lambda: receiver.got == 2, "the second message")
    kept = site.session(node)
    assert kept is not None
    assert kept["id"] == session["id"]

    site.says(node)
    site.wait(lambda: not site.cordoned(node), "recovery by the same session")
    assert site.session(node) is None


def test_a_version_with_an_error_changes_nothing_and_is_said(
    site: Site, run: Callable[..., Replica]
) -> None:
    node = site.node()
    site.says(node)
    controller = run()
    site.wait(lambda: site.status().get("mode") == "Enforce", "the status")
    site.config("Enforce", setling="1m")
    site.wait(lambda: "setling" in notes(site), "the error in status")
    assert "the version before stays" in notes(site)
    assert metric(controller, "remediation_config_error") == 1.0

    site.says(node, 79)
    site.wait(lambda: site.cordoned(node), "a cordon by the version before")
    site.config()
    site.wait(lambda: "setling" not in notes(site), "the end of the error")
    assert metric(controller, "remediation_config_error") == 0.0


def test_a_version_that_cannot_be_served_gives_way_to_the_one_before(
    site: Site, run: Callable[..., Replica]
) -> None:
    (site.folder / "token").write_text("t")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        node = site.node()
        site.says(node)
        run(webhook_listen=f"127.0.0.1:{taken.getsockname()[1]}")
        site.wait(lambda: site.status().get("mode") == "Enforce", "the status")
        peer = {"name": "a", "urls": ["http://127.0.0.1:1"]}
        site.config(alertmanagers=[peer], webhook={"bearerTokenFile": "token"})
        site.wait(lambda: "cannot listen on" in notes(site), "why it is not in force")
    site.says(node, 79)
    site.wait(lambda: site.cordoned(node), "a cordon by the version before")


def test_a_follower_takes_the_new_one_and_leads_by_it(
    site: Site, run: Callable[..., Replica]
) -> None:
    site.config("DryRun")
    node = site.node()
    site.says(node)
    first = run(identity="one")
    site.wait(lambda: site.status().get("leader") == "one", "the first leader")
    second = run(identity="two")
    site.config("Enforce")
    site.wait(lambda: in_force(second).mode.value == "Enforce", "the follower's configuration")
    site.wait(lambda: site.status().get("mode") == "Enforce", "the leader's")
    assert lease(site)["holderIdentity"] == "one"

    first.stop()
    site.wait(lambda: site.status().get("leader") == "two", "the second leader")
    assert site.status()["mode"] == "Enforce"
    site.says(node, 79)
    site.wait(lambda: site.cordoned(node), "the cordon")


def test_a_new_leader_reads_its_configuration_once_more(
    site: Site, run: Callable[..., Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that the follower has not looked at yet counts from its first moment as leader."""
    monkeypatch.setattr(app, "ConfigFile", partial(ConfigFile, poll=3600.0))
    node = site.node()
    site.says(node)
    first = run(identity="one")
    site.wait(lambda: site.status().get("leader") == "one", "the first leader")
    second = run(identity="two")
    site.wait(lambda: ready(second), "a follower that waits for the lease")
    site.config("DryRun")

    first.stop()
    site.wait(lambda: site.status().get("leader") == "two", "the second leader")
    assert site.status()["mode"] == "DryRun"
    site.says(node, 79)
    site.wait(lambda: (site.status_of(node) or {}).get("phase") == "in-session", "dry-run's plan")
    assert not site.cordoned(node)


def test_policies_that_the_new_one_does_not_fit_stay_and_are_named(
    site: Site, run: Callable[..., Replica]
) -> None:
    site.config(channels={"old": {"log": {}}})
    site.policy(steps=[{"cordon": {}}, {"notify": {"to": ["old"]}}])
    node = site.node()
    site.says(node)
    run()
    site.wait(lambda: site.status().get("policies"), "the policy")
    site.config(channels={"new": {"log": {}}})
    site.wait(lambda: "old" in str(site.status().get("policyProblems")), "the problem")
    site.says(node, 79)
    site.wait(lambda: site.cordoned(node), "a cordon by the policy as it was")

    site.policy(steps=[{"cordon": {}}, {"notify": {"to": ["new"]}}])
    site.wait(lambda: not site.status().get("policyProblems"), "the end of the problem")


class Receiver:
    """A webhook channel's server that can be out of order."""

    def __init__(self) -> None:
        self.works, self.refused, self.got = True, 0, 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got += receiver.works
                receiver.refused += not receiver.works
                self.send_response(200 if receiver.works else 503)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()
