"""The settings arrive where they are used, and bad ones are refused with the name."""

from pathlib import Path

import pytest

from node_agent.attribution.model import Lookup
from node_agent.parts import attribution_config
from node_agent.settings import SettingsError, load_settings


def test_every_setting_arrives() -> None:
    config = attribution_config(
        load_settings(
            environ={
                "NODE_AGENT_NODE_NAME": "n1",
                "NODE_AGENT_KUBELET_FOLDER": "/var/lib/k0s/kubelet",
                "NODE_AGENT_PODS_INTERVAL": "1m",
                "NODE_AGENT_GPU_RESOURCES": "example.com/a100",
                "NODE_AGENT_PROC_ROOT": "/host/proc",
                "NODE_AGENT_POD_LOG_FOLDER": "/host/log",
                "NODE_AGENT_CLUSTER_LOOKUPS": "pods, resource_slices",
                "NODE_AGENT_POD_LABELS": "app.kubernetes.io/*",
            }
        )
    )
    assert config.node == "n1"
    assert config.socket == Path("/var/lib/k0s/kubelet/pod-resources/kubelet.sock")
    assert config.interval == 60.0
    assert config.resources.match("example.com/a100")
    assert not config.resources.match("nvidia.com/gpu")
    assert (config.proc_root, config.log_root) == (Path("/host/proc"), Path("/host/log"))
    assert config.cluster == {Lookup.PODS, Lookup.RESOURCE_SLICES}
    assert config.labels.match("app.kubernetes.io/name")


def test_the_default_asks_the_kubelet_and_not_the_api_server() -> None:
    config = attribution_config(load_settings(environ={}))
    assert config.socket == Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    assert config.resources.match("nvidia.com/mig-1g.18gb.shared")
    assert not config.cluster
    assert not config.labels


def test_empty_folders_switch_off() -> None:
    off = {"NODE_AGENT_KUBELET_FOLDER": "", "NODE_AGENT_POD_LOG_FOLDER": ""}
    config = attribution_config(load_settings(environ=off))
    assert (config.socket, config.watched, config.log_root) == (None, (), None)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("GPU_RESOURCES", "a*b", "gpu_resources: 'a*b': a * may stand at the end only"),
        ("POD_LABELS", "*x", "pod_labels: '*x'"),
        ("CLUSTER_LOOKUPS", "pod", "cluster_lookups: 'pod' is none of pods, resource_slices"),
        ("PODS_INTERVAL", "100ms", "pods_interval: at least 1s is needed"),
    ],
)
def test_bad_values_are_refused(name: str, value: str, says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(environ={f"NODE_AGENT_{name}": value})
    assert says in str(refused.value)
