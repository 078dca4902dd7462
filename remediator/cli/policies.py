"""`policy check` (schema, then lint) and `policy schema`: no cluster needed."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import typer

from remediator.act.made import Templates
from remediator.cli.failure import Failure
from remediator.cli.terminal import counted
from remediator.lab.case import KIND, PolicyTest
from remediator.policy.base import Model
from remediator.policy.cluster import ClusterSpec, RemediatorConfig
from remediator.policy.files import read_text
from remediator.policy.keys import closest
from remediator.policy.lint import RULES, Finding, Rule, Severity, lint, lint_config
from remediator.policy.load import CONFIG_KIND, ParsedFile, load_files, parse_document
from remediator.policy.problems import PolicyError, Problem, render
from remediator.policy.schema import KINDS, schema_of
from remediator.policy.templates import ReadTemplate, TemplateError
from remediator.policy.tree import Document


def check(
    paths: Sequence[Path],
    *,
    config: Path | None,
    rules: Sequence[str],
    strict: bool,
    output: str,
) -> None:
    """Check files against the schema, then by the lint rules, and print every problem.

    Without ``paths``, RemediatorConfig alone.

    Raises:
        Failure: no such rule, or nothing to check (2).
        typer.Exit: something is wrong (2); with ``strict``, a warning is, too.
    """
    wanted = _rules(rules)
    if not paths and config is None:
        raise Failure("error: nothing to check: name policy files, or --config FILE", code=2)
    problems: list[Problem] = []
    files: Sequence[ParsedFile] = ()
    cluster: ClusterSpec | None = None
    templates: Mapping[str, ReadTemplate] = {}
    if config is not None:
        try:
            read, document = read_config(config)
        except PolicyError as error:
            problems += error.problems
        else:
            cluster, templates = read.spec, read_templates(read.spec, folder=config.parent)
            found = lint_config(read, files=templates, rules=wanted)
            problems += [_placed(one, document) for one in found]
    try:
        files = load_files(paths)
    except PolicyError as error:
        problems += error.problems
    if paths and not files and not any(one.severity == Severity.ERROR for one in problems):
        message = "no policy file (*.yaml, *.yml) in here"
        problems += [Problem(file=str(path), message=message) for path in paths]
    problems += lint_files(files, cluster, wanted, templates=templates, now=time.time())
    names = [one.policy.name for file in files for one in file.policies]
    wrong = [one for one in problems if strict or one.severity == Severity.ERROR]
    if output == "json":
        typer.echo(json.dumps(_report(problems, names, ok=not wrong), indent=2))
    else:
        _print(
            problems,
            _checked(names, files) if paths else str(config),
            checked_channels=cluster is not None,
            strict=strict,
        )
    if wrong:
        raise typer.Exit(2)


def read_config(path: Path) -> tuple[RemediatorConfig, Document]:
    """Read RemediatorConfig, with the places of what stands in it.

    Raises:
        PolicyError: it cannot be used, with every problem.
    """
    data, file = read_text(path), str(path)
    return parse_document(data, file=file, model=RemediatorConfig, kind=CONFIG_KIND)


def read_templates(cluster: ClusterSpec, *, folder: Path) -> dict[str, ReadTemplate]:
    """Read the templates' files as the controller does. Relative names begin in ``folder``."""
    templates = Templates(cluster.templates, folder=folder)
    read = {}
    for name, one in cluster.templates.items():
        path = folder / one.file
        try:
            read[name] = ReadTemplate(str(path), templates.read(name))
        except TemplateError as error:
            elsewhere = Path(one.file).is_absolute() and not path.exists()
            read[name] = ReadTemplate(str(path), None, _trouble(error, path), elsewhere)
    return read


def _trouble(error: TemplateError, path: Path) -> str:
    """Say what is wrong with a template's file, with the place once."""
    cause = error.__cause__ or error
    return str(cause) if isinstance(cause, PolicyError) else f"{path}: {cause}"


def lint_files(
    files: Sequence[ParsedFile],
    cluster: ClusterSpec | None,
    rules: Sequence[Rule] = RULES,
    *,
    templates: Mapping[str, ReadTemplate] | None = None,
    now: float | None = None,
) -> list[Problem]:
    """Return what the rules find in files that are loaded together, as problems with places.

    ``now``: seconds since the epoch; None: nothing is said of dates that are over.
    """
    places = {one.policy.name: one.document for file in files for one in file.policies}
    policies = [one.policy for file in files for one in file.policies]
    found = lint(policies, cluster=cluster, files=templates, rules=rules, now=now)
    problems = [_placed(one, places[one.policy]) for one in found]
    return sorted(problems, key=lambda one: (one.file, one.line, one.column))


def _placed(found: Finding, document: Document) -> Problem:
    place = document.find(found.at).place
    problem = document.problem(place, found.message, at=found.at, fix=found.fix)
    return replace(problem, rule=found.rule.id, severity=found.rule.severity.value)


def _rules(names: Sequence[str]) -> Sequence[Rule]:
    """Return the rules of these names; none named: all."""
    known = {one.id: one for one in RULES}
    for name in names:
        if name not in known:
            meant = closest(name, list(known))
            hint = f"did you mean {meant}?" if meant else f"rules: {', '.join(known)}"
            raise Failure(f"error: no lint rule {name}; {hint}", code=2)
    return [known[name] for name in names] if names else RULES


def schema(kind: str) -> None:
    """Print a JSON schema.

    Raises:
        Failure: no such kind (2).
    """
    kinds: dict[str, type[Model]] = {**KINDS, KIND: PolicyTest}
    if kind not in kinds:
        raise Failure(f"error: {kind} is none of: {', '.join(kinds)}", code=2)
    typer.echo(json.dumps(schema_of(kinds[kind]), indent=2))


def _checked(names: Sequence[str], files: Sequence[ParsedFile]) -> str:
    return f"{counted(len(names), 'policy', 'policies')} in {counted(len(files), 'file')}"


def _print(
    problems: Sequence[Problem],
    checked: str,
    *,
    checked_channels: bool,
    strict: bool,
) -> None:
    for problem in problems:
        typer.echo(render(problem))
    errors = sum(one.severity == Severity.ERROR for one in problems)
    warnings = len(problems) - errors
    if errors:
        more = f", {warnings} warning{'s' * (warnings > 1)}" if warnings else ""
        typer.echo(f"{errors} problem{'s' * (errors > 1)}{more}", err=True)
        return
    warned = f", {warnings} warning{'s' * (warnings > 1)}" if warnings else ""
    verdict = "not ok, as --strict counts warnings" if warnings and strict else "ok"
    typer.echo(f"{verdict}: {checked}{warned}")
    if not checked_channels:
        typer.echo(
            "not checked: whether the channels exist, and what templates hold (give --config FILE)"
        )


def _report(problems: Sequence[Problem], names: Sequence[str], *, ok: bool) -> dict[str, object]:
    return {
        "ok": ok,
        "policies": list(names),
        "problems": [asdict(problem) for problem in problems],
    }
