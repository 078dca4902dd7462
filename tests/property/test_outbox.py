"""Whatever channels do, every message ends exactly once, and "delivered" is true."""

import asyncio
from random import Random

import looptime
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from remediator.act.envelope import Envelope, RefusedError, RetryLaterError
from remediator.act.outbox import Outbox, Report
from remediator.decide.decision import SendMessage
from tests.property.cases import cases


CHANNELS = ("a", "b")
BEHAVIOURS = ("arrive", "later", "arrive-but-say-later", "refuse", "break")

messages = st.lists(
    st.tuples(
        st.integers(0, 6),  # node
        st.sampled_from(["p", "q", ""]),
        st.sets(st.sampled_from([*CHANNELS, "unknown"]), min_size=1),
        st.booleans(),  # dry run
        st.floats(0, 8),  # pause before it
    ),
    max_size=25,
)


class Unreliable:
    """Does what the script says, attempt by attempt, then what its last word was."""

    give_up_after = 120.0

    def __init__(self, script: list[str]) -> None:
        self.script = script
        self.attempts = 0
        self.arrived: set[tuple[bool, str]] = set()

    async def send(self, envelope: Envelope) -> None:
        what = self.script[min(self.attempts, len(self.script) - 1)]
        self.attempts += 1
        await asyncio.sleep(0.3)
        if what.startswith("arrive"):
            self.arrived |= {(envelope.dry_run, one.key) for one in envelope.messages}
        if what.endswith("later"):
            raise RetryLaterError(what)
        if what == "refuse":
            raise RefusedError(what)
        if what == "break":
            raise RuntimeError(what)


@settings(max_examples=cases(150))
@given(
    messages=messages,
    scripts=st.fixed_dictionaries(
        {name: st.lists(st.sampled_from(BEHAVIOURS), min_size=1, max_size=8) for name in CHANNELS}
    ),
    capacity=st.integers(1, 30),
    seed=st.integers(0, 99),
)
def test_every_message_ends_once_and_delivered_means_arrived_everywhere(
    messages: list[tuple[int, str, set[str], bool, float]],
    scripts: dict[str, list[str]],
    capacity: int,
    seed: int,
) -> None:
    channels = {name: Unreliable(script) for name, script in scripts.items()}
    reports: list[Report] = []

    async def scenario() -> None:
        outbox = Outbox(
            channels=channels,
            report=reports.append,
            capacity=capacity,
            rng=Random(seed),  # noqa: S311 - jitter
        )
        task = asyncio.create_task(outbox.run())
        for number, (node, policy, to, dry_run, pause) in enumerate(messages):
            await asyncio.sleep(pause)
            one = SendMessage(
                key=f"k{number}",
                to=tuple(sorted(to)),
                title=f"n{node}",
                text="text",
                node=f"n{node}",
                policy=policy,
            )
            assert outbox.submit(one, dry_run=dry_run)
            assert not outbox.submit(one, dry_run=dry_run)
            assert outbox.pending <= capacity
        await asyncio.sleep(4000)
        assert outbox.pending == 0
        task.cancel()

    # Captured: rendering a traceback of each broken attempt would take most of the time.
    with capture_logs(), asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(scenario())

    ended = sorted((report.outcome.key, report.dry_run) for report in reports)
    assert ended == sorted((f"k{n}", dry_run) for n, (_, _, _, dry_run, _) in enumerate(messages))
    for report in reports:
        identity = (report.dry_run, report.outcome.key)
        assert report.outcome.delivered == (not report.outcome.note)
        if report.outcome.delivered:
            assert all(identity in channels[name].arrived for name in report.message.to)


@settings(max_examples=cases(150))
@given(messages=messages)
def test_of_a_node_each_channel_is_told_in_the_order_in_which_it_happened(
    messages: list[tuple[int, str, set[str], bool, float]],
) -> None:
    told: list[tuple[str, str, int]] = []

    class Listening:
        give_up_after = 120.0

        async def send(self, envelope: Envelope) -> None:
            told.extend(
                (envelope.channel, one.node, int(one.key.removeprefix("k")))
                for one in envelope.messages
            )

    async def scenario() -> None:
        channels = {name: Listening() for name in CHANNELS}
        outbox = Outbox(channels=channels, report=lambda _: None)
        task = asyncio.create_task(outbox.run())
        for number, (node, policy, to, dry_run, pause) in enumerate(messages):
            await asyncio.sleep(pause)
            one = SendMessage(
                key=f"k{number}",
                to=tuple(sorted(to)),
                title="title",
                text="text",
                node=f"n{node}",
                policy=policy,
            )
            outbox.submit(one, dry_run=dry_run)
        await asyncio.sleep(100)
        task.cancel()

    with capture_logs(), asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(scenario())

    for place in {(channel, node) for channel, node, _ in told}:
        numbers = [number for *where, number in told if tuple(where) == place]
        assert numbers == sorted(numbers)
