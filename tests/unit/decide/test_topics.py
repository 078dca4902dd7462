"""What is remembered of threads and incidents: which message goes where, and what is forgotten."""

from __future__ import annotations

from typing import Any

from remediator.decide.decision import SendMessage
from remediator.decide.topics import (
    MAX_MEMBERS,
    MAX_TITLE,
    MAX_TOPICS,
    Topic,
    Topics,
    conversation,
    followed,
    is_session,
    opened,
)


ONE, TWO = "uid-1-0000abcd", "uid-2-0000abcd"


def message(key: str, **more: Any) -> SendMessage:
    given = {"to": ("ops",), "title": "", "text": "", "node": "n1", "policy": "bus"}
    return SendMessage(key=key, **{**given, **more})


def topic(name: str, *conversations: str) -> Topic:
    return Topic(id=name, conversations=conversations, members=(f"{name}|bus",), total=1)


def test_a_message_belongs_to_its_session_or_to_itself() -> None:
    assert conversation(message(f"{ONE}/bus/0")) == ONE
    assert conversation(message(f"{ONE}/over")) == ONE
    assert conversation(message("breaker/bus/7", node="")) == "breaker/bus/7"
    assert conversation(message("breaker/bus/7/over", node="")) == "breaker/bus/7"
    assert conversation(message(f"{ONE}/bus/0", node="")) == f"{ONE}/bus/0"
    assert [is_session(one) for one in (ONE, f"{ONE}/x", "uid-1", "frozen")] == [
        *(True, False, False, False)
    ]


def test_messages_go_to_the_topic_of_their_conversation_in_their_channel() -> None:
    topics = Topics()
    first, second = topic("t1", ONE), topic("t1", TWO)
    topics.put("slack", first)
    topics.put("pager", second)
    news = [message(f"{ONE}/bus/0"), message(f"{TWO}/bus/0"), message(f"{ONE}/bus/1")]
    assert topics.parts("slack", news) == [(first, (news[0], news[2])), (None, (news[1],))]
    assert topics.find("slack", ONE) == first
    assert topics.find("slack", TWO) is None
    assert topics.find("pager", TWO) == second


def test_a_change_is_told_once_and_what_is_restored_is_none() -> None:
    topics = Topics()
    assert not topics.take_changed()
    topics.put("slack", topic("t1", ONE))
    assert topics.take_changed()
    assert not topics.take_changed()
    topics.forget("slack", "t1")
    assert topics.take_changed()
    assert topics.find("slack", ONE) is None
    assert topics.parts("slack", [message(f"{ONE}/bus/0")])[0].topic is None
    topics.forget("slack", "never there")
    topics.restore({"slack": [topic("t2", TWO)]})
    assert not topics.take_changed()
    assert topics.state() == {"slack": [topic("t2", TWO)]}


def test_a_topic_that_is_forgotten_does_not_take_along_one_that_came_later() -> None:
    topics = Topics()
    topics.put("slack", topic("old", ONE, TWO))
    topics.put("slack", topic("new", ONE))
    topics.forget("slack", "old")
    assert topics.find("slack", ONE) == topic("new", ONE)
    assert topics.find("slack", TWO) is None


def test_the_topics_touched_longest_ago_are_forgotten() -> None:
    topics = Topics()
    for at in range(MAX_TOPICS):
        topics.put("slack", topic(str(at), f"c{at}"))
    topics.put("slack", topic("0", "c0"))
    assert topics.find("slack", "c1") is not None, "there is room for so many"
    topics.put("slack", topic("more", "c"))
    assert topics.find("slack", "c1") is None
    assert topics.find("slack", "c0") is not None
    assert len(topics.state()["slack"]) == MAX_TOPICS


def test_what_waits_is_each_conversation_with_a_member_once() -> None:
    topics = Topics()
    two = Topic(id="t", conversations=(ONE,), members=(f"{ONE}|a|b", f"{ONE}|a|c"), total=2)
    topics.put("slack", two)
    topics.put("slack", Topic(id="u", conversations=(TWO,), members=(), total=1))
    assert topics.waiting() == [("slack", f"{ONE}|a")]


def test_what_messages_open_and_what_follows() -> None:
    news = [message(f"{ONE}/a/0", policy="a"), message(f"{ONE}/b/0", policy="b")]
    new = opened("t", [*news, news[0]], title="x" * 500, place="#ops")
    assert new == Topic(
        id="t",
        place="#ops",
        title="x" * MAX_TITLE,
        conversations=(ONE,),
        members=(f"{ONE}|a", f"{ONE}|b"),
        total=2,
    )
    later = followed(new, [message(f"{ONE}/c/0", policy="c"), news[0]])
    assert (later.total, later.over) == (3, False)
    later = followed(later, [message(f"{ONE}/a/end", policy="a", resolves=True)])
    assert later.members == (f"{ONE}|b", f"{ONE}|c")
    other = followed(later, [message(f"{TWO}/gone", policy="", resolves=True)])
    assert other.members == later.members
    assert followed(later, [message(f"{ONE}/gone", policy="", resolves=True)]).over


def test_members_are_bounded_and_counted_all_the_same_when_it_opens() -> None:
    news = [message(f"{ONE}/p/0", policy=str(at)) for at in range(MAX_MEMBERS + 5)]
    new = opened("t", news, title="")
    assert (len(new.members), new.total) == (MAX_MEMBERS, MAX_MEMBERS + 5)
    assert followed(new, [message(f"{ONE}/p/0", policy="new")]) == new
    assert opened("t", [message(f"{ONE}/end", resolves=True)], title="").over
