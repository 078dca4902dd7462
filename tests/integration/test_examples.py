"""The kustomization that users copy builds, and what it mounts is what the controller reads."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from remediator.policy.load import load_config
from testbed.binaries import provide


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.cluster
def test_the_example_kustomization_gives_the_controller_its_config(tmp_path: Path) -> None:
    built = subprocess.run(  # noqa: S603 - kubectl of the test's control plane
        [provide("kubectl"), "kustomize", str(EXAMPLES)], capture_output=True, text=True, check=True
    ).stdout
    objects: list[dict[str, Any]] = list(YAML(typ="safe").load_all(built))
    (pod,) = (one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Deployment")
    (container,) = pod["containers"]
    (file,) = (Path(one["value"]) for one in container["env"] if one["name"] == "REMEDIATOR_CONFIG")
    (volume,) = (
        one["name"] for one in container["volumeMounts"] if one["mountPath"] == str(file.parent)
    )
    (mounted,) = (one["configMap"]["name"] for one in pod["volumes"] if one["name"] == volume)
    (data,) = (
        one["data"]
        for one in objects
        if one["kind"] == "ConfigMap" and one["metadata"]["name"] == mounted
    )
    copy = tmp_path / file.name
    copy.write_text(data[file.name], "utf-8")

    cluster = load_config(copy)

    for channel in cluster.channels.values():
        assert channel.webhook is not None
        assert channel.webhook.url_file is not None
        folder = str(Path(channel.webhook.url_file).parent)
        assert folder in {one["mountPath"] for one in container["volumeMounts"]}
