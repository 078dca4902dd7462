"""The map follows its sources, and each of them may fail without harm to the others."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from node_agent.attribution.cluster import ClusterReadError
from node_agent.attribution.device_ids import Patterns
from node_agent.attribution.kubelet import pause_after
from node_agent.attribution.model import Lookup, PodMap
from node_agent.nvml.model import NvmlView, Process
from testbed.podresources import KubeletSocket, Mode, pod
from tests.unit.agent.attribution.builders import DEVICES, GPU0, GPU1, GPU2, MIG0
from tests.unit.agent.attribution.conftest import Run


UID = "3f2a9c1e-8b7d-4c6e-9f01-23456789abcd"
ID = "0123456789abcdef" * 4
SLICES = Lookup.RESOURCE_SLICES


def pods_on(uuid: str) -> Any:
    return lambda found: [ref.pod for ref in found.of_device(uuid)]


def kubelet_is(word: str) -> Any:
    return lambda found: word in found.off.get(Lookup.POD_RESOURCES, "")


def works(found: PodMap) -> bool:
    return Lookup.POD_RESOURCES not in found.off


# -- the kubelet ---------------------------------------------------------------------------


async def test_pods_are_known_after_the_first_answer(kubelet: KubeletSocket, run: Run) -> None:
    kubelet.pods = [pod("a", [GPU0]), pod("web", [])]
    async with run() as at_work:
        assert kubelet_is("has not answered yet")(at_work.current)
        found = await at_work.until(works)
        assert pods_on(GPU0)(found) == ["ml/a"]
        assert found.at == 5.0
        assert at_work.service.stats.lists == 1


async def test_a_look_asks_again_and_an_equal_answer_changes_nothing(
    kubelet: KubeletSocket, run: Run
) -> None:
    async with run() as at_work:
        await at_work.until(works)
        kubelet.pods = [pod("a", [GPU0])]
        at_work.service.look()
        await at_work.until(pods_on(GPU0))
        told = len(at_work.maps)
        before = kubelet.lists
        at_work.service.look()
        await kubelet.until(before + 1)
        kubelet.pods = []
        at_work.service.look()
        await at_work.until(lambda found: not found.devices)
        assert len(at_work.maps) == told + 1


async def test_a_changed_checkpoint_makes_it_ask(
    kubelet: KubeletSocket, run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "kubelet" / "device-plugins"
    folder.mkdir()
    async with run(watched=(folder,)) as at_work:
        await at_work.until(works)
        kubelet.pods = [pod("a", [GPU0])]
        (folder / "kubelet_internal_checkpoint").write_text("{}")
        await at_work.until(pods_on(GPU0))


async def test_a_restarted_kubelet_is_found_at_once_and_its_last_word_kept_meanwhile(
    kubelet: KubeletSocket, run: Run
) -> None:
    kubelet.pods = [pod("a", [GPU0])]
    async with run() as at_work:
        await at_work.until(works)
        await asyncio.to_thread(kubelet.stop)
        at_work.service.look()
        down = await at_work.until(kubelet_is("No such file"))
        assert pods_on(GPU0)(down) == ["ml/a"]
        kubelet.pods = [pod("b", [GPU0])]
        await asyncio.to_thread(kubelet.start)
        found = await at_work.until(lambda found: works(found) and pods_on(GPU0)(found))
        await at_work.until(lambda found: pods_on(GPU0)(found) == ["ml/b"])
        assert found is not None
        assert at_work.service.stats.dials >= 2


async def test_a_kubelet_that_starts_later_is_found(kubelet: KubeletSocket, run: Run) -> None:
    await asyncio.to_thread(kubelet.stop)
    async with run() as at_work:
        await at_work.until(kubelet_is("No such file"))
        await asyncio.to_thread(kubelet.start)
        await at_work.until(works)


async def test_a_missing_folder_is_said_and_found_when_it_comes(run: Run, tmp_path: Path) -> None:
    async with run(interval=0.02) as at_work:
        await at_work.until(kubelet_is("No such file"))
        with KubeletSocket(tmp_path / "kubelet"):
            await at_work.until(works)


async def test_a_rate_limit_backs_off_and_nothing_hurries_it(
    kubelet: KubeletSocket, run: Run
) -> None:
    kubelet.mode = Mode.EXHAUSTED
    async with run(kubelet_gap=0.2) as at_work:
        await at_work.until(kubelet_is("RESOURCE_EXHAUSTED"))
        for _ in range(20):
            at_work.service.look()
            await asyncio.sleep(0)
        assert kubelet.lists == 1
        kubelet.mode = Mode.ANSWER
        await at_work.until(works)


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 30.0), (1, 2.0), (3, 8.0), (6, 60.0), (1000, 60.0)]
)
def test_pauses(failures: int, seconds: float) -> None:
    assert pause_after(failures, interval=30.0, gap=1.0) == seconds


async def test_a_hang_is_said_and_the_rest_goes_on(kubelet: KubeletSocket, run: Run) -> None:
    kubelet.mode = Mode.HANG
    async with run(timeout=0.5) as at_work:
        await at_work.until(kubelet_is("no answer within 0.5 s"))
        at_work.service.take_view(NvmlView(devices=DEVICES))
        kubelet.mode = Mode.ANSWER
        await at_work.until(works)


async def test_an_unreadable_answer_is_said_once(kubelet: KubeletSocket, run: Run) -> None:
    kubelet.raw = b"\xff\xff"
    async with run() as at_work:
        await at_work.until(kubelet_is("cut short"))
        for _ in range(2):
            before = kubelet.lists
            at_work.service.look()
            await kubelet.until(before + 1)
        kubelet.raw = None
        await at_work.until(works)
        said = [line for line in at_work.log if line.get("lookup") == "pod_resources"]
        assert len(said) == 2


async def test_a_large_answer_is_read(kubelet: KubeletSocket, run: Run) -> None:
    many = [f"other-{number:040}" for number in range(100_000)]
    kubelet.pods = [pod("net", many, resource="example.com/nic"), pod("a", [GPU0])]
    async with run() as at_work:
        found = await at_work.until(works)
        assert at_work.service.stats.last_bytes > 4 << 20
        assert pods_on(GPU0)(found) == ["ml/a"]
        assert found.unresolved == ()


async def test_switched_off(run: Run) -> None:
    async with run(socket=None) as at_work:
        assert "kubelet_folder" in at_work.current.off[Lookup.POD_RESOURCES]
        at_work.service.look()


# -- NVML ----------------------------------------------------------------------------------


async def test_mig_devices_are_joined_when_nvml_knows_them(
    kubelet: KubeletSocket, run: Run
) -> None:
    kubelet.pods = [pod("a", [MIG0], resource="nvidia.com/mig-1g.18gb")]
    async with run() as at_work:
        found = await at_work.until(works)
        assert found.unresolved == (MIG0,)
        at_work.service.take_view(NvmlView(devices=DEVICES))
        assert [ref.pod for ref in at_work.current.of_instance(GPU2, 7)] == ["ml/a"]
        # While the driver hangs, its devices stay as they were.
        at_work.service.take_view(NvmlView(devices=DEVICES, processes_at=1.0))
        assert at_work.current.unresolved == ()


# -- processes -----------------------------------------------------------------------------


def put(root: Path, pid: int, uid: str = UID) -> None:
    (root / str(pid)).mkdir(parents=True)
    (root / str(pid) / "cgroup").write_text(f"0::/kubepods/pod{uid}/{ID}\n")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    root = tmp_path / "proc"
    (root / "2").mkdir(parents=True)
    (root / "2" / "comm").write_text("kthreadd\n")
    return root


def view(at: float, *pids: int) -> NvmlView:
    listed = tuple(Process(uuid=GPU0, pid=pid, kind="compute") for pid in pids)
    return NvmlView(devices=DEVICES, processes=listed, processes_at=at)


async def test_processes_are_joined_by_uid_and_named_by_the_kubelets_folders(
    kubelet: KubeletSocket, run: Run, proc: Path, tmp_path: Path
) -> None:
    put(proc, 77)
    (tmp_path / "log" / "pods" / f"ml_a_{UID}").mkdir(parents=True)
    kubelet.pods = [pod("a", [GPU0])]
    async with run(log_root=tmp_path / "log") as at_work:
        await at_work.until(works)
        at_work.service.take_view(view(1.0, 77, 78))
        found = await at_work.until(lambda found: found.of_pid(77))
        assert found.of_pid(77).pod == "ml/a"
        assert found.of_pid(77).container == "train"  # the pod has only that one
        assert found.of_pid(78) is None
        assert Lookup.PROCESSES not in found.off


async def test_a_new_process_makes_it_ask_the_kubelet(
    kubelet: KubeletSocket, run: Run, proc: Path
) -> None:
    put(proc, 77)
    async with run() as at_work:
        await at_work.until(works)
        kubelet.pods = [pod("a", [GPU0])]
        at_work.service.take_view(view(1.0, 77))
        await at_work.until(pods_on(GPU0))


async def test_without_host_pids_the_lookup_is_off_and_pods_are_known(
    kubelet: KubeletSocket, run: Run
) -> None:
    kubelet.pods = [pod("a", [GPU0])]
    async with run() as at_work:
        await at_work.until(works)
        at_work.service.take_view(view(1.0, 77))
        found = await at_work.until(lambda found: "hostPID" in found.off.get(Lookup.PROCESSES, ""))
        assert pods_on(GPU0)(found) == ["ml/a"]
        assert at_work.service.owner_of(77) is None


async def test_the_owner_of_a_process_that_died_is_remembered_for_a_while(
    run: Run, proc: Path
) -> None:
    put(proc, 77)
    async with run(socket=None) as at_work:
        at_work.service.take_view(view(1.0, 77))
        await at_work.until(lambda found: 77 in found.pids)
        (proc / "77" / "cgroup").unlink()
        at_work.service.take_view(view(2.0))
        await at_work.until(lambda found: 77 not in found.pids)
        owner = at_work.service.owner_of(77)
        assert owner is not None
        assert (owner.pod_uid, owner.container_id) == (UID, ID)
        at_work.now += 601
        assert at_work.service.owner_of(77) is None


async def test_a_pid_that_is_another_process_by_now_has_the_new_owner(run: Run, proc: Path) -> None:
    put(proc, 77)
    async with run(socket=None) as at_work:
        at_work.service.take_view(view(1.0, 77))
        await at_work.until(lambda found: 77 in found.pids)
        other = UID.replace("3f", "4f")
        (proc / "77" / "cgroup").write_text(f"0::/kubepods/pod{other}/{ID}\n")
        owner = at_work.service.owner_of(77)
        assert owner is not None
        assert owner.pod_uid == other


# -- the API server ------------------------------------------------------------------------


class ApiServer:
    """Answers list requests; counts them by resource."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.pods: list[dict[str, Any]] = []
        self.error: ClusterReadError | None = None
        self._asked = asyncio.Condition()

    async def until(self, questions: int) -> None:
        async with self._asked:
            await self._asked.wait_for(lambda: len(self.asked) >= questions)

    async def get(self, path: str, resource: str) -> bytes:
        assert "n1" in path
        async with self._asked:
            self.asked.append(resource)
            self._asked.notify_all()
        if self.error is not None:
            raise self.error
        items = self.pods if resource == "pods" else [SLICE]
        return json.dumps({"items": items}).encode()


