"""Alerts and queries of a lab, as the controller's sources would tell them.

Under construction with those sources: a timeline may name them as soon as facts carry them.
"""

from __future__ import annotations

from remediator.lab.case import AlertGiven, QueryGiven
from remediator.lab.run import Lab


class Signals:
    """What fires now, by node."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def alert(self, names: tuple[str, ...], given: AlertGiven) -> None:
        """Have an alert fire or end, for these nodes or for none."""
        raise NotImplementedError(f"alerts: {given.name} {names}")

    def query(self, name: str, given: QueryGiven) -> None:
        """Have a query's answer name a node or not."""
        raise NotImplementedError(f"queries: {given.promql} {name}")
