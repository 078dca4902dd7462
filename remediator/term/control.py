"""What people tell the controller as a whole: pause, and the reset of a breaker.

Both stand in one ConfigMap. A pause is a level, taken in whenever it changes; a reset is
a request, answered once and then removed: one that stayed would close a later breaker, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from remediator.act.side import Side
from remediator.decide.facts import NodeFacts
from remediator.decide.work import claimed
from remediator.kube.configmap import ConfigMaps
from remediator.kube.errors import ApiError
from remediator.kube.lease import NotLeading
from remediator.kube.objects import ConfigMap
from remediator.kube.store import Store
from remediator.policy.model import Mode
from remediator.record.audited import audited
from remediator.record.control import CONTROL_CONFIGMAP, BreakerReset, read_control, reset_key


_log = structlog.get_logger(__name__)

RETRY_SECONDS: Final = 2.0


class Control:
    """Keeps both worlds in step with what people said.

    Args:
        store: mirrors the ConfigMap.
        configmaps: removes what was answered.
        real, virtual: the two worlds; their ledgers are told.
        changed: called when every node has to be looked at anew, and shown anew.
    """

    def __init__(
        self,
        *,
        store: Store[ConfigMap],
        configmaps: ConfigMaps,
        real: Side,
        virtual: Side,
        changed: Callable[[], None],
    ) -> None:
        self._store = store
        self._configmaps = configmaps
        self._real = real
        self._virtual = virtual
        self._changed = changed
        self._resets: dict[str, BreakerReset] = {}
        self._asked = asyncio.Event()
        self._answered: set[tuple[str, str]] = set()

    def follow(self) -> None:
        """Take in what stands there now, and every change of it."""
        self._take_in(None, self._store.get(CONTROL_CONFIGMAP))
        self._store.on_event(self._take_in)

    def may_write(self) -> bool:
        """Tell whether anything of ours beside sessions may be written to nodes, or deleted."""
        return self._real.ledger.cluster.mode is Mode.ENFORCE and not self.silent()

    def silent(self) -> bool:
        """Tell whether people said that nothing at all is to be sent."""
        pause = self._real.ledger.pause
        return pause is not None and pause.all

    def wanted(self, facts: NodeFacts | None) -> frozenset[str] | None:
        """Return the work that a node's session wants; None: nothing of it may be touched now."""
        return None if facts is None or not self.may_write() else claimed(facts)

    async def answer_resets(self) -> None:
        """Reset breakers that people asked for, once each, and remove the request."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            for source, reset in self._resets.items():
                if (source, reset.at) in self._answered:
                    continue
                self._answered.add((source, reset.at))
                _log.warning("breaker_reset", source=source, by=reset.by, keep=reset.keep)
                for side in (self._real, self._virtual):
                    side.ledger.reset_breaker(source, keep=reset.keep)
                self._changed()
            if not await self._remove({reset_key(one): None for one in self._resets}):
                await asyncio.sleep(RETRY_SECONDS)
                self._asked.set()

    def _take_in(self, _old: ConfigMap | None, new: ConfigMap | None) -> None:
        control = read_control(new.data if new is not None else {})
        for problem in control.problems:
            _log.error("control_unreadable", problem=problem)
        if control.pause != self._real.ledger.pause:
            _log.warning("pause", pause=str(control.pause) if control.pause else "none")
            for side in (self._real, self._virtual):
                side.ledger.pause = control.pause
            self._changed()
        self._resets = dict(control.resets)
        if self._resets:
            self._asked.set()

    async def _remove(self, keys: Mapping[str, None]) -> bool:
        known = self._store.get(CONTROL_CONFIGMAP)
        try:
            if keys and known is not None:
                before = {key: known.data.get(key) for key in keys}
                with audited(
                    "reset-breaker",
                    object=f"ConfigMap {CONTROL_CONFIGMAP}",
                    before=before,
                    after=dict(keys),
                ):
                    await self._configmaps.write(CONTROL_CONFIGMAP, keys, known=known)
        except (ApiError, NotLeading) as error:
            _log.warning("reset_not_removed", reason=str(error))
            return False
        return True
