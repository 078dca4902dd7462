"""What people could not be told before a restart, they are told after it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from remediator.decide.requests import REQUEST_ANNOTATION
from remediator.decide.session import SESSION_ANNOTATION
from remediator.term import closing


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site, Succession

pytestmark = pytest.mark.cluster


class Receiver:
    """A webhook's and Slack's server that can be out of order."""

    def __init__(self) -> None:
        self.works = True
        self.got: list[tuple[str, dict[str, Any]]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if receiver.works:
                    receiver.got.append((self.path, body))
                said = json.dumps({"ok": True, "ts": f"{len(receiver.got)}.0", "channel": "C1"})
                self.send_response(200 if receiver.works else 503)
                self.end_headers()
                self.wfile.write(said.encode())

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def of(self, path: str) -> list[Any]:
        return [body for where, body in self.got if where == path]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_the_end_of_a_session_is_told_by_the_next_leader_in_the_same_thread(
    site: Site, run: Callable[..., Replica], receiver: Receiver
) -> None:
    token = site.folder / "slack-token"
    token.write_text("xoxb-1")
    slack = {"tokenFile": token.name, "channel": "C1", "apiUrl": f"{receiver.url}/slack"}
    site.config(
        channels={"hook": {"webhook": {"url": f"{receiver.url}/hook"}}, "team": {"slack": slack}}
    )
    site.policy(steps=[{"cordon": {}}, {"notify": {"to": ["hook", "team"]}}])
    node = site.node()
    first = run()
    site.says(node, 79)
    site.wait(lambda: len(receiver.got) == 2, "messages of the step")
    receiver.works = False
    site.says(node)
    site.wait(lambda: site.session(node) is None, "end of the session")
    site.wait(lambda: "/end" in kept(site), "the message is kept")
    first.stop()
    receiver.works = True

    run()
    site.wait(lambda: len(receiver.of("/hook")) == 2, "message of the end")
    site.wait(lambda: receiver.of("/slack/chat.update"), "the thread's first message")

    begin, end = receiver.of("/hook")
    assert not begin["resolves"]
    assert end["resolves"]
    parent, reply = receiver.of("/slack/chat.postMessage")
    assert "thread_ts" not in parent
    assert reply["thread_ts"] == receiver.of("/slack/chat.update")[0]["ts"]
    site.wait(lambda: "/end" not in kept(site), "nothing is kept any more")


def test_a_storm_is_one_message_where_the_channel_waits_for_it(
    site: Site, run: Callable[..., Replica], receiver: Receiver
) -> None:
    hook = {"webhook": {"url": f"{receiver.url}/hook"}, "groupWait": "1m"}
    site.config(channels={"hook": hook})
    site.policy(steps=[{"cordon": {}}, {"notify": {"to": ["hook"]}}])
    nodes = [site.node() for _ in range(3)]
    replica = run()
    for node in nodes:
        site.says(node, 79)
    site.wait(lambda: all(f'"{node}"' in kept(site) for node in nodes), "messages that wait")
    assert receiver.got == []

    replica.stop()  # an orderly end waits for nothing

    (body,) = receiver.of("/hook")
    assert sorted(body["nodes"]) == sorted(nodes)


def test_an_alert_is_sent_anew_for_as_long_as_it_is_open(
    site: Site, run: Callable[..., Replica], receiver: Receiver
) -> None:
    site.config(channels={"am": {"alertmanager": {"urls": [receiver.url], "lasts": "3s"}}})
    site.policy(steps=[{"cordon": {}}, {"notify": {"to": ["am"]}}])
    node = site.node()
    run()
    site.says(node, 79)
    site.wait(lambda: len(receiver.of("/api/v2/alerts")) > 2, "the alert, once and again")
    site.says(node)
    site.wait(lambda: site.session(node) is None, "end of the session")

    def ended() -> bool:
        last = receiver.of("/api/v2/alerts")[-1][0]
        return bool("ended" in last["annotations"]["summary"])

    site.wait(ended, "end of the alert")
    assert {one[0]["labels"]["node"] for one in receiver.of("/api/v2/alerts")} == {node}


@pytest.mark.parametrize("writes", range(6, 10))
def test_a_failed_step_is_told_wherever_the_process_died(
    site: Site, succession: Callable[[int], Succession], receiver: Receiver, writes: int
) -> None:
    site.config(channels={"hook": {"webhook": {"url": f"{receiver.url}/hook"}}})
    fails = {"wait": {"condition": {"type": "Reset"}}, "timeout": "1s"}
    site.policy(steps=[{"cordon": {}}, fails, {"notify": {"to": ["hook"]}}])
    controllers = succession(writes)
    nodes: list[str] = []

    def told() -> bool:
        return any(nodes[-1] in one["nodes"] for one in receiver.of("/hook"))

    while not controllers.crashed and len(nodes) < writes:
        nodes.append(site.node())
        controllers.reach(told, "message of the failure", nodes[-1], 79)

    assert controllers.crashed
    assert all("failed" in one["key"] for got in receiver.of("/hook") for one in got["messages"])


def test_what_is_about_no_session_is_closed_when_its_reason_has_gone(
    site: Site,
    run: Callable[..., Replica],
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(closing, "LOOK_SECONDS", 0.2)
    key = site.folder / "pagerduty-key"
    key.write_text("k")
    pagerduty = {"routingKeyFile": key.name, "url": f"{receiver.url}/pd"}
    site.config(channels={"oncall": {"pagerduty": pagerduty}}, alertsTo=["oncall"])
    node = site.node(annotations={SESSION_ANNOTATION: "{"})
    run()
    (opened,) = site.wait(lambda: receiver.of("/pd/v2/enqueue"), "the incident")
    assert opened["event_action"] == "trigger"
    assert node in opened["payload"]["summary"]
    request = {"verb": "unfreeze", "by": "alice", "at": "2026-01-01T00:00:00Z"}
    site.cluster.annotate(node, {REQUEST_ANNOTATION: json.dumps(request)})
    site.wait(lambda: len(receiver.of("/pd/v2/enqueue")) == 2, "its end")
    closed = receiver.of("/pd/v2/enqueue")[1]
    assert (closed["event_action"], closed["dedup_key"]) == ("resolve", opened["dedup_key"])
    site.wait(lambda: "frozen" not in kept(site), "nothing is kept any more")


def test_the_end_is_told_though_the_process_died_right_after_its_patch(
    site: Site, run: Callable[..., Replica], receiver: Receiver
) -> None:
    site.config(channels={"hook": {"webhook": {"url": f"{receiver.url}/hook"}}})
    site.policy(steps=[{"cordon": {}}, {"notify": {"to": ["hook"]}}])
    node = site.node()
    first = run(crash_on=b'"gpu-remediator.io/session":null')
    site.says(node, 79)
    site.wait(lambda: receiver.of("/hook"), "message of the step")
    site.says(node)
    site.wait(first.crashed.is_set, "death")
    first.join()
    assert site.session(node) is None
    assert not [one for one in receiver.of("/hook") if one["resolves"]], "nobody was told"
    assert "/end" not in kept(site)

    run()
    site.wait(lambda: [one for one in receiver.of("/hook") if one["resolves"]], "message")
    (end,) = [one for one in receiver.of("/hook") if one["resolves"]]
    assert [one["key"][-4:] for one in end["messages"]] == ["/end"]


def test_an_end_that_was_told_is_not_told_again_by_the_next_leader(
    site: Site, run: Callable[..., Replica], receiver: Receiver
) -> None:
    site.config(channels={"hook": {"webhook": {"url": f"{receiver.url}/hook"}}})
    site.policy(steps=[{"cordon": {}}, {"notify": {"to": ["hook"]}}])
    node, other = site.node(), site.node()
    first = run()
    site.says(node, 79)
    site.wait(lambda: receiver.of("/hook"), "message of the step")
    site.says(node)
    site.wait(lambda: [one for one in receiver.of("/hook") if one["resolves"]], "message")
    assert site.history(node)["owed"]
    first.stop()

    run()
    site.says(other, 79)
    site.wait(lambda: len(receiver.of("/hook")) > 2, "message about another node")
    assert len([one for one in receiver.of("/hook") if one["resolves"]]) == 1


def kept(site: Site) -> str:
    document = site.cluster.configmap("gpu-remediator-messages") or {}
    found = json.loads(document.get("messages.json", "{}"))
    return json.dumps({key: one for key, one in found.items() if key != "told"})
