"""Commands and flags. Only typer is imported here: bodies import what they need.

Exit codes: 0 done; 1 the cluster or the controller said no, or nothing; 2 bad input.
"""
# PLC0415: bodies import lazily, so that --help stays quick.
# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from remediator.cli.failure import Failure


app = typer.Typer(
    name="remediator",
    help="Takes GPU nodes out of service by tested policies, and brings them back.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
policy_app = typer.Typer(
    help="Check, test, explain and convert policy files.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
breaker_app = typer.Typer(
    help="Breakers that stop a policy when too many nodes match.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(policy_app, name="policy")
app.add_typer(breaker_app, name="breaker")

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
    from remediator.decide.session import MAX_SAID

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
    list[Path], typer.Option(metavar="FILE|DIR", help="Policy files or folders; repeatable.")
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


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def run(context: typer.Context) -> None:
    """Run the controller: watch the nodes, decide by the policies, act (dry-run by default)."""
    # Its flags are the settings, whose one definition takes 0.4 s to import: they are read
    # by a command of their own, made when it is needed.
    from remediator.cli.run import run_app

    run_app()(args=context.args, prog_name=f"{context.command_path}")


@app.command()
def status(
    *,
    output: Output = "table",
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
) -> None:
    """Show what the controller does and what holds it: nodes, guards, policies."""
    from remediator.cli.status import show_status

    guarded(show_status, _target(kubeconfig, context, namespace), output=_format(output))


@app.command()
def cancel(
    node: NodeName,
    *,
    reason: Reason = "",
    wait: Wait = 10.0,
    no_wait: NoWait = False,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
) -> None:
    """End the remediation of NODE, undo what was added, and leave this fault to people."""
    target = _target(kubeconfig, context, namespace)
    _request("cancel", node, target, reason=reason, wait=0.0 if no_wait else wait)


@app.command()
def release(
    node: NodeName,
    *,
    reason: Reason = "",
    wait: Wait = 10.0,
    no_wait: NoWait = False,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
) -> None:
    """End the remediation of NODE and keep the node as it is: it is yours now."""
    target = _target(kubeconfig, context, namespace)
    _request("release", node, target, reason=reason, wait=0.0 if no_wait else wait)


@app.command()
def unfreeze(
    node: NodeName,
    *,
    reason: Reason = "",
    wait: Wait = 10.0,
    no_wait: NoWait = False,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
) -> None:
    """Drop an unreadable session annotation of NODE and let the controller decide anew."""
    target = _target(kubeconfig, context, namespace)
    _request("unfreeze", node, target, reason=reason, wait=0.0 if no_wait else wait)


@app.command()
def retry(
    node: NodeName,
    *,
    reason: Reason = "",
    wait: Wait = 10.0,
    no_wait: NoWait = False,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
) -> None:
    """Run the failed or escalated step of NODE again, with a new set of attempts."""
    target = _target(kubeconfig, context, namespace)
    _request("retry", node, target, reason=reason, wait=0.0 if no_wait else wait)


@app.command()
def approve(
    node: NodeName,
    *,
    policy: Annotated[
        str, typer.Option(help="Whose step, where several policies wait.", show_default=False)
    ] = "",
    expires: Annotated[
        str, typer.Option(help="How long the approval is good for, such as 30m.")
    ] = "1h",
    wait: Wait = 10.0,
    no_wait: NoWait = False,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
) -> None:
    """Approve the step that waits for a person on NODE, once."""
    from remediator.cli.approve import approve as work

    target = _target(kubeconfig, context, namespace)
    limits = {"expires": _seconds(expires, "--expires"), "wait": 0.0 if no_wait else wait}
    guarded(work, target, node, policy=policy, **limits)


@app.command()
def pause(
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Stop every write, also undo and recovery.")
    ] = False,
    reason: Reason = "",
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
) -> None:
    """Stop new disruptive steps. Recovery, undo and messages go on, unless --all."""
    from remediator.cli.control import pause as act

    target = _target(kubeconfig, context, namespace)
    guarded(act, target, everything=everything, reason=reason)


@app.command()
def resume(
    *,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
) -> None:
    """End a pause."""
    from remediator.cli.control import resume as act

    guarded(act, _target(kubeconfig, context, namespace))


@breaker_app.command("reset")
def breaker_reset(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="As `status` names it.")],
    *,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep/--drop",
            help="Handle the nodes that match now, or leave them until they clear and return.",
        ),
    ] = False,
    reason: Reason = "",
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
) -> None:
    """Close an open breaker."""
    from remediator.cli.control import reset_breaker as act

    target = _target(kubeconfig, context, namespace)
    guarded(act, target, source=source, keep=keep, reason=reason)


