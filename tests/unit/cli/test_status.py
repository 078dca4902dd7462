"""What people read in `remediator status`."""

from datetime import UTC, datetime

from remediator.cli.status import render_status
from remediator.cli.terminal import table
from remediator.record.status import (
    BreakerStatus,
    BudgetStatus,
    DueStatus,
    HoldStatus,
    NodeStatus,
    OutboxStatus,
    PauseStatus,
    PolicyProblem,
    PolicyStatus,
    RateStatus,
    Status,
)


NOW = 10_000.0


def status(**changes: object) -> Status:
    fields: dict[str, object] = {
        "time": NOW - 12,
        "leader": "pod-a",
        "mode": "DryRun",
        "nodes_total": 40,
        "gpu_nodes": 32,
        **changes,
    }
    return Status(**fields)  # type: ignore[arg-type]


def lines(**changes: object) -> list[str]:
    return render_status(status(**changes), now=NOW).splitlines()


def test_head() -> None:
    assert lines() == [
        "leader pod-a, mode DryRun, 32 GPU nodes of 40, 0 policies, written 12s ago",
        "",
        "no node matches a policy",
    ]


def test_a_frozen_node_says_why_and_what_ends_it() -> None:
    why = "frozen: the session is cut short; `remediator unfreeze n` drops it"
    assert lines(nodes=(NodeStatus(node="n", phase="frozen", sentence=why),))[-1].endswith(why)


def test_what_others_wrote_begins_no_line_and_moves_no_cursor() -> None:
    alert = "alert Hot\x1b[2K\r\nn2  well\u2028\u202e\x9b"
    told = lines(
        nodes=(NodeStatus(node="n", phase="active", sentence="", faults=(alert,)),),
        pause=PauseStatus(by="x", since="t", reason="a\nsettling: b", everything=False),
    )
    assert all(char.isprintable() for line in told for char in line)
    assert not any(line.startswith(("n2", "settling")) for line in told)


def test_a_stale_status_says_so_first() -> None:
    first = lines(time=NOW - 7200)[0]
    assert first.startswith("STALE: written 2h ago by pod-a")
    assert "no controller is running" in first


def test_a_clock_behind_the_controllers_is_no_negative_age() -> None:
    assert lines(time=NOW + 100)[0].endswith("written 0s ago")


def test_pause_settling_and_not_synced_are_said() -> None:
    text = "\n".join(
        lines(
            pause=PauseStatus(everything=True, reason="move", by="ann", since="10:00"),
            settling_until=NOW + 30,
            synced=False,
            notes=("state unreadable",),
            phases={"held": 2, "well": 30},
        )
    )
    assert "EVERYTHING PAUSED by ann since 10:00: move" in text
    assert "settling: no new disruptive step for 30s" in text
    assert "NOT SYNCED" in text
    assert "note: state unreadable" in text
    assert "nodes: 2 held, 30 well" in text
    assert "settling" not in "\n".join(lines(settling_until=NOW - 1))


def test_a_node_that_dry_run_would_work_on_is_not_counted_as_well() -> None:
    phases = {"well": 30, "frozen": 1, "in-session": 1}
    dry = {"well": 28, "in-session": 2, "frozen": 1, "left-alone": 1}

    counted = lines(phases=phases, phases_dry_run=dry, well=28)[1]
    assert counted == (
        "nodes: 1 frozen, 1 in-session, 28 well, 2 in-session [dry-run], 1 left-alone [dry-run]"
    )
    assert lines(phases={"well": 1}, phases_dry_run={"held": 1}, well=0)[1] == (
        "nodes: 1 held [dry-run]"
    )
    assert lines(phases={"well": 5}, phases_dry_run={"well": 5})[1] == "nodes: 5 well"


def test_a_time_that_no_calendar_has_is_shown_as_a_span() -> None:
    rate = RateStatus(scope="a", action="cordon", used=1, limit="1/1m", next_at=1e12)
    assert "next in 11574073d" in "\n".join(lines(rates=(rate,)))


