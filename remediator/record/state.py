"""What guards remember, kept in ConfigMap ``gpu-remediator-state`` over restarts.

Sessions, and so the budget, are on the nodes. Here is the rest: recent starts (rates),
recent new matches, open breakers and what a breaker reset dropped, these of dry-run, too; work
that is suspended. Written behind, at most once a second; of a crash within that second at most
one second's starts are forgotten, which the budget still bounds, and suspended work gets its
whole time again.

If there is no such ConfigMap, nothing was ever started: the guards begin empty.

If there is one that cannot be read (damaged, or of a newer version), what was started is
*unknown*, and unknown is neither none nor for ever. Then every rate counts as used up now,
in every pool: starts wait for one window of their rate (10 minutes by default) and go
on. Open breakers cannot be known and are not invented, because only people could close
them again; until then the budget bounds what may happen. The unreadable text is kept
under another key, and people are told by log, status and metric.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Final, NamedTuple

import msgspec
import structlog

from remediator.decide.ledger import Ledger, LedgerState
from remediator.decide.storms import Recent
from remediator.kube.backoff import Backoff
from remediator.kube.errors import Transient
from remediator.record.writebehind import ConfigMapStore, Document, WriteBehind, beginning


STATE_CONFIGMAP: Final = "gpu-remediator-state"
STATE_KEY: Final = "ledger.json"
DRY_RUN_KEY: Final = "dry-run.json"
"""What the breakers of dry-run remember. Its sessions begin anew, and so do its rates."""
UNREADABLE_KEY: Final = "ledger.json.unreadable"
STATE_VERSION: Final = 1
STATE_INTERVAL: Final = 1.0
MAX_BYTES: Final = 900_000
"""Of both states; a ConfigMap holds 1 MiB, `MAX_KEPT` of it perhaps of an unreadable one."""
MAX_KEPT: Final = 64 * 1024
"""Bytes kept of an unreadable state."""

_log = structlog.get_logger(__name__)


class Loaded(NamedTuple):
    """What was found at start.

    ``state`` None: nothing there (``problem`` ""), or unreadable (``problem`` says why).
    ``dry_run`` is that of the other world; None: nothing there, or unreadable, which stops nobody.
    """

    state: LedgerState | None
    problem: str = ""
    dry_run: LedgerState | None = None


NOTHING_LOADED: Final = Loaded(None)


class LedgerMemory:
    """Loads the ledger's state when we begin to lead, and keeps it while we do.

    Args:
        configmaps: the ConfigMaps of our namespace, with the lease as their check.
        sleep: waits between attempts to load.
        rng: jitter.
    """

    def __init__(
        self,
        *,
        configmaps: ConfigMapStore,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: Random | None = None,
    ) -> None:
        self._document = Document(configmaps, STATE_CONFIGMAP)
        self._sleep = sleep
        self._rng = rng or Random()  # noqa: S311 - jitter
        self._writer: WriteBehind[tuple[LedgerState, ...]] | None = None
        self._ledgers: tuple[Ledger, ...] = ()
        self._unreadable: str | None = None

    async def load(self) -> Loaded:
        """Read the state; while the API server does not answer, wait: nothing can be done anyway.

        Raises:
            ApiError: it answers, and refuses (RBAC, say); only people can help.
        """
        data = await self._read()
        loaded = decode_states(data)
        if loaded.problem:
            _log.error("state_unreadable", kept_as=UNREADABLE_KEY, reason=loaded.problem)
            self._unreadable = beginning(data[STATE_KEY], MAX_KEPT)
        return loaded

    async def _read(self) -> Mapping[str, str]:
        backoff = Backoff(base=0.5, cap=30.0, rng=self._rng)
        while True:
            try:
                return await self._document.read()
            except Transient as error:
                _log.warning("state_not_read_yet", reason=str(error))
                await self._sleep(backoff.next())

    @property
    def problem(self) -> str:
        """Why the last write failed, "" if it did not."""
        return "" if self._writer is None else self._writer.problem

    def keep(self, ledger: Ledger, dry_run: Ledger | None = None) -> None:
        """Keep this ledger from now on, and what the breakers of dry-run's remember."""
        self._ledgers = (ledger,) if dry_run is None else (ledger, dry_run)
        self._writer = WriteBehind(
            document=self._document,
            snapshot=self._states,
            encode=self._encode,
            interval=STATE_INTERVAL,
            rng=self._rng,
        )
        if self._unreadable is not None:
            self._writer.touch()

    def touch(self) -> None:
        """Call after decisions: writes if the ledger says that it changed."""
        changed = [ledger.take_changed() for ledger in self._ledgers]
        if self._writer is not None and any(changed):
            self._writer.touch()

    def _states(self) -> tuple[LedgerState, ...]:
        real, *others = self._ledgers
        return (real.state(), *(one.state().of_breakers for one in others))

    async def run(self) -> None:
        """Write until cancelled. Call `keep` first."""
        if self._writer is None:
            raise RuntimeError("LedgerMemory.run before keep")
        await self._writer.run()

    async def flush(self, timeout: float = 2.0) -> bool:  # noqa: ASYNC109
        """Write the last state before an orderly end."""
        return self._writer is None or await self._writer.flush(timeout)

    def _encode(self, states: tuple[LedgerState, ...]) -> Mapping[str, str | None]:
        """The unreadable text moves in the same write that replaces it: it is never lost."""
        texts: dict[str, str | None] = dict.fromkeys((STATE_KEY, DRY_RUN_KEY)[: len(states)])
        for key, state in zip((STATE_KEY, DRY_RUN_KEY), fitted(states), strict=False):
            texts[key] = msgspec.json.encode(state).decode()
        if self._unreadable is not None:
            texts[UNREADABLE_KEY] = self._unreadable
        return texts


