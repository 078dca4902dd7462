"""Where a command's policies come from: files, RemediationPolicy objects of the cluster, or both.

As for the controller (`run --policies-from`). Files are the author's: an error in one is an
error of the command. An object with an error is said, and the others count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from remediator.cli.failure import Failure
from remediator.cli.replay import BAD_INPUT, failure_of
from remediator.kube.client import ApiClient
from remediator.kube.custom import CustomObjects
from remediator.kube.errors import NotFound
from remediator.policy.cluster import ClusterSpec
from remediator.policy.load import check_channels, check_names, load_files, parse_policies
from remediator.policy.model import RemediationPolicy
from remediator.policy.problems import PolicyError, Problem
from remediator.record.crds import POLICIES
from remediator.record.policysource import contents
from remediator.settings import PoliciesFrom


class Found(NamedTuple):
    """Policies as they are written, and for people which objects are none."""

    policies: tuple[RemediationPolicy, ...]
    notes: tuple[str, ...] = ()


class PolicySource(NamedTuple):
    """What ``--policies`` and ``--policies-from`` say.

    ``cluster``: RemediatorConfig, whose channels objects may name; None: they are not checked.
    """

    paths: tuple[Path, ...]
    kind: PoliciesFrom
    cluster: ClusterSpec | None = None

    def from_files(self) -> tuple[RemediationPolicy, ...]:
        """Return the policies of the files. Raises Failure."""
        return tuple(policy for policy, _ in self._files())

    async def read(self, api: ApiClient, namespace: str) -> Found:
        """Return all policies.

        Raises:
            Failure: a file is wrong, there is no policy, or the cluster has no such kind.
            ApiError: the objects cannot be read.
        """
        files = self._files()
        written = tuple(policy for policy, _ in files)
        if self.kind is PoliciesFrom.FILES:
            return Found(written)
        try:
            objects = CustomObjects(api=api, namespace=namespace, plural=POLICIES.plural)
            found = contents(await objects.read_all())
        except NotFound:
            raise Failure(
                "error: the cluster has no kind RemediationPolicy: apply deploy/crds, or leave out"
                " --policies-from"
            ) from None
        owners = {policy.name: file for policy, file in files}
        policies, problems = parse_objects(found, owners=owners, cluster=self.cluster)
        if not files and not policies:
            none = f"error: no RemediationPolicy in namespace {namespace}"
            raise Failure(none, *map(str, problems), code=BAD_INPUT)
        return Found((*written, *policies), tuple(f"does not count: {one}" for one in problems))

    def _files(self) -> Sequence[tuple[RemediationPolicy, str]]:
        """Return the policies of the files, and which holds each."""
        if not self.paths:
            return ()
        try:
            files = load_files(self.paths)
        except PolicyError as error:
            raise failure_of(error) from error
        found = [(one.policy, file.file) for file in files for one in file.policies]
        if not found:
            said = ", ".join(map(str, self.paths))
            raise Failure(f"error: no policy in {said}", code=BAD_INPUT)
        return found


def policy_source(
    paths: Sequence[Path], given: str, *, cluster: ClusterSpec | None, recorded: bool = False
) -> PolicySource:
    """Return where the policies are, by the flags.

    Args:
        paths: ``--policies``.
        given: ``--policies-from``.
        cluster: see :class:`PolicySource`.
        recorded: whether a recording stands for the cluster.

    Raises:
        Failure: they do not fit together (2).
    """
    try:
        kind = PoliciesFrom(given)
    except ValueError:
        known = ", ".join(PoliciesFrom)
        raise Failure(
            f"error: --policies-from {given}: write one of {known}", code=BAD_INPUT
        ) from (None)
    wrong = ""
    if kind is not PoliciesFrom.CRDS and not paths:
        wrong = "which policies? --policies FILE|DIR, or --policies-from crds"
    elif kind is PoliciesFrom.CRDS and paths:
        wrong = "--policies-from crds reads no files: write --policies-from both"
    elif kind is not PoliciesFrom.FILES and recorded:
        wrong = "a recording holds no policies: give them by --policies alone"
    if wrong:
        raise Failure(f"error: {wrong}", code=BAD_INPUT)
    return PolicySource(tuple(paths), kind, cluster)


def parse_objects(
    found: Mapping[str, bytes],
    *,
    owners: Mapping[str, str],
    cluster: ClusterSpec | None,
) -> tuple[Sequence[RemediationPolicy], Sequence[Problem]]:
    """Read policies that are objects, each by itself.

    Args:
        found: the text of each, by what it is called.
        owners: names of policies that there are already, and where.
        cluster: whose channels they may name; None: any.

    Returns:
        The good ones, and the first problem of each of the others.
    """
    policies: list[RemediationPolicy] = []
    bad: list[Problem] = []
    for name, text in sorted(found.items()):
        try:
            parsed = parse_policies(text, file=name)
        except PolicyError as error:
            bad.append(error.problems[0])
            continue
        problems = check_names(parsed, owners)
        problems += check_channels(parsed, cluster) if cluster is not None else []
        if problems:
            bad.append(problems[0])
        else:
            policies += [one.policy for one in parsed.policies]
    return policies, bad
