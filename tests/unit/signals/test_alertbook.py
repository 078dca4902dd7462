"""The book of one Alertmanager: what makes an alert come, stay, be suppressed and be gone."""

from __future__ import annotations

import pytest

from remediator.policy.sources import Alertmanager
from remediator.signals.alertbook import AlertBook, BookFullError
from remediator.signals.alerts import MAX_ALERTS, Alert, Report


ONE, TWO = "http://one", "http://two"
FAULT = (("alertname", "Fault"), ("node", "n1"))
WATCHDOG = (("alertname", "Watchdog"),)


def book(**changes: object) -> AlertBook:
    document = {"name": "main", "urls": [ONE, TWO], "goneAfter": "60s", **changes}
    return AlertBook(Alertmanager.model_validate(document), now=0.0)


def alert(identity: tuple[tuple[str, str], ...] = FAULT, **changes: object) -> Alert:
    return Alert(identity=identity, starts_at=0.0, **changes)  # type: ignore[arg-type]


def poll(made: AlertBook, now: float, *alerts: Alert) -> None:
    for peer in (ONE, TWO):
        made.polled(peer, alerts, now)


def test_gone_needs_two_polls_of_every_peer_and_time() -> None:
    made = book()
    poll(made, 0.0, alert())
    made.polled(ONE, (), 30.0)
    made.polled(ONE, (), 60.0)
    made.polled(ONE, (), 90.0)
    made.polled(TWO, (), 90.0)
    assert FAULT in made.entries
    made.polled(TWO, (), 120.0)
    assert FAULT not in made.entries


def test_two_quick_polls_are_not_enough() -> None:
    made = book()
    poll(made, 0.0, alert())
    poll(made, 1.0)
    poll(made, 2.0)
    poll(made, 3.0)
    assert FAULT in made.entries


def test_a_failed_poll_is_no_poll_without_the_alert() -> None:
    made = book()
    poll(made, 0.0, alert())
    for now in (30.0, 60.0, 90.0, 120.0):
        made.polled(ONE, (), now)
        made.failed(TWO, "no answer")
    assert FAULT in made.entries
    assert not made.source(120.0).ok
    assert "no answer" in made.source(120.0).why


def test_one_peer_that_has_it_is_enough() -> None:
    made = book()
    poll(made, 0.0, alert())
    for now in (30.0, 60.0, 90.0, 120.0, 150.0):
        made.polled(ONE, (), now)
        made.polled(TWO, (alert(),), now)
    assert FAULT in made.entries


def test_an_alertmanager_that_forgot_is_not_believed_before_the_watchdog_was_sent_anew() -> None:
    made = book(watchdog={})
    poll(made, 0.0, alert(), alert(WATCHDOG, updated_at=1.0))
    for now in (30.0, 60.0, 90.0, 120.0):
        poll(made, now, alert(WATCHDOG, updated_at=1.0))
    assert FAULT in made.entries
    poll(made, 150.0, alert(WATCHDOG, updated_at=2.0))
    assert FAULT not in made.entries


def test_alive_only_while_the_watchdog_is_sent_anew() -> None:
    made = book(watchdog={"maxAge": "2m"})
    poll(made, 0.0, alert(WATCHDOG, updated_at=1.0))
    assert made.source(10.0).ok
    assert made.source(10.0).alive
    for now in (60.0, 120.0):
        poll(made, now, alert(WATCHDOG, updated_at=1.0))
    dead = made.source(120.0)
    assert (dead.ok, dead.alive) == (False, False)
    assert "Watchdog" in dead.why
    poll(made, 130.0, alert(WATCHDOG, updated_at=2.0))
    assert made.source(130.0).alive


def test_without_a_watchdog_it_is_trusted_and_never_proven() -> None:
    made = book()
    poll(made, 0.0)
    assert made.source(1.0).ok
    assert not made.source(1.0).alive


def test_before_the_first_poll_of_every_peer_it_is_not_trusted() -> None:
    made = book()
    assert not made.source(0.0).ok
    made.polled(ONE, (), 1.0)
    assert not made.source(1.0).ok
    made.polled(TWO, (), 1.0)
    assert made.source(1.0).ok


def test_peers_that_were_not_asked_for_long_are_not_trusted() -> None:
    made = book()
    poll(made, 0.0)
    assert made.source(90.0).ok
    assert not made.source(101.0).ok


