"""What commands share: their common options, and how each ends."""
# PLC0415: bodies import lazily, so that --help stays quick.
# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from remediator.cli.failure import Failure


Kubeconfig = Annotated[
    str, typer.Option(help="Kubeconfig file. Default: $KUBECONFIG or ~/.kube/config.")
]
Context = Annotated[str, typer.Option(help="Context of the kubeconfig. Default: its current.")]
Namespace = Annotated[
    str,
    typer.Option(
        envvar="REMEDIATOR_NAMESPACE", show_envvar=False, help="Namespace of the controller."
    ),
]


def _short(text: str) -> str:
    from remediator.decide.requests import MAX_SAID

    if len(text) > MAX_SAID:
        raise typer.BadParameter(f"at most {MAX_SAID} characters, these are {len(text)}")
    return text


Reason = Annotated[str, typer.Option(help="Why; shown to others.", callback=_short)]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.")]
Wait = Annotated[
    float, typer.Option(metavar="SECONDS", help="How long to wait for the controller's answer.")
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for the answer.")]
Output = Annotated[
    str, typer.Option("--output", "-o", metavar="table|json", help="How to print the result.")
]
Policies = Annotated[
    list[Path] | None,
    typer.Option(
        "--policies",
        metavar="FILE|DIR",
        help="Policy files or folders; repeatable. None with --policies-from crds.",
    ),
]
PoliciesFromWhere = Annotated[
    str,
    typer.Option(
        "--policies-from",
        metavar="files|crds|both",
        help="Where policies are: files, RemediationPolicy objects in the namespace, both.",
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="RemediatorConfig file. Default: the defaults.")
]
Recorded = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A recording of `record`, instead of the live cluster."),
]
At = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Of the recording, since its start. Default: its end."),
]
NAMESPACE = "gpu-remediator"


def guarded(work: Any, *args: Any, **kwargs: Any) -> None:
    """Do the work; a failure becomes a sentence on stderr and an exit code."""
    from remediator.cli.quiet import errors_alone

    try:
        with errors_alone():
            work(*args, **kwargs)
    except Failure as failure:
        typer.echo(str(failure), err=True)
        raise typer.Exit(failure.code) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def target_of(kubeconfig: str, context: str, namespace: str) -> Any:
    """Return the cluster that the flags name."""
    from remediator.cli.cluster import Target

    return Target(kubeconfig or None, context or None, namespace)


def seconds_of(text: str, flag: str) -> float:
    """Read a duration such as ``10m``, of this flag."""
    from remediator.policy.quantities import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None


def format_of(output: str) -> str:
    """Return how to print: ``table`` or ``json``."""
    if output not in {"table", "json"}:
        raise typer.BadParameter(f"{output} is neither table nor json", param_hint="--output")
    return output
