"""Nested entries against an evaluator that reads them as a person does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from remediator.decide.facts import NodeFacts
from remediator.decide.match import Answer, match
from tests.unit.decide.build import START, alert, alive, condition, node, policy


NAMES = ["A", "B", "C", "D"]
answers = st.fixed_dictionaries({name: st.sampled_from(Answer) for name in NAMES})
leaves = st.sampled_from(NAMES).map(lambda name: {"condition": {"type": name, "for": "1m"}})


def groups(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """An entry of any of: a clause, `all`, `any`; and nothing that is empty."""
    many = st.lists(inner, min_size=1, max_size=3)
    nested = st.fixed_dictionaries({}, optional={"all": many, "any": many})
    return st.builds(lambda a, b: {**a, **b}, leaves | st.just({}), nested).filter(bool)


whens = st.lists(leaves | groups(leaves | groups(leaves)), min_size=1, max_size=3)


def facts_of(said: dict[str, Answer]) -> NodeFacts:
    """A node on which the condition of each name gives just this answer."""
    known = {
        Answer.HOLDS: lambda name: condition(name, "True", now=START - 60),
        Answer.PENDING: lambda name: condition(name, "True", now=START - 59),
        Answer.UNKNOWN: lambda name: condition(name, "Unknown"),
        Answer.CLEAR: lambda name: condition(name, "False"),
    }
    return node(conditions={name: known[answer](name) for name, answer in said.items()})


def worth(entry: dict[str, Any], said: dict[str, Answer]) -> Answer:
    parts = []
    if "condition" in entry:
        parts.append(said[entry["condition"]["type"]])
    if "all" in entry:
        parts.append(min(worth(one, said) for one in entry["all"]))
    if "any" in entry:
        parts.append(max(worth(one, said) for one in entry["any"]))
    return min(parts)


def support(entry: dict[str, Any], said: dict[str, Answer]) -> set[str]:
    """Return the names whose fault makes an entry what it is, if it holds."""
    found: set[str] = set()
    if "condition" in entry:
        found.add(entry["condition"]["type"])
    for one in entry.get("all", []):
        found |= support(one, said)
    for one in entry.get("any", []):
        if worth(one, said) is Answer.HOLDS:
            found |= support(one, said)
    return found


@given(when=whens, said=answers)
def test_an_entry_is_worth_what_a_naive_reader_says(
    when: list[dict[str, Any]], said: dict[str, Answer]
) -> None:
    found = match(policy(when=when), facts_of(said), START)
    assert found.answer is max(worth(one, said) for one in when)
    if found.holds:
        blamed = {
            name for one in when if worth(one, said) is Answer.HOLDS for name in support(one, said)
        }
        assert set(found.instances) == {f"condition:{name}=True" for name in blamed}
        assert all(said[name] is Answer.HOLDS for name in blamed)
        assert found.reasons
    if found.answer is Answer.PENDING:
        assert found.next_look == START + 1


@given(when=whens, said=answers, extra=st.booleans())
def test_a_silenced_alert_anywhere_freezes(
    when: list[dict[str, Any]],
    said: dict[str, Answer],
    extra: bool,  # noqa: FBT001
) -> None:
    silenced = alert(suppressed=True)
    fell = {"alert": {"name": "GpuFell"}}
    given_ = [*when, fell] if extra else [{**when[0], **fell}, *when[1:]]
    facts = facts_of(said)
    loud = replace(facts, alerts=(silenced,))
    assert match(policy(when=given_), loud, START, alive()).silenced
    assert not match(policy(when=when), loud, START, alive()).silenced
