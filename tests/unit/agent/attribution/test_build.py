"""Answers of all sources become one map: who holds what, and nothing that nobody said."""

from typing import Any

import pytest

from node_agent.attribution.build import MAX_UNRESOLVED, Sources, build_pod_map
from node_agent.attribution.cgroups import CgroupPod
from node_agent.attribution.cluster import DraDevice, DraKey, PodInfo
from node_agent.attribution.model import PodMap, PodRef
from node_agent.attribution.pod_folders import Names, PodName
from node_agent.attribution.pod_resources import Claim, ClaimDevice, Container, Pod
from tests.unit.agent.attribution.builders import (
    DEVICES,
    GPU0,
    GPU1,
    GPU2,
    MIG0,
    MIG1,
    device,
    uuid,
)


UID = "11111111-2222-4333-8444-555555555555"


def pod(name: str, *ids: str, container: str = "train", resource: str = "nvidia.com/gpu") -> Pod:
    devices = ((resource, ids),) if ids else ()
    return Pod("ml", name, (Container(container, devices, ()),))


def claiming(name: str, device: str, *, driver: str = "gpu.nvidia.com", cdi: str = "") -> Pod:
    held = ClaimDevice(driver, "node-1", device, "", (cdi,) if cdi else ())
    return Pod("ml", name, (Container("train", (), (Claim(f"{name}-gpu", "ml", (held,)),)),))


def info(name: str, **changes: Any) -> PodInfo:
    given = PodInfo("ml", name, UID, "Running", (("app", "x"),), {}, (UID,))
    return given._replace(**changes)


def built(*pods: Pod, **more: Any) -> PodMap:
    return build_pod_map(Sources(pods=pods, devices=more.pop("devices", DEVICES), **more))


def names(refs: tuple[PodRef, ...]) -> list[str]:
    return [ref.pod for ref in refs]


def test_whole_gpus() -> None:
    found = built(pod("a", GPU0), pod("b", GPU1, GPU2))
    assert names(found.of_device(GPU0)) == ["ml/a"]
    assert found.of_device(GPU1) == (
        PodRef(namespace="ml", name="b", container="train", resource="nvidia.com/gpu"),
    )
    assert names(found.of_device(GPU2.lower())) == ["ml/b"]
    assert found.unresolved == ()


def test_whole_gpus_are_known_without_nvml() -> None:
    assert names(built(pod("a", GPU0), devices=()).of_device(GPU0)) == ["ml/a"]


@pytest.mark.parametrize(
    "text", [MIG0, f"{MIG0}::0", f"MIG-{GPU2}/7/0", "nvidia1/gi7", "nvidia1/gi7/vgpu0"]
)
def test_a_mig_device_is_keyed_by_its_gpu_and_instance(text: str) -> None:
    found = built(pod("a", text, resource="nvidia.com/mig-1g.18gb"))
    assert names(found.of_instance(GPU2, 7)) == ["ml/a"]
    assert found.of_instance(GPU2, 8) == ()
    assert found.of_device(GPU2) == ()
    assert names(found.on_gpu(GPU2)) == ["ml/a"]


def test_a_gke_number_is_the_device_node_not_nvmls_index() -> None:
    assert names(built(pod("a", "nvidia0")).of_device(GPU1)) == ["ml/a"]
    no_minors = (device(0), device(1))
    found = built(pod("a", "nvidia0"), devices=no_minors)
    assert found.devices == {}
    assert found.unresolved == ("nvidia0",)


def test_holders_of_a_shared_gpu_are_all_listed_and_marked() -> None:
    found = built(pod("b", f"{GPU0}::1"), pod("a", f"{GPU0}::0"), pod("c", GPU1))
    assert [(r.pod, r.vgpu, r.shared) for r in found.of_device(GPU0)] == [
        ("ml/a", "0", True),
        ("ml/b", "1", True),
    ]
    assert not found.of_device(GPU1)[0].shared


