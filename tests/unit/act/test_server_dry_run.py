"""Server dry-run between dry-run and the API server: order, what is kept, what is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from remediator.act.probes import NO_DRY_RUN, Answer, Said
from remediator.act.server_dry_run import TRIES, ServerDryRun
from remediator.act.writes import Verdict
from remediator.decide.decision import Effect, PatchNode, SendMessage, Work
from remediator.decide.facts import NodeFacts
from remediator.decide.session import SESSION_VERSION, Added, Before, Session
from remediator.kube.access import access_of
from remediator.kube.errors import ApiError, Conflict, Forbidden, Invalid, TimedOut
from remediator.kube.lease import NotLeading
from remediator.kube.objects import Node
from remediator.kube.patch import NodePatch
from remediator.policy.steps import Step
from tests.unit.kube.build import bare_node


pytestmark = pytest.mark.looptime

PATCH = access_of("PATCH", "/api/v1/nodes/n1")
EVICT = access_of("POST", "/api/v1/namespaces/x/pods/p/eviction")
NODE = bare_node(
    uid="uid-n1",
    resource_version="7",
    created="2026-01-01T00:00:00Z",
    boot_id="b1",
)
FACTS = NodeFacts(name="n1", uid="uid-n1", resource_version="3")
SESSION = Session(
    version=SESSION_VERSION,
    id="s1",
    node_uid="uid-n1",
    boot_id="b1",
    started=1.0,
    before=Before(),
    added=Added(cordoned=True),
    holds=(),
)
CORDON = PatchNode(
    name="n1",
    uid="uid-n1",
    resource_version="3",
    unschedulable=True,
    session=SESSION,
    action="cordon",
    policy="p",
)
MESSAGE = SendMessage(key="s1/p/1", to=("log",), title="n1", text="n1 is cordoned", node="n1")
DRAIN = Work(
    key="s1/p/2",
    node="n1",
    uid="uid-n1",
    policy="p",
    step=2,
    action="drain",
    spec=Step.model_validate({"drain": {}}),
    session="s1",
    attempt=1,
    since=1.0,
    deadline=601.0,
)


class Server:
    """The API server, the node's view, and everybody who is told; answers with `errors` first."""

    def __init__(self) -> None:
        self.errors: list[ApiError | NotLeading] = []
        self.answers: list[Answer | ApiError] = []
        self.patches: list[NodePatch] = []
        self.probed: list[str] = []
        self.told: list[Effect] = []
        self.audit: list[tuple[str, Verdict, str]] = []
        self.counted: list[tuple[str, str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.silent = False
        self.there: Node | None = NODE

    async def patch_node(self, patch: NodePatch) -> str:
        await self.gate.wait()
        self.patches.append(patch)
        if self.errors:
            raise self.errors.pop(0)
        return patch.resource_version

    async def __call__(self, work: Work) -> Answer:
        self.probed.append(work.key)
        answer = self.answers.pop(0) if self.answers else Answer(Said.ACCEPTED)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    def node(self, name: str) -> Node | None:
        return self.there if name == "n1" else None

    def written(
        self,
        patch: PatchNode,
        *,
        facts: NodeFacts,
        verdict: Verdict,
        dry_run: bool,
        reason: str = "",
    ) -> None:
        assert dry_run
        assert facts == FACTS
        self.audit.append((patch.action, verdict, reason))

    def dry_run_answered(self, action: str, result: str) -> None:
        self.counted.append((action, result))


@asynccontextmanager
async def asking(server: Server) -> AsyncIterator[ServerDryRun]:
    made = ServerDryRun(
        writer=server,
        probes={"drain": server},
        nodes=server,
        silent=lambda: server.silent,
        tell=lambda effect, _: server.told.append(effect),
        observer=server,
        counts=server,
        news=lambda: None,
    )
    task = asyncio.create_task(made.run())
    yield made
    await asyncio.sleep(60)
    task.cancel()


async def asked(server: Server, *effects: Effect) -> dict[str, tuple[str, ...]]:
    """Give it these effects, and return what it notes in the end."""
    async with asking(server) as made:
        for effect in effects:
            made.take(effect, FACTS)
    return dict(made.notes)


def forbidden(message: str = "no") -> Forbidden:
    return Forbidden(PATCH, status=403, reason="Forbidden", message=message)


async def test_a_patch_is_sent_for_the_version_that_there_is() -> None:
    server = Server()
    assert await asked(server, CORDON) == {}
    (patch,) = server.patches
    assert patch.resource_version == "7"
    assert patch.unschedulable is True
    assert server.audit == [("cordon", Verdict.DONE, "")]
    assert server.counted == [("cordon", "accepted")]


async def test_a_refusal_is_noted_counted_audited_and_told_in_the_message_behind_it() -> None:
    server = Server()
    server.errors = [forbidden("hands off")]
    notes = await asked(server, CORDON, MESSAGE)
    (said,) = notes["uid-n1"]
    assert said.startswith("cordon would be refused: ")
    assert 'resources: ["nodes"], verbs: ["patch"]' in said
    assert server.counted == [("cordon", "refused")]
    assert server.audit[0][1] is Verdict.REFUSED
    (message,) = server.told
    assert isinstance(message, SendMessage)
    assert message.text == f"n1 is cordoned\nServer dry-run: {said}"
    assert message.key == MESSAGE.key


async def test_a_message_waits_for_the_answer_and_is_sent_once() -> None:
    server = Server()
    server.gate.clear()
    async with asking(server) as made:
        for effect in (CORDON, MESSAGE, MESSAGE):
            made.take(effect, FACTS)
        await asyncio.sleep(10)
        assert server.told == []
        server.gate.set()
    assert server.told == [MESSAGE]


async def test_a_message_waits_for_nothing_where_nothing_is_asked() -> None:
    server = Server()
    async with asking(server) as made:
        made.take(MESSAGE, FACTS)
        assert server.told == [MESSAGE]


async def test_a_node_that_changed_meanwhile_is_asked_about_again() -> None:
    server = Server()
    server.errors = [Conflict(PATCH, status=409)]
    assert await asked(server, CORDON) == {}
    assert len(server.patches) == 2


@pytest.mark.parametrize(
    "error",
    [
        TimedOut(PATCH, message="no answer"),
        Invalid(PATCH, status=400, message=f"admission webhook x {NO_DRY_RUN}"),
    ],
    ids=["no answer", "a webhook that cannot be asked"],
)
async def test_no_answer_is_no_refusal(error: ApiError) -> None:
    server = Server()
    server.errors = [error] * TRIES
    notes = await asked(server, CORDON)
    assert notes["uid-n1"][0].startswith("cordon cannot be told: ")
    assert server.counted == [("cordon", "unknown")]


async def test_a_work_is_asked_about_once_however_often_it_is_wanted() -> None:
    server = Server()
    server.answers = [Answer(Said.HELD, "1 held by a PodDisruptionBudget: x/p")]
    notes = await asked(server, CORDON, DRAIN, DRAIN, replace(DRAIN, suspended=True))
    assert server.probed == [DRAIN.key]
    assert notes["uid-n1"] == ("drain would be held: 1 held by a PodDisruptionBudget: x/p",)
    assert server.counted[-1] == ("drain", "held")


async def test_a_probe_that_got_no_answer_is_tried_again() -> None:
    server = Server()
    server.answers = [TimedOut(EVICT, message="late"), Answer(Said.ACCEPTED)]
    assert await asked(server, DRAIN) == {}
    assert server.probed == [DRAIN.key] * 2


async def test_what_was_refused_in_an_earlier_session_is_forgotten() -> None:
    server = Server()
    server.errors = [forbidden()]
    second = replace(CORDON, session=msgspec.structs.replace(SESSION, id="s2"))
    assert await asked(server, CORDON, second) == {}


async def test_the_last_message_of_a_session_still_tells_and_then_it_is_over() -> None:
    server = Server()
    server.errors = [forbidden()]
    end = replace(CORDON, session=None, unschedulable=False, action="uncordon")
    assert await asked(server, CORDON, end, MESSAGE) == {}
    (message,) = server.told
    assert isinstance(message, SendMessage)
    assert "cordon would be refused" in message.text


@pytest.mark.parametrize("why", ["paused", "not leading"])
async def test_nothing_is_said_of_what_may_not_be_asked(why: str) -> None:
    server = Server()
    server.silent = why == "paused"
    server.errors = [NotLeading("the lease is not fresh")]
    assert await asked(server, CORDON) == {}
    assert len(server.patches) == (0 if server.silent else 1)
    assert server.counted == []
    assert server.audit[0][1] is Verdict.NOT_LEADING


async def test_a_probe_waits_for_the_end_of_a_pause() -> None:
    server = Server()
    server.silent = True
    async with asking(server) as made:
        made.take(DRAIN, FACTS)
        await asyncio.sleep(1)
        assert server.probed == []
        server.silent = False
        made.take(DRAIN, FACTS)
    assert server.probed == [DRAIN.key]


async def test_a_node_that_is_gone_is_not_asked_about() -> None:
    server = Server()
    server.there = None
    await asked(server, CORDON)
    assert server.patches == []


async def test_a_bug_with_one_effect_does_not_stop_what_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server()

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(server, "written", broken)
    await asked(server, CORDON, MESSAGE)
    assert server.told == [MESSAGE]
