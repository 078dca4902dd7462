"""Policies that follow their files: what is loaded now, and the next state after a change.

`fold` is pure: from the state before and the bytes of all files to the state after.
Its rules:

- a file with an error changes nothing: its last good version stays in force, and the
  problem is shown until the file is good;
- a file that is gone takes its policies with it; a folder that is gone, or a file that
  cannot be read, is an error and takes nothing (a volume that is being mounted anew);
- of two files with a policy of one name, the one that had it keeps it;
- `loaded_at` is kept while a policy's meaning is unchanged, because guards take faults
  older than it for a backlog.

`PolicyWatcher` is the shell: it looks at modification times once a second. That costs
some 50 microseconds, works on every file system, and follows a Kubernetes ConfigMap
mount without a special case (its files are links through `..data`, which is swapped
whole; looking through the link sees another inode). inotify would see the link's
folder only. A change counts once it was seen twice unchanged, so that a file being
written is not read half-way.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from remediator.policy.cluster import ClusterSpec
from remediator.policy.files import find_files, read_text
from remediator.policy.load import ParsedFile, check_channels, check_names, parse_policies
from remediator.policy.model import RemediationPolicy
from remediator.policy.problems import PolicyError, Problem


POLL_SECONDS: Final = 1.0

Contents = Mapping[str, "bytes | PolicyError"]
"""Every file by its path: what it holds, or why it cannot be read."""


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy in force. `loaded_at`: when this version of it came into force."""

    policy: RemediationPolicy
    file: str
    loaded_at: float


@dataclass(frozen=True, slots=True)
class FileState:
    """One file: its version in force, if any, and what is wrong with the newest one.

    `digest` is of the newest version, `accepted_at` when the one in force was accepted.
    """

    file: str
    digest: str
    in_force: ParsedFile | None
    accepted_at: float
    problems: tuple[Problem, ...] = ()

    @property
    def stale(self) -> bool:
        """Tell whether an older version is in force because the newest has an error."""
        return bool(self.problems) and self.in_force is not None


