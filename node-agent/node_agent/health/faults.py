"""One open fault, as it is remembered.

Times are seconds since the epoch on this node's clock: they leave the process and
survive a reboot. They are compared with each other and with an operator's time only.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from node_agent.contract import MAX_TIMES, Fault, FaultKind, Instance, Reason, Severity
from node_agent.health.rules import Clear, Rule, is_cleared_by, rule_for
from node_agent.xid.catalogue import Action
from node_agent.xid.episodes import FaultKey
from node_agent.xid.parse import RECOVERY_ACTION_CHANGED, XidReport


MAX_PODS: Final = 8


class Seen(msgspec.Struct, frozen=True):
    """Lines of one fault that stand together, and whether they open an episode.

    ``key`` names the fault that they belong to, which is not always the one of their own
    text: "fallen off the bus" beside an Xid 79 is that Xid. None: it is their own.
    ``first`` and ``last`` are epoch seconds. ``new_episode`` says whether they open one;
    ``lines`` is how many raw reports they are. ``source`` is the view that saw it. ``vague``:
    its verdict is a guess, since the source has no text, so it overrules nothing.
    ``pods`` are ``namespace/name`` of those that it hit.
    """

    report: XidReport
    first: float
    last: float
    new_episode: bool = True
    lines: int = 1
    root_cause: int | None = None
    key: FaultKey | None = None
    source: str = "kernel-log"
    vague: bool = False
    pods: tuple[str, ...] = ()


class OpenFault(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A fault that nothing has cleared yet.

    ``reason`` is set where the rule leaves it open. ``guessed``: no source has told more than
    a number yet.
    """

    kind: FaultKind
    severity: Severity
    first_seen: float
    last_seen: float
    pci: str = ""
    gpu: str = ""
    code: int | None = None
    subcode: str = ""
    gi: int | None = None
    ci: int | None = None
    action: str = ""
    application: bool = False
    reason: str = ""
    root_cause: int | None = None
    count: int = 1
    lines: int = 1
    times: tuple[float, ...] = ()
    boot_id: str = msgspec.field(default="", name="bootID")
    message: str = ""
    pid: int | None = None
    process: str = ""
    pods: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    guessed: bool = False

    @property
    def key(self) -> str:
        """Identity within the node, also across restarts."""
        parts = (self.kind, self.pci, self.code, self.subcode, self.gi, self.ci)
        return "|".join("" if part is None else str(part) for part in parts)

    @property
    def rule(self) -> Rule:
        """What this fault raises and what clears it."""
        return rule_for(
            kind=self.kind, code=self.code, subcode=self.subcode, severity=self.severity
        )

    def is_cleared_by(self, evidence: Clear) -> bool:
        """Whether this kind of evidence ends it."""
        return is_cleared_by(self.rule, evidence, action=self.action)

    def published(self, *, index: int | None = None) -> Fault:
        """As it stands in the annotation; ``index`` is NVML's number of the GPU now."""
        return Fault(
            kind=self.kind,
            severity=self.severity,
            first_seen=_utc(self.first_seen),
            last_seen=_utc(self.last_seen),
            pci=self.pci,
            gpu=self.gpu,
            index=index,
            code=self.code,
            subcode=self.subcode,
            action=self.action,
            count=self.count,
            lines=self.lines,
            times=tuple(_utc(time) for time in self.times),
            boot_id=self.boot_id,
            mig=None if self.gi is None else Instance(gi=self.gi, ci=self.ci),
            pods=self.pods,
            message=self.message,
            pid=self.pid,
            process=self.process,
            sources=self.sources,
        )


def opened(seen: Seen, *, boot_id: str) -> OpenFault:
    """The fault that its first lines open."""
    report = seen.report
    key = seen.key or FaultKey.of(report)
    return OpenFault(
        kind=key.kind,
        severity=report.severity,
        first_seen=seen.first,
        last_seen=seen.last,
        pci=report.pci,
        gpu=report.gpu_uuid,
        code=key.code,
        subcode=key.subcode,
        gi=key.gi,
        ci=key.ci,
        action=str(report.action),
        application=report.application,
        reason=str(report.recovery_reason or ""),
        root_cause=seen.root_cause,
        lines=seen.lines,
        times=(seen.first,),
        boot_id=boot_id,
        message=report.message,
        pid=report.pid,
        process=report.process,
        pods=seen.pods[:MAX_PODS],
        sources=(seen.source,),
        guessed=seen.vague,
    )


