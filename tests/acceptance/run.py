"""The acceptance run: phases one after another, each with its part of the result file.

The file is written after each phase, so that what was measured is there even if a later one
fails; a phase that fails is in it with its error, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from node_agent import __version__
from node_agent.cli_local import ask
from testbed.gpunode import Agent
from tests.acceptance import cost, faults, values
from tests.acceptance.page import Page, default_families, every_counter, get
from tests.acceptance.pods import Pods
from tests.acceptance.receiver import Receiver
from tests.acceptance.rig import NODE, QUICK, FakeRig, RealRig, running
from tests.acceptance.witnesses import Witnesses
from tests.bench.figures import say


class Plan:
    """How long and how often."""

    def __init__(self, *, quick: bool) -> None:
        self.settle = 5.0 if quick else 15.0
        self.idle = 10.0 if quick else 75.0
        self.paced = 10.0 if quick else 60.0
        self.every = 5.0
        self.loop = 2.0 if quick else 8.0
        self.faults = 3 if quick else 60
        self.load = 5.0 if quick else 9.0


PROCESSES_SECONDS: Final = 40.0
"""Processes are read each 30 s."""
Rig = RealRig | FakeRig


class Run:
    """One run on one rig; `result` is what it finds."""

    def __init__(self, *, rig: Rig, plan: Plan, out: Path) -> None:
        self.result: dict[str, Any] = {}
        self._rig = rig
        self._plan = plan
        self._out = out

    def phase(self, name: str, do: Callable[[], Any]) -> Any:
        """Do it; note what it finds, or why it failed."""
        begun = time.monotonic()
        try:
            found = do()
        except Exception as error:  # noqa: BLE001 - the other phases go on
            found = {"failed": f"{type(error).__name__}: {error}", "at": traceback.format_exc()}
        if isinstance(found, dict):
            found["phase_seconds"] = round(time.monotonic() - begun, 1)
        self.result[name] = found
        self._out.write_text(json.dumps(self.result, indent=1, default=str) + "\n", "utf-8")
        say(f"{name}: {json.dumps(found, default=str)[:600]}")
        return found

    def everything(self) -> None:
        """All phases."""
        rig, plan = self._rig, self._plan
        raw = self.phase("nvml", lambda: cost.run_json(["tests.acceptance.raw"], rig.env))
        self.phase("machine", lambda: machine(rig))
        with ExitStack() as stack:
            pods = stack.enter_context(Pods(rig.folder / "cluster", uuid=str(raw.get("uuid", ""))))
            rig.pods = pods
            stack.enter_context(rig)
            receiver = stack.enter_context(Receiver(rig.folder, node=NODE, boot_id=rig.boot_id))
            agent = rig.agent(receiver, pods, {})
            self.phase("check_alone", lambda: check(agent))
            self._defaults(agent, receiver)
            settings = QUICK | {"dcgm_counters": str(_counters(rig.folder))}
            second = rig.agent(receiver, pods, settings)
            with running(second):
                self.phase("values_idle", lambda: compare(rig, second, plan.settle))
                for kind in ("matmul", "fp32", "memory", "copy"):
                    self.phase(f"values_{kind}", lambda k=kind: self._under(k, second))  # type: ignore[misc]
                self.phase("families_all", lambda: families(page(second)))
                self.phase("cost_at_1s", lambda: idle(second, plan.idle / 3))
                self.phase("calls", lambda: page(second).calls())

    def _defaults(self, agent: Agent, receiver: Receiver) -> None:
        """The agent with its default settings: cost, scrapes, faults, the end."""
        rig, plan = self._rig, self._plan
        begun = time.monotonic()
        with running(agent):
            self.result["ready_seconds"] = round(time.monotonic() - begun, 2)
            self.phase("check", lambda: check(agent))
            time.sleep(plan.settle)
            self.phase("idle", lambda: idle(agent, plan.idle))
            self.phase("peer", lambda: peer(rig, agent, plan))
            self.phase("scrape_idle", lambda: cost.closed_loop(agent.port, plan.loop))
            self.phase("load", lambda: self._loaded(agent))
            self.phase("families", lambda: families(page(agent)))
            with Witnesses(kmsg=rig.kmsg, tracefs=rig.tracefs, nvml=rig.real) as witnesses:
                self.result["witnesses_absent"] = witnesses.absent
                before = page(agent)
                faults.clear(agent, receiver)
                for name, kind, library, count in _series(plan, rig):
                    self.phase(
                        name,
                        lambda k=kind, lib=library, n=count: self._faults(  # type: ignore[misc]
                            agent, receiver, witnesses, k, lib, n
                        ),
                    )
                self.phase("counts", lambda: counts(before, page(agent)))
            self.phase("conditions", lambda: receiver.conditions)
            self.phase("events", lambda: [e.get("reason") for e in receiver.events][-20:])
            self.phase("cost_after", lambda: idle(agent, 5.0))
            self.phase("memory", lambda: memory(agent))
            self.phase("release", lambda: release(agent))
            self.phase("check_end", lambda: check(agent))
            page_text = get(agent.port)
            begun = time.monotonic()
        self.result["stop_seconds"] = round(time.monotonic() - begun, 2)
        self.phase("log", lambda: _own_log(agent.log_text))
        (self._out.parent / "page.txt").write_text(page_text, "utf-8")

    def _faults(  # noqa: PLR0917 - one call of it
        self,
        agent: Agent,
        receiver: Receiver,
        witnesses: Witnesses,
        kind: str,
        library: str,
        count: int,
    ) -> dict[str, Any]:
        rig = self._rig
        settle = count <= _FEW
        samples = []
        for number in range(count):
            rig.prepare(kind, library, count=min(6, count - number))
            samples.append(
                faults.provoke(
                    rig=rig,
                    agent=agent,
                    receiver=receiver,
                    witnesses=witnesses,
                    kind=kind,
                    library=library,
                    settle=settle,
                )
            )
        example = samples[-1]
        return faults.summary(samples) | {
            "what": kind,
            "library": library or "driver API",
            "example_seen": [one._asdict() for one in example.sightings],
            "example_on_node": example.node_faults,
            "each_patch_ms": [one.patch_ms and round(one.patch_ms, 2) for one in samples],
        }

    def _loaded(self, agent: Agent) -> dict[str, Any]:
        """Scrapes while the GPU works; its process, with memory, use and pod."""
        load = self._rig.load("matmul")
        try:
            begun = time.monotonic()
            meter = cost.Meter(agent.process.pid)
            scraped = cost.closed_loop(agent.port, self._plan.loop)
            spent = meter.read()
            rows: list[Any] = []
            while load is not None and time.monotonic() - begun < PROCESSES_SECONDS:
                rows = [
                    row._asdict()
                    for row in page(agent).rows
                    if row.name.startswith(("gpu_process", "gpu_pod_"))
                ]
                if sum(r["name"] == "gpu_process_sm_utilization_ratio" for r in rows):
                    break
                time.sleep(1)
            waited = time.monotonic() - begun
            smi = _output("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv")
        finally:
            achieved = load.stop() if load is not None else []
        return {
            "scrape": scraped,
            "cost_while_scraped": spent,
            "pid": load.pid if load is not None else None,
            "seen_after_seconds": round(waited, 1),
            "rows": rows,
            "nvidia_smi": smi,
            "achieved_per_second": achieved,
        }

    def _under(self, kind: str, agent: Agent) -> dict[str, Any]:
        load = self._rig.load(kind)
        if load is None:
            return {"left_out": "no such load here"}
        try:
            found = compare(self._rig, agent, self._plan.load)
            raw = cost.run_json(["tests.acceptance.raw"], self._rig.env)
        finally:
            achieved = load.stop()
        return (
            found
            | {"achieved_per_second": achieved}
            | {name: raw.get(name) for name in ("gpm", "pcie_throughput", "tlimits", "error")}
        )


_FEW: Final = 2
"""So few faults are each waited for until the node shows all of it."""


def _series(plan: Plan, rig: Rig) -> list[tuple[str, str, str, int]]:
    cupy = "cupy" if rig.real and _has_cupy() else ""
    return [
        ("xid31_settled", "unmapped", cupy, 2),
        ("xid13_settled", "misaligned", cupy, 2),
        ("xid13_and_31", "both", "", 2),
        ("xid31", "unmapped", "", plan.faults),
        ("xid13", "misaligned", "", plan.faults),
    ]


def _has_cupy() -> bool:
    return subprocess.run([sys.executable, "-c", "import cupy"], check=False).returncode == 0


def machine(rig: Rig) -> dict[str, Any]:
    """What the figures depend on."""
    kmsg = Path("/dev/kmsg")
    return {
        "rehearsal": not rig.real,
        "agent": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "root": os.geteuid() == 0,
        "kmsg_readable": os.access(kmsg, os.R_OK),
        "tracepoints": sorted(
            str(p.relative_to(rig.tracefs)) for p in rig.tracefs.glob("events/nv*/*_dev_*xid")
        ),
        "driver_folder": Path("/proc/driver/nvidia/version").exists(),
        "nvidia_smi": _output("nvidia-smi", "-q").splitlines()[:400] if rig.real else [],
        "nvlink": _output("nvidia-smi", "nvlink", "-s") if rig.real else "",
    }


def check(agent: Agent) -> dict[str, Any]:
    """`node-agent check`, as it prints it."""
    begun = time.monotonic()
    done = agent.show("check")
    return {
        "seconds": round(time.monotonic() - begun, 2),
        "exit": done.returncode,
        "lines": done.stdout.splitlines() + done.stderr.splitlines(),
    }


def page(agent: Agent) -> Page:
    """A scrape."""
    return Page(get(agent.port))


def families(found: Page) -> dict[str, Any]:
    """Which of DCGM-Exporter's default families are there."""
    there = found.dcgm()
    return {
        "default_there": sorted(n for n in default_families() if n in there),
        "default_absent": sorted(n for n in default_families() if n not in there),
        "supported": {
            row.labels["feature"]: row.value for row in found.all("gpu_feature_supported")
        },
        "views": {row.labels["view"]: row.value for row in found.all("gpu_agent_view_up")},
        "reading_errors": found.sum("gpu_reading_errors"),
        "series": len(found.rows),
        "page_bytes": len(found.text),
    }


