"""What breakers remember: what must survive a restart, and what a reset forgets."""

from __future__ import annotations

from itertools import pairwise

from remediator.decide.storms import MAX_REMEMBERED, Matching, OpenBreaker, Recent, Storms


MAIN, AGENTS = "alertmanager/main", "agents/all"


def storms_of(*uids: str, sources: tuple[str, ...] = (MAIN,)) -> Storms:
    """Return the memory of one policy that newly matches these nodes, one a second."""
    storms = Storms()
    watch = storms.watch("bus", 0.0)
    for at, uid in enumerate(uids):
        watch.scope.add(uid)
        watch.looked.add(uid)
        watch.matching[uid] = Matching(float(at), ("i",), sources)
        storms.count(watch, uid, Recent(float(at), sources))
    storms.take_changed()
    return storms


def test_each_change_that_must_survive_is_told_once() -> None:
    storms = storms_of("a")
    watch = storms.watch("bus", 0.0)
    for change, changes in (
        (lambda: storms.count(watch, "a", Recent(9.0)), False),  # counted already
        (lambda: storms.count(watch, "b", Recent(9.0)), True),
        (lambda: storms.open("bus", "why", 1.0), True),
        (lambda: storms.reset("other", keep=True), False),
        (lambda: storms.reset("bus", keep=True), True),
        (lambda: storms.drop("bus", ["a"]), True),
        (lambda: storms.undrop("bus", "b"), False),
        (lambda: storms.undrop("bus", "a"), True),
    ):
        change()
        assert storms.take_changed() is changes
        assert storms.take_changed() is False


def test_new_matches_on_a_source_are_those_after_a_time_with_the_latest() -> None:
    storms = storms_of("a", "b", "c")
    other = storms.watch("ecc", 0.0)
    storms.count(other, "c", Recent(7.0, (MAIN, AGENTS)))
    storms.count(other, "d", Recent(8.0, (AGENTS,)))
    assert storms.newly_on(MAIN, 0.0) == {"b": 1.0, "c": 7.0}
    assert storms.newly_on(AGENTS, 7.0) == {"d": 8.0}


def test_of_many_new_matches_the_newest_survive_in_their_order() -> None:
    storms = Storms()
    watch = storms.watch("bus", 0.0)
    for at in range(MAX_REMEMBERED + 2):
        storms.count(watch, str(at), Recent(float(at)))
    storms.count(storms.watch("ecc", 0.0), "a", Recent(0.0))
    kept = storms.recent()
    assert list(kept) == ["bus"], "there is room for no more"
    assert next(iter(kept["bus"])) == "2"
    assert len(kept["bus"]) == MAX_REMEMBERED
    successor = Storms()
    successor.restore({"bus": dict(reversed(list(kept["bus"].items())))})
    again = successor.watch("bus", 1.0).recent
    assert all(one.at < two.at for one, two in pairwise(again.values()))


def test_one_place_is_enough_for_one_match() -> None:
    storms = storms_of(*map(str, range(MAX_REMEMBERED - 1)))
    storms.count(storms.watch("ecc", 0.0), "a", Recent(0.0))
    assert set(storms.recent()) == {"bus", "ecc"}


def test_a_reset_leaves_what_matches_alone_until_it_clears_or_with_keep_does_not() -> None:
    for keep in (False, True):
        storms = storms_of("a", "b")
        storms.open("bus", "too many", 5.0)
        assert storms.opened == {"bus": OpenBreaker(at=5.0, why="too many")}
        assert storms.reset("bus", keep=keep)
        assert not storms.reset("bus", keep=keep), "it is closed"
        watch = storms.watch("bus", 0.0)
        assert storms.dropped.get("bus", set()) == (set() if keep else {"a", "b"})
        assert watch.recent == {}
        assert watch.backlog == {"a", "b"}
        assert watch.dropping == (set() if keep else {"bus"})


def test_a_reset_with_keep_takes_back_an_earlier_one_without() -> None:
    storms = storms_of("a")
    for keep in (False, True):
        storms.open("bus", "too many", 5.0)
        storms.reset("bus", keep=keep)
    assert storms.watch("bus", 0.0).dropping == set()


def test_a_reset_of_a_source_touches_what_rests_on_it_and_no_more() -> None:
    storms = storms_of("a")
    watch = storms.watch("bus", 0.0)
    watch.matching["b"] = Matching(1.0, ("i",), (AGENTS,))
    storms.count(watch, "b", Recent(1.0, (AGENTS,)))
    storms.open(MAIN, "too many", 5.0)
    storms.reset(MAIN, keep=False)
    assert storms.dropped == {"bus": {"a"}}
    assert set(watch.recent) == {"b"}
    assert watch.backlog == {"a"}


def test_a_reset_before_anything_was_looked_at_reaches_policies_that_come_later() -> None:
    for keep in (False, True):
        storms = Storms()
        for name in ("bus", MAIN):
            storms.open(name, "too many", 5.0)
            storms.reset(name, keep=keep)
        assert storms.watch("bus", 1.0).dropping == (set() if keep else {"bus", MAIN})
        assert storms.watch("ecc", 1.0).dropping == (set() if keep else {MAIN})


def test_nothing_is_remembered_of_a_node_that_is_gone() -> None:
    storms = storms_of("a", "b")
    watch = storms.watch("bus", 0.0)
    watch.backlog.update(("a", "b"))
    storms.drop("bus", ["a", "b"])
    storms.forget("a")
    assert (watch.scope, watch.looked, watch.backlog) == ({"b"}, {"b"}, {"b"})
    assert set(watch.matching) == {"b"}
    assert storms.dropped == {"bus": {"b"}}
