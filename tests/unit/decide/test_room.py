"""However many policies match a node, its session stays one that we can read."""

from __future__ import annotations

from remediator.decide.session import decode_session, encode
from tests.unit.decide.build import Bench, ledger, node, policy, xid


def test_a_session_takes_no_more_policies_than_it_can_say() -> None:
    long = {"notify": {"to": ["log"], "message": '"' * 1990}}
    given = [policy(f"p{at:02}", steps=[{"cordon": {}}, long]) for at in range(40)]
    made = Bench(*given, guards=ledger(budgets=[{"maxUnavailable": "100%", "per": "cluster"}]))
    made.see(node(faults=(xid(),)))
    for _ in range(3):
        guards = {one.guard for one in made.one(seconds=60.0).holds}
        session = made.session()
        assert decode_session(encode(session), node_uid=session.node_uid) == session
        assert 1 < len(session.holds) < len(given)
        assert guards == {"session"}
    assert made.cordoned()
    made.fault()
    made.one()
    for _ in range(12):
        made.now += 60.0
        made.fault()
        made.decide()
    assert not made.cordoned()
