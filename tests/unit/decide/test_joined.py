"""A further fault that joins a session: its people hear of it once, and no step begins anew."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from remediator.decide.decision import Outcome, SendMessage
from tests.unit.decide.build import Bench, node, policy, xid


OPS = {"notify": {"to": ["ops"]}}
WHEN = [{"xid": {"codes": [48, 79, 95]}}]


def bench(*steps: dict[str, Any]) -> Bench:
    made = Bench(policy(when=WHEN, steps=list(steps)))
    made.see(node(faults=(xid(48),)))
    made.one()
    return made


def joined(made: Bench) -> list[SendMessage]:
    sent = made.sent.values()
    return [one for one in sent if isinstance(one, SendMessage) and one.kind == "joined"]


def test_faults_that_join_are_told_of_in_one_message() -> None:
    made = bench({"cordon": {}}, OPS)
    made.fault(xid(48), xid(79), xid(95, pci="0000:1b:00.0"))
    made.one(seconds=60.0)
    (said,) = joined(made)
    assert said.title == "n1: Xid 79 on 0000:9b:00.0, Xid 95 on 0000:1b:00.0 joined"
    assert said.to == ("ops",)
    assert "none of its steps begins anew" in said.text


def test_it_is_sent_again_under_its_key_until_it_has_arrived() -> None:
    made = bench(OPS)
    made.fault(xid(48), xid(79))
    made.one(seconds=60.0)
    (said,) = joined(made)
    again = [one for one in made.one(seconds=60.0).effects if isinstance(one, SendMessage)]
    assert said.key in {one.key for one in again}  # as of a leader that knows of no outcome
    made.outcomes[said.key] = Outcome(key=said.key, delivered=True)
    made.one(seconds=60.0)
    assert made.session().holds[0].joined == ()
    made.outcomes.clear()
    made.one(seconds=60.0)
    assert joined(made) == [said]


def test_it_waits_for_the_patch_that_remembers_it() -> None:
    made = bench(OPS)
    made.fault(xid(48), xid(79))
    decision = made.one(seconds=60.0)
    kinds = [getattr(one, "kind", "patch") for one in decision.effects]
    assert kinds.index("patch") < kinds.index("joined")


def test_who_was_told_of_nothing_hears_all_in_the_first_message() -> None:
    made = bench({"cordon": {}}, {"drain": {}}, OPS)
    made.fault(xid(48), xid(79))
    made.one(seconds=60.0)
    assert not joined(made)
    assert made.session().holds[0].joined == ()


@settings(max_examples=50)
@given(st.lists(st.sampled_from([48, 79, 95]), min_size=1, max_size=6))
def test_each_is_told_once_however_they_come_and_go(codes: list[int]) -> None:
    made = bench(OPS)
    for code in codes:
        made.fault(xid(48), xid(code))
        made.one(seconds=30.0)
        made.outcomes |= {one.key: Outcome(key=one.key, delivered=True) for one in joined(made)}
        made.one(seconds=30.0)
    assert len(joined(made)) == len(set(codes) - {48})