SLICE = {
    "spec": {
        "driver": "gpu.nvidia.com",
        "pool": {"name": "n1", "generation": 1},
        "devices": [{"name": "gpu-1", "attributes": {"uuid": {"string": GPU1}}}],
    }
}


def api_pod(name: str, uid: str = UID) -> dict[str, Any]:
    meta = {"name": name, "namespace": "ml", "uid": uid, "labels": {"app": "x", "other": "y"}}
    return {"metadata": meta, "status": {"phase": "Running"}}


def running_with(run: Run, server: ApiServer, **settings: Any) -> Any:
    given = {
        "cluster": frozenset((Lookup.PODS, Lookup.RESOURCE_SLICES)),
        "labels": Patterns("app"),
    }
    return run(collaborators={"get": server.get}, **{**given, **settings})


async def test_nothing_is_asked_of_the_api_server_by_default(
    kubelet: KubeletSocket, run: Run
) -> None:
    server = ApiServer()
    async with run(collaborators={"get": server.get}) as at_work:
        found = await at_work.until(works)
        assert "cluster_lookups" in found.off[Lookup.PODS]
        assert server.asked == []
        assert kubelet.lists == 1


async def test_uid_and_labels_come_from_the_api_server(kubelet: KubeletSocket, run: Run) -> None:
    server = ApiServer()
    server.pods = [api_pod("a")]
    kubelet.pods = [pod("a", [GPU0])]
    async with running_with(run, server) as at_work:
        found = await at_work.until(lambda found: any(r.uid for r in found.of_device(GPU0)))
        (ref,) = found.of_device(GPU0)
        assert (ref.uid, ref.phase, ref.labels) == (UID, "Running", (("app", "x"),))


