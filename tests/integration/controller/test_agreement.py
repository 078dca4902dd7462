"""What is told beforehand is what is then done, and held for the reason that was told.

A table of states, each with nodes and policies of its own. `simulate` and `policy explain` are
asked while no controller runs; then one runs in earnest, and its `status` and the nodes must say
the same. What is asked again after that must find nothing left to do. Once from nothing, and once
more after people, policies and faults changed while no controller ran.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlparse

import pytest
from typer.testing import CliRunner

from remediator.cli.root import app
from remediator.decide.ledger import Pause
from remediator.decide.requests import APPROVAL_ANNOTATION, REQUEST_ANNOTATION
from remediator.decide.session import HISTORY_ANNOTATION, MODE_KEY, SESSION_ANNOTATION
from remediator.record.control import CONTROL_CONFIGMAP, write_pause
from remediator.record.state import STATE_CONFIGMAP, STATE_KEY
from testbed.api import MERGE_PATCH, Json


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site

pytestmark = pytest.mark.cluster

CORDON: Json = {"cordon": {}}
TAINT: Json = {"taint": {}}
APPROVE: Json = {"approve": {}}
TELL: Json = {"notify": {"to": ["log"]}}
CLOSED = [{"timeZone": "Etc/UTC", "days": ["Mon"], "start": "00:00", "end": "00:01"}]
ONE = {"budget": {"maxUnavailable": 1, "per": "pool"}}
HOUR = {"rate": {"cordon": "1/1h"}}
TIMES = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z?|\b\d+(\.\d+)?(ms|s|m|h|d)\b")


class Stand(NamedTuple):
    """Where a node stands: in dry-run or not, its phase, and who holds what for which reason."""

    dry_run: bool
    phase: str
    holds: tuple[tuple[str, str, str], ...]


class Monitoring:
    """An Alertmanager and a Prometheus that say what the test says."""

    def __init__(self) -> None:
        self.alerts: list[Json] = []
        self.answers: dict[str, list[str]] = {}
        self.works = True
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                """Say nothing."""

            def do_GET(self) -> None:
                outer._answer(self, "")

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                outer._answer(self, self.rfile.read(size).decode())

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fire(self, name: str, node: str = "", *, silenced: bool = False) -> None:
        labels = {"alertname": name} | ({"node": node} if node else {})
        since, until = stamp(-60), stamp(3600)
        state = "suppressed" if silenced else "active"
        self.alerts.append(
            {
                "labels": labels,
                "startsAt": since,
                "updatedAt": since,
                "endsAt": until,
                "status": {"state": state, "silencedBy": [], "inhibitedBy": []},
            }
        )

    def _answer(self, request: BaseHTTPRequestHandler, body: str) -> None:
        found: Any = self.alerts
        if not request.path.startswith("/api/v2/alerts"):
            asked = parse_qs(urlparse(request.path).query) | parse_qs(body)
            nodes = self.answers.get(asked.get("query", [""])[0], [])
            series = [{"metric": {"node": one}, "value": [time.time(), "1"]} for one in nodes]
            found = {"status": "success", "data": {"resultType": "vector", "result": series}}
        data = json.dumps(found).encode()
        request.send_response(200 if self.works else 503)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)


@pytest.fixture
def monitoring() -> Iterator[Monitoring]:
    made = Monitoring()
    yield made
    made.close()


class World:
    """Cases, each with a label, a pool, a policy and nodes of its own."""

    def __init__(self, site: Site, monitoring: Monitoring) -> None:
        self.site, self.monitoring = site, monitoring
        self.nodes: list[str] = []
        self.kubeconfig = str(site.cluster.kubeconfig_for(site.token))

    def policy(self, case: str, *steps: Json, name: str = "", **spec: Any) -> None:
        spec.setdefault("nodes", {"selector": {"matchLabels": {"case": case}}})
        self.site.policy(name or case, steps=list(steps) or [CORDON], **spec)

    def node(self, case: str, name: str = "", *, well: bool = False, **options: Any) -> str:
        labels = {"case": case, "gpu-remediator.io/pool": case}
        full = self.site.node(f"{case}{name}", labels=labels, **options)
        self.nodes.append(full)
        self.site.says(full, *(() if well else (79,)))
        return full

    def case(self, case: str, *steps: Json, node: Json | None = None, **spec: Any) -> str:
        self.policy(case, *steps, **spec)
        return self.node(case, **(node or {}))

    # -- what is told, and what is ------------------------------------------------------------

    def asked(self, *command: str) -> Any:
        files = ["--policies", str(self.site.policies)]
        files += ["--config", str(self.site.folder / "config.yaml")]
        where = ["--kubeconfig", self.kubeconfig, "--namespace", self.site.cluster.namespace]
        result = CliRunner().invoke(app, [*command, *files, *where, "-o", "json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    def told(self) -> tuple[dict[str, set[Stand]], dict[str, list[str]]]:
        """Return where `simulate` says that each node would stand, and what would be done to it."""
        rows = self.asked("simulate", "--as-written")["nodes"]
        done = {row["node"]: row["steps"] for row in rows if not row["dryRun"]}
        return self._stands(rows), done

    def found(self) -> dict[str, set[Stand]]:
        """Return where the controller says that each node stands."""
        return self._stands(self.site.status().get("nodes", []))

    def agrees(self, told: dict[str, set[Stand]]) -> None:
        """Wait until the controller says what was told, of every node."""

        def differing() -> dict[str, Any]:
            found = self.found()
            return {
                one: (told.get(one), found.get(one))
                for one in self.nodes
                if told.get(one) != found.get(one)
            }

        try:
            self.site.cluster.wait_for(lambda: not differing(), what="what was told", timeout=20)
        except TimeoutError:
            pytest.fail(f"told and found differ: {json.dumps(differing(), indent=1, default=str)}")

    def marks(self) -> dict[str, tuple[bool, bool]]:
        """Return which nodes are cordoned, and which bear our taint."""
        found = self.site.cluster.nodes()
        return {
            one: (
                bool(found[one]["spec"].get("unschedulable")),
                any(t["key"].startswith("gpu-rem") for t in found[one]["spec"].get("taints", [])),
            )
            for one in self.nodes
        }

    def _stands(self, rows: list[Json]) -> dict[str, set[Stand]]:
        found: dict[str, set[Stand]] = {}
        for row in rows:
            holds = sorted(
                (one["policy"], one["guard"], TIMES.sub("#", one["reason"]))
                for one in row.get("holds", [])
            )
            if row["phase"] != "well":  # whether it is listed all the same tells nobody anything
                stand = Stand(row.get("dryRun", False), row["phase"], tuple(holds))
                found.setdefault(row["node"], set()).add(stand)
        return found


def stamp(seconds: float) -> str:
    """RFC 3339, so many seconds from now."""
    at = datetime.now(tz=UTC) + timedelta(seconds=seconds)
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")


def ask_for(world: World, node: str, verb: str) -> None:
    request = json.dumps({"verb": verb, "by": "ann", "at": stamp(0)})
    world.site.cluster.annotate(node, {REQUEST_ANNOTATION: request})


@pytest.fixture
def world(site: Site, monitoring: Monitoring) -> World:
    (site.policies / "xid-79.yaml").unlink()
    polls = {"watchdog": {}, "interval": "1s", "timeout": "5s", "goneAfter": "1s"}
    site.config(
        breaker={"minNodes": 1000},
        rates=dict.fromkeys(("cordon", "drain", "job"), "1000/1h"),
        alertmanagers=[{"name": "main", "urls": [monitoring.url], **polls}],
        prometheus=[{"name": "prom", "url": monitoring.url}],
    )
    monitoring.fire("Watchdog")
    return World(site, monitoring)


def at_rest(world: World) -> None:
    """States that a controller finds."""
    cluster, fire = world.site.cluster, world.monitoring.fire
    world.case("plain", CORDON, TELL, {"event": {}})
    world.case("cordoned", node={"spec": {"unschedulable": True}})
    world.case("tainted", TAINT, node={"spec": {"taints": [foreign_taint()]}})
    world.case("window", windows=CLOSED)
    world.case("emergency", windows=CLOSED, emergency=True)
    world.case("ask", CORDON, APPROVE, TAINT)
    world.case("askfirst", APPROVE, CORDON)
    world.case("marks", {"label": {"set": {"x": "1"}}}, {"wait": {"for": "1h"}}, CORDON)
    world.case("pretend", mode="DryRun")
    world.policy("both", mode="DryRun")
    world.policy("both", TAINT, name="both-real")
    world.node("both")
    world.policy("two")
    world.policy("two", TAINT, TELL, name="two-more")
    world.node("two")
    world.policy("drains", CORDON, {"drain": {}}, name="drains-a")
    world.policy("drains", CORDON, {"drain": {}}, name="drains-b")
    cluster.create_pod(node=world.node("drains"), running=True)
    for mode in ("disabled", "notify-only", "dry-run", "junk"):
        world.policy("mode")
        world.node("mode", mode, annotations={MODE_KEY: mode})
    world.case("frozen", node={"annotations": {SESSION_ANNOTATION: "{"}})
    world.case("damaged", node={"annotations": {REQUEST_ANNOTATION: "{", HISTORY_ANNOTATION: "{"}})
    past = {"attempts": [time.time() - 600.0]}
    world.case(
        "cap",
        limits={"maxAttempts": 1},
        node={"annotations": {HISTORY_ANNOTATION: json.dumps(past)}},
    )
    deleted = world.case("deleting")
    path = f"/api/v1/nodes/{deleted}"
    keep = {"metadata": {"finalizers": ["example.com/keep"]}}
    cluster.api.patch(path, keep, content_type=MERGE_PATCH)
    cluster.api.delete(path)
    world.policy("room", limits=ONE)
    cluster.cordon(world.node("room", "-used", well=True))
    world.node("room")
    world.policy("few", limits=ONE)
    world.policy("rare", limits=HOUR)
    for name in ("a", "b"):
        world.node("few", name)
        world.node("rare", name)
    world.case("unless", unless=[{"alert": {"name": "Maintenance"}}])
    world.case("lest", unless=[{"alert": {"name": "Nothing"}}])
    fire("Maintenance")
    fire("Lost", world.case("alert", when=[{"alert": {"name": "Lost"}}], node={"well": True}))
    fire("Lost", world.case("quiet"), silenced=True)
    asked = {"promql": "bad == 1", "nodeFrom": ["node"]}
    queried = world.case("query", when=[{"query": asked}], node={"well": True})
    world.monitoring.answers["bad == 1"] = [queried]


def foreign_taint() -> Json:
    return {"key": "gpu-remediator.io/unhealthy", "effect": "NoSchedule", "value": "of-ann"}


def on_the_way(world: World) -> dict[str, str]:
    """States that a controller leaves behind, and comes back to."""
    cases = {
        name: world.case(name, CORDON, APPROVE, TAINT)
        for name in ("approved", "edited", "removed", "todryrun", "optedout", "relabelled")
    }
    for name in ("uncordoned", "cancelled", "released", "joined", "recovered"):
        cases[name] = world.case(name)
    cases["escalated"] = world.case("escalated", limits={"maxAttempts": 1})
    cases["untainted"] = world.case("untainted", TAINT)
    cases["manual"] = world.case("manual", recover={"when": "manual"})
    cases["later"] = world.case("later", recover={"for": "1h"})
    cases["rated"] = world.case("rated", limits=HOUR)
    cases["unready"] = world.case("unready")
    for case, mode in (("storm", "Enforce"), ("drystorm", "DryRun")):
        world.policy(case, mode=mode, limits={"breaker": {"minNodes": 1, "percent": 1}})
        for name in ("a", "b", "c"):
            cases[case + name] = world.node(case, name, well=True)
    return cases


def meanwhile(world: World, cases: dict[str, str]) -> None:
    """What people, policies and agents do while no controller runs."""
    site, cluster = world.site, world.site.cluster
    session = site.session(cases["approved"])
    assert session is not None
    yes = {"session": session["id"], "policy": "approved", "step": 1, "by": "ann", "at": stamp(0)}
    approval = json.dumps([yes | {"expires": stamp(3600)}])
    cluster.annotate(cases["approved"], {APPROVAL_ANNOTATION: approval})
    world.policy("edited", CORDON, TAINT)
    (site.policies / "removed.yaml").unlink()
    world.policy("todryrun", CORDON, APPROVE, TAINT, mode="DryRun")
    cluster.annotate(cases["optedout"], {MODE_KEY: "disabled"})
    cluster.label(cases["relabelled"], {"case": "none"})
    cluster.uncordon(cases["uncordoned"])
    ask_for(world, cases["cancelled"], "cancel")
    ask_for(world, cases["released"], "release")
    ask_for(world, cases["escalated"], "retry")
    world.policy("joined", TAINT, name="joined-later")
    world.node("rated", "-more")
    path = f"/api/v1/nodes/{cases['untainted']}"
    cluster.api.patch(path, {"spec": {"taints": None}}, content_type=MERGE_PATCH)
    cluster.set_ready(cases["unready"], "False")


def in_trouble(world: World) -> None:
    """No source answers, the guards' memory is lost, and there are new faults."""
    world.monitoring.works = False
    cluster = world.site.cluster
    path = f"/api/v1/namespaces/{cluster.namespace}/configmaps/{STATE_CONFIGMAP}"
    cluster.api.patch(path, {"data": {STATE_KEY: "{"}}, content_type=MERGE_PATCH)
    world.case("forgotten", limits=HOUR)
    world.case("untold", unless=[{"alert": {"name": "Nothing"}}])
    world.case("blind", when=[{"alert": {"name": "Lost"}}])


