"""The state of this node while the agent runs: evidence comes in, the latest state goes out.

The one place that holds the current :class:`NodeHealth`. It asks the pure functions of
``health`` what each piece of evidence means and tells one listener that something changed.
Everything happens on the event loop, in the order in which evidence comes, so that no lock
is needed; the clock is injected.

The first full check is over when the log of this boot was replayed (or cannot be read), PCI
was scanned (or cannot be) and NVML has answered (or does not): before that
:attr:`Monitor.checked` is False and nothing is published, because a half-read log would show
a sick node as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from node_agent.contract import SET_HEALTHY_ANNOTATION
from node_agent.health.conditions import View, ViewState, describe
from node_agent.health.fold import (
    Evidence,
    identify,
    missing_devices,
    next_look,
    observe,
    restore,
    scanned,
    settle,
)
from node_agent.health.levels import LevelJudge, lost_to_nvml
from node_agent.health.merge import TEXT_DECIDES, Merger, Report
from node_agent.health.operator import SetHealthy, TimeError, parse_time, set_healthy
from node_agent.nvml.model import NvmlState, NvmlView
from node_agent.publish.journal import FaultJournal
from node_agent.publish.standing import on_node
from node_agent.sources.nvml_events import xid_report
from node_agent.xid.episodes import Source
from node_agent.xid.parse import RECOVERY_ACTION_CHANGED


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from structlog.typing import FilteringBoundLogger

    from node_agent.contract import FaultReport
    from node_agent.health.faults import Seen
    from node_agent.health.state import NodeHealth
    from node_agent.health.store import Loaded
    from node_agent.nvml.model import NvmlEvent
    from node_agent.publish.node_api import NodeView
    from node_agent.sources.kernel_log import Batch, Sighting, SourceState
    from node_agent.sources.pci_sysfs import Device
    from node_agent.sources.tracepoint import TraceReport
    from node_agent.xid.catalogue import Catalogue
    from node_agent.xid.parse import XidReport

NOT_YET: Final = "not looked at yet"
_LIVE_SECONDS: Final = 15.0
"""A line that is older than this is history: its process is gone, its lag means nothing."""
_RESTART_SECONDS: Final = 30.0


class Monitor:
    """Takes evidence, keeps the state.

    Args:
        loaded: what the state file held.
        boot_id: this kernel's boot id; empty if unknown.
        expected_gpus: how many GPUs there must be; 0: as many as were ever seen.
        info_age: seconds after which informational faults are forgotten.
        catalogue: what codes and recovery actions mean.
        pods_of: the pods (``namespace/name``) that a fault of now has hit.
        wall: seconds since the epoch.
        changed: called after each change of the state or of a view.
        say: an Event for people: ``(type, reason, message)``.
        log: the agent's own log.
    """

    def __init__(
        self,
        *,
        loaded: Loaded,
        boot_id: str,
        expected_gpus: int,
        info_age: float,
        catalogue: Catalogue,
        pods_of: Callable[[XidReport], tuple[str, ...]] = lambda _: (),
        wall: Callable[[], float],
        changed: Callable[[], None],
        say: Callable[[str, str, str], None],
        log: FilteringBoundLogger,
    ) -> None:
        self.health: NodeHealth = msgspec.structs.replace(loaded.health, boot_id=boot_id)
        self.views: dict[View, ViewState] = dict.fromkeys(View, ViewState(up=False, reason=NOT_YET))
        self.devices: tuple[Device, ...] = ()
        self.kubelet_boot_id = ""
        self._expected_gpus = expected_gpus
        self._info_age = info_age
        self._wall = wall
        self._changed = changed
        self._say = say
        self._log = log
        self._journal = FaultJournal(known=self.health.faults, log=log)
        self._catalogue = catalogue
        self.merger = Merger(pods_of=pods_of)
        """What the sources of Xids have told, as one count."""
        self._judge = LevelJudge(catalogue=catalogue)
        self.nvml = NvmlView()
        self._replayed = False
        self._log_state: SourceState | None = None
        self._to_restore = loaded.fresh
        self._report: FaultReport | None = None
        self._said_about = ""
        self.set_view(View.BOOT_ID, "" if boot_id else "this boot's id cannot be read")

    # -- evidence --------------------------------------------------------------------------

    def take_batch(self, batch: Batch) -> None:
        """Lines of the kernel log."""
        health = identify(self.health, batch.identities)
        now = self._wall()
        seen = [one for s in batch.sightings for one in self._merged(_of_log(s, now))]
        health = observe(health, seen, boot_id=health.boot_id)
        if batch.position is not None:
            health = msgspec.structs.replace(health, position=batch.position)
        if batch.caught_up and not self._replayed:
            self._replayed = True
            self._judge_log()
        self._take(health)

    def take_log_state(self, state: SourceState) -> None:
        """The kernel log began or ceased to work."""
        self._log_state = state
        self._judge_log()
        self._take(self.health)

    def take_nvml(self, view: NvmlView) -> None:
        """What NVML shows now."""
        self.nvml = view
        if view.state is not NvmlState.STARTING:
            self._judge_nvml_view(view)
        health = identify(self.health, ((d.pci, d.uuid) for d in view.devices))
        self._take(self._judge.take(health, view, on_pci=self.devices, now=self._wall()))

    def take_nvml_event(self, event: NvmlEvent) -> None:
        """An event of the driver, as NVML tells it."""
        pci = next((d.pci for d in self.nvml.devices if d.uuid == event.uuid), "")
        report = xid_report(event, pci=pci, catalogue=self._catalogue)
        if report is None or not pci:
            return
        reading = self.nvml.readings.get(event.uuid)
        levels = reading.values if reading is not None else {}
        if report.code == RECOVERY_ACTION_CHANGED and "recovery_action" in levels:
            return  # the level itself is read, and says which action
        self._take_report(
            Report(
                report,
                event.at,
                event.at,
                Source.NVML,
                self._wall(),
                partial=True,
                vague=True,
                incomplete=report.code in TEXT_DECIDES,
            )
        )

    def take_trace(self, traced: TraceReport) -> None:
        """A report of the driver's tracepoint."""
        pci = traced.report.pci
        has_mig = next((d.mig_enabled for d in self.nvml.devices if d.pci == pci), False)
        self._take_report(
            Report(
                traced.report,
                traced.at,
                traced.at,
                Source.TRACEPOINT,
                self._wall(),
                partial=bool(has_mig),
                incomplete=bool(has_mig),
            )
        )

    def take_scan(self, devices: Iterable[Device]) -> None:
        """What is on PCI now."""
        self.devices = tuple(devices)
        self.set_view(View.PCI, "")
        self._take(self.would_be(self.devices))

    def take_scan_failure(self, reason: str) -> None:
        """PCI cannot be looked at."""
        self.devices = ()
        self.set_view(View.PCI, reason)
        self._take(self.health)

    def would_be(self, devices: Iterable[Device]) -> NodeHealth:
        """The state if this scan is believed."""
        return scanned(self.health, devices, expected_gpus=self._expected_gpus, now=self._wall())

    def take_node(self, view: NodeView) -> None:
        """The Node as the API server shows it: the kubelet's boot id, an operator's word."""
        self.kubelet_boot_id = view.boot_id
        if self._to_restore and self._report is None:
            self._report = on_node(view).report()
            self._to_restore = self._report is not None
        self._take(self.health)
        text = view.annotations.get(SET_HEALTHY_ANNOTATION, "")
        if text and text != self.health.answered and not self._to_restore:
            self._operator_annotation(text)

    def set_healthy(self, before: float) -> SetHealthy:
        """An operator's word, already read as epoch seconds."""
        answer = set_healthy(self.health, before, now=self._wall())
        self.merger.end(answer.cleared)
        if answer.cleared:
            self._log.info("declared healthy", cleared=[describe(f) for f in answer.cleared])
        self._take(answer.health)
        return answer

    def look(self) -> None:
        """Time has passed."""
        now = self._wall()
        seen = self.merger.due(now, log_works=self.views[View.KERNEL_LOG].up)
        health = observe(self.health, seen, boot_id=self.health.boot_id)
        self._take(self._judge.take(health, self.nvml, on_pci=self.devices, now=now))

    def set_view(self, view: View, reason: str, *, absent: bool = False) -> None:
        """Record whether a view works (empty reason: it does), and say so once if that is new."""
        state = ViewState(up=not reason, reason=reason, absent=absent)
        before = self.views[view]
        if state == before:
            return
        self.views[view] = state
        if absent:
            self._log.info("a view is not there", view=view.value, reason=reason)
        elif not state.up and reason != NOT_YET:
            self._log.warning("a view is off; the rest goes on", view=view.value, reason=reason)
        elif state.up and before.reason != NOT_YET:
            self._log.info("a view works again", view=view.value)

    # -- the present -----------------------------------------------------------------------

    @property
    def checked(self) -> bool:
        """Whether the first full check is over."""
        views = (View.KERNEL_LOG, View.PCI, View.NVML)
        return all(self.views[view].reason != NOT_YET for view in views)

    @property
    def indexes(self) -> dict[str, int]:
        """NVML's numbers of the GPUs that it shows now, by PCI address."""
        return {device.pci: device.index for device in self.nvml.devices}

    @property
    def wants_node(self) -> bool:
        """Whether the Node may soon say something that matters: a fault is open."""
        waits_for_kubelet = self.health.boot_id != self.kubelet_boot_id and bool(self.health.faults)
        return self.health.has_serious_faults or self.health.forgotten or waits_for_kubelet

    @property
    def next_look(self) -> float | None:
        """When :meth:`look` is next needed, in epoch seconds."""
        ages = (
            next_look(self.health, info_age=self._info_age),
            self.merger.next_due,
            self._judge.next_due,
        )
        return min((at for at in ages if at is not None), default=None)

    # -- inside ----------------------------------------------------------------------------

    def _take(self, health: NodeHealth) -> None:
        if self._report is not None and self.checked:
            health = restore(health, self._report)
            self._report, self._to_restore = None, False
        evidence = Evidence(
            boot_id=health.boot_id,
            kubelet_boot_id=self.kubelet_boot_id,
            replayed=self.views[View.KERNEL_LOG].up,
            all_present=self._all_present(health),
        )
        self.health = settle(health, evidence, now=self._wall(), info_age=self._info_age)
        self._journal.observe(self.health.faults, now=self._wall())
        self._changed()

    def _all_present(self, health: NodeHealth) -> bool | None:
        """Whether every expected device is there and answers, as far as that can be told."""
        if missing_devices(health) or lost_to_nvml(health):
            return False
        nvml = self.views[View.NVML]
        if not self.views[View.PCI].up or not self.devices or not (nvml.up or nvml.absent):
            return None
        return True

    def _take_report(self, report: Report) -> None:
        seen = self._merged(report)
        self._take(observe(self.health, seen, boot_id=self.health.boot_id))

    def _merged(self, report: Report) -> list[Seen]:
        return self.merger.take(report, log_works=self.views[View.KERNEL_LOG].up)

    def _judge_nvml_view(self, view: NvmlView) -> None:
        if view.state is NvmlState.OK:
            self.set_view(View.NVML, "")
            return
        fresh = self._wall() - view.since < _RESTART_SECONDS
        if view.state is NvmlState.RESTARTING and fresh and self.views[View.NVML].up:
            return  # a new child is a matter of a second; nobody has to hear of it
        never = view.state in {NvmlState.NO_LIBRARY, NvmlState.NO_ACCESS} and not self.health.nvml
        self.set_view(View.NVML, f"{view.state}: {view.why}".rstrip(": "), absent=never)

    def _judge_log(self) -> None:
        state = self._log_state
        if state is None:
            return
        if not state.working:
            self.set_view(View.KERNEL_LOG, f"{state.source}: {state.reason}")
        elif self._replayed:
            self.set_view(View.KERNEL_LOG, "")

    def _operator_annotation(self, text: str) -> None:
        ahead = False
        try:
            before = parse_time(text)
            ahead = before > self._wall()
            refusal = self.set_healthy(before).refusal
        except TimeError as error:
            refusal = str(error)
        if not refusal and not ahead:
            return
        # Not again when its time has come: it would clear faults that nobody has seen yet.
        self.health = msgspec.structs.replace(self.health, answered=text)
        self._changed()
        if refusal:
            message = f"{SET_HEALTHY_ANNOTATION}: {text!r} is refused: {refusal}"
            self._log.warning("set-healthy refused", value=text, reason=refusal)
            self._say("Warning", "SetHealthyRefused", message)


def _of_log(sighting: Sighting, now: float) -> Report:
    return Report(
        sighting.report,
        sighting.first_wall,
        sighting.last_wall,
        Source.KERNEL_LOG,
        now,
        lines=sighting.lines,
        live=now - sighting.last_wall < _LIVE_SECONDS,
    )
