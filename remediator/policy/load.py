"""Policy files to policies, and the file of the cluster's settings to `ClusterSpec`.

A file is taken whole or not at all: half of what its author meant may be worse than
the version before. Every problem of a file is reported at once. Text is judged by
pure functions; what touches the disk is :mod:`remediator.policy.files`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from pydantic import ValidationError

from remediator.policy.base import Model
from remediator.policy.cluster import ClusterSpec, RemediatorConfig
from remediator.policy.explain import explain
from remediator.policy.files import find_files, read_text
from remediator.policy.keys import closest
from remediator.policy.model import API_VERSION, RemediationPolicy
from remediator.policy.problems import Location, PolicyError, Problem, format_path
from remediator.policy.steps import Step
from remediator.policy.tree import Document, Place, make_problem
from remediator.policy.yaml import read_documents


LOG_CHANNEL: Final = "log"
"""The channel that always exists."""

POLICY_KIND: Final = "RemediationPolicy"
CONFIG_KIND: Final = "RemediatorConfig"

_ModelT = TypeVar("_ModelT", bound=Model)


class Mention(NamedTuple):
    """What a policy names of RemediatorConfig, and where: a channel, or what ``kind`` says."""

    channel: str
    place: Place
    path: str
    kind: str = "channel"


@dataclass(frozen=True, slots=True)
class ParsedPolicy:
    """A policy and what checks across files need to point at it."""

    policy: RemediationPolicy
    name_place: Place
    mentions: tuple[Mention, ...]
    document: Document = field(repr=False)


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """The policies of one file, in its order."""

    file: str
    lines: Sequence[str] = field(repr=False)
    policies: tuple[ParsedPolicy, ...]

    def problem(self, place: Place, message: str, *, path: str, fix: str) -> Problem:
        """Make a problem of this file."""
        return make_problem(self.file, list(self.lines), place, message, path=path, fix=fix)


def parse_policies(data: bytes, *, file: str) -> ParsedFile:
    """Read a policy file: one or more documents of kind RemediationPolicy.

    Raises:
        PolicyError: with every problem of the file.
    """
    documents = _documents(data, file)
    problems: list[Problem] = []
    found = []
    for document in documents:
        try:
            policy = _validate(document, RemediationPolicy, POLICY_KIND)
        except PolicyError as error:
            problems += error.problems
        else:
            found.append(_parsed(policy, document))
    if problems:
        raise PolicyError(problems)
    parsed = ParsedFile(file, documents[0].lines, tuple(found))
    if twice := _duplicates_within(parsed):
        raise PolicyError(twice)
    return parsed


def parse_config(data: bytes, *, file: str) -> ClusterSpec:
    """Read a RemediatorConfig file.

    Raises:
        PolicyError: with every problem of the file.
    """
    return parse_document(data, file=file, model=RemediatorConfig, kind=CONFIG_KIND)[0].spec


def parse_document(
    data: bytes, *, file: str, model: type[_ModelT], kind: str
) -> tuple[_ModelT, Document]:
    """Read a file of another kind that is one document; the document knows the places.

    Raises:
        PolicyError: with every problem of the file.
    """
    documents = _documents(data, file)
    if len(documents) > 1:
        place = documents[1].root.place
        message = f"a {kind} file is one document"
        raise PolicyError([documents[1].problem(place, message, fix="make it another file")])
    return _validate(documents[0], model, kind), documents[0]


def check_channels(parsed: ParsedFile, cluster: ClusterSpec) -> list[Problem]:
    """Return a problem for each name in a policy that RemediatorConfig does not have.

    Of channels, and of the templates and endpoints that steps use.
    """
    names = {
        "channel": [LOG_CHANNEL, *cluster.channels],
        "template": list(cluster.templates),
        "endpoint": list(cluster.endpoints),
    }
    problems = []
    for one in parsed.policies:
        for mention in one.mentions:
            known, kind = names[mention.kind], mention.kind
            if mention.channel not in known:
                meant = closest(mention.channel, known)
                problems.append(
                    parsed.problem(
                        mention.place,
                        f"{mention.channel} is no {kind}",
                        path=mention.path,
                        fix=f"did you mean {meant}?"
                        if meant
                        else f"{kind}s of RemediatorConfig: {', '.join(known) or 'none'}; "
                        f"add it there under spec.{kind}s",
                    )
                )
    return problems


def check_names(parsed: ParsedFile, owners: Mapping[str, str]) -> list[Problem]:
    """Return a problem for each policy whose name another file (`owners`: name to file) has."""
    return [
        parsed.problem(
            one.name_place,
            f"a policy named {one.policy.name} is in {owners[one.policy.name]} already",
            path="metadata.name",
            fix="give it another name",
        )
        for one in parsed.policies
        if owners.get(one.policy.name, parsed.file) != parsed.file
    ]


def load_policies(
    paths: Iterable[Path], *, cluster: ClusterSpec | None = None
) -> tuple[RemediationPolicy, ...]:
    """Load files and folders at once, as `policy check` does: all is right, or nothing is given.

    Raises:
        PolicyError: with the problems of all files.
    """
    parsed = load_files(paths, cluster=cluster)
    return tuple(one.policy for file in parsed for one in file.policies)


def load_files(
    paths: Iterable[Path], *, cluster: ClusterSpec | None = None
) -> tuple[ParsedFile, ...]:
    """Load files and folders at once, as `load_policies` does, with the places of everything.

    Raises:
        PolicyError: with the problems of all files.
    """
    problems: list[Problem] = []
    owners: dict[str, str] = {}
    files: list[ParsedFile] = []
    for path in find_files(paths):
        try:
            parsed = parse_policies(read_text(path), file=str(path))
        except PolicyError as error:
            problems += error.problems
            continue
        problems += check_names(parsed, owners)
        problems += check_channels(parsed, cluster) if cluster is not None else []
        owners = {one.policy.name: parsed.file for one in parsed.policies} | owners
        files.append(parsed)
    if problems:
        raise PolicyError(problems)
    return tuple(files)


def load_config(path: Path) -> ClusterSpec:
    """Load a RemediatorConfig file.

    Raises:
        PolicyError: with every problem of the file.
    """
    return parse_config(read_text(path), file=str(path))


def _documents(data: bytes, file: str) -> list[Document]:
    """Decode and parse; leave out documents that are empty (a trailing `---`)."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        raise PolicyError(
            [
                Problem(
                    file=file,
                    line=line,
                    column=error.start - (before.rfind(b"\n") + 1) + 1,
                    message=f"the file is not UTF-8 (byte 0x{data[error.start]:02x})",
                    fix="save it as UTF-8",
                )
            ]
        ) from error
    documents = [one for one in read_documents(text, file=file) if not _empty(one)]
    if not documents:
        raise PolicyError(
            [
                Problem(
                    file=file,
                    message="the file holds no document",
                    fix="write one, or remove the file",
                )
            ]
        )
    return documents


