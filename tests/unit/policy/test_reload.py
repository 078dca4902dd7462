"""Policies follow their files; a bad edit takes nothing away."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from remediator.policy.cluster import ClusterSpec
from remediator.policy.load import parse_config
from remediator.policy.problems import PolicyError, Problem
from remediator.policy.reload import PolicySet, PolicyWatcher, fold


CLUSTER = ClusterSpec()


def policy(name: str, *, mode: str = "DryRun", to: str = "log") -> str:
    return (
        "apiVersion: gpu-remediator.io/v1alpha1\n"
        "kind: RemediationPolicy\n"
        f"metadata: {{name: {name}}}\n"
        "spec:\n"
        f"  mode: {mode}\n"
        "  when: [{xid: {codes: [79]}}]\n"
        f"  steps: [{{notify: {{to: [{to}]}}}}]\n"
    )


def step(before: PolicySet, files: Mapping[str, str | PolicyError], now: float) -> PolicySet:
    contents = {
        name: text if isinstance(text, PolicyError) else text.encode()
        for name, text in files.items()
    }
    return fold(before, contents, cluster=CLUSTER, now=now)


def names(state: PolicySet) -> dict[str, str]:
    return {name: loaded.file for name, loaded in state.policies.items()}


def test_a_bad_file_does_not_disable_the_good_ones() -> None:
    state = step(PolicySet(), {"a": policy("a"), "b": policy("b", mode="Nope")}, 1.0)
    assert names(state) == {"a": "a"}
    assert [problem.path for problem in state.problems] == ["spec.mode"]
    assert state.files["b"].in_force is None
    ((file, text),) = state.problem_texts()
    assert file == "b"
    assert text.endswith("; not loaded")


def test_the_version_before_stays_in_force_after_a_bad_edit() -> None:
    first = step(PolicySet(), {"a": policy("a", mode="Enforce")}, 1.0)
    second = step(first, {"a": policy("a", mode="Nope")}, 2.0)
    assert second.policies == first.policies
    assert second.files["a"].stale
    assert second.problem_texts()[0][1].endswith("; the version before stays in force")
    third = step(second, {"a": policy("a", mode="Disabled")}, 3.0)
    assert third.policies["a"].policy.spec.mode == "Disabled"
    assert third.policies["a"].loaded_at == 3.0
    assert not third.problems


def test_a_bad_edit_taken_back_leaves_everything_as_it_was() -> None:
    first = step(PolicySet(), {"a": policy("a")}, 1.0)
    back = step(step(first, {"a": "mess: ["}, 2.0), {"a": policy("a")}, 3.0)
    assert back.policies == first.policies
    assert not back.problems


def test_a_removed_file_removes_its_policies_even_a_bad_one() -> None:
    first = step(PolicySet(), {"a": policy("a"), "b": policy("b")}, 1.0)
    bad = step(first, {"a": policy("a"), "b": "mess: ["}, 2.0)
    assert names(bad) == {"a": "a", "b": "b"}
    gone = step(bad, {"a": policy("a")}, 3.0)
    assert names(gone) == {"a": "a"}
    assert not gone.problems


def test_an_unreadable_file_keeps_its_version() -> None:
    first = step(PolicySet(), {"a": policy("a")}, 1.0)
    error = PolicyError([Problem(file="a", message="no permission to read it")])
    second = step(first, {"a": error}, 2.0)
    assert names(second) == {"a": "a"}
    assert second.problems == error.problems


def test_loaded_at_changes_with_the_meaning_only() -> None:
    first = step(PolicySet(), {"a": policy("a")}, 1.0)
    comment = step(first, {"a": "# new\n" + policy("a")}, 2.0)
    assert comment.policies["a"].loaded_at == 1.0
    moved = step(comment, {"z": policy("a")}, 3.0)
    assert names(moved) == {"a": "z"}
    assert moved.policies["a"].loaded_at == 1.0


def test_who_had_a_name_keeps_it() -> None:
    first = step(PolicySet(), {"b": policy("px")}, 1.0)
    second = step(first, {"a": policy("px", mode="Enforce"), "b": policy("px")}, 2.0)
    assert names(second) == {"px": "b"}
    assert second.policies["px"].policy.spec.mode == "DryRun"
    assert [problem.file for problem in second.problems] == ["a"]
    third = step(second, {"a": policy("px", mode="Enforce")}, 3.0)
    assert names(third) == {"px": "a"}


def test_of_two_new_files_the_first_has_the_name() -> None:
    state = step(PolicySet(), {"b": policy("px"), "a": policy("px")}, 1.0)
    assert names(state) == {"px": "a"}


def test_a_name_can_move_and_swap_between_files_in_one_edit() -> None:
    first = step(PolicySet(), {"a": policy("px"), "b": policy("py")}, 1.0)
    second = step(first, {"a": policy("py"), "b": policy("px")}, 2.0)
    assert names(second) == {"py": "a", "px": "b"}
    assert not second.problems


def test_a_file_that_falls_back_takes_its_names_back() -> None:
    """`a` gives up px but also claims py, which `c` has: it is refused, so px is still its own."""
    first = step(PolicySet(), {"a": policy("px"), "c": policy("py")}, 1.0)
    second = step(
        first,
        {"a": policy("py") + "---\n" + policy("pz"), "b": policy("px"), "c": policy("py")},
        2.0,
    )
    assert names(second) == {"px": "a", "py": "c"}
    assert {problem.file for problem in second.problems} == {"a", "b"}


def test_an_unknown_channel_keeps_the_file_out() -> None:
    state = step(PolicySet(), {"a": policy("a", to="pager")}, 1.0)
    assert not state.policies
    assert "pager is no channel" in state.problems[0].message
    cluster = parse_config(
        b"apiVersion: gpu-remediator.io/v1alpha1\nkind: RemediatorConfig\n"
        b"spec: {channels: {pager: {log: {}}}}",
        file="c",
    )
    contents = {"a": policy("a", to="pager").encode()}
    assert fold(PolicySet(), contents, cluster=cluster, now=1.0).policies


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def watcher(*paths: Path, clock: Clock | None = None) -> PolicyWatcher:
    return PolicyWatcher(paths=paths, cluster=CLUSTER, clock=clock or Clock())


def settle(watched: PolicyWatcher) -> PolicySet | None:
    """Two looks: a change counts when it was seen twice unchanged."""
    assert watched.look() is None
    return watched.look()


def test_the_watcher_takes_a_change_that_has_come_to_rest(tmp_path: Path) -> None:
    clock = Clock()
    (tmp_path / "a.yaml").write_text(policy("a"))
    watched = watcher(tmp_path, clock=clock)
    assert list(watched.load().policies) == ["a"]
    assert watched.look() is None
    clock.now = 200.0
    (tmp_path / "b.yaml").write_text(policy("b"))
    state = settle(watched)
    assert state is not None
    assert {name: one.loaded_at for name, one in state.policies.items()} == {"a": 100, "b": 200}
    assert watched.look() is None
    (tmp_path / "a.yaml").unlink()
    state = settle(watched)
    assert state is not None
    assert list(state.policies) == ["b"]


def test_a_file_that_is_being_written_is_not_read_half_way(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(policy("a") + "---\n" + policy("b"))
    watched = watcher(tmp_path)
    watched.load()
    path.write_text(policy("a"))  # half of it, as an editor may leave it for a moment
    assert watched.look() is None
    path.write_text(policy("a") + "---\n" + policy("b") + "# done\n")
    assert watched.look() is None
    state = watched.look()
    assert state is not None
    assert list(state.policies) == ["a", "b"]


def test_the_watcher_follows_a_configmap_mount(tmp_path: Path) -> None:
    """The kubelet writes a new folder and swaps the link `..data` to it."""

    def publish(version: str, **files: str) -> None:
        folder = tmp_path / f"..{version}"
        folder.mkdir()
        for name, text in files.items():
            (folder / f"{name}.yaml").write_text(text)
            link = tmp_path / f"{name}.yaml"
            if not link.is_symlink():
                link.symlink_to(Path("..data") / f"{name}.yaml")
        (tmp_path / "..data_tmp").symlink_to(folder.name)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    publish("v1", a=policy("a"))
    watched = watcher(tmp_path)
    assert list(watched.load().policies) == ["a"]
    publish("v2", a=policy("a", mode="Enforce"), b=policy("b"))
    state = settle(watched)
    assert state is not None
    assert state.policies["a"].policy.spec.mode == "Enforce"
    assert list(state.policies) == ["a", "b"]


def test_a_folder_that_is_gone_takes_nothing_away(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "a.yaml").write_text(policy("a"))
    watched = watcher(folder)
    watched.load()
    folder.rename(tmp_path / "away")
    state = settle(watched)
    assert state is not None
    assert list(state.policies) == ["a"]
    assert "no such file or folder" in state.problems[0].message
    (tmp_path / "away").rename(folder)
    state = settle(watched)
    assert state is not None
    assert list(state.policies) == ["a"]
    assert not state.problems


def test_a_dangling_link_is_a_problem_of_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(policy("a"))
    (tmp_path / "b.yaml").symlink_to("nowhere")
    state = watcher(tmp_path).load()
    assert list(state.policies) == ["a"]
    assert state.problems[0].message == "there is no such file"


async def test_changes_come_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(policy("a"))
    looks = asyncio.Semaphore(0)

    async def sleep(seconds: float) -> None:
        assert seconds == 1.0
        await looks.acquire()

    watched = PolicyWatcher(paths=[tmp_path], cluster=CLUSTER, clock=Clock(), sleep=sleep)
    watched.load()
    changes = aiter(watched.changes())
    (tmp_path / "b.yaml").write_text(policy("b"))
    looks.release()
    looks.release()
    state = await anext(changes)
    assert list(state.policies) == ["a", "b"]
    assert watched.current is state


async def test_a_refresh_does_not_wait_for_the_next_look(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(policy("a"))
    watched = watcher(tmp_path)
    watched.load()
    (tmp_path / "b.yaml").write_text(policy("b"))
    (tmp_path / "a.yaml").write_text("spec: {")  # half-written: takes nothing
    assert list((await watched.refresh()).policies) == ["a", "b"]
    (tmp_path / "a.yaml").unlink()
    assert list((await watched.refresh()).policies) == ["b"]
    assert watched.look() is None


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_does_not_exist_is_said_at_start(tmp_path: Path, kind: str) -> None:
    state = watcher(tmp_path / kind).load()
    assert not state.policies
    assert state.problem_texts()[0][0] == str(tmp_path / kind)


def test_policies_that_are_no_files_follow_the_same_rules(tmp_path: Path) -> None:
    file = str(tmp_path / "a.yaml")
    Path(file).write_text(policy("a"))
    others: list[Mapping[str, bytes] | None] = [None]
    seen = PolicyWatcher(
        paths=[tmp_path], cluster=CLUSTER, clock=Clock(), others=lambda: others[-1]
    )
    assert names(seen.load()) == {"a": file}
    assert seen.look() is None

    others.append({"object/b": policy("b").encode(), "object/a": policy("a").encode()})
    changed = seen.look()
    assert changed is not None
    assert names(changed) == {"a": file, "b": "object/b"}
    ((source, text),) = changed.problem_texts()
    assert source == "object/a"
    assert f"is in {file} already" in text

    others.append({"object/b": policy("b", mode="Nope").encode()})
    changed = seen.look()
    assert changed is not None
    assert names(changed)["b"] == "object/b"
    assert changed.files["object/b"].stale

    others.append(None)  # not seen now: nothing is taken
    assert seen.look() is None
    others.append({})
    changed = seen.look()
    assert changed is not None
    assert list(names(changed)) == ["a"]
