"""What a case expects must be possible: a name that is not there never comes, and is never missed.

Under ``expectNot`` a misspelt name would make a test that cannot fail.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from remediator.lab.case import Case
from remediator.lab.player import CaseError
from remediator.policy.cluster import ClusterSpec
from remediator.policy.keys import closest
from remediator.policy.model import RemediationPolicy


class _Named(NamedTuple):
    """A name in an expectation, and where it stands there."""

    parts: tuple[str | int, ...]
    key: str
    name: str


def check_names(
    case: Case,
    nodes: Sequence[str],
    policies: Sequence[RemediationPolicy],
    cluster: ClusterSpec,
) -> None:
    """Check the nodes, policies and channels that a case expects something of.

    Raises:
        CaseError: one of them is not there.
    """
    known: dict[str, tuple[str, Collection[str]]] = {
        "node": ("none of the nodes", nodes),
        "policy": ("none of the policies", [one.name for one in policies]),
        "to": ("no channel that anything is told to", _channels(policies, cluster)),
    }
    for one in _named(case):
        what, names = known[one.key]
        if one.name not in names:
            meant = closest(one.name, list(names))
            hint = f"did you mean {meant}?" if meant else f"there are: {', '.join(names)}"
            raise CaseError(f"{one.name} is {what}; {hint}", *one.parts)


def _named(case: Case) -> Iterator[_Named]:
    for side, expected in (("expect", case.expect), ("expectNot", case.expect_not)):
        for kind in type(expected).model_fields:
            for index, one in enumerate(getattr(expected, kind)):
                for key in ("node", "policy", "to"):
                    name = getattr(one, key, None)
                    if name is not None:
                        yield _Named((side, kind, index, key), key, name)


def _channels(policies: Sequence[RemediationPolicy], cluster: ClusterSpec) -> Collection[str]:
    steps = [step.notify or step.approve for one in policies for step in one.spec.steps]
    named = [name for step in steps if step is not None for name in step.to]
    told = [name for one in policies for name in one.spec.recover.notify]
    return dict.fromkeys(["log", *cluster.channels, *cluster.alerts_to, *named, *told])
