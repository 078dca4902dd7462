"""The record of a session, and the task that writes it, on an API server of paper."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from remediator.decide.decision import Decision, Hold, NodePhase, PatchNode
from remediator.decide.facts import Malformed, NodeFacts
from remediator.decide.requests import Approval
from remediator.decide.session import (
    SESSION_VERSION,
    Added,
    Before,
    HoldState,
    PolicyHold,
    Result,
    Session,
    StepResult,
)
from remediator.kube.access import access_of
from remediator.kube.custom import CustomObject
from remediator.kube.errors import AlreadyExists, ApiError, Forbidden, NotFound, Unreachable
from remediator.policy.cluster import Remediations
from remediator.record.chronicle import MAX_TOLD, MAX_WAITING, RETRY_SECONDS, YIELD, Chronicle
from remediator.record.remediation import MAX_HOLDS, begin, follow, hold, name_of, written


PLAN = '{"steps":[{"cordon":{}},{"approve":{}},{"drain":{}}]}'
AT = 1_700_000_000.0


def session(uid: str = "u1", *, ident: str = "", step: int = 0, **fields: Any) -> Session:
    results = tuple(
        StepResult(
            step=n,
            action=action,
            result=Result.DONE,
            at=AT + n,
            note="approved by eve at now" if action == "approve" else "",
        )
        for n, action in enumerate(["cordon", "approve", "drain"][:step])
    )
    state = HoldState.DONE if step == 3 else HoldState.RUNNING
    part = PolicyHold(
        policy="xid-79",
        version="v1",
        plan=PLAN,
        reasons=("Xid 79",),
        instances=("xid:79",),
        since=AT,
        step_since=AT + step,
        step=step,
        state=state,
        results=results,
    )
    given: dict[str, Any] = {
        "version": SESSION_VERSION,
        "id": ident or f"{uid}-1",
        "node_uid": uid,
        "boot_id": "b",
        "started": AT,
        "before": Before(),
        "added": Added(cordoned=step > 0),
        "holds": (part,),
    }
    return Session(**(given | fields))


def facts(one: Session | Malformed | None, *, uid: str = "u1", **fields: Any) -> NodeFacts:
    given = {"name": f"n-{uid}", "uid": uid, "resource_version": "1", "session": one}
    return NodeFacts(**(given | fields))


def patch(one: Session | None, *, uid: str = "u1", **fields: Any) -> PatchNode:
    given = {"name": f"n-{uid}", "uid": uid, "resource_version": "1", "session": one}
    return PatchNode(**(given | fields))


def held(*guards: str, uid: str = "u1", **fields: Any) -> Decision:
    holds = tuple(Hold("xid-79", guard, f"by {guard}") for guard in guards)
    given = {"node": f"n-{uid}", "uid": uid, "phase": NodePhase.IN_SESSION, "holds": holds}
    return Decision(**(given | fields))


class Server:
    """Keeps objects; `refuse` is raised by every call while it is set."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.refuse: ApiError | None = None
        self.calls: list[str] = []
        self.busy: Callable[[], None] = lambda: None
        """Called by every call."""

    def _call(self, name: str) -> None:
        self.calls.append(name)
        self.busy()
        if self.refuse is not None:
            raise self.refuse

    async def read_all(self) -> list[CustomObject]:
        self._call("list")
        return [
            CustomObject(name, "", "", 1, one["spec"], one.get("status", {}))
            for name, one in self.objects.items()
        ]

    async def create(self, document: dict[str, Any]) -> None:
        self._call("create")
        name = document["metadata"]["name"]
        if name in self.objects:
            raise AlreadyExists(access_of("POST", "/"))
        self.objects[name] = {"spec": document["spec"]}

    async def write_status(self, name: str, status: dict[str, Any]) -> None:
        self._call("status")
        if name not in self.objects:
            raise NotFound(access_of("PATCH", "/"))
        self.objects[name]["status"] = {k: v for k, v in status.items() if v is not None}

    async def delete(self, name: str) -> None:
        self._call("delete")
        self.objects.pop(name, None)


