"""Names of pods by the kubelet's log folders, without a right on the API server."""

from pathlib import Path

from node_agent.attribution.pod_folders import NO_NAMES, PodName, read_names


UID = "3f2a9c1e-8b7d-4c6e-9f01-23456789abcd"
HASH = "0123456789abcdef0123456789abcdef"
ID = "0123456789abcdef" * 4


def test_pods_and_containers(tmp_path: Path) -> None:
    for name in (f"ml_job-0.x_{UID}", f"kube-system_etcd-n1_{HASH}", "lost+found", "ml_job"):
        (tmp_path / "pods" / name).mkdir(parents=True)
    (tmp_path / "containers").mkdir()
    # The kubelet makes links; what they point to may be out of reach.
    (tmp_path / "containers" / f"job-0.x_ml_side-car-{ID}.log").symlink_to("/nowhere")
    names = read_names(tmp_path)
    assert names.pods == {
        UID: PodName("ml", "job-0.x"),
        HASH: PodName("kube-system", "etcd-n1"),
    }
    assert names.containers == {ID: "side-car"}


def test_missing_folders_give_nothing(tmp_path: Path) -> None:
    assert read_names(tmp_path / "none") == NO_NAMES
