"""The wheel works by itself: an editable install would find in the checkout what it lacks."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest


CHECKOUT = Path(__file__).parents[2]
PACKAGES = {"remediator": CHECKOUT / "remediator", "node_agent": CHECKOUT / "node-agent/node_agent"}
DATA = {
    "remediator": (),
    "node_agent": (
        Path("publish/default-counters.csv"),
        Path("publish/dcgm_fields.json"),
        Path("xid/catalogue.json"),
    ),
}
"""Files that are no code, some of them."""
_RUN = """\
import sys
site, dependencies, module, *sys.argv[1:] = sys.argv[1:]
sys.path[:0] = [site]
sys.path += [dependencies]
import importlib
program = importlib.import_module(module)
assert program.__file__.startswith(site), program.__file__
sys.exit(program.main())
"""
_ASK = """\
import sys
site, dependencies = sys.argv[1:]
sys.path[:0] = [site]
sys.path += [dependencies]  # by path, not by `site`, which would follow the editable install
import importlib, importlib.metadata, node_agent, node_agent.contract, remediator
assert remediator.__file__.startswith(site), remediator.__file__
assert node_agent.__file__.startswith(site), node_agent.__file__
(found,) = importlib.metadata.distributions(name="gpu-remediator", path=[site])
for entry in found.entry_points.select(group="console_scripts"):
    print(entry.name, entry.value)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel and nothing else."""
    dist, target = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("site")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(dist))
    (wheel,) = dist.glob("gpu_remediator-*.whl")
    install = ["pip", "install", "--offline", "--no-deps", "--target", str(target), str(wheel)]
    _run(sys.executable, "-m", "uv", *install)
    return target


def test_both_packages_import_from_the_wheel_alone(site: Path) -> None:
    dependencies = sysconfig.get_path("purelib")
    printed = _run(sys.executable, "-I", "-S", "-c", _ASK, str(site), dependencies)
    assert dict(line.split() for line in printed.splitlines()) == {
        "remediator": "remediator.cli:main",
        "node-agent": "node_agent.cli:main",
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_every_file_of_the_package_is_in_the_wheel(site: Path, package: str) -> None:
    source = PACKAGES[package]
    wanted = {  # what there is but leavings of runs: also files of a kind that is new here
        path.relative_to(source)
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in {".so", ".o"}
    }
    assert {Path("py.typed"), *DATA[package]} <= wanted
    installed = site / package
    assert wanted <= {path.relative_to(installed) for path in installed.rglob("*")}


def test_the_programs_run_from_the_wheel_alone(site: Path, tmp_path: Path) -> None:
    def run(*command: str, ends: int = 0) -> str:
        dependencies = sysconfig.get_path("purelib")
        start = (sys.executable, "-I", "-S", "-c", _RUN, str(site), dependencies)
        return _run(*start, *command, ends=ends)

    schema = json.loads(run("remediator.cli", "policy", "schema"))
    assert "steps" in schema["$defs"]["Spec"]["properties"]
    log = tmp_path / "kern.log"
    log.touch()
    settings = ("--kernel-log=file", f"--kernel-log-path={log}", "--nvml=false")
    elsewhere = (f"--state-file={tmp_path / 'state'}", f"--socket={tmp_path / 'socket'}")
    # 1: something is off, as no API server is here.
    looked = run("node_agent.cli", "check", "--output=json", *settings, *elsewhere, ends=1)
    assert "kernel_log" in json.dumps(json.loads(looked))


def test_nothing_but_the_two_packages_is_installed(site: Path) -> None:
    unwanted = {"bin", ".lock"}
    folders = {path.name for path in site.iterdir() if ".dist-info" not in path.name}
    assert folders - unwanted == set(PACKAGES)


def _run(*command: str, ends: int = 0) -> str:
    done = subprocess.run(  # noqa: S603  # our own tools
        command, cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.returncode == ends, done.stdout + done.stderr
    return done.stdout