def _empty(document: Document) -> bool:
    return document.root.children is None and document.root.value is None


def _validate(document: Document, model: type[_ModelT], kind: str) -> _ModelT:
    """Check one document against a model; its kind first, since all else depends on it."""
    data = document.data
    if not isinstance(data, dict):
        place = document.root.place
        message = f"a mapping is expected, with apiVersion, kind {kind}, ..."
        raise PolicyError([*document.problems, document.problem(place, message)])
    if wrong := _wrong_kind(document, data, kind):
        raise PolicyError([*document.problems, wrong])
    try:
        value = model.model_validate(data)
    except ValidationError as error:
        found = explain(document, model, error.errors(include_url=False))
        raise PolicyError(_in_order([*document.problems, *found])) from error
    if document.problems:
        raise PolicyError(document.problems)
    return value


def _in_order(problems: list[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda problem: (problem.line, problem.column))


def _wrong_kind(document: Document, data: Mapping[str, object], kind: str) -> Problem | None:
    given = data.get("kind")
    if given == kind or given is None:
        return None
    at: Location = ("kind",)
    other = {POLICY_KIND: CONFIG_KIND, CONFIG_KIND: POLICY_KIND}.get(kind)
    if other is not None and given == other:
        advice = {
            CONFIG_KIND: "give this file by --config, and keep it out of the policies' folder",
            POLICY_KIND: "give this file by --policies; --config takes a RemediatorConfig",
        }
        fix = advice[other]
    else:
        fix = f"write `apiVersion: {API_VERSION}` and `kind: {kind}`"
    return document.problem(
        document.find(at).place, f"this is a {given}, not a {kind}", at=at, fix=fix
    )


def _parsed(policy: RemediationPolicy, document: Document) -> ParsedPolicy:
    spots: list[tuple[str, Location, str]] = []
    for index, step in enumerate(policy.spec.steps):
        spots += [(name, ("spec", "steps", index, *at), kind) for name, at, kind in _named(step)]
    spots += [
        (name, ("spec", "recover", "notify", at), "channel")
        for at, name in enumerate(policy.spec.recover.notify)
    ]
    mentions = tuple(
        Mention(name, document.find(at).place, format_path(at), kind) for name, at, kind in spots
    )
    name_place = document.find(("metadata", "name")).place
    return ParsedPolicy(policy, name_place, mentions, document)


def _named(step: Step) -> list[tuple[str, Location, str]]:
    """Return what a step names of RemediatorConfig, where in the step, and of what kind."""
    asked = step.notify or step.approve
    found: list[tuple[str, Location, str]] = [
        (name, (step.action, "to", at), "channel")
        for at, name in enumerate(asked.to if asked is not None else ())
    ]
    made = step.job or step.create
    if made is not None:
        found.append((made.template, (step.action, "template"), "template"))
    if step.webhook is not None:
        found.append((step.webhook.to, ("webhook", "to"), "endpoint"))
    return found


def _duplicates_within(parsed: ParsedFile) -> list[Problem]:
    first: dict[str, int] = {}
    problems = []
    for one in parsed.policies:
        if one.policy.name in first:
            problems.append(
                parsed.problem(
                    one.name_place,
                    f"a second policy named {one.policy.name}",
                    path="metadata.name",
                    fix=f"see line {first[one.policy.name]}; give it another name",
                )
            )
        first.setdefault(one.policy.name, one.name_place.line)
    return problems
