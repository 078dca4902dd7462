"""What is taken from the API server's lists."""

import msgspec
import pytest

from node_agent.attribution.cluster import (
    ClusterReadError,
    DraDevice,
    DraKey,
    decode_pods,
    decode_slices,
    pods_path,
)
from node_agent.attribution.device_ids import Patterns
from tests.unit.agent.attribution.builders import GPU0, MIG0


def test_a_pod_with_the_labels_on_the_list() -> None:
    body = {
        "kind": "PodList",
        "items": [
            {
                "metadata": {
                    "name": "a",
                    "namespace": "ml",
                    "uid": "u",
                    "labels": {"app": "x", "team/owner": "y", "secret": "z", "long": "l" * 999},
                    "annotations": {"kubernetes.io/config.hash": "h"},
                },
                "spec": {"containers": []},
                "status": {
                    "phase": "Running",
                    "containerStatuses": [{"name": "c", "containerID": "containerd://id1"}],
                    "initContainerStatuses": [{"name": "i", "containerID": "cri-o://id2"}],
                    "ephemeralContainerStatuses": [{"name": "e"}],
                },
            },
            {"metadata": {"name": "b", "namespace": "ml"}},
        ],
    }
    pods = decode_pods(msgspec.json.encode(body), labels=Patterns("app,team/*,long"))
    assert pods[0].labels == (("app", "x"), ("long", "l" * 256), ("team/owner", "y"))
    assert pods[0].containers == {"id1": "c", "id2": "i"}
    assert pods[0].uids == ("u", "h")
    assert not pods[0].ended
    assert (pods[1].uid, pods[1].uids) == ("", ())


def _slice(pool: str, generation: int, name: str, attributes: dict[str, object]) -> object:
    return {
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "n1",
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": 1},
            "devices": [{"name": name, "attributes": attributes}],
        }
    }


def test_devices_of_slices() -> None:
    mig = {
        "type": {"string": "mig"},
        "gpu.nvidia.com/uuid": {"string": MIG0},
        "parentUUID": {"string": GPU0},
        "profile": {"string": "1g.18gb"},
        "index": {"int": 0},
        "driverVersion": {"version": "580.1.0"},
        "other.example/uuid": {"string": "not ours"},
    }
    items = [_slice("n1", 2, "gpu-0-mig", mig), _slice("n1", 1, "old", {})]
    body = msgspec.json.encode({"items": items})
    assert decode_slices(body) == {
        DraKey("gpu.nvidia.com", "n1", "gpu-0-mig"): DraDevice(
            "mig", MIG0.lower(), GPU0.lower(), "1g.18gb"
        )
    }


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"items": [{"spec": 1}]}', b"\xff"])
def test_what_is_no_list_is_refused(body: bytes) -> None:
    with pytest.raises(ClusterReadError):
        decode_slices(body)
    with pytest.raises(ClusterReadError):
        decode_pods(body.replace(b"spec", b"metadata"), labels=Patterns(""))


def test_an_empty_list_is_one() -> None:
    assert decode_pods(b'{"items": null}', labels=Patterns("")) == ()
    assert decode_slices(b'{"items": []}') == {}


def test_only_this_nodes_pods_are_asked_for() -> None:
    assert "spec.nodeName%3Dn1&" in pods_path("n1")
