"""How long an orderly end may keep the next leader waiting."""

from __future__ import annotations

from remediator.kube.lease import LeaseTimings
from remediator.term.lead import DRAIN_SECONDS, VIEW_SECONDS


def test_whatever_is_under_way_a_hand_over_takes_less_than_two_seconds() -> None:
    """Receivers that hang, a storm's records: `make bench-handover` measures the rest."""
    longest_look = LeaseTimings().retry_period / 2

    assert DRAIN_SECONDS + VIEW_SECONDS + longest_look < 2.0