def idle(agent: Agent, seconds: float) -> dict[str, Any]:
    """What the agent costs while nothing happens and nobody scrapes."""
    meter = cost.Meter(agent.process.pid)
    time.sleep(seconds)
    return meter.read()


def memory(agent: Agent) -> dict[str, Any]:
    """What both processes are resident for."""
    return {str(each): cost.largest_mappings(each) for each in cost.family(agent.process.pid)}


def peer(rig: Rig, agent: Agent, plan: Plan) -> dict[str, Any]:
    """Ours and nvitop-exporter, both running and both scraped at the same rate."""
    with cost.Peer(rig.folder, rig.env) as other:
        if other.trouble:
            return {"left_out": other.trouble}
        time.sleep(2)
        ours, theirs = cost.Meter(agent.process.pid), cost.Meter(other.pid)
        ports = {"node-agent": agent.port, "nvitop-exporter": other.port}
        scraped = cost.paced(ports, seconds=plan.paced, every=plan.every)
        answer = {
            "every_seconds": plan.every,
            "node-agent": ours.read() | scraped["node-agent"],
            "nvitop-exporter": theirs.read() | scraped["nvitop-exporter"],
        }
        text = get(other.port)
        answer["nvitop-exporter"]["families"] = text.count("# TYPE ")
        answer["nvitop-exporter"]["series"] = sum(
            bool(line) and not line.startswith("#") for line in text.splitlines()
        )
        times = []
        for _ in range(100):
            begun = time.perf_counter()
            get(other.port)
            times.append((time.perf_counter() - begun) * 1000)
        answer["nvitop-exporter"]["closed_loop_ms"] = faults.spread(times)
    return answer


