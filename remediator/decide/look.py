"""What planning starts from: a node, and what every policy in force says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import ValidationError

from remediator.decide.candidate import ActivePolicy
from remediator.decide.facts import NOTHING_KNOWN, ClusterFacts, Malformed, NodeFacts
from remediator.decide.match import Match
from remediator.decide.session import DAY, PolicyHold, Session
from remediator.policy.model import RemediationPolicy
from remediator.policy.plan import Plan, parse_plan


class Matched(NamedTuple):
    """One policy's answer about a node, and since when it matches."""

    active: ActivePolicy
    match: Match
    since: float


@dataclass(frozen=True, slots=True)
class Look:
    """A node with the answers of all policies in force in this world, best candidate first."""

    facts: NodeFacts
    matched: Mapping[str, Matched] = field(default_factory=dict)
    cluster_facts: ClusterFacts = NOTHING_KNOWN
    holding: tuple[Matched, ...] = ()
    """The policies that match now."""
    next_look: float | None = None
    """When an answer may change without a new fact."""
    silenced: str = ""
    """Which alert about the node, that any policy names, people silenced: the node is frozen."""


def uncordoned(facts: NodeFacts, session: Session) -> bool:
    """Tell whether a person took away the cordon that a session had added."""
    return session.added.cordoned and (facts.uncordoned or not facts.unschedulable)


def untainted(facts: NodeFacts, session: Session) -> bool:
    """Tell whether a person took away, or changed, a taint that a session had added."""
    return facts.untainted or not set(facts.taints).issuperset(session.added.taints)


def unusable_session(facts: NodeFacts) -> str:
    """Say why a node's session cannot be used; "" if it can, or if there is none."""
    if isinstance(facts.session, Malformed):
        return facts.session.why
    if facts.session is None:
        return ""
    return session_flaw(facts.session)


def session_flaw(session: Session) -> str:
    """Say why a session that is of its form cannot be used all the same; "" if it can."""
    holds = session.holds
    if len({hold.policy for hold in holds}) != len(holds) or not holds:
        return "the session names a policy twice, or none"
    return next(filter(None, map(_flaw, holds)), "")


def _flaw(hold: PolicyHold) -> str:
    """Say what is wrong with a hold, which others may have written; "" if it is sound."""
    try:
        steps = len(parse_plan(hold.plan).steps)
    except ValidationError as error:
        return f"the session's plan of {hold.policy} cannot be read: {error.errors()[0]['msg']}"
    named = (*hold.undelivered, *(one.step for one in hold.results))
    if not 0 <= hold.step <= steps or not all(0 <= at < steps for at in named):
        return f"the session is at a step of {hold.policy} that its plan does not have"
    return ""


def takes_capacity(plan: str) -> bool:
    """Tell whether a plan has a step that takes capacity away, or works; an unreadable one has."""
    try:
        return any(step.disruptive or step.works for step in parse_plan(plan).steps)
    except ValidationError:
        return True


def opening(policy: RemediationPolicy, attempt: int) -> tuple[str, bool]:
    """Return the plan that a new hold begins with, and whether the attempts are used up.

    When they are, the node is still taken out of service, and nothing more. A policy that only
    tells or marks makes no attempts, and so has none to use up.
    """
    given = parse_plan(policy.plan).steps
    used_up = attempt > policy.spec.limits.max_attempts
    if not used_up or not takes_capacity(policy.plan):
        return policy.plan, False
    steps = tuple(step for step in given if step.disruptive)
    if not steps:
        return policy.plan, True
    recover = policy.spec.recover
    people = recover.notify or parse_plan(policy.plan).channels  # the end is told where it began
    only = Plan.model_construct(steps=steps, recover=recover.model_copy(update={"notify": people}))
    return only.model_dump_json(by_alias=True, exclude_defaults=True), True


def attempt_within(session: Session, policy: str) -> int:
    """Return which attempt a policy's next hold in a session is."""
    past = session.past.get(policy)
    return session.attempt + (past.times if past is not None else 0)


def attempt_of(facts: NodeFacts, now: float, policy: str = "") -> int:
    """Return which attempt this is on the node, counting those of the last 24 h.

    For a policy, each of its holds counts, too, that did something and let go while others
    held the node.
    """
    if isinstance(facts.session, Session):
        return attempt_within(facts.session, policy)
    return 1 + sum(1 for at in facts.history.attempts if at > now - DAY)
