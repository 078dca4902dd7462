"""``node-agent check``: each source and view, on or off, why, and what grants it.

Beside a running agent it shows that agent's views; without one it looks for itself, with the
same parts, for as long as they need to find out, and writes nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from node_agent.check import Check, checks
from node_agent.cli_faults import read_node, table
from node_agent.cli_local import NoAgentError, ask
from node_agent.gpus import Gpus
from node_agent.health.conditions import View
from node_agent.health.state import NodeHealth
from node_agent.health.store import Loaded
from node_agent.monitor import NOT_YET, Monitor
from node_agent.parts import log_paths
from node_agent.publish.access import AccessError
from node_agent.publish.node_api import ApiError
from node_agent.sources.kernel_log import KernelLog, SourceState
from node_agent.sources.pci_sysfs import PciSysfs, PciUnavailableError
from node_agent.terminal import say
from node_agent.xid.catalogue import load_catalogue


if TYPE_CHECKING:
    from node_agent.settings import Settings

_PATIENCE: Final = 20.0
_LOOK_SECONDS: Final = 0.2
API_SERVER: Final = "api_server"
_NOT_OPEN: Final = "no agent runs here (or its socket is elsewhere)"


def show_check(settings: Settings, *, as_json: bool) -> int:
    """Print the table; the exit status: 0 if nothing is off."""
    try:
        found = msgspec.convert(ask(settings.socket, "GET", "/check"), tuple[Check, ...])
        whose = f"the agent at {settings.socket}"
    except (NoAgentError, msgspec.ValidationError):
        found = asyncio.run(look(settings))
        whose = "looked at from here; no agent answers"
    found = (*found, asyncio.run(check_api(settings)))
    if as_json:
        print(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        say(*lines_of(found))
        say("", f"({whose})", err=True)
    return 1 if any(check.state == "off" for check in found) else 0


def lines_of(found: tuple[Check, ...]) -> list[str]:
    """As a person reads it: the table, then what would grant what is missing."""
    lines = table(("VIEW", "STATE", "DETAIL"), [(c.view, c.state, c.detail) for c in found])
    missing = [(c.view, c.grants) for c in found if c.grants]
    if missing:
        lines += ["", *table(("TO HAVE", "GIVE IT"), missing)]
    return lines


async def check_api(settings: Settings) -> Check:
    """Whether the Node can be read with the agent's identity."""
    grants = "the service account of deploy/agent/rbac.yaml, or --kubeconfig outside a cluster"
    try:
        await read_node(settings)
    except (AccessError, ApiError) as error:
        return Check(API_SERVER, "off", str(error), grants)
    return Check(API_SERVER, "on", f"node {settings.node} can be read")


async def look(settings: Settings) -> tuple[Check, ...]:
    """Look at everything once, without an agent."""
    catalogue = load_catalogue()
    silent = structlog.wrap_logger(
        structlog.ReturnLogger(),
        processors=[],
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
    )

    def take_state(state: SourceState) -> None:
        monitor.take_log_state(state)

    kernel_log = KernelLog(
        catalogue=catalogue,
        mode=settings.kernel_log,
        paths=log_paths(settings),
        resume=None,
        on_state=take_state,
    )
    monitor = Monitor(
        loaded=Loaded(NodeHealth()),
        boot_id=kernel_log.boot_id,
        expected_gpus=settings.expected_gpus,
        info_age=settings.info_age,
        catalogue=catalogue,
        wall=time.time,
        changed=lambda: None,
        say=lambda *_: None,
        log=silent,
    )
    gpus = Gpus(
        settings=settings,
        catalogue=catalogue,
        monitor=monitor,
        get=None,
        on_view=lambda _: None,
        on_pods=lambda: None,
        on_new_gpu=lambda: None,
        tracing="gpu-remediator-check",
        log=silent,
    )
    _look_at_files(settings, monitor)
    jobs = (kernel_log.run(monitor.take_batch), *gpus.jobs())
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(job) for job in jobs]
        for _ in range(int(_PATIENCE / _LOOK_SECONDS)):
            if all(state.reason != NOT_YET for state in monitor.views.values()):
                break
            await asyncio.sleep(_LOOK_SECONDS)
        for task in tasks:
            task.cancel()
    return checks(
        monitor.views,
        nvml=monitor.nvml,
        log_source=kernel_log.state.source,
        devices=len(monitor.devices),
    )


def _look_at_files(settings: Settings, monitor: Monitor) -> None:
    try:
        monitor.take_scan(PciSysfs(root=Path(settings.sysfs_root)).scan())
    except PciUnavailableError as error:
        monitor.take_scan_failure(str(error))
    folder = Path(settings.state_file).parent
    while not folder.exists():
        folder = folder.parent
    writable = os.access(folder, os.W_OK)
    monitor.set_view(View.STATE_FILE, "" if writable else f"{folder} may not be written")
    monitor.set_view(View.LOCAL_SOCKET, _NOT_OPEN)