async def test_an_unknown_pod_costs_one_question(kubelet: KubeletSocket, run: Run) -> None:
    server = ApiServer()
    async with running_with(run, server, cluster=frozenset((Lookup.PODS,))) as at_work:
        await at_work.until(lambda found: set(found.off) == {Lookup.PROCESSES, SLICES})
        kubelet.pods = [pod("a", [GPU0])]
        at_work.service.look()
        await server.until(2)
        for _ in range(10):
            before = kubelet.lists
            at_work.service.look()
            await kubelet.until(before + 1)
        assert server.asked == ["pods", "pods"]


async def test_a_pod_of_the_same_name_is_not_taken_for_the_one_before(
    kubelet: KubeletSocket, run: Run
) -> None:
    server = ApiServer()
    server.pods = [api_pod("a")]
    kubelet.pods = [pod("a", [GPU0])]
    async with running_with(run, server) as at_work:
        await at_work.until(lambda found: any(r.uid == UID for r in found.of_device(GPU0)))
        kubelet.pods = []
        at_work.service.look()
        await at_work.until(lambda found: not found.devices)
        told = len(at_work.maps)
        server.pods = [api_pod("a", "new")]
        kubelet.pods = [pod("a", [GPU0])]
        at_work.service.look()
        await at_work.until(lambda found: any(r.uid == "new" for r in found.of_device(GPU0)))
        seen = [ref.uid for found in at_work.maps[told:] for ref in found.of_device(GPU0)]
        assert seen == ["", "new"]


async def test_a_refused_list_is_off_and_names_and_namespaces_still_work(
    kubelet: KubeletSocket, run: Run
) -> None:
    server = ApiServer()
    server.error = ClusterReadError("the agent may not list pods")
    kubelet.pods = [pod("a", [GPU0])]
    async with running_with(run, server) as at_work:
        found = await at_work.until(
            lambda found: works(found) and "may not" in found.off.get(Lookup.PODS, "")
        )
        assert pods_on(GPU0)(found) == ["ml/a"]
        server.error, server.pods = None, [api_pod("a")]
        await at_work.until(lambda found: any(r.uid for r in found.of_device(GPU0)))


async def test_a_dra_claim_is_joined_by_its_slice(kubelet: KubeletSocket, run: Run) -> None:
    held = {"driver_name": "gpu.nvidia.com", "pool_name": "n1", "device_name": "gpu-1"}
    claim = {"claim_name": "c", "claim_namespace": "ml", "claim_resources": [held]}
    kubelet.pods = [pod("a", claims=[claim])]
    async with running_with(run, ApiServer()) as at_work:
        found = await at_work.until(pods_on(GPU1))
        (ref,) = found.of_device(GPU1)
        assert ref.dra is not None
        assert ref.dra.claim == "c"
