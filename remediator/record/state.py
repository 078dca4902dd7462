"""What guards remember, kept in ConfigMap ``gpu-remediator-state`` over restarts.

Sessions, and so the budget, are on the nodes. Here is the rest: recent starts (rates),
open breakers, what a breaker reset dropped, work that is suspended. Written behind, at most
once a second; of a crash within that second at most one second's starts are forgotten, which
the budget still bounds, and suspended work gets its whole time again.

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
from collections.abc import Awaitable, Callable, Iterable, Mapping
from random import Random
from typing import Final, NamedTuple

import msgspec
import structlog

from remediator.decide.ledger import Ledger, LedgerState
from remediator.kube.backoff import Backoff
from remediator.kube.errors import Transient
from remediator.policy.model import RATED, Rates
from remediator.record.writebehind import ConfigMapStore, Document, WriteBehind


STATE_CONFIGMAP: Final = "gpu-remediator-state"
STATE_KEY: Final = "ledger.json"
UNREADABLE_KEY: Final = "ledger.json.unreadable"
STATE_VERSION: Final = 1
STATE_INTERVAL: Final = 1.0
MAX_KEPT: Final = 64 * 1024
"""Characters kept of an unreadable state."""

_log = structlog.get_logger(__name__)


class Loaded(NamedTuple):
    """What was found at start.

    ``state`` None: nothing there (``problem`` ""), or unreadable (``problem`` says why).
    """

    state: LedgerState | None
    problem: str = ""


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
        self._writer: WriteBehind[LedgerState] | None = None
        self._ledger: Ledger | None = None
        self._unreadable: str | None = None

    async def load(self) -> Loaded:
        """Read the state; while the API server does not answer, wait: nothing can be done anyway.

        Raises:
            ApiError: it answers, and refuses (RBAC, say); only people can help.
        """
        text = (await self._read()).get(STATE_KEY)
        if text is None:
            return Loaded(None)
        loaded = decode_state(text)
        if loaded.problem:
            _log.error("state_unreadable", kept_as=UNREADABLE_KEY, reason=loaded.problem)
            self._unreadable = text[:MAX_KEPT]
        return loaded

    async def _read(self) -> Mapping[str, str]:
        backoff = Backoff(base=0.5, cap=30.0, rng=self._rng)
        while True:
            try:
                return await self._document.read()
            except Transient as error:
                _log.warning("state_not_read_yet", reason=str(error))
                await self._sleep(backoff.next())

    def keep(self, ledger: Ledger) -> None:
        """Keep this ledger from now on."""
        self._ledger = ledger
        self._writer = WriteBehind(
            document=self._document,
            snapshot=ledger.state,
            encode=self._encode,
            interval=STATE_INTERVAL,
            rng=self._rng,
        )
        if self._unreadable is not None:
            self._writer.touch()

    def touch(self) -> None:
        """Call after decisions: writes if the ledger says that it changed."""
        if self._writer is not None and self._ledger is not None and self._ledger.take_changed():
            self._writer.touch()

    async def run(self) -> None:
        """Write until cancelled. Call `keep` first."""
        if self._writer is None:
            raise RuntimeError("LedgerMemory.run before keep")
        await self._writer.run()

    async def flush(self, timeout: float = 2.0) -> bool:  # noqa: ASYNC109
        """Write the last state before an orderly end."""
        return self._writer is None or await self._writer.flush(timeout)

    def _encode(self, state: LedgerState) -> Mapping[str, str | None]:
        """The unreadable text moves in the same write that replaces it: it is never lost."""
        texts: dict[str, str | None] = {STATE_KEY: msgspec.json.encode(state).decode()}
        if self._unreadable is not None:
            texts[UNREADABLE_KEY] = self._unreadable
        return texts


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


def restore(
    ledger: Ledger,
    loaded: Loaded,
    *,
    pools: Iterable[str],
    rates: Iterable[tuple[str, Rates]],
    now: float,
) -> None:
    """Give the ledger its memory back, or, if that is unknown, count every rate as used up.

    Args:
        ledger: empty, of the real world.
        loaded: from `LedgerMemory.load`.
        pools: names of all pools ("" is that of nodes without the label).
        rates: owner and rates: ("", the cluster's), (policy name, its own), ...
        now: epoch seconds.
    """
    if loaded.state is not None:
        ledger.restore(not_after(loaded.state, now))
    elif loaded.problem:
        ledger.restore(used_up(pools=pools, rates=rates, now=now))


def not_after(state: LedgerState, now: float) -> LedgerState:
    """Move starts out of the future: a clock that ran ahead must not block for ever."""
    starts = {key: tuple(min(at, now) for at in times) for key, times in state.starts.items()}
    return msgspec.structs.replace(state, starts=starts)


def used_up(*, pools: Iterable[str], rates: Iterable[tuple[str, Rates]], now: float) -> LedgerState:
    """Return a state in which no rate has room until its window has passed."""
    names = tuple(pools)
    return LedgerState(
        starts={
            f"{action} {pool} {owner}": (now,) * rate.starts
            for owner, own in rates
            for action in RATED
            if (rate := own.of(action)) is not None
            for pool in names
        },
    )


class _Versioned(msgspec.Struct):
    version: int = STATE_VERSION