def test_two_shares_of_one_container_are_not_sharing() -> None:
    found = built(pod("a", f"{GPU0}::0", f"{GPU0}::1"))
    assert [(ref.vgpu, ref.shared) for ref in found.of_device(GPU0)] == [("0", False), ("1", False)]


def test_an_unknown_id_is_said_and_harms_no_other() -> None:
    ids = [f"strange-{number}" for number in range(MAX_UNRESOLVED + 5)]
    found = built(pod("a", *ids, GPU0, uuid("MIG", 99)))
    assert names(found.of_device(GPU0)) == ["ml/a"]
    assert len(found.unresolved) == MAX_UNRESOLVED
    assert found.truncated == 6


def test_a_mig_device_that_comes_later_is_found_then() -> None:
    late = pod("a", MIG0, resource="nvidia.com/mig-1g.18gb")
    assert built(late, devices=DEVICES[:2]).unresolved == (MIG0,)
    assert names(built(late).of_instance(GPU2, 7)) == ["ml/a"]


def test_what_the_api_server_knows_is_joined_by_name() -> None:
    (ref,) = built(pod("a", GPU0), infos=(info("a"),)).of_device(GPU0)
    assert (ref.uid, ref.phase, ref.labels) == (UID, "Running", (("app", "x"),))


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_holds_nothing_though_the_kubelet_lists_it(phase: str) -> None:
    assert built(pod("a", GPU0), infos=(info("a", phase=phase),)).devices == {}


# -- DRA -----------------------------------------------------------------------------------

KEY = DraKey("gpu.nvidia.com", "node-1", "gpu-0")


def test_a_dra_gpu_is_found_by_its_slice() -> None:
    slices = {KEY: DraDevice("gpu", GPU0.lower(), "", "")}
    (ref,) = built(claiming("a", "gpu-0"), slices=slices).of_device(GPU0)
    assert ref.dra is not None
    assert (ref.dra.claim, ref.dra.driver, ref.dra.pool, ref.dra.device) == (
        "a-gpu",
        "gpu.nvidia.com",
        "node-1",
        "gpu-0",
    )
    assert ref.dra.mig_uuid == ""


def test_a_dra_pod_has_its_uid_too() -> None:
    slices = {KEY: DraDevice("gpu", GPU0.lower(), "", "")}
    (ref,) = built(claiming("a", "gpu-0"), slices=slices, infos=(info("a"),)).of_device(GPU0)
    assert ref.uid == UID


def test_a_dra_mig_device_is_found_by_its_uuid() -> None:
    slices = {KEY: DraDevice("mig", MIG1.lower(), GPU2.lower(), "1g.18gb")}
    (ref,) = built(claiming("a", "gpu-0"), slices=slices).of_instance(GPU2, 8)
    assert ref.dra is not None
    assert (ref.dra.mig_uuid, ref.dra.mig_profile) == (MIG1.lower(), "1g.18gb")


def test_a_dra_mig_device_without_uuid_is_the_only_one_of_its_profile() -> None:
    slices = {KEY: DraDevice("mig", "", GPU2.lower(), "2g.35gb")}
    assert names(built(claiming("a", "gpu-0"), slices=slices).of_instance(GPU2, 3)) == ["ml/a"]


def test_of_several_that_fit_none_is_guessed_but_the_gpu_is_known() -> None:
    slices = {KEY: DraDevice("mig", "", GPU2.lower(), "1g.18gb")}
    found = built(claiming("a", "gpu-0"), slices=slices)
    assert found.of_instance(GPU2, 7) == found.of_instance(GPU2, 8) == ()
    assert names(found.on_gpu(GPU2)) == ["ml/a"]
    assert found.hit_by(GPU2, gi=7) == ("ml/a",)


