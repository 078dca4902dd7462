"""The work queue against its rules, for any order of calls."""

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from remediator.kube.workqueue import WorkQueue
from tests.property.cases import cases


KEYS = st.sampled_from(["a", "b", "c", "d"])


class QueueMachine(RuleBasedStateMachine):
    """A key that was added is handed out after its last `add`, and to one taker at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.queue = self.loop.run_until_complete(self._make())
        self.taken: set[str] = set()
        self.owed: set[str] = set()

    async def _make(self) -> WorkQueue:
        return WorkQueue()

    def teardown(self) -> None:
        self.loop.close()

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self.queue.add(key)
        self.owed.add(key)

    @rule(key=KEYS)
    def add_in_the_past(self, key: str) -> None:
        self.queue.add_after(key, -1)
        self.owed.add(key)

    @rule(limit=st.integers(1, 3))
    def take(self, limit: int) -> None:
        ready = self.owed - self.taken
        assert len(self.queue) == len(ready)
        if not ready:
            return
        batch = self.loop.run_until_complete(self.queue.get_batch(limit))
        assert len(batch) == len(set(batch)) == min(limit, len(ready))
        assert set(batch) <= ready
        self.taken |= set(batch)
        self.owed -= set(batch)

    @rule(key=KEYS)
    def finish(self, key: str) -> None:
        if key in self.taken:
            self.queue.done(key)
            self.taken.discard(key)

    @invariant()
    def counts_agree(self) -> None:
        assert self.queue.taken == len(self.taken)
        assert len(self.queue) == len(self.owed - self.taken)


QueueMachine.TestCase.settings = settings(max_examples=cases(60), stateful_step_count=30)
TestQueue = QueueMachine.TestCase
