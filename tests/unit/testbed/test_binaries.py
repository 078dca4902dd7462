"""Where the control plane's programs are looked for, and what a user without Go is told."""

import os
from pathlib import Path

import pytest

from testbed import binaries
from testbed.binaries import BinaryUnavailableError, cache_folder, find, provide


@pytest.fixture(autouse=True)
def _empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither cache nor assets nor anything on PATH."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def program(path: Path, script: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def fake_go(tmp_path: Path, *, version: str = "go1.26.8", build: str = "exit 1") -> None:
    program(
        tmp_path / "bin" / "go",
        f'if [ "$1" = env ]; then echo {version}; exit; fi\n{build}',
    )


def test_assets_come_before_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = program(cache_folder("etcd") / "etcd")
    assert find("etcd") == cached
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    assert find("etcd") == cached  # not in there: the cache still serves
    assert find("kubectl") is None
    asset = program(tmp_path / "assets" / "etcd")
    assert provide("etcd") == asset


def test_the_cache_folder_names_the_version_that_go_mod_pins() -> None:
    pinned = (binaries.GO_MODULES / "kubernetes" / "go.mod").read_text(encoding="utf-8")
    version = cache_folder("kubernetes").name.removeprefix("kubernetes-")
    assert f"k8s.io/kubernetes {version}" in pinned


def test_kubectl_on_the_path_is_not_taken(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "kubectl")
    assert find("kubectl") is None


def test_without_go_the_error_says_what_to_install() -> None:
    with pytest.raises(BinaryUnavailableError, match=r"no `go` on PATH: install Go 1\.26 or newer"):
        provide("etcd")


@pytest.mark.parametrize("version", ["go1.25.9", "go1.4", "devel"])
def test_an_old_go_is_refused_by_name(tmp_path: Path, version: str) -> None:
    fake_go(tmp_path, version=version)
    with pytest.raises(BinaryUnavailableError, match=rf"too old \({version}\): install Go 1\.26"):
        provide("etcd")


def test_a_failed_build_shows_the_compilers_words_and_leaves_nothing(tmp_path: Path) -> None:
    fake_go(tmp_path, build="echo half > $6; echo no space left on device >&2; exit 1")
    with pytest.raises(BinaryUnavailableError, match="no space left on device"):
        provide("etcd")
    assert find("etcd") is None
    assert [path.name for path in cache_folder("etcd").iterdir()] == [".lock"]


def test_a_build_is_announced_and_happens_once(tmp_path: Path) -> None:
    touch = 'out=""; while [ $# -gt 0 ]; do [ "$1" = -o ] && out="$2"; shift; done'
    fake_go(tmp_path, build=f'{touch}; echo "#!/bin/sh" > "$out"; /bin/chmod +x "$out"')
    said: list[str] = []
    built = provide("etcd", say=said.append)
    assert os.access(built, os.X_OK)
    assert "takes about half a minute" in said[0]
    (tmp_path / "bin" / "go").unlink()
    assert provide("etcd", say=said.append) == built
    assert len(said) == 2
