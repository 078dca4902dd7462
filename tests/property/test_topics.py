"""In whatever way storms, policies, ends and restarts mix: what was opened is over in the end."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from remediator.decide.decision import SendMessage
from remediator.decide.topics import MAX_TOPICS, Topics, followed, opened


def message(node: int, policy: str, *, resolves: bool) -> SendMessage:
    return SendMessage(
        key=f"{node:08x}-19b2c3d4e5f/{policy}/{'end' if resolves else 1}",
        to=("c",),
        title="t",
        text="",
        node=f"n{node}",
        policy=policy,
        resolves=resolves,
    )


def send(topics: Topics, batch: list[SendMessage], made: list[str]) -> None:
    """Do as a channel does."""
    for topic, messages in topics.parts("c", batch):
        if topic is None:
            made.append(f"{len(made)}")
            after = opened(made[-1], messages, title="t")
        else:
            after = followed(topic, messages)
        if after.over:
            topics.forget("c", after.id)
        else:
            topics.put("c", after)


held = st.sets(st.tuples(st.integers(0, 9), st.sampled_from("pqr")), max_size=20)


@given(held, st.randoms(use_true_random=False), st.integers(1, 7), st.booleans())
def test_a_topic_is_over_when_and_only_when_all_that_it_is_about_has_ended(
    holds: set[tuple[int, str]],
    random: Random,
    size: int,
    restart: bool,  # noqa: FBT001 - drawn
) -> None:
    topics, made, order = Topics(), list[str](), sorted(holds)
    random.shuffle(order)
    for at in range(0, len(order), size):
        batch = [message(*one, resolves=False) for one in order[at : at + size]]
        send(topics, batch, made)
    random.shuffle(order)
    for at in range(0, len(order), size):
        open_now = {member for topic in topics.state().get("c", ()) for member in topic.members}
        assert len(open_now) == len(order) - at
        if restart:
            again = Topics()
            again.restore(topics.state())
            topics = again
        send(topics, [message(*one, resolves=True) for one in order[at : at + size]], made)

    assert not topics.state()
    nodes = {node for node, _ in holds}
    assert len(made) <= len(nodes)  # never two topics about one session


def test_memory_is_bounded_and_the_oldest_is_forgotten() -> None:
    topics = Topics()
    for node in range(MAX_TOPICS + 10):
        topics.put("c", opened(f"t{node}", [message(node, "p", resolves=False)], title="t"))

    assert len(topics.state()["c"]) == MAX_TOPICS
    assert topics.find("c", "00000000-19b2c3d4e5f") is None
