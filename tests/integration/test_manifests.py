"""`kubectl apply -k deploy/` works as its first line says, on the oldest supported field set."""

import subprocess

import pytest

from testbed import manifests
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
    assert set(listed) == files - {"kustomization.yaml"}


@pytest.mark.parametrize("suffix", ["", "-events"])
def test_the_type_check_of_the_admission_policies_is_clean(cluster: Cluster, suffix: str) -> None:
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    path = f"{policies}/gpu-remediator-node-agent{suffix}"
    status = cluster.wait_for(
        lambda: cluster.api.get(path).get("status"), what="the type check of the policy"
    )
    assert status["typeChecking"] == {}
