"""The contracts of import-linter leave nothing out: a new module is in its list, or fails here."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest


ROOT = Path(__file__).parents[3]
CONTROLLER, AGENT = ROOT / "remediator", ROOT / "node-agent" / "node_agent"

NOT_PURE = {
    # read and write files, or the clock
    "remediator.policy.configfile",
    "remediator.policy.files",
    "remediator.policy.load",
    "remediator.policy.reload",
    "remediator.policy.yaml",
    # for authors of policies only: they know YAML, and write their documentation to files
    "remediator.policy.convert",
    "remediator.policy.advice",
    "remediator.policy.explain",
    "remediator.policy.keys",
    "remediator.policy.lint",
    "remediator.policy.reference",
    # ask the kubelet, the API server and /proc
    "node_agent.attribution.cgroups",
    "node_agent.attribution.channel",
    "node_agent.attribution.cluster_reader",
    "node_agent.attribution.kubelet",
    "node_agent.attribution.pod_folders",
    "node_agent.attribution.processes",
    "node_agent.attribution.service",
    "node_agent.attribution.watch",
    # read and write files
    "node_agent.health.saver",
    "node_agent.health.store",
    "node_agent.xid.catalogue",
}
"""Modules in rooms of pure ones that are not."""


def contract(name: str) -> dict[str, Any]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    return next(one for one in contracts if one["name"].startswith(name))


def modules(folder: Path, name: str) -> set[str]:
    """The modules and packages right in a folder."""
    found = {
        path.stem
        for path in folder.iterdir()
        if path.suffix == ".py" or (path.is_dir() and (path / "__init__.py").exists())
    }
    return {f"{name}.{one}" for one in found - {"__init__"}}


def test_what_decides_is_pure_as_a_whole() -> None:
    pure = contract("Decisions are pure")
    rooms = modules(CONTROLLER, "remediator") - {"remediator.decide", "remediator.policy"}
    policy = modules(CONTROLLER / "policy", "remediator.policy")
    assert set(pure["source_modules"]) == {"remediator.decide"} | (policy - NOT_PURE)
    assert rooms - set(pure["forbidden_modules"]) == set()


def test_the_transport_is_out_of_reach_of_every_room_but_its_own() -> None:
    rooms = modules(CONTROLLER, "remediator") - {"remediator.kube"}
    assert set(contract("Only kube/")["source_modules"]) == rooms


@pytest.mark.parametrize("name", ["The controller knows", "The contract imports"])
def test_the_agent_is_known_by_its_contract_only(name: str) -> None:
    hidden = modules(AGENT, "node_agent") - {"node_agent.contract"}
    assert hidden - set(contract(name)["forbidden_modules"]) == set()


def test_what_the_agent_makes_of_evidence_is_pure_as_a_whole() -> None:
    rooms = ("attribution", "health", "xid")
    every = set().union(*(modules(AGENT / one, f"node_agent.{one}") for one in rooms))
    listed = set(contract("What the agent makes")["source_modules"])
    assert listed - {"node_agent.publish.standing"} == every - NOT_PURE


def test_nothing_is_excused_that_is_gone() -> None:
    there = {
        path.relative_to(root.parent).with_suffix("").as_posix().replace("/", ".")
        for root in (CONTROLLER, AGENT)
        for path in (*root.rglob("*.py"), *root.rglob("*/"))
    }
    assert there >= NOT_PURE