def fitted(states: tuple[LedgerState, ...], *, limit: int = MAX_BYTES) -> tuple[LedgerState, ...]:
    """Leave out what matters least until it fits: what is too long is not written at all.

    First what dry-run remembers, then new matches, the oldest first. What was started, opened and
    dropped stays: to forget that would let something begin that must not.
    """
    real, *others = states
    while sum(len(msgspec.json.encode(one)) for one in (real, *others)) > limit:
        if others:
            others = []
        elif real.recent:
            real = msgspec.structs.replace(real, recent=_newer_half(real.recent))
        else:
            break
    return (real, *others)


def _newer_half(recent: Mapping[str, Mapping[str, Recent]]) -> dict[str, dict[str, Recent]]:
    found = [
        (one.at, policy, uid) for policy, nodes in recent.items() for uid, one in nodes.items()
    ]
    kept: dict[str, dict[str, Recent]] = {}
    for _, policy, uid in sorted(found)[(len(found) + 1) // 2 :]:
        kept.setdefault(policy, {})[uid] = recent[policy][uid]
    return kept


def decode_states(data: Mapping[str, str]) -> Loaded:
    """Read the ConfigMap's data: what the guards of both worlds remember."""
    text, dry_run = data.get(STATE_KEY), _dry_run_of(data)
    loaded = NOTHING_LOADED if text is None else decode_state(text)
    return loaded._replace(dry_run=dry_run)


def decode_state(text: str) -> Loaded:
    """Read a state's JSON; a problem is returned, not raised."""
    try:
        version = msgspec.json.decode(text, type=_Versioned).version
        if version != STATE_VERSION:
            return Loaded(
                None, f"it is of version {version}, this program knows version {STATE_VERSION}"
            )
        return Loaded(msgspec.json.decode(text, type=LedgerState))
    except (msgspec.DecodeError, RecursionError) as error:
        return Loaded(None, f"it is damaged: {error}")


def _dry_run_of(data: Mapping[str, str]) -> LedgerState | None:
    """Read what the breakers of dry-run remembered; if that is lost, they begin anew."""
    text = data.get(DRY_RUN_KEY)
    if text is None:
        return None
    loaded = decode_state(text)
    if loaded.problem:
        _log.warning("dry_run_state_unreadable", reason=loaded.problem)
    return loaded.state


def restore(ledger: Ledger, loaded: Loaded, *, now: float, dry_run: Ledger | None = None) -> None:
    """Give the ledger its memory back, or, if that is unknown, count every rate as used up.

    Args:
        ledger: empty, of the real world.
        dry_run: empty, of the other one.
        loaded: from `LedgerMemory.load`.
        now: epoch seconds.
    """
    if dry_run is not None and loaded.dry_run is not None:
        dry_run.restore(not_after(loaded.dry_run, now))
    if loaded.state is not None:
        ledger.restore(not_after(loaded.state, now))
    elif loaded.problem:
        ledger.restore(LedgerState(lost=now))


def not_after(state: LedgerState, now: float) -> LedgerState:
    """Move times out of the future: a clock that ran ahead must not block for ever."""
    starts = {key: tuple(min(at, now) for at in times) for key, times in state.starts.items()}
    recent = {
        policy: {uid: one._replace(at=min(one.at, now)) for uid, one in nodes.items()}
        for policy, nodes in state.recent.items()
    }
    lost = None if state.lost is None else min(state.lost, now)
    return msgspec.structs.replace(state, lost=lost, starts=starts, recent=recent)


class _Versioned(msgspec.Struct):
    version: int = STATE_VERSION
