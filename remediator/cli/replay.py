"""`replay`: a recording under other policies. No cluster needed."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import typer

from remediator.cli.failure import Failure
from remediator.cli.terminal import counted, say, table
from remediator.lab.agenda import LabError
from remediator.lab.assumed import AssumptionError, assumptions, in_words
from remediator.lab.compare import differing, figures, rows
from remediator.lab.plot import plot
from remediator.lab.replay import Replayed, replay
from remediator.lab.report import timeline_lines
from remediator.lab.tape import TapeError, decode
from remediator.lab.works import Assumptions
from remediator.policy.cluster import ClusterSpec
from remediator.policy.load import load_config, load_policies
from remediator.policy.model import Mode, RemediationPolicy
from remediator.policy.problems import PolicyError, rendered
from remediator.policy.quantities import format_duration


BAD_INPUT: Final = 2
GZIP: Final = ".gz"
_ENFORCED: Final = {"mode": Mode.ENFORCE}


def show_replay(
    tape: Path,
    *,
    policies: Sequence[Path],
    against: Sequence[Path],
    config: Path | None,
    assume: Sequence[str],
    picture: Path | None,
    verbose: bool,
    output: str,
) -> None:
    """Replay a recording, and print what the policies would have done.

    Raises:
        Failure: a file cannot be read (2).
    """
    if picture is not None and picture.suffix != ".svg":
        raise Failure(f"error: --plot {picture}: pictures are SVG, name it *.svg", code=BAD_INPUT)
    cluster = read_cluster(config)
    try:
        assumed = assumptions(assume)
    except AssumptionError as error:
        raise Failure(f"error: --assume {error}", code=BAD_INPUT) from error
    sets = [named for named in (policies, against) if named]
    replays = [(_name(paths), _replay(tape, paths, cluster, assumed)) for paths in sets]
    if picture is not None:
        title = f"{tape.name}: capacity, cordons and drains"
        _write(picture, plot(replays, title=title))
    if output == "json":
        typer.echo(json.dumps(_as_json(replays), indent=2))
        return
    first = replays[0][1]
    lasted = format_duration(round(first.end - first.start))
    say(f"{tape.name}: {counted(first.nodes, 'node')}, {lasted}; policies as though enforced")
    relied_on = {name: at for _, one in replays for name, at in one.assumed.items()}
    if relied_on:
        say(f"assumed, see --assume: {in_words(relied_on)}")
    for note in dict.fromkeys(note for _, one in replays for note in one.notes):
        say(f"note: {note}")
    say(*table(rows(replays)))
    if len(replays) > 1:
        found = differing(replays[0][1], replays[1][1])
        say("", "remediations of a node:" if found else "no node is remediated otherwise")
        say(*(f"  {line}" for line in found))
    if verbose:
        for name, one in replays:
            say("", f"{name}:", *timeline_lines(one.timeline, one.start, limit=1000))


def read_cluster(config: Path | None) -> ClusterSpec:
    """Read RemediatorConfig; without one the defaults hold. Raises Failure."""
    try:
        return ClusterSpec() if config is None else load_config(config)
    except PolicyError as error:
        raise failure_of(error) from error


def read_policies(paths: Sequence[Path]) -> list[RemediationPolicy]:
    """Read policies, as though all of them were enforced. Raises Failure."""
    try:
        found = load_policies(paths)
    except PolicyError as error:
        raise failure_of(error) from error
    if not found:
        raise Failure(f"error: no policy in {', '.join(map(str, paths))}", code=BAD_INPUT)
    return [
        one.model_copy(update={"spec": one.spec.model_copy(update=_ENFORCED)})
        for one in found
        if one.spec.mode is not Mode.DISABLED
    ]


def failure_of(error: PolicyError) -> Failure:
    """Return problems of files as a failure of a command."""
    return Failure(*(line for one in error.problems for line in rendered(one)), code=BAD_INPUT)


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a recording, packed or not. Raises Failure."""
    number = 1
    try:
        with gzip.open(path) if path.name.endswith(GZIP) else path.open("rb") as stream:
            for line in stream:
                # The last line may have been cut off within a character.
                whole = line.endswith(b"\n")
                yield line.decode("utf-8", errors="strict" if whole else "replace")
                number += 1
    except EOFError:
        return  # a packed recording that was cut off: what came before is whole
    except zlib.error as error:
        raise Failure(
            f"error: {path}: damaged: {error}; what comes before the damage can be saved:"
            f" zcat {path} 2>/dev/null > NEW.jsonl",
            code=BAD_INPUT,
        ) from error
    except UnicodeDecodeError as error:
        raise Failure(f"error: {path}: line {number}: {error}", code=BAD_INPUT) from error
    except OSError as error:
        raise Failure(f"error: {path}: {error}", code=BAD_INPUT) from error


def _replay(
    tape: Path, paths: Sequence[Path], cluster: ClusterSpec, assume: Assumptions
) -> Replayed:
    try:
        changes = decode(read_lines(tape))
        policies = read_policies(paths)
        return replay(changes, policies=policies, cluster=cluster, assume=assume)
    except TapeError as error:
        raise Failure(f"error: {tape}: {error}", code=BAD_INPUT) from error
    except LabError as error:
        raise Failure(f"error: {error}", code=1) from error


def _name(paths: Sequence[Path]) -> str:
    return ", ".join(str(path) for path in paths)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(f"error: {path}: {error.strerror or error}", code=BAD_INPUT) from error


def _as_json(replays: Sequence[tuple[str, Replayed]]) -> list[dict[str, object]]:
    return [
        {
            "policies": name,
            "seconds": round(one.end - one.start, 3),
            "nodes": one.nodes,
            "figures": figures(one),
            "assumed": dict(one.assumed),
            "notes": list(one.notes),
            "out": _since_start(one, one.lost),
            "cordons": _since_start(one, one.begun("cordon")),
            "drains": _since_start(one, one.begun("drain")),
        }
        for name, one in replays
    ]


def _since_start(one: Replayed, series: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    return [(round(at - one.start, 3), count) for at, count in series]
