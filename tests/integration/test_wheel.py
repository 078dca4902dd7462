"""The wheel works by itself: an editable install would find in the checkout what it lacks."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest


CHECKOUT = Path(__file__).parents[2]
PACKAGES = {"remediator": CHECKOUT / "remediator", "node_agent": CHECKOUT / "node-agent/node_agent"}
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
    wanted = {
        path.relative_to(source)
        for path in source.rglob("*")
        if path.is_file() and path.suffix in {".py", ".json", ".yaml", ".typed", ".html", ".c"}
    }
    assert Path("py.typed") in wanted
    installed = site / package
    assert wanted <= {path.relative_to(installed) for path in installed.rglob("*")}


def test_nothing_but_the_two_packages_is_installed(site: Path) -> None:
    unwanted = {"bin", ".lock"}
    folders = {path.name for path in site.iterdir() if ".dist-info" not in path.name}
    assert folders - unwanted == set(PACKAGES)


def _run(*command: str) -> str:
    done = subprocess.run(  # noqa: S603  # our own tools
        command, cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
