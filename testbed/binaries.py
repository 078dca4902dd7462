"""Where the control plane's programs come from: an assets folder, the cache, PATH, or a build.

Invariants: a file in the cache is complete (built under a temporary name, then renamed) and its
folder names its version, so a version bump never meets an old binary; two processes never build
the same family at once (a file lock). Nothing is downloaded as a binary: `go build` fetches
sources by way of the Go module proxy and checks them against the `go.sum` beside each `go.mod`.

To add a program: a row in `PROGRAMS` and, for a new module family, a row in `FAMILIES` with a
folder of its own under `testbed/go/` (families do not share one: their dependencies clash).
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


GO_MODULES = Path(__file__).parent / "go"
MINIMUM_GO = (1, 26)


class BinaryUnavailableError(Exception):
    """A program is neither installed nor can it be built; the message says what to install."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Programs that are built from one Go module.

    Attributes:
        module: the Go module whose version in `go.mod` is the family's version.
        stamp: linker flags that tell the program its version, `{version}`, `{major}`, `{minor}`
            filled in. Without them kube-apiserver says v0.0.0 and clients refuse it.
    """

    module: str
    stamp: str = ""


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program: its family, its Go package, how long a first build takes on two cores.

    `on_demand`: few tests need it, so that it is built when one of them asks, not by `make tools`.
    """

    family: str
    package: str
    first_build: str
    may_be_on_path: bool = False
    on_demand: bool = False


_K8S_VERSION = "k8s.io/component-base/version"
FAMILIES: Mapping[str, Family] = {
    "etcd": Family(module="go.etcd.io/etcd/server/v3"),
    "prometheus": Family(
        module="github.com/prometheus/prometheus",
        stamp="-X github.com/prometheus/common/version.Version={version}",
    ),
    # Newer versions do not build from the module proxy: their web UI is not in the module.
    "alertmanager": Family(
        module="github.com/prometheus/alertmanager",
        stamp="-X github.com/prometheus/common/version.Version={version}",
    ),
    "kwok": Family(
        module="sigs.k8s.io/kwok", stamp="-X sigs.k8s.io/kwok/pkg/consts.Version={version}"
    ),
    "kubernetes": Family(
        module="k8s.io/kubernetes",
        stamp=(
            f"-X {_K8S_VERSION}.gitVersion={{version}}"
            f" -X {_K8S_VERSION}.gitMajor={{major}} -X {_K8S_VERSION}.gitMinor={{minor}}"
        ),
    ),
}
# kubectl and the servers are not taken from PATH: an older one there (before 1.32) would fail
# in ways that look like our own bugs.
PROGRAMS: Mapping[str, Program] = {
    "etcd": Program(
        family="etcd", package="go.etcd.io/etcd/server/v3", first_build="half a minute"
    ),
    "kube-apiserver": Program(
        family="kubernetes",
        package="k8s.io/kubernetes/cmd/kube-apiserver",
        first_build="4 minutes, and 2.2 GB of Go build cache",
    ),
    "kube-controller-manager": Program(
        family="kubernetes",
        package="k8s.io/kubernetes/cmd/kube-controller-manager",
        first_build="a minute after kube-apiserver",
    ),
    "kubectl": Program(
        family="kubernetes",
        package="k8s.io/kubernetes/cmd/kubectl",
        first_build="half a minute after kube-apiserver",
    ),
    # Any Prometheus of the 2.x and 3.x lines reads our page: one on PATH serves as well.
    "prometheus": Program(
        family="prometheus",
        package="github.com/prometheus/prometheus/cmd/prometheus",
        first_build="4 minutes",
        may_be_on_path=True,
        on_demand=True,
    ),
    "promtool": Program(
        family="prometheus",
        package="github.com/prometheus/prometheus/cmd/promtool",
        first_build="a minute after prometheus",
        may_be_on_path=True,
        on_demand=True,
    ),
    "alertmanager": Program(
        family="alertmanager",
        package="github.com/prometheus/alertmanager/cmd/alertmanager",
        first_build="half a minute",
        may_be_on_path=True,
        on_demand=True,
    ),
    "kwok": Program(
        family="kwok",
        package="sigs.k8s.io/kwok/cmd/kwok",
        first_build="a minute",
        on_demand=True,
    ),
}