class Scene:
    """A chronicle with its server; time passes only where it sleeps."""

    def __init__(self, *nodes: NodeFacts, server: Server | None = None, keep: int = 500) -> None:
        self.server = server or Server()
        self.nodes = list(nodes)
        self.now = AT + 100
        self.paused = 0.0
        self.chronicle = Chronicle(
            objects=self.server,
            kept=Remediations(keep=keep),
            nodes=lambda: self.nodes,
            now=lambda: self.now,
            sleep=self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.paused += seconds
        await asyncio.sleep(0)

    def passes(self, seconds: float) -> None:
        self.now += seconds

    async def settle(self, turns: int = 200) -> None:
        task = asyncio.create_task(self.chronicle.run())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Run it as one leader does; what is given lets it come to rest."""

        async def rest() -> None:
            for _ in range(300):
                await asyncio.sleep(0)

        task = asyncio.create_task(self.chronicle.run())
        await rest()
        yield rest
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def status(self, name: str = "u1-1") -> dict[str, Any]:
        found: dict[str, Any] = self.server.objects[name]["status"]
        return found


def whole_life(scene: Scene) -> None:
    """Cordoned, held by an approval, approved by Eve, drained, recovered."""
    tell = scene.chronicle
    approvals = (
        Approval("u1-1", "xid-79", 1, "bob", "now", "earlier"),
        Approval("u1-1", "xid-79", 1, "eve", "now", "then"),
    )
    tell.written_to(patch(session(step=1), unschedulable=True, action="cordon"), facts(None))
    tell.decided(held("approval"))
    given = facts(session(step=1), approvals=approvals)
    tell.written_to(patch(session(step=2), approvals=(), action="record"), given)
    tell.decided(held())
    last = session(step=3)
    tell.decided(held(ended=last))
    tell.written_to(
        patch(None, unschedulable=False, action="uncordon", why="Xid 79 cleared"),
        facts(session(step=2), unschedulable=True),
    )


async def test_a_session_from_its_beginning_to_its_end() -> None:
    scene = Scene()
    whole_life(scene)
    await scene.settle()

    assert scene.server.objects["u1-1"]["spec"] == {
        "node": "n-u1",
        "nodeUID": "u1",
        "session": "u1-1",
        "policy": "xid-79",
        "started": written(AT),
        "attempt": 1,
    }
    status = scene.status()
    assert (status["phase"], status["result"], status["why"]) == (
        "Ended",
        "Recovered",
        "Xid 79 cleared",
    )
    assert [(one["step"], one["action"], one["state"]) for one in status["steps"]] == [
        (1, "cordon", "done"),
        (2, "approve", "done"),
        (3, "drain", "done"),
    ]
    assert [(one["guard"], one["reason"]) for one in status["holds"]] == [
        ("approval", "by approval")
    ]
    assert status["holds"][0]["until"]
    assert [(one["step"], one["by"], one.get("used", True)) for one in status["approvals"]] == [
        (2, "bob", False),
        (2, "eve", True),
    ]
    assert (status["added"], status["undone"]) == (["cordon"], ["cordon"])
    assert scene.server.calls == ["list", "create", "status"]  # written once, though told often


@pytest.mark.parametrize("how", ["ended", "let go", "approved before, and again"])
async def test_an_approval_that_no_step_went_on_by_is_recorded_as_not_used(how: str) -> None:
    scene, at = Scene(), 2 if "before" in how else 1
    scene.chronicle.written_to(patch(session(step=at)), facts(None))
    given = Approval("u1-1", "xid-79", 1, "eve", "later", "then")
    after = {"ended": None, "let go": session(holds=())}.get(how, session(step=2))
    scene.chronicle.written_to(
        patch(after, approvals=()), facts(session(step=at), approvals=(given,))
    )
    await scene.settle()
    (entry,) = scene.status()["approvals"]
    assert (entry["step"], entry["by"], entry["used"]) == (2, "eve", False)


async def test_who_ended_it_by_hand_is_said() -> None:
    for action, result in (("cancel", "Cancelled"), ("release", "Released")):
        scene = Scene()
        scene.chronicle.written_to(patch(session(step=1)), facts(None))
        scene.chronicle.written_to(patch(None, action=action, why="by Eve"), facts(session(step=1)))
        await scene.settle()
        assert (scene.status()["result"], scene.status()["why"]) == (result, "by Eve")
        assert scene.status()["undone"] == []


async def test_the_next_leader_goes_on_with_the_same_object() -> None:
    first = Scene(facts(session(step=1)))
    first.chronicle.written_to(patch(session(step=1)), facts(None))
    first.chronicle.decided(held("budget"))
    await first.settle()

    second = Scene(facts(session(step=2)), server=first.server)
    await second.settle()

    assert list(second.server.objects) == ["u1-1"]
    assert second.status()["phase"] == "Running"
    assert second.status()["step"] == "3 drain"
    assert [one["guard"] for one in second.status()["holds"]] == ["budget"]


@pytest.mark.parametrize("ends", [False, True])
async def test_the_next_leader_goes_on_with_it_also_where_it_writes_before_it_has_read(
    *, ends: bool
) -> None:
    first = Scene(facts(session(step=1)))
    first.chronicle.written_to(patch(session(step=1)), facts(None))
    first.chronicle.decided(held("budget"))
    await first.settle()

    second = Scene(facts(None if ends else session(step=2)), server=first.server)
    after = patch(None) if ends else patch(session(step=2))
    second.chronicle.written_to(after, facts(session(step=1)))
    await second.settle()

    assert second.status()["phase"] == ("Ended" if ends else "Running")
    assert [one["guard"] for one in second.status()["holds"]] == ["budget"]


async def test_a_session_that_ended_while_nobody_looked_is_closed_as_unknown() -> None:
    first = Scene(facts(session(step=1)))
    first.chronicle.written_to(patch(session(step=1)), facts(None))
    await first.settle()

    second = Scene(facts(None), server=first.server)
    await second.settle()

    assert second.status()["result"] == "Unknown"


async def test_a_session_whose_beginning_was_never_answered_is_recorded_as_it_stands() -> None:
    """It may wait for an approval for hours before there is another write."""
    scene = Scene(facts(None))
    async with scene.leading() as rest:
        scene.nodes = [facts(session(step=1))]
        scene.chronicle.decided(held("approval"))
        await rest()
        assert (scene.status()["phase"], scene.status()["step"]) == ("Running", "2 approve")
        assert [one["action"] for one in scene.status()["steps"]] == ["cordon", "approve"]

        scene.chronicle.written_to(patch(session(step=2)), facts(session(step=1)))
        scene.nodes = [facts(session(step=2))]
        await rest()
        assert [one["state"] for one in scene.status()["steps"]] == ["done", "done", "running"]
        assert scene.server.calls.count("create") == 1


async def test_one_of_which_the_end_was_never_answered_is_closed_at_the_next_news() -> None:
    scene = Scene(facts(session(step=1)))
    async with scene.leading() as rest:
        scene.nodes = [facts(None)]
        scene.chronicle.decided(held("budget", uid="u2"))
        await rest()
        assert (scene.status()["phase"], scene.status()["result"]) == ("Ended", "Unknown")


async def test_a_session_that_has_ended_is_not_begun_anew_while_the_mirror_is_behind() -> None:
    scene = Scene(facts(None))
    async with scene.leading() as rest:
        whole_life(scene)
        scene.nodes = [facts(session(step=2))]
        await rest()
        scene.chronicle.decided(held("budget", uid="u2"))
        await rest()
        assert scene.status()["result"] == "Recovered"


FROZEN = [
    pytest.param(Malformed("the annotation is malformed"), id="malformed"),
    pytest.param(session(step=2, holds=()), id="senseless"),
    pytest.param(session(step=2, ident="u1-2", holds=()), id="another-and-senseless"),
]


@pytest.mark.parametrize("unreadable", FROZEN)
@pytest.mark.parametrize("leader", ["the same", "the next"])
async def test_of_a_session_that_cannot_be_read_nobody_says_that_it_is_gone(
    unreadable: Session | Malformed, leader: str
) -> None:
    """The node is frozen: the session may be there, and a person may yet mend it."""
    scene = Scene(facts(session(step=1)))
    await scene.settle()

    scene.nodes = [facts(unreadable)]
    scene.passes(3600)
    if leader == "the next":
        scene = Scene(facts(unreadable), server=scene.server)
    scene.chronicle.decided(held("budget", uid="u2"))  # any news
    await scene.settle(400)
    assert scene.status()["phase"] == "Running"

    scene.nodes = [facts(session(step=2))]
    scene.chronicle.written_to(patch(session(step=2)), facts(session(step=1)))
    await scene.settle(400)
    assert [one["action"] for one in scene.status()["steps"]] == ["cordon", "approve", "drain"]
    assert len(scene.server.objects) == 1


@pytest.mark.parametrize("unreadable", FROZEN)
@pytest.mark.parametrize("leader", ["the same", "the next"])
async def test_what_became_of_it_is_unknown_once_the_node_is_unfrozen(
    unreadable: Session | Malformed, leader: str
) -> None:
    scene = Scene(facts(session(step=1)))
    await scene.settle()
    scene.nodes = [facts(unreadable)]
    if leader == "the next":
        scene = Scene(facts(unreadable), server=scene.server)
        await scene.settle()
    scene.chronicle.written_to(patch(None, why="unfrozen by eve"), facts(unreadable))
    scene.nodes = [facts(None)]
    await scene.settle(400)
    assert (scene.status()["result"], scene.status()["why"]) == ("Unknown", "unfrozen by eve")


@pytest.mark.parametrize("node", [None, facts(None), facts(session(ident="u1-2"))])
async def test_a_session_that_is_gone_without_an_answered_write_is_closed(
    node: NodeFacts | None,
) -> None:
    scene = Scene(facts(session(step=1)))
    await scene.settle()
    assert scene.status()["phase"] == "Running"

    scene.nodes = [] if node is None else [node]
    scene.chronicle.decided(held("budget"))  # any news
    await scene.settle(400)

    assert scene.status()["result"] == "Unknown"


@pytest.mark.parametrize("error", [NotFound, Forbidden])
async def test_without_kind_or_permission_the_view_is_off_and_comes_back(
    error: type[ApiError],
) -> None:
    scene = Scene(facts(session(step=1)))
    scene.server.refuse = error(access_of("GET", "/apis/x/y/remediations"))
    await scene.settle(20)
    assert scene.chronicle.off
    assert scene.server.objects == {}
    assert scene.server.calls.count("list") <= (scene.now - AT - 100) / RETRY_SECONDS + 1

    scene.server.refuse = None
    await scene.settle()
    assert not scene.chronicle.off
    assert scene.status()["phase"] == "Running"


async def test_a_busy_api_server_is_asked_less_often() -> None:
    scene = Scene()
    scene.server.busy = lambda: scene.passes(0.5)
    for uid in ("u1", "u2"):
        one = session(uid, step=1)
        scene.chronicle.written_to(patch(one, uid=uid), facts(None, uid=uid))
        scene.nodes.append(facts(one, uid=uid))
    await scene.settle()
    busy = 4 * 0.5  # an object and its status, twice
    assert scene.paused == pytest.approx(busy * YIELD)


async def test_while_the_view_is_off_nothing_is_kept_for_it() -> None:
    scene = Scene(facts(session(step=1)))
    scene.server.refuse = NotFound(access_of("GET", "/apis/x/y/remediations"))
    scene.chronicle.written_to(patch(session(step=1)), facts(None))
    await scene.settle(20)
    whole_life(scene)  # of another session meanwhile
    assert not scene.chronicle._told
    assert not scene.chronicle._open
    scene.server.refuse = None
    await scene.settle()
    assert scene.server.objects.keys() == {"u1-1"}
    assert scene.status()["phase"] == "Running"  # as its node says


async def test_an_api_server_that_is_away_costs_nothing_but_time() -> None:
    scene = Scene()
    scene.server.refuse = Unreachable(access_of("GET", "/"))
    whole_life(scene)
    await scene.settle(20)
    assert not scene.chronicle.off
    scene.server.refuse = None
    await scene.settle()
    assert scene.status()["result"] == "Recovered"


async def test_an_object_that_a_person_deleted_is_made_anew() -> None:
    scene = Scene(facts(session(step=1)))
    scene.chronicle.written_to(patch(session(step=1)), facts(None))
    await scene.settle()
    scene.server.objects.clear()
    scene.chronicle.written_to(patch(session(step=2)), facts(session(step=1)))
    await scene.settle()
    assert scene.status()["step"] == "3 drain"


async def test_the_oldest_ended_ones_go_when_there_are_too_many_and_open_ones_never() -> None:
    scene = Scene(facts(session("open"), uid="open"), keep=2)
    for number in range(5):
        uid, one = f"u{number}", session(f"u{number}", step=1)
        scene.nodes.append(facts(None, uid=uid))
        scene.chronicle.written_to(patch(one, uid=uid), facts(None, uid=uid))
        scene.now += 1
        scene.chronicle.written_to(patch(None, uid=uid, action="uncordon"), facts(one, uid=uid))
    await scene.settle(400)
    assert sorted(scene.server.objects) == ["open-1", "u3-1", "u4-1"]


async def test_old_ones_go() -> None:
    scene = Scene()
    whole_life(scene)
    await scene.settle()
    scene.now += Remediations().max_age + 1
    later = Scene(server=scene.server)
    later.now = scene.now
    await later.settle()
    assert scene.server.objects == {}


async def test_what_waits_is_bounded() -> None:
    scene = Scene()
    for number in range(MAX_TOLD + MAX_WAITING + 10):
        uid = f"u{number}"
        scene.chronicle.written_to(patch(session(uid, step=1), uid=uid), facts(None, uid=uid))
    assert len(scene.chronicle._told) == MAX_TOLD
    assert len(scene.chronicle._waiting) == MAX_WAITING


async def test_news_is_worked_in_after_it_is_told_and_keeps_its_own_time() -> None:
    scene = Scene()
    whole_life(scene)
    assert not scene.chronicle._open  # whoever tells waits for nothing
    told_at = scene.now
    scene.now += 60.0
    await scene.settle()
    status = scene.status()
    assert status["ended"] == status["holds"][0]["until"] == written(told_at)


async def test_of_a_storm_each_session_is_written_in_the_end() -> None:
    scene = Scene()
    uids = [f"u{number}" for number in range(100)]
    for uid in uids:
        one = session(uid, step=1)
        scene.chronicle.written_to(patch(one, uid=uid, action="cordon"), facts(None, uid=uid))
        scene.nodes.append(facts(one, uid=uid))
    await scene.settle(turns=2000)
    assert scene.server.objects.keys() == {f"{uid}-1" for uid in uids}


def test_holds_are_bounded_and_the_newest_stay() -> None:
    record = follow(begin(session(step=1), node="n"), session(step=1))
    for number in range(MAX_HOLDS + 20):
        record = hold(record, held(f"guard-{number}"), AT + number)
    assert len(record.status.holds) == MAX_HOLDS
    assert record.status.held_by == f"guard-{MAX_HOLDS + 19}"
    assert hold(record, held(f"guard-{MAX_HOLDS + 19}"), AT) is record


def test_a_policy_that_let_go_stays_in_the_record() -> None:
    both = session(step=1)
    other = replace(both.holds[0], policy="other")
    two = replace(both, holds=(both.holds[0], other))
    record = follow(follow(begin(two, node="n"), two), both)
    assert [(one.policy, one.state) for one in record.status.policies] == [
        ("other", "left"),
        ("xid-79", "running"),
    ]
    assert ("other", "done") in [(one.policy, one.state) for one in record.status.steps]


@pytest.mark.parametrize("text", ["", "../x", "A", "a" * 64, "x.y", "ü"])
def test_a_session_id_that_is_no_name_gets_one(text: str) -> None:
    assert name_of(text) == name_of(text)
    assert name_of(text).startswith("session-")
    assert name_of("1a2b3c4d-18c0ffee") == "1a2b3c4d-18c0ffee"


def test_the_sentence_is_that_of_the_last_decision_also_while_nothing_holds() -> None:
    record = begin(session(), node="n1")
    for said in ("drain by xid-79: Xid 79", "Xid 79", "recovers in 10m"):
        now = held(sentence=said)
        record = hold(record, now, AT)
        assert record.status.sentence == said
        assert hold(record, now, AT + 1) is record
