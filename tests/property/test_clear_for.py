"""How long a status has lasted despite breaks: as a reader of the timeline says, by the second."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from remediator.decide.match import Answer
from remediator.signals.nodes import MAX_EARLIER
from tests.property.cases import cases
from tests.unit.decide.test_clear_for import MINUTE, Times, answer, seen


spans = st.tuples(st.integers(1, 90), st.sampled_from(["True", "False", "Unknown"]))


@settings(max_examples=cases(200), deadline=None)
@given(st.lists(spans, min_size=1, max_size=MAX_EARLIER))
def test_it_is_what_a_reader_of_the_timeline_says(given_: list[tuple[int, str]]) -> None:
    times: Times = [(0.0, "True")]
    for seconds, status in given_:
        times.append((times[-1][0] + seconds, status))
    now, status = times[-1]
    if status != "True":
        assert answer(seen(times), now)[0] is not Answer.HOLDS
        return
    began = since(times)
    due = began + 5 * MINUTE
    expected = (Answer.HOLDS, None) if now >= due else (Answer.PENDING, due)
    assert answer(seen(times), now) == expected


def since(times: Times) -> float:
    """Read second by second since when it has lasted; a minute of anything else ends it."""
    began, away = 0, 0
    for second in range(int(times[-1][0]) + 1):
        if shown(times, second) == "True":
            began = second if away >= MINUTE else began
            away = 0
        else:
            away += 1
    return float(began)


def shown(times: Times, second: int) -> str:
    return next(status for at, status in reversed(times) if at <= second)