@dataclass(frozen=True, slots=True)
class PolicySet:
    """Everything that is loaded. `general` are problems of no single file."""

    files: Mapping[str, FileState] = field(default_factory=dict)
    policies: Mapping[str, LoadedPolicy] = field(default_factory=dict)
    general: tuple[Problem, ...] = ()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems, in the order of the files."""
        return (*self.general, *(p for state in self.files.values() for p in state.problems))

    def problem_texts(self) -> list[tuple[str, str]]:
        """Return (file, sentence) of each file with an error, for status and log."""
        texts = [(problem.file, str(problem)) for problem in self.general]
        for state in self.files.values():
            if state.problems:
                more = f" (and {len(state.problems) - 1} more)" if len(state.problems) > 1 else ""
                kept = "the version before stays in force" if state.in_force else "not loaded"
                texts.append((state.file, f"{state.problems[0]}{more}; {kept}"))
        return texts


def fold(previous: PolicySet, contents: Contents, *, cluster: ClusterSpec, now: float) -> PolicySet:
    """Take in the files as they are now; see the module for the rules.

    Args:
        previous: the state before; an empty one at start.
        contents: every file there is, also unchanged ones.
        cluster: whose channels policies may name.
        now: seconds of the controller's clock.
    """
    found = {
        name: _parse(name, contents[name], previous.files.get(name), cluster)
        for name in sorted(contents)
    }
    refused = _refuse_taken_names(found, previous)
    states = {
        name: _accept(one, previous.files.get(name), refused.get(name, ()), now)
        for name, one in found.items()
    }
    return PolicySet(files=states, policies=_policies(states, previous, now))


def broken(previous: PolicySet, error: PolicyError) -> PolicySet:
    """The folder itself cannot be read: everything stays in force, and it is said."""
    return replace(previous, general=tuple(error.problems))


class _Parsed(NamedTuple):
    """The newest version of a file, judged by itself."""

    name: str
    digest: str
    parsed: ParsedFile | None
    problems: tuple[Problem, ...]


def _parse(
    name: str, content: bytes | PolicyError, before: FileState | None, cluster: ClusterSpec
) -> _Parsed:
    if isinstance(content, PolicyError):
        return _Parsed(name, "", None, tuple(content.problems))
    digest = hashlib.sha256(content).hexdigest()
    if before is not None and before.digest == digest and not before.problems:
        parsed = before.in_force
        problems = check_channels(parsed, cluster) if parsed else []
        return _Parsed(name, digest, parsed, tuple(problems))
    try:
        parsed = parse_policies(content, file=name)
    except PolicyError as error:
        return _Parsed(name, digest, None, tuple(error.problems))
    return _Parsed(name, digest, parsed, tuple(check_channels(parsed, cluster)))


def _refuse_taken_names(
    found: Mapping[str, _Parsed], previous: PolicySet
) -> dict[str, tuple[Problem, ...]]:
    """Return the files to be refused, each with its problems.

    A refused file falls back to its version in force, and so may claim a name that
    another newest version hoped for: repeated until nothing changes.
    """
    refused = {name: one.problems for name, one in found.items() if one.problems}
    while True:
        claims = {
            name: _in_force(previous, name) if name in refused else one.parsed
            for name, one in found.items()
        }
        owners = _owners(claims, previous)
        losers = {
            name: tuple(check_names(parsed, owners))
            for name, parsed in claims.items()
            if parsed is not None and name not in refused
        }
        if not any(losers.values()):
            return refused
        refused |= {name: problems for name, problems in losers.items() if problems}


def _in_force(previous: PolicySet, name: str) -> ParsedFile | None:
    state = previous.files.get(name)
    return state.in_force if state is not None else None


def _owners(claims: Mapping[str, ParsedFile | None], previous: PolicySet) -> dict[str, str]:
    """Give each name to the file that had it, if it still claims it, else to the first."""
    claimants: dict[str, list[str]] = {}
    for name, parsed in claims.items():
        for one in parsed.policies if parsed is not None else ():
            claimants.setdefault(one.policy.name, []).append(name)
    owners = {}
    for policy, files in claimants.items():
        before = previous.policies.get(policy)
        owners[policy] = before.file if before is not None and before.file in files else files[0]
    return owners


def _accept(
    found: _Parsed, before: FileState | None, problems: tuple[Problem, ...], now: float
) -> FileState:
    """Put the newest version in force, or keep the one before and say why."""
    if problems or found.parsed is None:
        in_force = before.in_force if before is not None else None
        at = before.accepted_at if before is not None else now
        return FileState(found.name, found.digest, in_force, at, problems)
    unchanged = before is not None and before.digest == found.digest and not before.problems
    at = before.accepted_at if before is not None and unchanged else now
    return FileState(found.name, found.digest, found.parsed, at)


def _policies(
    states: Mapping[str, FileState], previous: PolicySet, now: float
) -> dict[str, LoadedPolicy]:
    policies: dict[str, LoadedPolicy] = {}
    for name, state in states.items():
        for one in state.in_force.policies if state.in_force else ():
            before = previous.policies.get(one.policy.name)
            same = before is not None and before.policy.version == one.policy.version
            at = before.loaded_at if before is not None and same else now
            policies.setdefault(one.policy.name, LoadedPolicy(one.policy, name, at))
    return dict(sorted(policies.items()))


class PolicyWatcher:
    """Keeps a `PolicySet` in step with files and folders.

    Args:
        paths: policy files and folders of them.
        cluster: whose channels policies may name.
        clock: seconds of the controller's clock, as in facts.
        others: policies that are no files, as though they were, by a name that says where they
            are; the same rules hold. Called in the loop; None: nothing is known of them yet.
        poll: seconds between two looks.
        sleep: waits; injected for tests.
    """

    def __init__(
        self,
        *,
        paths: Sequence[Path],
        cluster: ClusterSpec,
        clock: Callable[[], float],
        others: Callable[[], Contents | None] = dict,
        poll: float = POLL_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._paths = tuple(paths)
        self._cluster = cluster
        self._clock = clock
        self._others = others
        self._other: Contents = {}
        self._poll = poll
        self._sleep = sleep
        self._taken: Stamps | None = None
        self._seen: Stamps | None = None
        self._reading = asyncio.Lock()
        self.current = PolicySet()

    def load(self) -> PolicySet:
        """Read everything now, whatever the times say. Blocks for the reading."""
        return self._load(self._others())

    async def use(self, cluster: ClusterSpec) -> PolicySet:
        """Read everything anew with other settings of the cluster, while `changes` goes on."""
        self._cluster = cluster
        return await self.refresh()

    async def refresh(self) -> PolicySet:
        """Read everything now, as `load` does, while `changes` goes on.

        Not waited for until it came to rest: who asks, acts on it now. A file that is half-written
        is an error, which takes nothing, and is read again.
        """
        async with self._reading:
            return await asyncio.to_thread(self._load, self._others())

    def _load(self, others: Contents | None) -> PolicySet:
        """Read the files, and take the others as they were last known."""
        self._other = self._other if others is None else others
        self._taken = self._seen = stamps(self._paths)
        try:
            contents = {str(path): _content(path) for path in find_files(self._paths)}
            contents |= self._other
        except PolicyError as error:
            self.current = broken(self.current, error)
        else:
            self.current = fold(self.current, contents, cluster=self._cluster, now=self._clock())
        return self.current

    def look(self) -> PolicySet | None:
        """Look once: the new state if a change has come to rest, else None. Blocks for I/O."""
        return self._look(self._others())

    def _look(self, others: Contents | None) -> PolicySet | None:
        now = stamps(self._paths)
        settled = now == self._seen
        self._seen = now
        same = now == self._taken and (others is None or others == self._other)
        if not settled or same:
            return None
        before = self.current
        after = self._load(others)
        return None if after == before else after

    async def changes(self) -> AsyncIterator[PolicySet]:
        """Yield the state after each change, forever. `load` comes first."""
        while True:
            await self._sleep(self._poll)
            async with self._reading:
                changed = await asyncio.to_thread(self._look, self._others())
            if changed is not None:
                yield changed


Stamps = tuple[tuple[str, int, int, int, int], ...]
"""Per file: path, inode, size, modification and change time in ns."""


def stamps(paths: Iterable[Path]) -> Stamps:
    """Look at the files without reading them. Never raises: what is amiss shows when reading."""
    try:
        files = find_files(paths)
    except PolicyError as error:
        return ((str(error), 0, 0, 0, 0),)
    found = []
    for path in files:
        try:
            about = path.stat()
        except OSError as error:
            found.append((f"{path}: {error}", 0, 0, 0, 0))
        else:
            found.append(
                (str(path), about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
            )
    return tuple(found)


def _content(path: Path) -> bytes | PolicyError:
    try:
        return read_text(path)
    except PolicyError as error:
        return error
