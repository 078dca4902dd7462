"""What others may write on a node, at its worst, on a real API server.

Annotations up to the server's own limit, forged reports and sessions, conditions with terminal
escapes and long messages. Each costs its own node something, and no other node anything; nothing
that is printed moves a cursor.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from node_agent.contract import FAULTS_ANNOTATION
from remediator.cli.root import app
from remediator.decide.requests import APPROVAL_ANNOTATION, REQUEST_ANNOTATION
from remediator.decide.session import HISTORY_ANNOTATION, MODE_KEY, SESSION_ANNOTATION
from tests.integration.controller.test_cli import Remediator, remediator


if TYPE_CHECKING:
    from tests.integration.controller.conftest import Replica, Site

__all__ = ["remediator"]

pytestmark = pytest.mark.cluster

ROOM = 250_000
"""Bytes; the server allows all annotations of an object 256 KiB."""
ESCAPES = "\x1b[2K\r\nforged  well\u2028\u202e\x9b31m\x07"
DEEP = "[" * 100_000
NOW = "2026-01-01T00:00:00Z"


def report(**changes: Any) -> str:
    fault = {
        "kind": "xid",
        "code": 79,
        "severity": "fatal",
        "firstSeen": NOW,
        "lastSeen": NOW,
        "pci": "0000:9b:00.0",
    }
    return json.dumps({"version": 1, "bootID": "b", "faults": [fault | changes]})


def many(count: int) -> str:
    one = json.loads(report())["faults"][0]
    faults = [one | {"pci": f"0000:{at:02x}:00.0"} for at in range(count)]
    return json.dumps({"version": 1, "faults": faults})


REPORTS = {
    "deep": DEEP,
    "long": "x" * ROOM,
    "number": "1",
    "null": "null",
    "list": '{"version": 1, "faults": {}}',
    "version": '{"version": 1e400}',
    "code": report(code=10**30),
    "negative": report(code=-1, count=-5, lines=-5),
    "huge": report(code=2**62, count=2**62),
    "first": report(firstSeen="0001-01-01T00:00:00Z"),
    "last": report(firstSeen="9999-12-31T23:59:59Z", lastSeen="9999-12-31T23:59:59Z"),
    "noon": report(firstSeen="2026-01-01T00:00:00"),
    "text": report(pci=ESCAPES, message=ESCAPES, gpu=ESCAPES, action=ESCAPES),
    "wide": report(pci="\u202e" * 20_000, message="\u0000" * 1000),
    "many": many(1500),
}
HOLD = {
    "policy": "xid-79",
    "version": "v",
    "plan": '{"steps": [{"cordon": {}}]}',
    "reasons": [ESCAPES],
    "instances": ["xid:79:0000:9b:00.0"],
    "since": 1.0,
    "stepSince": 1.0,
}
FORGED: dict[str, list[dict[str, Any]]] = {
    "plan": [HOLD | {"plan": "{}"}],
    "words": [HOLD | {"plan": ESCAPES}],
    "step": [HOLD | {"step": 99}],
    "before": [HOLD | {"step": -1}],
    "results": [HOLD | {"results": [{"step": 5, "action": "x", "result": "done", "at": 1e300}]}],
    "twice": [HOLD, HOLD],
    "none": [],
}
"""Holds of sessions that are of the right form, and say what cannot be."""
OTHERS: dict[str, dict[str, str]] = {
    "session": {SESSION_ANNOTATION: DEEP},
    "history": {HISTORY_ANNOTATION: DEEP},
    "attempts": {HISTORY_ANNOTATION: json.dumps({"attempts": [1e308] * 1000})},
    "nan": {HISTORY_ANNOTATION: '{"attempts": [NaN]}'},
    "request": {REQUEST_ANNOTATION: json.dumps({"verb": "cancel", "by": ESCAPES * 5000, "at": ""})},
    "approval": {APPROVAL_ANNOTATION: "[" + "{}," * 80_000 + "{}]"},
    "mode": {MODE_KEY: ESCAPES},
    "foreign": {f"example.com/{at}": "y" * 25_000 for at in range(10)},
}


def conditions(count: int, size: int) -> list[dict[str, str]]:
    text = ESCAPES + "z" * size
    stamp = {"lastHeartbeatTime": NOW, "lastTransitionTime": NOW}
    return [
        {"type": f"Other{at}", "status": "True", "reason": text[:200], "message": text} | stamp
        for at in range(count)
    ]


def test_each_hostile_node_costs_itself_and_no_other(
    site: Site, run: Callable[..., Replica], remediator: Remediator
) -> None:
    cluster = site.cluster
    clauses = [{"xid": {"minSeverity": "info"}}, {"condition": {"type": "Other1"}}]
    tell = {"notify": {"to": ["log"]}}
    site.policy("any", when=clauses, steps=[{"cordon": {}}, {"event": {}}, tell])
    annotations = {f"r-{name}": {FAULTS_ANNOTATION: text} for name, text in REPORTS.items()}
    annotations |= {f"a-{name}": texts for name, texts in OTHERS.items()}
    hostile = {name: site.node(name) for name in annotations}
    for name, texts in annotations.items():
        site.says(hostile[name], 79)
        cluster.annotate(hostile[name], texts)
    forged = [forge(site, name, holds) for name, holds in FORGED.items()]
    large = site.node("conditions")
    site.says(large, 79)
    cluster.patch_node_status(large, {"status": {"conditions": conditions(40, 20_000)}})
    plain = site.node("plain")
    site.says(plain, 79)
    replica = run()
    served = (plain, large, hostile["r-text"], hostile["a-foreign"])
    site.wait(lambda: all(map(site.cordoned, served)), "the cordons of those that can be read")
    site.wait(lambda: {phase(site, one) for one in forged} == {"frozen"}, "the forged to freeze")
    site.says(plain)
    site.wait(lambda: not site.cordoned(plain), "its end")
    status = site.wait(lambda: phase(site, plain) == "well" and site.status(), "its end in status")
    assert not status.get("nodesLeftOut")
    assert max(len(json.dumps(one)) for one in status["nodes"]) < 20_000, "no node takes all room"
    assert any("is not used: gpu-remediator.io/gpu-faults" in note for note in status["notes"])
    assert not {phase(site, hostile[name]) for name in ("a-mode", "a-session")} & {"in-session"}

    printed = [remediator("unfreeze", forged[0]).output, remediator("approve", forged[1]).output]
    site.wait(lambda: phase(site, forged[0]) != "frozen", "the unfrozen node")
    replica.stop()
    files = ("--policies", str(site.policies), "--config", str(site.folder / "config.yaml"))
    where = ["--kubeconfig", str(site.cluster.kubeconfig_for(site.token))]
    where += ["--namespace", cluster.namespace]
    commands = (
        ("status",),
        ("simulate", *files),
        ("policy", "explain", hostile["r-text"], *files),
        ("drain", hostile["r-text"], "--dry-run"),
    )
    results = [CliRunner().invoke(app, [*command, *where]) for command in commands]
    assert not [one for one in results if not isinstance(one.exception, SystemExit | None)]
    printed += [one.output for one in results]
    for said in printed:
        lines = said.removesuffix("\n").split("\n")
        assert all(line.isprintable() for line in lines), said
        assert not any(line.startswith(("forged", "Traceback")) for line in lines), said


def forge(site: Site, name: str, holds: list[dict[str, Any]]) -> str:
    """A node with a session of this node that says what cannot be."""
    node = site.node(f"s-{name}")
    site.says(node, 79)
    session = {
        "version": 1,
        "id": "forged",
        "nodeUid": site.cluster.node(node)["metadata"]["uid"],
        "bootId": site.boots[node],
        "started": 1.0,
        "before": {},
        "added": {"cordoned": True},
        "holds": holds,
    }
    site.cluster.annotate(node, {SESSION_ANNOTATION: json.dumps(session)})
    return node


def phase(site: Site, node: str) -> str:
    """Of a node that is not listed: well."""
    return str((site.status_of(node) or {}).get("phase", "well"))