def test_without_slices_a_uuid_in_a_cdi_name_will_do() -> None:
    found = built(claiming("a", "gpu-0", cdi=f"k8s.gpu.nvidia.com/device={GPU1}"))
    assert names(found.of_device(GPU1)) == ["ml/a"]


def test_a_gpu_claim_that_cannot_be_found_is_said_and_a_network_cards_is_not() -> None:
    found = built(claiming("a", "gpu-0"), claiming("b", "nic-0", driver="dra.net"))
    assert found.unresolved == ("gpu.nvidia.com/node-1/gpu-0",)


# -- processes -----------------------------------------------------------------------------

CONTAINER = "c" * 64


def of_pid(*pods: CgroupPod, **more: Any) -> Any:
    return built(processes={7: pods}, **more).pids.get(7)


def test_a_process_is_joined_by_its_pods_uid() -> None:
    known = info("a", containers={CONTAINER: "train"})
    owner = of_pid(CgroupPod(UID, CONTAINER), infos=(known,))
    assert owner.pod.pod == "ml/a"
    assert (owner.pod.container, owner.pod.labels) == ("train", (("app", "x"),))


def test_a_static_pods_process_carries_the_hash_of_its_file() -> None:
    owner = of_pid(CgroupPod("f" * 32), infos=(info("etcd", uids=(UID, "f" * 32)),))
    assert (owner.pod.pod, owner.pod.uid) == ("ml/etcd", UID)


def test_a_process_is_joined_by_the_kubelets_folders_without_the_api_server() -> None:
    folders = Names({UID: PodName("ml", "a")}, {CONTAINER: "train"})
    owner = of_pid(CgroupPod(UID, CONTAINER), names=folders)
    assert (owner.pod.pod, owner.pod.uid, owner.pod.container) == ("ml/a", UID, "train")


def test_an_earlier_pod_of_the_same_name_keeps_its_uid_and_gets_no_labels() -> None:
    old = "99999999-2222-4333-8444-555555555555"
    folders = Names({UID: PodName("ml", "a"), old: PodName("ml", "a")}, {})
    owner = of_pid(CgroupPod(old), names=folders, infos=(info("a"),))
    assert (owner.pod.uid, owner.pod.labels, owner.pod.phase) == (old, (), "")
    assert built(pod("a", GPU0), names=folders).of_device(GPU0)[0].uid == ""


def test_a_process_whose_pod_has_no_name_keeps_the_uid() -> None:
    found = built(processes={7: (CgroupPod(UID, CONTAINER),)})
    assert found.pids[7].pod_uid == UID
    assert found.of_pid(7) is None
    assert found.of_pid(8) is None


def test_of_nested_pods_the_outermost_known_one_is_meant() -> None:
    outer, inner = CgroupPod("1" * 32), CgroupPod(UID)
    assert of_pid(outer, inner).pod_uid == outer.uid
    assert of_pid(outer, inner, infos=(info("a"),)).pod_uid == UID


# -- who is hit ----------------------------------------------------------------------------


def test_a_fault_hits_everyone_on_its_gpu() -> None:
    mig = "nvidia.com/mig-1g.18gb"
    found = built(pod("b", MIG1, resource=mig), pod("a", MIG0, resource=mig), pod("c", GPU0))
    assert found.hit_by(GPU2) == ("ml/a", "ml/b")
    assert found.hit_by(GPU1) == ()


def test_a_fault_of_an_instance_hits_its_holders_only() -> None:
    mig = "nvidia.com/mig-1g.18gb"
    found = built(pod("b", MIG1, resource=mig), pod("a", MIG0, resource=mig))
    assert found.hit_by(GPU2, gi=7) == ("ml/a",)


def test_a_fault_of_a_known_process_hits_its_pod_only() -> None:
    found = built(pod("a", f"{GPU0}::0"), pod("b", f"{GPU0}::1"))
    owner = PodRef(namespace="ml", name="b")
    assert found.hit_by(GPU0, owner=owner) == ("ml/b",)
