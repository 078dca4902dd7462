"""`kubectl apply -k deploy/` works as its first line says, on the oldest supported field set."""

import subprocess
from pathlib import Path

import pytest

from node_agent.settings import Settings as AgentSettings
from node_agent.settings import load_settings as load_agent_settings
from remediator.settings import options
from testbed import manifests
from testbed.api import Json
from testbed.binaries import provide
from testbed.cluster import Cluster


pytestmark = pytest.mark.cluster


def test_the_manifests_apply_as_a_whole(cluster: Cluster) -> None:
    kubeconfig = cluster.kubeconfig_for(cluster.plane.admin_token)
    arguments = ["apply", "--server-side", "--dry-run=server", "-k", str(manifests.DEPLOY)]
    applied = subprocess.run(  # noqa: S603  # our own kubectl
        [str(provide("kubectl")), f"--kubeconfig={kubeconfig}", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert applied.returncode == 0, applied.stderr
    # Warnings are about unknown or deprecated fields, or the Pod Security of the namespace.
    assert applied.stderr == ""
    assert "daemonset.apps/gpu-remediator-node-agent serverside-applied" in applied.stdout
    assert "deployment.apps/gpu-remediator serverside-applied" in applied.stdout


def test_every_manifest_is_in_the_kustomization() -> None:
    listed = manifests.read(manifests.DEPLOY / "kustomization.yaml")[0]["resources"]
    files = {str(path.relative_to(manifests.DEPLOY)) for path in manifests.DEPLOY.rglob("*.yaml")}
    optional = {file for file in files if "/optional/" in file}
    assert optional
    assert set(listed) == files - optional - {"kustomization.yaml"}


@pytest.mark.parametrize("suffix", ["", "-events"])
def test_the_type_check_of_the_admission_policies_is_clean(cluster: Cluster, suffix: str) -> None:
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    path = f"{policies}/gpu-remediator-node-agent{suffix}"
    status = cluster.wait_for(
        lambda: cluster.api.get(path).get("status"), what="the type check of the policy"
    )
    assert status["typeChecking"] == {}


def test_the_daemonset_sets_known_settings_and_mounts_what_the_agent_writes() -> None:
    container = _container("agent/daemonset.yaml")
    environ = {entry["name"]: "value" for entry in container["env"]}
    settings: AgentSettings = load_agent_settings(environ=environ)
    assert settings.node_name == "value"  # else two nodes' agents would share a host name
    assert [port["containerPort"] for port in container["ports"]] == [settings.listen_address[1]]
    writable = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
    assert writable == {str(Path(p).parent) for p in (settings.state_file, settings.socket)}


def test_the_deployment_sets_known_settings() -> None:
    container = _container("controller/deployment.yaml")
    known = {option.env: option.default for option in options()}
    names = {entry["name"] for entry in container["env"]}
    assert names <= set(known)
    # The ConfigMaps and the Lease belong where the Role is.
    assert "REMEDIATOR_NAMESPACE" in names
    ports = [f":{port['containerPort']}" for port in container["ports"]]
    assert ports == [known["REMEDIATOR_LISTEN"], known["REMEDIATOR_WEBHOOK_LISTEN"]]


def _container(file: str) -> Json:
    (workload,) = manifests.read(manifests.DEPLOY / file)
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(container)
