"""Fixtures on the real control plane. A server that cannot start is an error, never a skip.

`cluster`: own nodes and namespace on a server that all tests share; the usual choice.
`own_control_plane`, `own_cluster`: a server of the test's own, for tests that stop or pause it
(about 5 s each).
`kwok`: kubelets for nodes with the label of `testbed.kwok`, on the shared server.
"""

import re
import signal
import uuid
from collections.abc import Iterator
from types import FrameType

import pytest

from testbed.cluster import Cluster
from testbed.controlplane import ControlPlane
from testbed.kwok import Kwok


_NAME_LENGTH = 24


def pytest_sessionstart() -> None:
    """Let SIGTERM end the run by way of the fixtures' clean-up, and SIGINT its programs.

    A shell has what it starts in the background ignore SIGINT, and programs inherit that; tests
    that end a program as Ctrl-C does would wait for ever.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(number: int, _frame: FrameType | None) -> None:
    pytest.exit("ended by SIGTERM", returncode=128 + number)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """The shared server, with the agent's admission policies active. Do not stop it."""
    with ControlPlane(audit=True) as plane:
        system = Cluster(plane, prefix="probe-")
        system.install()
        system.install_admission()
        yield plane


@pytest.fixture(scope="session")
def kwok(control_plane: ControlPlane) -> Iterator[Kwok]:
    """KWOK on the shared server: the kubelet of each node that has the label `kwok.LABEL`."""
    with Kwok(control_plane) as running:
        yield running


@pytest.fixture
def cluster(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """This test's own nodes, namespace and service accounts on the shared server."""
    yield from _cluster_of_test(control_plane, request)


@pytest.fixture
def own_control_plane() -> Iterator[ControlPlane]:
    """A server of this test's own: stop it, pause it, restart it."""
    with ControlPlane(audit=True) as plane:
        yield plane


@pytest.fixture
def own_cluster(own_control_plane: ControlPlane) -> Cluster:
    """Everything installed on the test's own server, in the namespace `gpu-remediator`."""
    cluster = Cluster(own_control_plane)
    cluster.install()
    cluster.install_admission()
    return cluster  # goes with its server


def _cluster_of_test(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_"))
    unique = f"{name[:_NAME_LENGTH].strip('-')}-{uuid.uuid4().hex[:6]}"
    cluster = Cluster(plane, namespace=unique, prefix=f"{unique}-")
    cluster.install()
    try:
        yield cluster
    finally:
        cluster.close()