def test_suppressed_on_any_peer_wins_until_that_peer_says_otherwise() -> None:
    made = book()
    made.polled(ONE, (alert(suppressed=True),), 0.0)
    made.polled(TWO, (alert(),), 0.0)
    assert made.entries[FAULT].suppressed
    made.take_changed()
    made.polled(ONE, (alert(),), 1.0)
    assert not made.entries[FAULT].suppressed
    assert made.take_changed() == {FAULT}


def test_a_peer_that_has_it_no_more_suppresses_it_until_its_second_poll_without() -> None:
    made = book()
    made.polled(ONE, (alert(suppressed=True),), 0.0)
    made.polled(TWO, (alert(),), 0.0)
    made.polled(ONE, (), 1.0)
    assert made.entries[FAULT].suppressed, "it may have been restarted, and forgot both"
    made.polled(ONE, (alert(suppressed=True),), 2.0)
    made.polled(ONE, (), 3.0)
    assert made.entries[FAULT].suppressed
    made.take_changed()
    made.polled(ONE, (), 4.0)
    assert not made.entries[FAULT].suppressed
    assert made.take_changed() == {FAULT}


def test_a_webhook_call_does_not_end_a_silence() -> None:
    made = book()
    poll(made, 0.0, alert(suppressed=True))
    made.told(Report(firing=(alert(),), resolved=()), 1.0)
    assert made.entries[FAULT].suppressed


def test_a_webhook_call_is_known_at_once_and_polls_decide_whether_it_stays() -> None:
    made = book()
    poll(made, 0.0)
    made.told(Report(firing=(alert(),), resolved=()), 1.0)
    assert FAULT in made.entries
    made.told(Report(firing=(), resolved=(FAULT,)), 2.0)
    assert FAULT in made.entries, "only polls tell that it is gone"
    poll(made, 62.0)
    poll(made, 63.0)
    assert FAULT not in made.entries


def test_resolved_ends_it_where_there_is_nothing_to_poll() -> None:
    made = AlertBook(Alertmanager.model_validate({"name": "main", "webhookOnly": True}), now=0.0)
    made.told(Report(firing=(alert(),), resolved=()), 1.0)
    assert made.source(1.0).ok
    assert not made.source(1.0).alive
    made.told(Report(firing=(), resolved=(FAULT,)), 2.0)
    assert not made.entries


def test_only_alerts_of_this_cluster_count() -> None:
    made = book(labels={"cluster": "a"})
    mine = (("alertname", "Fault"), ("cluster", "a"))
    other = (("alertname", "Fault"), ("cluster", "b"))
    made.told(Report(firing=(alert(mine), alert(other)), resolved=()), 0.0)
    poll(made, 1.0, alert(mine), alert(other))
    assert set(made.entries) == {mine}


def test_a_full_book_takes_nothing_of_the_call() -> None:
    made = book()
    many = [alert((("alertname", "Fault"), ("node", f"n{i}"))) for i in range(MAX_ALERTS)]
    made.polled(ONE, many, 0.0)
    with pytest.raises(BookFullError):
        made.told(Report(firing=(alert((("alertname", "New"),)),), resolved=()), 1.0)
    made.told(Report(firing=(many[0],), resolved=()), 1.0)


def test_alerts_that_one_peer_has_no_more_are_bounded_while_another_is_away() -> None:
    """A label with a changing value makes ever new alerts, and none is proven to be gone."""
    made, polled, now = book(), list[Alert](), 0.0
    for number in range(9):
        now = 30.0 * number
        polled = [alert((("alertname", "Load"), ("value", f"{number}.{n}"))) for n in range(30_000)]
        made.polled(ONE, [alert(), *polled], now)
        made.failed(TWO, "no answer within 10 s")
    assert len(made.entries) <= 3 * MAX_ALERTS
    assert FAULT in made.entries
    assert {one.identity for one in polled} <= made.entries.keys()
    gone = made.take_changed() - made.entries.keys()
    assert len(gone) == 9 * 30_000 + 1 - len(made.entries)
    assert not made.source(now).ok


def test_nothing_goes_sooner_for_there_being_many() -> None:
    made = book()
    many = [alert((("alertname", "Load"), ("n", str(n)))) for n in range(MAX_ALERTS)]
    made.polled(ONE, [alert(), *many[1:]], 0.0)
    for now in (30.0, 60.0, 1000.0):
        made.polled(ONE, many, now)
        assert FAULT in made.entries


def test_since_is_ours_and_survives_a_new_beginning_of_theirs() -> None:
    made = book()
    poll(made, 5.0, alert())
    again = Alert(identity=FAULT, starts_at=77.0)
    poll(made, 10.0, again)
    assert made.entries[FAULT].since == 5.0
    assert made.entries[FAULT].seen == 10.0
