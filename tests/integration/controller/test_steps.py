"""Labels, annotations and webhooks with a controller on the real API server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from testbed.api import Json


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site, Succession

pytestmark = pytest.mark.cluster

LABEL = "example.com/state"
NOTE = "example.com/note"
LONG = "example.com/long"


class Service:
    """An endpoint that notes what it is asked."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Json]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                service.got.append((self.headers["Idempotency-Key"], json.loads(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def service(site: Site) -> Iterator[Service]:
    made = Service()
    (site.folder / "secret").write_text("word")
    endpoint = {"url": made.url, "secretFile": str(site.folder / "secret")}
    site.config(endpoints={"service": endpoint})
    yield made
    made.close()


def metadata(site: Site, node: str) -> Json:
    return dict(site.cluster.node(node)["metadata"])


def at_the_end(site: Site, node: str) -> bool:
    session = site.session(node)
    return session is not None and session["holds"][0].get("state") == "done"


def test_labels_and_annotations_come_and_old_values_return(
    site: Site, run: Callable[..., Replica]
) -> None:
    set_both = [
        {"label": {"set": {LABEL: "bad"}}},
        {"annotate": {"set": {NOTE: "bad", LONG: "bad"}}},
    ]
    site.policy(steps=[{"cordon": {}}, *set_both])
    node = site.node(labels={LABEL: "good"}, annotations={LONG: "x" * 1000})
    run()
    site.says(node, 79)
    site.wait(lambda: at_the_end(site, node), "end of the steps")
    assert metadata(site, node)["labels"][LABEL] == "bad"
    assert metadata(site, node)["annotations"][NOTE] == "bad"
    assert metadata(site, node)["annotations"][LONG] == "x" * 1000, "it could not be put back"
    site.says(node)
    site.wait(lambda: site.session(node) is None, "end of the session")
    assert metadata(site, node)["labels"][LABEL] == "good"
    assert NOTE not in metadata(site, node)["annotations"]
    assert metadata(site, node)["annotations"][LONG] == "x" * 1000


def test_a_person_who_changes_a_label_or_annotation_keeps_it(
    site: Site, run: Callable[..., Replica]
) -> None:
    set_both = [{"label": {"set": {LABEL: "bad"}}}, {"annotate": {"set": {NOTE: "bad"}}}]
    site.policy(steps=[{"cordon": {}}, *set_both])
    node = site.node(labels={LABEL: "good"})
    run()
    site.says(node, 79)
    site.wait(lambda: at_the_end(site, node), "end of the steps")
    site.cluster.label(node, {LABEL: "mine"})
    site.cluster.annotate(node, {NOTE: "mine"})
    site.says(node)
    site.wait(lambda: site.session(node) is None, "end of the session")
    assert metadata(site, node)["labels"][LABEL] == "mine"
    assert metadata(site, node)["annotations"][NOTE] == "mine"


@pytest.mark.parametrize("writes", range(1, 7))
def test_a_crash_after_any_write_calls_at_least_once_under_one_key(
    site: Site, service: Service, succession: Callable[[int], Succession], writes: int
) -> None:
    site.policy(
        steps=[
            {"cordon": {}},
            {"webhook": {"to": "service", "data": {"for": "{node}"}}},
            {"wait": {"for": "500ms"}},
            {"annotate": {"set": {NOTE: "called"}}},
        ]
    )
    node = site.node()
    site.says(node)
    heirs = succession(writes)
    heirs.reach(lambda: at_the_end(site, node), "end of the steps", node, 79)
    heirs.reach(lambda: site.session(node) is None, "end of the session", node)
    assert service.got
    assert len({key for key, _ in service.got}) == 1
    assert {body["data"]["for"] for _, body in service.got} == {node}
    assert NOTE not in metadata(site, node).get("annotations", {})
    assert not site.cordoned(node)
    assert len(site.history(node)["attempts"]) == 1
    assert heirs.crashed