def family_version(family: str) -> str:
    """The version that the family's `go.mod` pins, such as `v1.36.3`."""
    text = (GO_MODULES / family / "go.mod").read_text(encoding="utf-8")
    module = re.escape(FAMILIES[family].module)
    found = re.search(rf"^\s*(?:require\s+)?{module}\s+(v\S+)", text, re.MULTILINE)
    if found is None:
        raise BinaryUnavailableError(
            f"{GO_MODULES / family / 'go.mod'} does not require {FAMILIES[family].module}"
        )
    return found[1]


def cache_folder(family: str) -> Path:
    """The folder of the family's binaries: `<cache>/gpu-remediator/bin/<family>-<version>`."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "gpu-remediator" / "bin" / f"{family}-{family_version(family)}"


def find(name: str) -> Path | None:
    """The program if it is there already: `KUBEBUILDER_ASSETS`, then the cache, then PATH."""
    program = PROGRAMS[name]
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    folders = [Path(assets)] if assets else []
    folders.append(cache_folder(program.family))
    for folder in folders:
        if os.access(folder / name, os.X_OK):
            return folder / name
    on_path = shutil.which(name) if program.may_be_on_path else None
    return Path(on_path) if on_path else None


def provide(name: str, *, say: Callable[[str], None] | None = None) -> Path:
    """The program, built if need be.

    Args:
        name: a key of `PROGRAMS`.
        say: gets one line for each thing that takes long; default is standard error.

    Raises:
        BinaryUnavailableError: no Go, too old a Go, or the build failed.
    """
    tell = say or _to_stderr
    found = find(name)
    if found is not None:
        return found
    family = PROGRAMS[name].family
    with _locked(cache_folder(family) / ".lock"):
        return find(name) or _build(name, cache_folder(family), tell)


def _build(name: str, folder: Path, say: Callable[[str], None]) -> Path:
    program = PROGRAMS[name]
    module = GO_MODULES / program.family
    go = _require_go(module)
    version = family_version(program.family)
    major, minor = version.removeprefix("v").split(".")[:2]
    stamp = FAMILIES[program.family].stamp.format(version=version, major=major, minor=minor)
    say(f"building {name} {version}: takes about {program.first_build}; only once")
    begun = time.monotonic()
    partial = folder / f".{name}.{os.getpid()}"
    command = [go, "build", "-trimpath", "-ldflags", f"-s -w {stamp}", "-o", str(partial)]
    built = subprocess.run(
        [*command, program.package],
        cwd=module,
        # Pure Go: no C compiler needed.
        env={**os.environ, "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        partial.unlink(missing_ok=True)
        raise BinaryUnavailableError(
            f"go build of {program.package} {version} failed in {module}:\n{built.stderr[-4000:]}"
        )
    partial.replace(folder / name)
    say(f"built {folder / name} in {time.monotonic() - begun:.0f} s")
    return folder / name


def _require_go(module: Path) -> str:
    """The `go` command, checked in the module's folder, where it may switch its toolchain."""
    wanted = ".".join(map(str, MINIMUM_GO))
    advice = f"install Go {wanted} or newer (https://go.dev/dl), or set KUBEBUILDER_ASSETS"
    go = shutil.which("go")
    if go is None:
        raise BinaryUnavailableError(f"no `go` on PATH: {advice}")
    asked = subprocess.run(
        [go, "env", "GOVERSION"], cwd=module, capture_output=True, text=True, check=False
    )
    found = re.match(r"go(\d+)\.(\d+)", asked.stdout)
    if found is None or (int(found[1]), int(found[2])) < MINIMUM_GO:
        said = asked.stdout.strip() or asked.stderr.strip()
        raise BinaryUnavailableError(f"{go} is too old ({said}): {advice}")
    return go


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released with the file, also if we are killed
        yield


def _to_stderr(line: str) -> None:
    print(f"[tools] {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Make every program that most tests need available and say where each one is."""
    try:
        for name in (name for name, program in PROGRAMS.items() if not program.on_demand):
            print(f"{name:24} {provide(name)}", flush=True)
    except BinaryUnavailableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
