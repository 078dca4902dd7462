"""What `check` and `faults` print."""

from datetime import UTC, datetime

from node_agent.check import GRANTS, checks
from node_agent.cli_check import lines_of as check_lines
from node_agent.cli_faults import lines_of, shown_of
from node_agent.contract import (
    FAULTS_ANNOTATION,
    Fault,
    FaultKind,
    Instance,
    Severity,
    encode_report,
)
from node_agent.health.conditions import View, ViewState
from node_agent.nvml.model import NvmlView
from node_agent.publish.node_api import NodeView, SeenCondition


UP = ViewState(up=True)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def node(*faults: Fault, annotation: str | None = None) -> NodeView:
    text = encode_report(faults, boot_id="b") if annotation is None else annotation
    return NodeView(
        uid="uid",
        boot_id="b",
        annotations={FAULTS_ANNOTATION: text} if text else {},
        conditions={
            "Ready": SeenCondition("Ready", "True"),
            "GPULost": SeenCondition(
                "GPULost", "True", "FallenOffBus", "Xid 79", "2026-01-31T12:00:00Z"
            ),
        },
    )


def fault(**differs: object) -> Fault:
    fields = {
        "kind": FaultKind.XID,
        "severity": Severity.FATAL,
        "first_seen": NOON,
        "last_seen": NOON,
        "pci": "0000:18:00.0",
        "code": 79,
    }
    return Fault(**{**fields, **differs})  # type: ignore[arg-type]


def test_every_view_has_what_grants_it_and_shows_it_when_it_is_off() -> None:
    assert set(GRANTS) == set(View)
    views = {view: ViewState(up=False, reason=f"no {view}") for view in View}
    rows = checks(views, nvml=NvmlView(), log_source="kmsg", devices=0)
    assert [(row.view, row.state) for row in rows] == [(view.value, "off") for view in View]
    assert all(row.grants and row.detail == f"no {row.view}" for row in rows)
    text = "\n".join(check_lines(rows))
    assert all(GRANTS[view] in text for view in View)


def test_a_view_that_works_needs_nothing_and_one_that_is_not_there_is_not_off() -> None:
    views = dict.fromkeys(View, UP) | {View.TRACEPOINT: ViewState(up=False, absent=True)}
    rows = {r.view: r for r in checks(views, nvml=NvmlView(), log_source="kmsg", devices=8)}
    assert rows["kernel_log"].detail == "reads kmsg"
    assert rows["pci"].detail == "8 devices"
    assert rows["tracepoint"].state == "absent"
    assert [r.view for r in rows.values() if r.grants] == ["tracepoint"]


def test_faults_are_shown_with_their_device_pods_and_advice() -> None:
    mig = fault(mig=Instance(gi=5), pods=("ml/train-0", "ml/train-1"), action="RESET_GPU")
    hot = fault(kind=FaultKind.THERMAL, code=None, subcode="hw-thermal", pci="")
    text = "\n".join(lines_of(shown_of("n1", node(mig, hot))))
    assert "Ready" not in text
    assert "0000:18:00.0 gi 5" in text
    assert "ml/train-0,ml/train-1" in text
    assert "thermal hw-thermal" in text
    assert "2026-01-31T12:00:00Z" in text


def test_a_node_that_nobody_wrote_on_and_one_without_faults() -> None:
    bare = NodeView(uid="u", boot_id="", annotations={}, conditions={})
    assert lines_of(shown_of("n1", bare)) == ["no agent has written anything on node n1"]
    assert lines_of(shown_of("n1", node()))[-1] == "no faults"
    assert lines_of(shown_of("n1", node(annotation="{")))[-1] == "no readable fault annotation"
