"""Whatever policies say and whatever happens: the lab comes to rest, and dry-run plans as enforce.

For the same facts and step results, what dry-run would do is what enforce does: the same steps
and undoings, on the same nodes, at the same times.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from remediator.decide.work import ASSUMED
from remediator.lab import nodes as on
from remediator.lab.assumed import Answers
from remediator.lab.given import ApproveGiven
from remediator.lab.outside import CHANGES
from remediator.lab.player import with_mode
from remediator.lab.run import Lab
from remediator.lab.timeline import Timeline, What
from remediator.lab.works import Assumed, Assumptions
from remediator.policy.cluster import ClusterSpec
from remediator.policy.model import Mode, RemediationPolicy
from remediator.policy.steps import WORKS
from tests.property.cases import cases
from tests.property.lab.test_agrees_with_engine import PAUSES, START, changed, node_of


NAMES = ("n1", "n2", "n3")
CONDITIONS = ("GPULost", "GPUOverheating", "GPUMemoryDegraded")
STEPS: list[dict[str, Any]] = [
    {"cordon": {}},
    {"taint": {}},
    {"taint": {"effect": "PreferNoSchedule"}},
    {"label": {"set": {"example.org/state": "bad"}}},
    {"annotate": {"set": {"example.org/why": "bad"}}},
    {"drain": {}},
    {"drain": {}, "timeout": "1m", "onFailure": "continue"},
    {"job": {"template": "reset"}},
    {"job": {"template": "reset", "maxAttempts": 2}, "onFailure": "escalate"},
    {"job": {"template": "reboot", "success": "reboot"}},
    {"create": {"template": "reboot"}},
    {"webhook": {"to": "x"}},
    {"wait": {"for": "45s"}},
    {"notify": {"to": ["log"]}},
    {"notify": {"to": ["log"]}, "onFailure": "hold", "timeout": "1m"},
    {"event": {}},
    {"uncordon": {}},
    {"untaint": {}},
]
APPROVALS: list[dict[str, Any]] = [
    {"approve": {}},
    {"approve": {}, "onFailure": "escalate", "timeout": "1m"},
]
clauses = st.sampled_from(
    [
        *[{"xid": {"codes": [79]}}] * 3,
        *[{"xid": {"codes": [48, 79]}}] * 2,
        {"count": {"xid": [79], "atLeast": 2, "within": "1h"}},
        *({"condition": {"type": kind, "for": "20s"}} for kind in CONDITIONS),
        {"any": [{"xid": {"codes": [48]}}, {"condition": {"type": "GPULost"}}]},
        {"attempts": {"atLeast": 1}, "condition": {"type": "GPUOverheating"}},
    ]
)


def specs_of(steps: list[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Specs of policies with these steps, of which some take their time."""
    slow = {"drain", "job", "create", "webhook", "wait", "approve"}
    return st.fixed_dictionaries(
        {
            "when": st.lists(clauses, min_size=1, max_size=2),
            "steps": st.builds(
                lambda first, works, rest: [*first, *works, *rest],
                st.sampled_from([[], [{"cordon": {}}], [{"taint": {}}]]),
                st.lists(
                    st.sampled_from([one for one in steps if slow & set(one)]),
                    min_size=1,
                    max_size=3,
                ),
                st.lists(st.sampled_from(steps), max_size=3),
            ),
            "recover": st.fixed_dictionaries(
                {"when": st.sampled_from(["cleared", "manual", "never"]), "for": st.just("30s")}
            ),
            "limits": st.fixed_dictionaries({"maxAttempts": st.integers(1, 3)}),
        }
    )


# Dry-run assumes an approval within a decision, a person's is taken in by the next one. Where two
# policies work on a node at that instant, or two nodes want one place, another may come first:
# so policies that ask people are alone, and have room.
PLENTY = dict.fromkeys(("cordon", "drain", "job"), "1000/1m")
specs = st.lists(specs_of([*STEPS, *APPROVALS]), min_size=1, max_size=1) | st.lists(
    specs_of(STEPS), min_size=2, max_size=2
)
events = st.lists(
    st.tuples(
        st.integers(1, 20),
        st.sampled_from(NAMES),
        st.sampled_from(
            ["79", "79", "48", *CONDITIONS, "clear", "clear", "beat", "pause", "resume", "resume"]
        ),
    ),
    min_size=4,
    max_size=16,
).map(lambda script: [(1, "n1", "79"), *script])
failures = st.sets(st.sampled_from(WORKS), max_size=2)
"""Actions whose work fails, in both worlds."""


