"""When a breaker closes by itself: a storm that is over for ``cooldown``, where that is configured.

Over means: no node newly matches, and no more than is believable still match without being
dealt with. While a storm's faults are there, the breaker stays open however long that
takes. What is left when it closes is handled, within budgets and rates. Measured anew after
a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from remediator.decide.candidate import ActivePolicy
from remediator.decide.decision import SendMessage, Urgency
from remediator.decide.guards.breaker import believable, limits_of
from remediator.decide.ledger import Ledger
from remediator.decide.storms import Calm, is_source
from remediator.decide.topics import OVER
from remediator.policy.quantities import format_duration


class Cooled(NamedTuple):
    """What became of the open breakers: who is told of those that closed, and the next look."""

    told: tuple[SendMessage, ...]
    look_at: float | None


def cool(policies: Mapping[str, ActivePolicy], ledger: Ledger, now: float) -> Cooled:
    """Close the breakers whose storm has been over for long enough."""
    told, dues = [], []
    for name in list(ledger.breakers):
        due = closes_at(name, policies.get(name), ledger, now)
        if due is not None and now >= due:
            told.append(_closed(name, policies.get(name), ledger))
            ledger.wake(_left(name, ledger))
            ledger.reset_breaker(name, keep=True)
        elif due is not None:
            dues.append(due)
    return Cooled(tuple(told), min(dues, default=None))


def closes_at(name: str, active: ActivePolicy | None, ledger: Ledger, now: float) -> float | None:
    """Return when an open breaker closes if nothing more happens; None: only people close it."""
    limits, calm = limits_of(active, ledger), ledger.storms.calm
    if limits.cooldown is None:
        return None
    left = frozenset(_left(name, ledger))
    if len(left) > believable(limits, ledger.scope_of(name)):
        calm.pop(name, None)
        return None
    known = calm.get(name)
    since = known.since if known is not None and left <= known.left else now
    calm[name] = Calm(since, left)
    return since + limits.cooldown


def _left(name: str, ledger: Ledger) -> Iterator[str]:
    """Yield the nodes that match, and that no session of ours has taken out of service."""
    for policy, watch in ledger.watches.items():
        uids = watch.on(name) if is_source(name) else watch.matching if policy == name else ()
        for uid in uids:
            if uid in ledger.nodes and not ledger.nodes[uid].ours:
                yield uid


def _closed(name: str, active: ActivePolicy | None, ledger: Ledger) -> SendMessage:
    opened, limits = ledger.breakers[name], limits_of(active, ledger)
    left = sorted({ledger.nodes[uid].name for uid in _left(name, ledger)})
    still = f" Still faulty, and dealt with now: {', '.join(left)}." if left else ""
    return SendMessage(
        key=f"breaker/{name}/{opened.at:.0f}{OVER}",
        to=ledger.cluster.alerts_to,
        title=f"breaker of {name} closed by itself",
        text=f"No more nodes turned bad for {format_duration(limits.cooldown or 0.0)}.{still}",
        policy="" if is_source(name) else name,
        urgency=Urgency.INFO,
        resolves=True,
    )