def test_guards() -> None:
    holders = tuple(f"n{n}" for n in range(7))
    text = "\n".join(
        lines(
            budgets=(
                BudgetStatus(scope="pool/a", used=7, limit=1, holders=holders, escalated=("n1",)),
                BudgetStatus(scope="cluster", used=0, limit=3, policy="p", dry_run=True),
            ),
            rates=(RateStatus(scope="a", action="cordon", used=1, limit="1/1m", next_at=NOW + 9),),
            breakers=(
                BreakerStatus(source="p", open=True, since=NOW - 60, seen=9, limit=3),
                BreakerStatus(source="q", open=False),
                BreakerStatus(source="s", open=True, closes_at=NOW + 120),
                BreakerStatus(
                    source="r", open=False, dry_run=True, backlog=2, backlog_nodes=("n1", "n2")
                ),
            ),
            outbox=OutboxStatus(
                pending=1, trouble=("oncall: no such file",), failed=2, last_failure="503"
            ),
        )
    )
    assert (
        "budget pool/a: 7 of 1, held by n0, n1, n2, n3, n4 and 2 more;"
        " n1 escalated: only people can free the place"
    ) in text
    assert "budget cluster of p [dry-run]: 0 of 3" in text
    assert "rate cordon a: 1 of 1/1m, next in 9s" in text
    assert "BREAKER OPEN p since 1m: 9 nodes, limit 3. `remediator breaker reset p`" in text
    assert "BREAKER OPEN q" not in text
    assert "reset s` closes it, and it closes by itself in 2m if no more nodes turn bad" in text
    assert "backlog of r [dry-run]: 2 nodes were faulty before anybody looked: n1, n2" in text
    assert "backlog of q" not in text
    assert "messages: 1 waiting (oncall: no such file), 2 given up (last: 503)" in text


def test_policies_and_their_files_with_errors() -> None:
    text = "\n".join(
        lines(
            policies=(
                PolicyStatus(
                    name="p",
                    version="abc",
                    mode="Enforce",
                    effective_mode="DryRun",
                    loaded_at=1.0,
                    matching=2,
                ),
                PolicyStatus(
                    name="q",
                    version="def",
                    mode="DryRun",
                    effective_mode="DryRun",
                    loaded_at=1.0,
                    matching=1,
                ),
            ),
            policy_problems=(PolicyProblem(source="f", message="f:1:2: bad; not loaded"),),
        )
    )
    assert "policy p abc: DryRun (its own: Enforce), matches 2 nodes" in text
    assert "policy q def: DryRun, matches 1 node\n" in text
    assert "POLICY FILE f:1:2: bad; not loaded" in text


def test_a_node_shows_which_guard_holds_it_and_why() -> None:
    node = NodeStatus(
        node="n1",
        phase="matched",
        sentence="...",
        dry_run=True,
        faults=("Xid 79 on 0000:9b:00.0",),
        policies=("p",),
        steps=("p: step 1/2 cordon waiting",),
        holds=(HoldStatus(policy="p", guard="budget", reason="1 of 1 in pool a"),),
        next_look=NOW + 61,
    )
    head, row, more = lines(nodes=(node,), nodes_left_out=4)[2:]
    assert head.split() == [
        "NODE",
        "PHASE",
        "FAULTS",
        "POLICY",
        "STEP",
        "NEXT",
        "LOOK",
        "HELD",
        "BY",
    ]
    assert row == (
        "n1    matched [dry-run]  Xid 79 on 0000:9b:00.0  p       p: step 1/2 cordon waiting"
        "  1m1s       budget: 1 of 1 in pool a"
    )
    assert row.index("1m1s") == head.index("NEXT LOOK")
    assert more == "... and 4 more nodes, for which there was no room"


def test_a_node_shows_what_comes_next_by_itself_and_when() -> None:
    node = NodeStatus(
        node="n1",
        phase="in-session",
        sentence="...",
        holds=(HoldStatus(policy="p", guard="recovery", reason="clear", look_again=NOW + 600),),
        dues=(DueStatus(policy="q", what="the wait is over", at=NOW + 240),),
    )
    row = lines(nodes=(node,))[-1]
    assert row.endswith("recovery: clear (in 10m); q: the wait is over in 4m")


def test_a_time_far_away_is_said_to_the_second() -> None:
    night = NOW + 5 * 3600 + 61
    held = HoldStatus(policy="p", guard="windows", reason="outside", look_again=night)
    row = lines(nodes=(NodeStatus(node="n1", phase="matched", sentence="...", holds=(held,)),))[-1]
    at = datetime.fromtimestamp(night, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    assert row.endswith(f"windows: outside (in 5h1m, {at})")


def test_a_table_of_one_column() -> None:
    assert table([("A",), ("b",)]) == ["A", "b"]