def policy(name: str, spec: dict[str, Any]) -> RemediationPolicy | None:
    document = {
        "apiVersion": "gpu-remediator.io/v1alpha1",
        "kind": "RemediationPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }
    try:
        return RemediationPolicy.model_validate(document)
    except ValidationError:
        return None  # steps in an order that a policy may not have


def played(
    policies: list[RemediationPolicy],
    script: list[tuple[int, str, str]],
    mode: Mode,
    failing: Collection[str],
) -> Lab:
    """Play to the end. What dry-run assumes comes true: work ends, nodes reboot, people say yes."""
    spec: dict[str, Any] = {
        "mode": "Enforce",
        "settling": "0s",
        "breaker": {"minNodes": 100},
        "rates": {"cordon": "20/1m", "drain": "20/1m", "job": "4/1m"},
    }
    if any(step.approve for one in policies for step in one.spec.steps):
        spec |= {"budgets": [{"maxUnavailable": "100%", "per": "cluster"}], "rates": PLENTY}
    lab = Lab(
        policies=[with_mode(one, mode) for one in policies],
        cluster=ClusterSpec.model_validate(spec),
        start=START,
        assume=Assumptions(
            work={
                name: Assumed(seconds, "broken" if name in failing else "")
                for name, seconds in ASSUMED.items()
            },
            reboots=True,
            reboot=ASSUMED["job"],
        ),
    )
    lab.on_decision = Answers(
        after=0.0,
        call_after=lambda seconds, act: lab.call_at(lab.now + seconds, act),
        approve=lambda name, policy: lab.put(
            CHANGES["approve"](lab.node(name), ApproveGiven(policy=policy), lab.now)
        ),
    ).decided
    for name in NAMES:
        lab.put(node_of(name))
    at = START
    for gap, name, what in script:
        at += 11.37 * gap
        lab.call_at(at, partial(_happen, lab, name, what))
    lab.run(at + 7200.0)
    return lab


def _happen(lab: Lab, name: str, what: str) -> None:
    if what in PAUSES:
        lab.pause(PAUSES[what])
        return
    for one in NAMES:  # agents that live: a node that falls silent is another test's
        lab.put(on.beaten(lab.node(one), now=lab.now))
    lab.put(changed(lab.node(name), what, lab.now))


def plan_of(timeline: Timeline) -> list[tuple[float, str, str, str, str]]:
    found = timeline.of(What.STEP, What.UNDONE)
    rows = [(round(one.at, 1), one.node, one.policy, one.name, one.result) for one in found]
    return sorted(rows)


@settings(max_examples=cases(150))
@given(given=specs, script=events, failing=failures)
def test_dry_run_plans_as_enforce_does(
    given: list[dict[str, Any]], script: list[tuple[int, str, str]], failing: set[str]
) -> None:
    plans_alike(made_of(given), script, failing)


def made_of(given: list[dict[str, Any]]) -> list[RemediationPolicy]:
    return [made for at, spec in enumerate(given) if (made := policy(f"p{at}", spec))]


def plans_alike(
    policies: list[RemediationPolicy],
    script: list[tuple[int, str, str]],
    failing: Collection[str] = (),
) -> None:
    real = played(policies, script, Mode.ENFORCE, failing)
    dry = played(policies, script, Mode.DRY_RUN, failing)
    assert plan_of(dry.timeline) == plan_of(real.timeline)
    for name in NAMES:
        assert dry.node(name).unschedulable is False
        assert dry.node(name).taints == ()
        assert not any(key.endswith("/session") for key in dry.node(name).annotations)


LEAVING = st.sampled_from(
    [
        [{"cordon": {}}],
        [{"taint": {}}],
        [{"taint": {"effect": "PreferNoSchedule"}}],
        [{"label": {"set": {"example.org/state": "bad"}}}, {"cordon": {}}],
        [{"annotate": {"set": {"example.org/why": "bad"}}}, {"taint": {}}],
    ]
)
leaving = st.fixed_dictionaries(
    {
        "when": st.sampled_from([[{"xid": {"codes": [code]}}] for code in (48, 79)]),
        "steps": LEAVING,
        "recover": st.fixed_dictionaries(
            {"when": st.sampled_from(["never", "never", "cleared"]), "for": st.just("30s")}
        ),
    }
)
comings_and_goings = st.lists(
    st.tuples(
        st.integers(1, 10), st.sampled_from(NAMES), st.sampled_from(["79", "48", "clear", "clear"])
    ),
    min_size=3,
    max_size=12,
)


@settings(max_examples=cases(60))
@given(given=st.lists(leaving, min_size=1, max_size=2), script=comings_and_goings)
def test_what_an_ended_session_leaves_behind_takes_its_place_in_dry_run_too(
    given: list[dict[str, Any]], script: list[tuple[int, str, str]]
) -> None:
    """A cordon that stays, or a taint: no other node may take its place. A mark takes none."""
    plans_alike(made_of(given), script)