def paused(world: World) -> None:
    """Everything is paused, undo as well; a fault comes, and somebody would end a session."""
    cluster = world.site.cluster
    pause = write_pause(Pause(by="ann", at=stamp(0), reason="racks move", all=True))
    body = {"metadata": {"name": CONTROL_CONFIGMAP}, "data": dict(pause)}
    cluster.api.create(f"/api/v1/namespaces/{cluster.namespace}/configmaps", body)
    world.case("stopped")
    ask_for(world, world.nodes[0], "cancel")


def heal(world: World, cases: dict[str, str]) -> None:
    for name in ("recovered", "manual", "later", "unready"):
        world.site.says(cases[name])


def test_what_is_told_is_what_is_done(world: World, run: Callable[..., Replica]) -> None:
    at_rest(world)
    cases = on_the_way(world)
    site = world.site
    replica = run_and_compare(world, run)
    for case in ("storm", "drystorm"):
        for name in ("a", "b", "c"):
            site.says(cases[case + name], 79)
    site.says(cases["escalated"])
    site.wait(lambda: not site.cordoned(cases["escalated"]), "the end of its first session")
    site.says(cases["escalated"], 79)
    site.wait(lambda: site.cordoned(cases["escalated"]), "its escalation")
    site.wait(lambda: holds(world, cases["drystormc"], "breaker"), "the breaker of dry-run")
    site.wait(lambda: holds(world, cases["stormc"], "breaker"), "the breaker")
    replica.stop()
    nothing_left(world)
    meanwhile(world, cases)
    heal(world, cases)
    explained(world)
    run_and_compare(world, run, lambda: heal(world, cases)).stop()
    nothing_left(world)
    in_trouble(world)
    run_and_compare(world, run, lambda: heal(world, cases)).stop()
    nothing_left(world)
    paused(world)
    run_and_compare(world, run, lambda: heal(world, cases)).stop()


