"""Commands for whoever runs the cluster: look, ask, approve, pause, drain by hand."""
# PLC0415: bodies import lazily, so that --help stays quick.
# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from remediator.cli.options import (
    NAMESPACE,
    ConfigFile,
    Context,
    Kubeconfig,
    Namespace,
    NodeName,
    NoWait,
    Output,
    Reason,
    Wait,
    format_of,
    guarded,
    seconds_of,
    target_of,
)


people_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
breaker_app = typer.Typer(
    help="Breakers that stop a policy when too many nodes match.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
people_app.add_typer(breaker_app, name="breaker")
notify_app = typer.Typer(
    help="Channels that messages go to.", no_args_is_help=True, rich_markup_mode=None
)
people_app.add_typer(notify_app, name="notify")


@people_app.command()
def status(
    *,
    output: Output = "table",
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
) -> None:
    """Show what the controller does and what holds it: nodes, guards, policies."""
    from remediator.cli.status import show_status

    guarded(show_status, target_of(kubeconfig, context, namespace), output=format_of(output))


@people_app.command()
def history(
    node: Annotated[
        str, typer.Argument(metavar="[NODE]", help="Only of this node, step by step.")
    ] = "",
    *,
    output: Output = "table",
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
) -> None:
    """Show past and present sessions: what was done, what held it, who approved, how it ended."""
    from remediator.cli.history import show_history

    target = target_of(kubeconfig, context, namespace)
    guarded(show_history, target, node, output=format_of(output))


@people_app.command()
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
    target = target_of(kubeconfig, context, namespace)
    _request("cancel", node, target, reason=reason, wait=0.0 if no_wait else wait)


@people_app.command()
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
    target = target_of(kubeconfig, context, namespace)
    _request("release", node, target, reason=reason, wait=0.0 if no_wait else wait)


@people_app.command()
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
    target = target_of(kubeconfig, context, namespace)
    _request("unfreeze", node, target, reason=reason, wait=0.0 if no_wait else wait)


@people_app.command()
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
    target = target_of(kubeconfig, context, namespace)
    _request("retry", node, target, reason=reason, wait=0.0 if no_wait else wait)


@people_app.command()
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

    target = target_of(kubeconfig, context, namespace)
    limits = {"expires": seconds_of(expires, "--expires"), "wait": 0.0 if no_wait else wait}
    guarded(work, target, node, policy=policy, **limits)


@people_app.command()
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

    target = target_of(kubeconfig, context, namespace)
    guarded(act, target, everything=everything, reason=reason)


@people_app.command()
def resume(
    *,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: Namespace = NAMESPACE,
) -> None:
    """End a pause."""
    from remediator.cli.control import resume as act

    guarded(act, target_of(kubeconfig, context, namespace))


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

    target = target_of(kubeconfig, context, namespace)
    guarded(act, target, source=source, keep=keep, reason=reason)


@notify_app.command("test")
def notify_test(
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="As the file names it.")],
    *,
    config: ConfigFile = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Send it as a dry run's: marked so.")
    ] = False,
) -> None:
    """Send a test message to CHANNEL, and its end; say what the receiver answered."""
    from remediator.cli.notify import send_test

    guarded(send_test, channel, config=config, dry_run=dry_run)


@people_app.command()
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
        typer.Option("--watch", help="Evict nothing; follow the session's drain, or what is left."),
    ] = False,
    timeout: Annotated[
        str,
        typer.Option(metavar="TIME", help="Give up after it. Default: the policy step's, or 1h."),
    ] = "",
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
    from remediator.cli.drain_left import show_left

    keys: dict[str, Any] = {}
    keys |= {"gpuPodsOnly": True} if gpu_pods_only else {}
    keys |= {"strict": True} if strict else {}
    keys |= {"despite": despite} if despite else {}
    keys |= {"gracePeriod": grace_period} if grace_period else {}
    keys |= {"pods": [{"deleteAfter": {"timeout": delete_after}}]} if delete_after else {}
    seconds = seconds_of(timeout, "--timeout") if timeout else None
    target = target_of(kubeconfig, context, namespace)

    def work() -> None:
        wanted = command.wish(policy=policy, keys=keys, per_second=per_second, timeout=seconds)
        if dry_run or watch:
            show_left(target, node, wanted.drain, follow=watch)
        else:
            command.drain_node(target, node, wanted)

    guarded(work)


def _request(verb: str, node: str, target: Any, *, reason: str, wait: float) -> None:
    from remediator.cli.requests import ask

    guarded(ask, target, verb, node, reason=reason, wait=wait)
