"""A step's deadline counts the time in which the step was followed, whoever led meanwhile."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from remediator.decide.ledger import Ledger, LedgerState, Pause
from remediator.decide.session import HoldState
from remediator.decide.work import LOOK_FIRST
from tests.property.cases import cases
from tests.unit.decide.build import Bench, ledger, node, policy, xid


LIMIT = 600.0
STEPS = [{"cordon": {}}, {"job": {"template": "reset"}, "timeout": "10m"}]
PAUSE = Pause(by="ann", at="now", all=True)
moves = st.lists(
    st.one_of(
        st.sampled_from(["pause", "resume", "refused", "restart", "crash"]),
        st.floats(1.0, 400.0),
    ),
    max_size=12,
)


def another_leader(made: Bench, *, saved: bool) -> None:
    """Let another one lead; ``saved``: it knows what the guards remembered, else only nodes."""
    before = made.ledger
    made.ledger = Ledger(cluster=before.cluster, started=made.now)
    made.ledger.pause = before.pause
    if saved:
        text = msgspec.json.encode(before.state())
        made.ledger.restore(msgspec.json.decode(text, type=LedgerState))
    made.see(*made.nodes.values())


@settings(max_examples=cases(300), deadline=None)
@given(moves)
def test_no_deadline_is_judged_too_early_or_never(moves: list[str | float]) -> None:
    guards = ledger(budgets=[{"maxUnavailable": "100%", "per": "cluster"}], rates={"job": "9/1m"})
    made = Bench(policy(steps=STEPS), guards=guards)
    made.see(node(faults=(xid(),)))
    made.one()
    made.one(seconds=1.0)
    ran, changes = 0.0, 0
    for move in [*moves, "resume", *[300.0] * 5]:
        going, before = not made.works["job"].suspended, made.now
        if isinstance(move, float):
            made.now += move
        elif move in {"pause", "resume"}:
            changes += 1
            made.ledger.pause = PAUSE if move == "pause" else None
        elif move != "refused":
            changes += 1
            another_leader(made, saved=move == "restart")
        ran += made.now - before if going else 0.0
        made.decide(write=move != "refused")
        session = made.session().hold("bus")
        assert session is not None
        if session.state is HoldState.HELD:
            assert ran >= LIMIT - 1e-3, "too early"
            return
    # Each leader that could not know it may have given the whole time back.
    assert changes or ran < LIMIT + LOOK_FIRST
    assert ran < (1 + changes) * (LIMIT + 400.0), "it never ends"
