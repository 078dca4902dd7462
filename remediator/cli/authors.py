"""Commands for whoever writes policies: check, test, explain, simulate, record, replay."""
# PLC0415: bodies import lazily, so that --help stays quick.
# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remediator.cli.options import (
    NAMESPACE,
    At,
    ConfigFile,
    Context,
    Kubeconfig,
    Namespace,
    NodeName,
    Output,
    Policies,
    PoliciesFromWhere,
    Recorded,
    format_of,
    guarded,
    seconds_of,
    target_of,
)


authors_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
policy_app = typer.Typer(
    help="Check, test, explain and convert policy files.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
authors_app.add_typer(policy_app, name="policy")


@policy_app.command("check")
def policy_check(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE|DIR...]", help="Policy files. None: --config alone."),
    ] = None,
    *,
    config: Annotated[
        Path | None, typer.Option(help="RemediatorConfig file: also checked, with its channels.")
    ] = None,
    rule: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Lint by this rule only; repeatable.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    output: Output = "table",
) -> None:
    """Check policy files: schema, then lint. Exit code 2 if anything is wrong."""
    from remediator.cli.policies import check

    given = {"config": config, "rules": rule or (), "strict": strict, "output": format_of(output)}
    guarded(check, paths or [], **given)


@policy_app.command("test")
def policy_test(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE|DIR...]", help="Files *.test.yaml, or folders. Default: ./policies."
        ),
    ] = None,
    *,
    junit: Annotated[Path | None, typer.Option(help="Also write the results as JUnit XML.")] = None,
    only: Annotated[
        str, typer.Option(metavar="TEXT", help="Only tests with this text in their name.")
    ] = "",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show what happened in every test.")
    ] = False,
    output: Output = "table",
) -> None:
    """Run policy tests in virtual time. Exit code 1 if one fails, 2 if a file is wrong."""
    from remediator.cli.testing import test

    where = paths or [Path("policies")]
    guarded(test, where, report=junit, only=only, verbose=verbose, output=format_of(output))


@policy_app.command("explain")
def policy_explain(
    node: NodeName,
    *,
    policies: Policies = None,
    policies_from: PoliciesFromWhere = "files",
    policy: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this one, in full.")
    ] = None,
    config: ConfigFile = None,
    recorded: Recorded = None,
    at: At = None,
    output: Output = "table",
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
) -> None:
    """Say which clause matches NODE, which does not and why, and what holds the policy."""
    from remediator.cli.simulate import Given, show_explanation

    seconds = None if at is None else seconds_of(at, "--at")
    given = Given(policies or (), policies_from, config, recorded, seconds, as_written=False)
    target = target_of(kubeconfig, context, namespace)
    guarded(show_explanation, target, node, given, policy=policy, output=format_of(output))


@policy_app.command("convert")
def policy_convert(
    kind: Annotated[str, typer.Argument(metavar="npd|eks|draino", help="Whose rules they are.")],
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file, or - for stdin.")],
) -> None:
    """Print policies made of another program's rules, with notes on what differs."""
    from remediator.cli.convert import show_converted

    guarded(show_converted, kind, path)


@policy_app.command("schema")
def policy_schema(
    *,
    kind: Annotated[
        str, typer.Option(metavar="KIND", help="RemediationPolicy, RemediatorConfig or PolicyTest.")
    ] = "RemediationPolicy",
) -> None:
    """Print the JSON schema of policy files, for editors."""
    from remediator.cli.policies import schema

    guarded(schema, kind)


@authors_app.command()
def simulate(
    *,
    policies: Policies = None,
    policies_from: PoliciesFromWhere = "files",
    config: ConfigFile = None,
    recorded: Recorded = None,
    at: At = None,
    as_written: Annotated[
        bool, typer.Option("--as-written", help="In the policies' own modes; default: enforced.")
    ] = False,
    output: Output = "table",
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
) -> None:
    """Show what policies would do now, and what would hold them. Only reads the cluster."""
    from remediator.cli.simulate import Given, show_simulation

    seconds = None if at is None else seconds_of(at, "--at")
    given = Given(policies or (), policies_from, config, recorded, seconds, as_written)
    target = target_of(kubeconfig, context, namespace)
    guarded(show_simulation, target, given, output=format_of(output))


@authors_app.command()
def record(
    *,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to; *.gz is packed.")],
    for_: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long, such as 1h; Ctrl-C ends it.")
    ] = "1h",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="RemediatorConfig file: its alerts are recorded, too. Default: no alerts.",
        ),
    ] = None,
    policies: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE|DIR",
            help="Policies whose queries are recorded, too; repeatable. Default: no query.",
        ),
    ] = None,
    policies_from: PoliciesFromWhere = "files",
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
) -> None:
    """Record the facts of all nodes, alerts and answers, for `replay`. Only reads the cluster."""
    from remediator.cli.record import Given
    from remediator.cli.record import record as act

    target = target_of(kubeconfig, context, namespace)
    given = Given(config, policies or (), policies_from)
    guarded(act, target, out, given, seconds=seconds_of(for_, "--for"), overwrite=force)


@authors_app.command()
def replay(
    tape: Annotated[Path, typer.Argument(metavar="FILE", help="Of `record`.")],
    *,
    policies: Annotated[
        list[Path], typer.Option(metavar="FILE|DIR", help="Policies to replay under; repeatable.")
    ],
    against: Annotated[
        list[Path] | None, typer.Option(metavar="FILE|DIR", help="Others to compare them with.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="RemediatorConfig file.")] = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TIME",
            help="What no recording knows: drain (2m), job (5m), create (1m), webhook (5s), "
            "reboot (10m), approval (15m); in brackets the defaults. Or NAME=never. Repeatable.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw capacity, cordons, drains.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print what would have happened.")
    ] = False,
    output: Output = "table",
) -> None:
    """Show what policies would have done with a recording, as though enforced."""
    from remediator.cli.replay import show_replay

    guarded(
        show_replay,
        tape,
        policies=policies,
        against=against or (),
        config=config,
        assume=assume or (),
        picture=plot,
        verbose=verbose,
        output=format_of(output),
    )