def compare(rig: Rig, agent: Agent, wait: float) -> dict[str, Any]:
    """The page against nvidia-smi and NVML, and what GPM and our own families say."""
    time.sleep(wait)
    raw = ["tests.acceptance.raw", "values"]

    def others() -> tuple[Mapping[str, float | None], Mapping[str, float | str]]:
        return values.ask_smi() if rig.real else {}, cost.run_json(raw, rig.env)["values"]

    before = others()
    time.sleep(2.2)  # two rounds of the agent's cadence: the page was read after the others
    found = page(agent)
    after = others()
    rows = values.compare(found.dcgm(), (before[0], after[0]), (before[1], after[1]))
    return {
        "compared": len(rows),
        "agree": sum(row.agrees for row in rows),
        "differ": [row._asdict() for row in rows if not row.agrees],
        "rows": [[*row] for row in rows],
        "dcgm": found.dcgm(),
        "own": found.own(),
    }


def counts(before: Page, after: Page) -> dict[str, float]:
    """How the totals grew over all provoked faults."""
    found = {}
    for name in (
        "gpu_xid_errors_total",
        "gpu_xid_lines_total",
        "gpu_fault_source_first_total",
        "gpu_fault_source_later_total",
        "gpu_fault_source_lag_seconds_total",
        "gpu_kernel_log_malformed_total",
        "DCGM_EXP_XID_ERRORS_TOTAL",
        "DCGM_FI_DEV_XID_ERRORS",
    ):
        for row in after.all(name):
            labels = {k: v for k, v in row.labels.items() if k in {"xid", "source", "err_code"}}
            grown = row.value - before.sum(name, **labels)
            found[f"{name} {' '.join(labels.values())}".strip()] = round(grown, 4)
    return found


