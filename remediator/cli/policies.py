"""`policy check` and `policy schema`: no cluster needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from remediator.cli.failure import Failure
from remediator.policy.cluster import ClusterSpec
from remediator.policy.load import find_files, load_config, load_policies
from remediator.policy.problems import PolicyError, Problem, render
from remediator.policy.schema import KINDS, json_schema


def check(paths: Sequence[Path], *, config: Path | None, output: str) -> None:
    """Check files and print every problem.

    Raises:
        Failure: something is wrong (2).
    """
    problems: list[Problem] = []
    names: list[str] = []
    cluster: ClusterSpec | None = None
    if config is not None:
        try:
            cluster = load_config(config)
        except PolicyError as error:
            problems += error.problems
    try:
        names = [policy.name for policy in load_policies(paths, cluster=cluster)]
        files = find_files(paths)
    except PolicyError as error:
        problems += error.problems
        files = []
    if not problems and not files:
        problems = [
            Problem(file=str(path), message="no policy file (*.yaml, *.yml) in here")
            for path in paths
        ]
    if output == "json":
        typer.echo(json.dumps(_report(problems, names), indent=2))
    else:
        _print(problems, names, len(files), checked_channels=cluster is not None)
    if problems:
        raise typer.Exit(2)


def schema(kind: str) -> None:
    """Print a JSON schema.

    Raises:
        Failure: no such kind (2).
    """
    if kind not in KINDS:
        raise Failure(f"error: {kind} is none of: {', '.join(KINDS)}", code=2)
    typer.echo(json.dumps(json_schema(kind), indent=2))


def _print(
    problems: Sequence[Problem], names: Sequence[str], files: int, *, checked_channels: bool
) -> None:
    for problem in problems:
        typer.echo(render(problem))
    if problems:
        count = len(problems)
        typer.echo(f"{count} problem{'s' if count > 1 else ''}", err=True)
        return
    typer.echo(f"ok: {len(names)} policies in {files} file{'s' if files != 1 else ''}")
    if not checked_channels:
        typer.echo("not checked: whether the channels exist (give --config FILE)")


def _report(problems: Sequence[Problem], names: Sequence[str]) -> dict[str, object]:
    return {
        "ok": not problems,
        "policies": list(names),
        "problems": [asdict(problem) for problem in problems],
    }
