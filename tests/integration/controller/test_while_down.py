"""What people and clocks do while no controller runs: the next one finds it, and acts by it.

The program, in a process of its own, is killed amid many remediations; then the world goes on; then
another one begins. Each case is what happens before, between and after.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from remediator.decide.ledger import Pause
from remediator.decide.requests import (
    APPROVAL_ANNOTATION,
    REQUEST_ANNOTATION,
    Approval,
    Request,
    Verb,
    encode_approvals,
)
from remediator.decide.session import SESSION_ANNOTATION, encode
from remediator.record.control import RESET_PREFIX, BreakerReset, write_pause, write_reset
from tests.integration.controller.test_control import control, guards
from tests.integration.controller.test_killed import Program, zygote
from tests.integration.controller.test_remediations import path, record, recorded
from tests.integration.controller.test_taint import OURS, taints


if TYPE_CHECKING:
    from testbed.api import Json
    from testbed.zygote import Zygote
    from tests.integration.controller.conftest import Site

__all__ = ["recorded", "zygote"]  # fixtures that these tests share with those of other modules

pytestmark = pytest.mark.cluster

DOWN = 4.0
"""Seconds in which nobody runs, at the least: longer than what ends meanwhile."""
NOTE = "example.com/note"
REACHED: Json = {"annotate": {"set": {NOTE: "reached"}}}
ASK: Json = {"approve": {}}
Case = Iterator[None]
"""It yields when the program is to be killed, and when another one may begin."""

POLICIES: dict[int, tuple[str, list[Json], Json]] = {
    79: ("plain", [{"cordon": {}}], {}),
    48: ("asks", [{"cordon": {}}, ASK, REACHED], {}),
    61: ("asks-briefly", [{"cordon": {}}, ASK | {"timeout": "3s"}, REACHED], {}),
    62: ("waits", [{"cordon": {}}, {"wait": {"for": "3s"}}, REACHED], {}),
    63: ("capped", [{"cordon": {}}], {"limits": {"maxAttempts": 1}}),
    64: ("rated", [{"cordon": {}}], {"limits": {"rate": {"cordon": "1/1h"}}}),
    74: ("storm", [{"cordon": {}}], {"limits": {"breaker": {"minNodes": 1, "percent": 1}}}),
    92: (
        "fails",
        [{"cordon": {}}, {"wait": {"condition": {"type": "Fixed"}}, "timeout": "1s"}],
        {},
    ),
    94: ("edited", [{"cordon": {}}, ASK, REACHED], {}),
    95: ("deleted", [{"cordon": {}}, ASK, REACHED], {}),
    109: ("asks-first", [ASK, {"cordon": {}}, {"taint": {}}], {}),
    110: ("marks", [{"cordon": {}}, {"taint": {}}, {"label": {"set": {NOTE: "bad"}}}], {}),
    119: ("renamed", [{"cordon": {}}, ASK, REACHED], {}),
}


def sick(site: Site, code: int) -> str:
    node = site.node()
    site.says(node, code)
    return node


def cordoned(site: Site, code: int) -> str:
    node = sick(site, code)
    site.wait(lambda: site.cordoned(node) and site.session(node), f"cordon for {code}")
    return node


def hold_of(site: Site, node: str, policy: str = "") -> Json:
    session = site.session(node) or {"holds": []}
    return next((one for one in session["holds"] if policy in {"", one["policy"]}), {})


def results(site: Site, node: str) -> list[tuple[str, str]]:
    return [(one["action"], one["result"]) for one in hold_of(site, node).get("results", ())]


def noted(site: Site, node: str) -> bool:
    return NOTE in site.cluster.node(node)["metadata"]["annotations"]


def asks(site: Site, verb: Verb, node: str) -> None:
    request = Request(verb=verb, by="ann", at="now")
    site.cluster.annotate(node, {REQUEST_ANNOTATION: encode(request)})


def approve(site: Site, node: str, *, step: int = 1, lasts: float = 3600.0) -> None:
    session = site.session(node)
    assert session is not None
    expires = datetime.now(tz=UTC) + timedelta(seconds=lasts)
    given = Approval(
        session=session["id"],
        policy=session["holds"][0]["policy"],
        step=step,
        by="ann",
        at="now",
        expires=expires.isoformat(),
    )
    site.cluster.annotate(node, {APPROVAL_ANNOTATION: encode_approvals([given])})


def gone_by_well(site: Site, node: str) -> None:
    """Have the agent say that all is well, until the session has ended."""

    def ended() -> bool:
        site.says(node)
        return site.session(node) is None

    site.wait(ended, f"the end of the session on {node}")


# -- cases --------------------------------------------------------------------------------------


def cancelled(site: Site) -> Case:
    node = cordoned(site, 79)
    yield
    asks(site, Verb.CANCEL, node)
    yield
    site.wait(lambda: not site.session(node) and not site.cordoned(node), "cancel")
    assert site.history(node)["waivers"]


def released(site: Site) -> Case:
    node = cordoned(site, 79)
    yield
    asks(site, Verb.RELEASE, node)
    yield
    site.wait(lambda: not site.session(node), "release")
    assert site.cordoned(node)


def retried(site: Site) -> Case:
    node = cordoned(site, 92)
    site.wait(lambda: ("wait", "timed-out") in results(site, node), "the step to fail")
    yield
    site.cluster.set_condition(node, "Fixed", "True")
    asks(site, Verb.RETRY, node)
    yield
    site.wait(lambda: hold_of(site, node).get("state") == "done", "the step, once more")


def uncordoned(site: Site) -> Case:
    node = cordoned(site, 79)
    yield
    site.cluster.uncordon(node)
    yield
    site.wait(lambda: not site.session(node), "the session to be cancelled")
    assert not site.cordoned(node)
    assert site.history(node)["waivers"]


def approved(site: Site) -> Case:
    node = cordoned(site, 48)
    site.wait(lambda: hold_of(site, node).get("step") == 1, "the question")
    yield
    approve(site, node)
    yield
    site.wait(lambda: noted(site, node), "the step behind the approval")
    assert ("approve", "done") in results(site, node)


def approved_and_expired(site: Site) -> Case:
    node = cordoned(site, 48)
    site.wait(lambda: hold_of(site, node).get("step") == 1, "the question")
    yield
    approve(site, node, lasts=DOWN / 4)
    yield
    site.wait(lambda: "approval" in guards(site, node), "it to ask still")
    assert results(site, node) == [("cordon", "done")]
    assert not noted(site, node)


def approved_and_done_by_hand(site: Site) -> Case:
    """What a person did meanwhile is theirs, though our steps were to do it, too."""
    node = sick(site, 109)
    site.wait(lambda: hold_of(site, node), "the question")
    yield
    site.cluster.cordon(node)
    site.cluster.patch_node(node, {"spec": {"taints": [OURS]}})
    approve(site, node, step=0)
    yield
    site.wait(lambda: hold_of(site, node).get("state") == "done", "the steps")
    assert (site.session(node) or {})["added"] == {}
    gone_by_well(site, node)
    assert site.cordoned(node)
    assert OURS in taints(site, node)


def relabelled_and_retainted(site: Site) -> Case:
    node = sick(site, 110)
    site.wait(lambda: hold_of(site, node).get("state") == "done", "the marks")
    yield
    theirs = {**OURS, "value": "theirs"}
    site.cluster.patch_node(node, {"spec": {"taints": [theirs]}})
    site.cluster.label(node, {NOTE: "mine"})
    yield
    site.wait(lambda: not site.session(node), "the session to be cancelled")
    assert site.history(node)["waivers"]
    assert theirs in taints(site, node)
    assert site.cluster.node(node)["metadata"]["labels"][NOTE] == "mine"


def asked_for_too_long(site: Site) -> Case:
    node = cordoned(site, 61)
    site.wait(lambda: hold_of(site, node).get("step") == 1, "the question")
    yield
    yield
    site.wait(lambda: ("approve", "timed-out") in results(site, node), "the end of its time")
    assert not noted(site, node)


def waited(site: Site) -> Case:
    node = cordoned(site, 62)
    yield
    yield
    site.wait(lambda: hold_of(site, node).get("state") == "done", "the end of the wait")
    assert results(site, node) == [("cordon", "done"), ("wait", "done"), ("annotate", "done")]


def waited_by_a_clock_that_ran_ahead(site: Site) -> Case:
    """By hours: what the controller before wrote counts as of now, and is not waited for."""
    node = cordoned(site, 62)
    yield
    session = site.session(node)
    assert session is not None
    for hold in session["holds"]:
        hold |= {key: hold[key] + 7200.0 for key in ("since", "stepSince")}
    session["started"] += 7200.0
    site.cluster.annotate(node, {SESSION_ANNOTATION: json.dumps(session)})
    yield
    site.wait(lambda: hold_of(site, node).get("state") == "done", "the end of the wait")
    gone_by_well(site, node)


def at_its_cap(site: Site) -> Case:
    node = cordoned(site, 63)
    gone_by_well(site, node)
    yield
    site.says(node, 63)
    yield
    site.wait(lambda: hold_of(site, node).get("state") == "escalated", "escalation")
    assert len(site.history(node)["attempts"]) == 1


def amid_an_escalation(site: Site) -> Case:
    node = cordoned(site, 63)
    gone_by_well(site, node)
    site.says(node, 63)
    site.wait(lambda: hold_of(site, node).get("state") == "escalated", "escalation")
    before = site.session(node)
    yield
    yield
    site.wait(lambda: (site.status_of(node) or {}).get("phase") == "escalated", "the status")
    assert before is not None
    assert (site.session(node) or {})["id"] == before["id"]
    assert len(site.history(node)["attempts"]) == 1
    asks(site, Verb.CANCEL, node)
    site.wait(lambda: not site.session(node) and not site.cordoned(node), "cancel")


def of_a_rate(site: Site) -> Case:
    cordoned(site, 64)
    site.wait(lambda: "rated" in json.dumps(site.cluster.configmap("gpu-remediator-state")), "it")
    yield
    node = sick(site, 64)
    yield
    site.wait(lambda: guards(site, node) == ["rate"], "the rate to hold")
    assert not site.cordoned(node)


def of_a_breaker(site: Site) -> Case:
    nodes = [sick(site, 74) for _ in range(3)]
    site.wait(lambda: open_breakers(site) == ["storm"], "the breaker")
    yield
    control(site, write_reset("storm", BreakerReset(by="ann", at="t1", keep=True)))
    yield
    site.wait(lambda: all(map(site.cordoned, nodes)), "cordons after the reset")
    site.wait(lambda: open_breakers(site) == [], "the breaker to be shown closed")
    left = RESET_PREFIX + "storm"
    site.wait(lambda: left not in (site.cluster.configmap("gpu-remediator-control") or {}), left)


def open_breakers(site: Site) -> list[str]:
    return [one["source"] for one in site.status().get("breakers", ()) if one["open"]]


def of_an_edited_policy(site: Site) -> Case:
    node = cordoned(site, 94)
    site.wait(lambda: hold_of(site, node).get("step") == 1, "the question")
    yield
    write(site, 94, steps=[{"cordon": {}}, {"taint": {}}])
    approve(site, node)
    yield
    site.wait(lambda: hold_of(site, node).get("state") == "done", "the end as it began")
    assert noted(site, node)
    gone_by_well(site, node)
    assert not site.cordoned(node)
    assert not noted(site, node)


def of_a_deleted_policy(site: Site) -> Case:
    node = cordoned(site, 95)
    site.wait(lambda: hold_of(site, node).get("step") == 1, "the question")
    yield
    (site.policies / "deleted.yaml").unlink()
    approve(site, node)
    yield
    site.wait(lambda: (site.status_of(node) or {}).get("holds"), "its account")
    site.says(node)
    site.says(cordoned(site, 79))  # time has passed
    assert site.cordoned(node)
    assert not noted(site, node)
    asks(site, Verb.CANCEL, node)
    site.wait(lambda: not site.session(node) and not site.cordoned(node), "cancel")


def of_a_renamed_policy(site: Site) -> Case:
    node = cordoned(site, 119)
    site.wait(lambda: hold_of(site, node).get("step") == 1, "the question")
    yield
    (site.policies / "renamed.yaml").unlink()
    write(site, 119, "by-another-name", steps=[{"cordon": {}}, REACHED])
    yield
    site.wait(lambda: hold_of(site, node, "by-another-name").get("state") == "done", "the new one")
    assert hold_of(site, node, "renamed")["step"] == 1
    site.says(node)
    site.wait(lambda: not hold_of(site, node, "by-another-name"), "the new one to let go")
    assert site.cordoned(node)


def of_another_node_of_that_name(site: Site) -> Case:
    node = cordoned(site, 79)
    yield
    site.cluster.api.delete(f"/api/v1/nodes/{node}")
    made_again(site, node)
    site.says(node, 79)
    yield
    site.wait(lambda: site.cordoned(node), "a cordon of its own")
    gone_by_well(site, node)
    assert len(site.history(node)["attempts"]) == 1


def with_the_marks_of_the_node_before(site: Site) -> Case:
    """A session of another UID is not believed, whatever it says."""
    node = cordoned(site, 79)
    text = json.dumps(site.session(node))
    yield
    site.cluster.api.delete(f"/api/v1/nodes/{node}")
    made_again(site, node)
    site.cluster.annotate(node, {SESSION_ANNOTATION: text})
    site.says(node, 79)
    yield
    site.wait(lambda: (site.status_of(node) or {}).get("phase") == "frozen", "it to be frozen")
    assert not site.cordoned(node)


def made_again(site: Site, node: str) -> None:
    prefix = site.cluster.prefix
    assert site.node(node.removeprefix(prefix)) == node


def of_a_record_that_is_gone(site: Site) -> Case:
    node = cordoned(site, 79)
    site.wait(lambda: record(site, node), "the record")
    yield
    found = record(site, node)
    assert found is not None
    site.cluster.api.delete(f"{path(site)}/{found['metadata']['name']}")
    yield
    gone_by_well(site, node)
    assert not site.cordoned(node)


CASES: tuple[Callable[[Site], Case], ...] = (
    cancelled,
    released,
    retried,
    uncordoned,
    approved,
    approved_and_expired,
    approved_and_done_by_hand,
    relabelled_and_retainted,
    asked_for_too_long,
    waited,
    waited_by_a_clock_that_ran_ahead,
    at_its_cap,
    amid_an_escalation,
    of_a_rate,
    of_a_breaker,
    of_an_edited_policy,
    of_a_deleted_policy,
    of_a_renamed_policy,
    of_another_node_of_that_name,
    with_the_marks_of_the_node_before,
    of_a_record_that_is_gone,
)


def write(site: Site, code: int, name: str = "", **spec: Any) -> None:
    known, steps, more = POLICIES[code]
    rest: Json = {"when": [{"xid": {"codes": [code]}}], "steps": steps, **more, **spec}
    site.policy(name or known, **rest)


def test_what_happens_while_nobody_runs_counts(recorded: Site, zygote: Zygote) -> None:
    site = recorded
    (site.policies / "xid-79.yaml").unlink()
    for code in POLICIES:
        write(site, code)
    program = Program(zygote, site, site.cluster.plane.url)
    program.tend()
    cases = [one(site) for one in CASES]
    try:
        for case in cases:
            next(case)
        program.kill()
        began = time.monotonic()
        for case in cases:
            next(case)
        time.sleep(max(0.0, began + DOWN - time.monotonic()))
        program.tend()
        for one, case in zip(CASES, cases, strict=True):
            assert next(case, "over") == "over", one.__name__
        program.tend()
    finally:
        program.kill()


def test_settling_and_then_a_pause_hold_what_the_next_one_would_begin(
    site: Site, zygote: Zygote
) -> None:
    site.config(settling="4s")
    program = Program(zygote, site, site.cluster.plane.url)
    try:
        kept = sick(site, 79)
        program.tend()
        site.wait(lambda: guards(site, kept) == ["settling"], "settling to hold")
        site.wait(lambda: site.cordoned(kept), "cordon after that")
        program.kill()
        control(site, write_pause(Pause(by="ann", at="now", reason="upgrade")))
        node = sick(site, 79)
        program.tend()
        site.wait(lambda: guards(site, node) == ["pause"], "the pause to hold")
        gone_by_well(site, kept)
        assert not site.cordoned(kept)
        assert not site.cordoned(node)
        control(site, {"pause": None})
        site.wait(lambda: site.cordoned(node), "cordon after the pause")
    finally:
        program.kill()