@policy_app.command("check")
def policy_check(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE|DIR...", help="Policy files.")],
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

    given = {"config": config, "rules": rule or (), "strict": strict, "output": _format(output)}
    guarded(check, paths, **given)


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
    guarded(test, where, report=junit, only=only, verbose=verbose, output=_format(output))


@policy_app.command("explain")
def policy_explain(
    node: NodeName,
    *,
    policies: Policies,
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

    seconds = None if at is None else _seconds(at, "--at")
    given = Given(policies, config, recorded, seconds, as_written=False)
    target = _target(kubeconfig, context, namespace)
    guarded(show_explanation, target, node, given, policy=policy, output=_format(output))


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


@app.command()
def simulate(
    *,
    policies: Policies,
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

    seconds = None if at is None else _seconds(at, "--at")
    given = Given(policies, config, recorded, seconds, as_written)
    target = _target(kubeconfig, context, namespace)
    guarded(show_simulation, target, given, output=_format(output))


@app.command()
def record(
    *,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to; *.gz is packed.")],
    for_: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long, such as 1h; Ctrl-C ends it.")
    ] = "1h",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> None:
    """Record the facts of all nodes, for `replay`. Only reads the cluster."""
    from remediator.cli.record import record as act

    target = _target(kubeconfig, context, NAMESPACE)
    guarded(act, target, out, seconds=_seconds(for_, "--for"), overwrite=force)


@app.command()
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
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw the nodes out of service.")
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
        picture=plot,
        verbose=verbose,
        output=_format(output),
    )


@app.command()
def drain(
    node: NodeName,
    *,
    policy: Annotated[
        Path | None, typer.Option(help="Policy file whose drain step says how; flags change it.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would leave, and what would block.")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Evict nothing; follow what is left until nothing is."),
    ] = False,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Give up after it.")] = "1h",
    gpu_pods_only: Annotated[
        bool, typer.Option("--gpu-pods-only", help="Only pods that ask for a GPU.")
    ] = False,
    despite: Annotated[
        list[str] | None,
        typer.Option(
            metavar="emptyDir|unmanaged|annotated", help="A protection that does not count."
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Evict nothing while a pod is protected.")
    ] = False,
    grace_period: Annotated[
        str, typer.Option(metavar="TIME", help="For pods to end. Default: each pod's own.")
    ] = "",
    delete_after: Annotated[
        str, typer.Option(metavar="TIME", help="Then delete pods past their budgets.")
    ] = "",
    per_second: Annotated[int, typer.Option(help="Evictions per second.")] = 20,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
) -> None:
    """Cordon NODE and evict its pods, as a policy's drain does. Touches no session."""
    from remediator.cli import drain as command

    keys: dict[str, Any] = {}
    keys |= {"gpuPodsOnly": True} if gpu_pods_only else {}
    keys |= {"strict": True} if strict else {}
    keys |= {"despite": despite} if despite else {}
    keys |= {"gracePeriod": grace_period} if grace_period else {}
    keys |= {"pods": [{"deleteAfter": {"timeout": delete_after}}]} if delete_after else {}
    seconds = _seconds(timeout, "--timeout")
    target = _target(kubeconfig, context, namespace)

    def work() -> None:
        wanted = command.wish(policy=policy, keys=keys, per_second=per_second, timeout=seconds)
        if dry_run or watch:
            command.show_left(target, node, wanted.drain, follow=watch)
        else:
            command.drain_node(target, node, wanted)

    guarded(work)


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    typer.echo(f"remediator {installed('gpu-remediator')}")


def guarded(work: Any, *args: Any, **kwargs: Any) -> None:
    """Do the work; a failure becomes a sentence on stderr and an exit code."""
    try:
        work(*args, **kwargs)
    except Failure as failure:
        typer.echo(str(failure), err=True)
        raise typer.Exit(failure.code) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _target(kubeconfig: str, context: str, namespace: str) -> Any:
    from remediator.cli.cluster import Target

    return Target(kubeconfig or None, context or None, namespace)


def _request(verb: str, node: str, target: Any, *, reason: str, wait: float) -> None:
    from remediator.cli.requests import ask

    guarded(ask, target, verb, node, reason=reason, wait=wait)


def _seconds(text: str, flag: str) -> float:
    from remediator.policy.quantities import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None


def _format(output: str) -> str:
    if output not in {"table", "json"}:
        raise typer.BadParameter(f"{output} is neither table nor json", param_hint="--output")
    return output