def seen_again(fault: OpenFault, seen: Seen, *, boot_id: str, window: float) -> OpenFault:
    """The same fault after more lines. Counts never fall, severity never drops.

    A source that was restarted cannot know that an episode was running: lines within
    ``window`` seconds of the last one belong to it, except for application errors, where
    another process makes another episode.
    """
    report = seen.report
    running = (
        boot_id == fault.boot_id
        and not report.application
        and seen.first - fault.last_seen <= window
    )
    new = seen.new_episode and not running
    worse = _RANK[report.severity] > _RANK[fault.severity] and not seen.vague
    # A source without text could only guess how bad it is; one that has the text knows.
    guessed = fault.guessed and not seen.vague
    newest = report if worse or guessed or report.recovery is not None else None
    return msgspec.structs.replace(
        fault,
        severity=report.severity if newest else fault.severity,
        action=str(report.action) if newest else fault.action,
        reason=str(report.recovery_reason or fault.reason),
        message=report.message if newest else fault.message,
        gpu=report.gpu_uuid or fault.gpu,
        last_seen=max(fault.last_seen, seen.last),
        count=fault.count + new,
        lines=fault.lines + seen.lines,
        times=(*fault.times, seen.first)[-MAX_TIMES:] if new else fault.times,
        boot_id=boot_id,
        pid=fault.pid if report.pid is None else report.pid,
        process=report.process or fault.process,
        pods=_pods(fault, seen, new=new),
        sources=fault.sources if seen.source in fault.sources else (*fault.sources, seen.source),
        guessed=fault.guessed and seen.vague,
    )


def _pods(fault: OpenFault, seen: Seen, *, new: bool) -> tuple[str, ...]:
    """The pods that the fault has hit, as more is told of it.

    A report of an application error that does not name the process may concern every pod on
    the GPU; one of the same episode that names it knows better, whichever comes first.
    """
    if seen.report.application and seen.pods and not new:
        if seen.report.pid is None and fault.pid is not None and fault.pods:
            return fault.pods
        if seen.report.pid is not None and fault.pid is None and fault.count == 1:
            return seen.pods[:MAX_PODS]
    return tuple(dict.fromkeys((*fault.pods, *seen.pods)))[:MAX_PODS]


def restored(fault: Fault) -> OpenFault:
    """What a fault of the annotation says about the state that was lost."""
    return OpenFault(
        kind=fault.kind,
        severity=fault.severity,
        first_seen=fault.first_seen.timestamp(),
        last_seen=fault.last_seen.timestamp(),
        pci=fault.pci,
        gpu=fault.gpu,
        code=fault.code,
        subcode=fault.subcode,
        gi=fault.mig.gi if fault.mig else None,
        ci=fault.mig.ci if fault.mig else None,
        action=fault.action,
        reason=_REASONS.get(fault.action, "") if fault.code == RECOVERY_ACTION_CHANGED else "",
        count=fault.count,
        lines=fault.lines,
        times=tuple(time.timestamp() for time in fault.times),
        boot_id=fault.boot_id,
        message=fault.message,
        pid=fault.pid,
        process=fault.process,
        pods=fault.pods,
        sources=fault.sources,
    )


# The annotation carries the action of an Xid 154, not its reason.
_REASONS: Final[dict[str, str]] = {
    Action.RESET_GPU: Reason.GPU_RESET,
    Action.RESTART_BM: Reason.NODE_REBOOT,
    Action.DRAIN_P2P: Reason.DRAIN_P2P,
    Action.DRAIN_AND_RESET: Reason.DRAIN_AND_RESET,
    Action.RECOVER_IMEX_DOMAIN: Reason.RECOVER_IMEX_DOMAIN,
}
_RANK: Final = {Severity.INFO: 0, Severity.WARNING: 1, Severity.FATAL: 2}


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(round(seconds, 3), tz=UTC)
