"""A child's end is noticed, and its last words are in the error."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.processes import Child, ServerFailedError, free_port, server_ports


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "child.log"


@pytest.fixture
def children() -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for child in started:
        child.close()


def start(children: list[Child], log: Path, program: str) -> Child:
    child = Child("child", [sys.executable, "-S", "-c", program], log=log)
    children.append(child)
    child.start()
    return child


def test_a_child_that_ends_at_its_start_is_an_error_with_its_log(
    children: list[Child], log: Path
) -> None:
    child = start(children, log, "raise SystemExit('bind: address already in use')")
    with pytest.raises(ServerFailedError, match="address already in use"):
        child.wait_until(lambda: False, timeout=30)


def test_a_child_that_ignores_sigterm_is_killed(children: list[Child], log: Path) -> None:
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf', flush=True); time.sleep(60)"
    )
    child = start(children, log, program)
    child.wait_until(lambda: "deaf" in child.log_tail(), timeout=30)
    child.stop(grace=0.05)
    assert not child.running


def test_a_child_can_be_started_again_with_the_same_log(children: list[Child], log: Path) -> None:
    child = start(children, log, "import time; print('up', flush=True); time.sleep(60)")
    child.wait_until(lambda: child.log_tail().count("up") == 1, timeout=30)
    first = child.pid
    child.stop()
    child.start()
    child.wait_until(lambda: child.log_tail().count("up") == 2, timeout=30)
    assert child.pid != first


@pytest.mark.parametrize("lowest_ephemeral", [32768, 14000])
def test_servers_do_not_get_ports_that_the_kernel_gives_to_clients(lowest_ephemeral: int) -> None:
    assert max(server_ports(lowest_ephemeral)) < lowest_ephemeral


def test_without_such_ports_there_are_still_some() -> None:
    assert len(server_ports(1024)) > 10000
    assert free_port() > 1024


def test_an_interrupt_from_the_terminal_is_for_its_parent_alone(
    children: list[Child], log: Path
) -> None:
    program = "import os, time; print(os.getpgrp(), 'it is', flush=True); time.sleep(60)"
    child = start(children, log, program)
    child.wait_until(lambda: "it is" in child.log_tail(), timeout=30)
    assert child.log_tail().split()[0] == str(child.pid) != str(os.getpgrp())
