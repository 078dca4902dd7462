"""Whatever happens on the server and to the watch, the store ends equal to the server.

A model of the API server (versions, pages, watches from a version, 410 for what was
compacted) under a real reflector, in virtual time. Handlers are checked as well: replaying
what they heard gives the store.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remediator.kube.access import access_of
from remediator.kube.codec import Codec, NodeNarrower, WireNode
from remediator.kube.errors import ApiError, Gone, ServerError, Unreachable
from remediator.kube.objects import Node
from remediator.kube.reflector import Reflector, ReflectorTimings
from remediator.kube.store import Store
from tests.property.cases import cases


ACCESS = access_of("GET", "/api/v1/nodes")
NAMES = ("a", "b", "c", "d", "e")


class Server:
    """The model. `faults` are used up by the next requests and watch lines."""

    def __init__(self) -> None:
        self.version = 0
        self.objects: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[int, bytes]] = []
        self.compacted = 0
        self.faults: list[str] = []
        self.changed = asyncio.Event()

    def write(self, kind: str, name: str) -> None:
        self.version += 1
        old = self.objects.get(name)
        if kind == "delete":
            if old is None:
                return
            event, item = "DELETED", dict(old)
            del self.objects[name]
        else:
            event = "ADDED" if old is None else "MODIFIED"
            uid = f"{name}-{self.version}" if old is None else old["metadata"]["uid"]
            item = {"metadata": {"name": name, "uid": uid}, "spec": {}}
        item["metadata"] = {**item["metadata"], "resourceVersion": str(self.version)}
        if event != "DELETED":
            self.objects[name] = item
        line = json.dumps({"type": event, "object": item}).encode()
        self.history.append((self.version, line + b"\n"))
        self.changed.set()

    def compact(self) -> None:
        self.compacted = self.version
        self.history.clear()

    def fault(self, *kinds: str) -> str:
        if self.faults and self.faults[0] in kinds:
            return self.faults.pop(0)
        return ""

    async def request(
        self,
        method: str,
        target: str,
        *,
        compressed: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> bytes:
        del method, compressed, timeout
        await asyncio.sleep(0.01)
        self._fail(self.fault("500", "dropped"))
        query = {key: values[0] for key, values in parse_qs(urlsplit(target).query).items()}
        limit = int(query["limit"])
        start, version = 0, self.version
        snapshot = sorted(self.objects)
        if "continue" in query:
            version, after = json.loads(query["continue"])
            if version != self.version:  # stricter than etcd: a list never spans a write
                raise Gone(ACCESS, status=410)
            start = snapshot.index(after) + 1
        names = snapshot[start : start + limit] if limit else snapshot[start:]
        more = limit and start + limit < len(snapshot)
        meta = {"resourceVersion": str(version)}
        if more:
            meta["continue"] = json.dumps([version, names[-1]])
        return json.dumps(
            {"metadata": meta, "items": [self.objects[name] for name in names]}
        ).encode()

    @asynccontextmanager
    async def stream(
        self, target: str, *, read_timeout: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        del read_timeout
        await asyncio.sleep(0.01)
        self._fail(self.fault("500", "dropped"))
        query = parse_qs(urlsplit(target).query)
        yield self._lines(int(query["resourceVersion"][0]))

    async def _lines(self, version: int) -> AsyncIterator[bytes]:
        while True:
            if version < self.compacted or self.fault("410"):
                yield b'{"type":"ERROR","object":{"status":"Failure","code":410}}\n'
                return
            for at, line in list(self.history):
                if at > version:
                    if self.fault("dropped"):
                        yield line[:20]
                        raise Unreachable(ACCESS)
                    version = at
                    yield line[:7]
                    yield line[7:]
            if self.fault("ends"):
                return
            self.changed.clear()
            await self.changed.wait()

    def _fail(self, kind: str) -> None:
        errors: dict[str, type[ApiError]] = {"500": ServerError, "dropped": Unreachable}
        if kind:
            raise errors[kind](ACCESS)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(NAMES)),
        st.tuples(st.just("delete"), st.sampled_from(NAMES)),
        st.tuples(st.just("replace"), st.sampled_from(NAMES)),
        st.tuples(st.just("compact"), st.just("")),
        st.tuples(st.just("vanish"), st.sampled_from(NAMES)),
        st.tuples(st.just("fault"), st.sampled_from(["500", "dropped", "410", "ends"])),
        st.tuples(st.just("wait"), st.sampled_from(["0.005", "0.02", "1"])),
    ),
    max_size=30,
)


async def run(script: list[tuple[str, str]], seed: int) -> None:
    server = Server()
    failures: list[None] = []
    store: Store[Node] = Store(failed=lambda: failures.append(None))
    replayed: dict[str, Node] = {}

    def hear(old: Node | None, new: Node | None) -> None:
        assert (old is None) or replayed.pop(old.name) is old
        if new is not None:
            assert new.name not in replayed
            assert old is None or old.uid == new.uid
            replayed[new.name] = new

    store.on_event(hear)
    reflector: Reflector[Any, Node] = Reflector(
        api=server,
        path="/api/v1/nodes",
        codec=Codec(WireNode, NodeNarrower()),
        store=store,
        timings=ReflectorTimings(page_size=2, backoff_cap=1.0),
        rng=Random(seed),  # noqa: S311
    )
    task = asyncio.create_task(reflector.run())
    for kind, what in script:
        match kind:
            case "replace":
                server.write("delete", what)
                server.write("put", what)
            case "compact":
                server.compact()
            case "vanish":  # and nobody will be told
                server.write("delete", what)
                server.compact()
            case "fault":
                server.faults.append(what)
                server.changed.set()
            case "wait":
                await asyncio.sleep(float(what))
            case _:
                server.write(kind, what)
    server.faults.clear()
    server.changed.set()
    await asyncio.sleep(30)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task

    truth = {name: item["metadata"]["resourceVersion"] for name, item in server.objects.items()}
    assert {node.name: node.resource_version for node in store} == truth
    assert replayed == {node.name: node for node in store}
    assert not failures


@pytest.mark.looptime
@settings(
    max_examples=cases(60),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(script=steps, seed=st.integers(0, 1000))
async def test_store_ends_equal_to_the_server(script: list[tuple[str, str]], seed: int) -> None:
    await run(script, seed)