def run_and_compare(
    world: World, run: Callable[..., Replica], then: Callable[[], None] = lambda: None
) -> Replica:
    """Ask, run a controller, and wait until it says the same."""
    told, done = world.told()
    before = world.marks()
    began, replica = time.time(), run()
    world.site.wait(lambda: world.site.status().get("time", 0.0) > began, "its first status")
    then()
    world.agrees(told)
    for node, (cordoned, tainted) in world.marks().items():
        steps = {step.partition(" ")[0] for step in done.get(node, [])}
        was_cordoned, was_tainted = before[node]
        expected = (
            (was_cordoned or "cordon" in steps) and "uncordon" not in steps,
            (was_tainted or "taint" in steps) and not {"uncordon", "untaint"} & steps,
        )
        assert (cordoned, tainted) == expected, f"{node}: told {done.get(node)}"
    return replica


def nothing_left(world: World) -> None:
    """What the controller did is all that it would do, and the holds are those it showed.

    Of dry-run only its guards' memory outlives a controller: its sessions begin anew.
    """
    told, done = world.told()
    found = world.found()
    assert [real(told.get(one)) for one in world.nodes] == [
        real(found.get(one)) for one in world.nodes
    ]
    going_on = {"drain"}  # begun, and still under way
    assert {
        node: steps
        for node, steps in done.items()
        if {step.partition(" ")[0] for step in steps} - going_on
    } == {}


def real(stands: set[Stand] | None) -> set[Stand]:
    return {one for one in stands or () if not one.dry_run}


def explained(world: World) -> None:
    """`policy explain` gives the holds that `simulate` gives."""
    told, _ = world.told()
    for node in world.nodes[::7]:
        said = world.asked("policy", "explain", node)["policies"]
        holds = {
            (one["policy"], hold["guard"], TIMES.sub("#", hold["reason"]))
            for one in said
            if one["mode"] == "Enforce"
            for hold in one["holds"]
        }
        stands = {hold for stand in told.get(node, ()) if not stand.dry_run for hold in stand.holds}
        assert holds == {hold for hold in stands if hold[0] in {one["policy"] for one in said}}


def holds(world: World, node: str, guard: str) -> bool:
    stands = world.found().get(node, set())
    return any(hold[1] == guard for stand in stands for hold in stand.holds)
