"""`pause`, `resume`, `breaker reset`: levels in ConfigMap gpu-remediator-control."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from remediator.cli.cluster import Target, on_cluster, who_am_i
from remediator.cli.failure import Failure
from remediator.cli.status import read_status
from remediator.cli.terminal import say
from remediator.decide.ledger import Pause
from remediator.kube.client import ApiClient
from remediator.kube.configmap import ConfigMaps
from remediator.kube.errors import Conflict
from remediator.record.control import (
    CONTROL_CONFIGMAP,
    PAUSE_KEY,
    BreakerReset,
    read_control,
    write_pause,
    write_reset,
)


_ATTEMPTS = 3


def pause(target: Target, *, everything: bool, reason: str) -> None:
    """Set the pause, in place of an earlier one."""

    async def work(api: ApiClient) -> None:
        by = await who_am_i(api)
        await _write(
            api, target, write_pause(Pause(by=by, at=_now(), reason=reason, all=everything))
        )

    on_cluster(target, work)
    scope = (
        "every write is stopped, also undo and recovery"
        if everything
        else "new disruptive steps are stopped; recovery, undo and messages go on"
    )
    say(f"paused: {scope}. `remediator resume` ends it.")


def resume(target: Target) -> None:
    """Remove the pause."""

    async def work(api: ApiClient) -> Pause | None:
        found = await ConfigMaps(api=api, namespace=target.namespace).read(CONTROL_CONFIGMAP)
        before = read_control(found.data).pause if found is not None else None
        if before is not None:
            await _write(api, target, {PAUSE_KEY: None})
        return before

    before = on_cluster(target, work)
    if before is None:
        say("there was no pause")
    else:
        why = f" ({before.reason})" if before.reason else ""
        say(f"resumed: the pause of {before.by} from {before.at}{why} has ended")


def reset_breaker(target: Target, *, source: str, keep: bool, reason: str) -> None:
    """Ask for a reset. A source that the status does not know is refused.

    Raises:
        Failure: there is no such breaker, with those there are.
    """

    async def work(api: ApiClient) -> bool:
        status = await read_status(api, target.namespace)
        known = {one.source for one in status.breakers} | {one.name for one in status.policies}
        if source not in known:
            names = ", ".join(sorted(known)) or "none"
            raise Failure(f"error: there is no breaker {source}; there are: {names}")
        by = await who_am_i(api)
        reset = BreakerReset(by=by, at=_now(), keep=keep, reason=reason)
        await _write(api, target, write_reset(source, reset))
        return any(one.open for one in status.breakers if one.source == source)

    if not on_cluster(target, work):
        say(f"asked for, but `remediator status` shows no open breaker {source}: nothing to close")
        return
    then = (
        "nodes that match now are handled"
        if keep
        else "nodes that match now are left alone until their fault clears and returns"
    )
    say(f"asked for: breaker {source} closes, {then}. See `remediator status`.")


async def _write(api: ApiClient, target: Target, data: Mapping[str, str | None]) -> None:
    """Change the keys; a write of somebody else in between is no reason to fail."""
    maps = ConfigMaps(api=api, namespace=target.namespace)
    for attempt in range(_ATTEMPTS):
        known = await maps.read(CONTROL_CONFIGMAP)
        try:
            await maps.write(CONTROL_CONFIGMAP, data, known=known)
        except Conflict:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return


def _now() -> str:
    return datetime.now(tz=UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