def release(agent: Agent) -> dict[str, Any]:
    """Whether no process of ours holds the driver after `release`, and how fast."""
    holding = _holders(agent.process.pid)
    begun = time.monotonic()
    answer = ask(str(agent.machine.socket), "POST", "/release", {"seconds": 60})
    took = time.monotonic() - begun
    still = _holders(agent.process.pid)
    ask(str(agent.machine.socket), "POST", "/release", {"seconds": 0})
    back = time.monotonic()
    while time.monotonic() - back < 15 and not _holders(agent.process.pid):
        time.sleep(0.05)
    return {
        "held_before": holding,
        "answer": answer,
        "seconds": round(took, 3),
        "held_after": still,
        "back_seconds": round(time.monotonic() - back, 2),
        "held_again": _holders(agent.process.pid),
    }


def _holders(pid: int) -> dict[int, list[str]]:
    """Device nodes of the driver that our processes have open."""
    found = {}
    for each in cost.family(pid):
        names = set()
        for link in Path(f"/proc/{each}/fd").iterdir():
            try:
                names.add(str(link.readlink()))
            except OSError:
                continue
        found[each] = sorted(name for name in names if name.startswith("/dev/nvidia"))
    return {each: names for each, names in found.items() if names}


def _counters(folder: Path) -> Path:
    path = folder / "every-counter.csv"
    path.write_text(every_counter(), "utf-8")
    return path


def _own_log(text: str) -> Mapping[str, Any]:
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    notable = [one for one in lines if one.get("level") in {"warning", "error", "critical"}]
    return {
        "lines": len(lines),
        "not_json": [line for line in text.splitlines() if line and not line.startswith("{")][:40],
        "notable": notable[:40],
        "first": [one.get("event") for one in lines[:15]],
    }


def _output(*argv: str) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{argv[0]}: {error}"


def main() -> None:
    """Run all phases."""
    parser = argparse.ArgumentParser(prog="tests/acceptance/h200.sh", description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("h200-result.json"), help="result file")
    parser.add_argument("--quick", action="store_true", help="a minute instead of eight")
    parser.add_argument("--rehearse", action="store_true", help="on a fake driver")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rig = (FakeRig if options.rehearse else RealRig)(options.work / "rig")
    run = Run(rig=rig, plan=Plan(quick=options.quick), out=options.out.resolve())
    run.everything()
    failed = [k for k, v in run.result.items() if isinstance(v, dict) and "failed" in v]
    say(f"result in {options.out}; failed: {', '.join(failed) or 'nothing'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
