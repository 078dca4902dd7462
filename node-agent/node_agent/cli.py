"""The command line: ``run``, and what people ask beside a running agent.

Imports of the agent proper happen inside the commands, so that ``--help`` and the small
client of the local socket stay quick.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

from node_agent import __version__
from node_agent.settings import (
    CONFIG_VARIABLE,
    PREFIX,
    Duration,
    Settings,
    SettingsError,
    definitions,
    load_settings,
)
from node_agent.terminal import say


USAGE_ERROR: Final = 2
FAILURE: Final = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status: 0 done, 1 failed, 2 called wrongly."""
    options = _parser().parse_args(arguments)
    flags = {
        d.name: value
        for d in definitions()
        if (value := getattr(options, d.name, None)) is not None
    }
    try:
        settings = load_settings(environ=os.environ, flags=flags, config=options.config or "")
    except SettingsError as error:
        say(f"node-agent: {error}", err=True)
        return USAGE_ERROR
    return _COMMANDS[options.command](settings, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="node-agent", description="Watches the GPUs of one node and reports their faults."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="watch this node until stopped",
        description="Read the kernel log and PCI, write node conditions, serve metrics.",
        epilog=f"Each setting can also be given as {PREFIX}<NAME>, or in a JSON file "
        f"(--config, {CONFIG_VARIABLE}); flags win over the environment, that over the file.",
    )
    healthy = commands.add_parser(
        "set-healthy",
        help="declare faults of this node's devices over",
        description="Clears faults older than a time, by the local socket of the running agent. "
        "From outside the node, annotate it instead: "
        "kubectl annotate node NAME gpu-remediator.io/set-healthy=TIME --overwrite",
    )
    healthy.add_argument(
        "--before", default="", metavar="TIME", help="RFC 3339, as 2026-01-31T12:00:00Z; now"
    )
    release = commands.add_parser(
        "release",
        help="close the handles of the GPUs for a time",
        description="Lets a GPU be reset or the driver be unloaded: the agent closes NVML and the "
        "driver's tracepoints for so long; metrics go on with their age. By the local socket.",
    )
    release.add_argument("time", metavar="TIME", help="as 10m; 0s: watch the GPUs again")
    check = commands.add_parser(
        "check",
        help="show what the agent can look at, and what would grant the rest",
        description="One line for each source and view: on, off, or absent (nothing wrong with "
        "that), and why. Asks the running agent; without one it looks for itself, with the "
        "settings given. Exit status 1 if something is off.",
    )
    faults = commands.add_parser(
        "faults",
        help="show this node's conditions and faults as the cluster sees them",
        description="Reads the Node from the API server with the agent's identity.",
    )
    for command in (check, faults):
        command.add_argument("-o", "--output", choices=("text", "json"), default="text")
    _add_settings(run, None)
    _add_settings(check, None)
    _add_settings(healthy, {"socket"})
    _add_settings(release, {"socket"})
    _add_settings(faults, _TO_THE_CLUSTER)
    return parser


_TO_THE_CLUSTER: Final = {"node_name", "kubeconfig", "context", "service_account"}


def _add_settings(command: argparse.ArgumentParser, names: set[str] | None) -> None:
    """Flags for these settings; None: for all."""
    command.add_argument("--config", metavar="FILE", help="JSON file with settings")
    for each in definitions():
        if names is None or each.name in names:
            default = f"; default {each.default}" if each.default != "" else ""
            command.add_argument(
                each.flag,
                dest=each.name,
                metavar=each.kind.upper() if " | " not in each.kind else each.kind,
                help=f"{each.doc.replace('%', '%%')} [{each.kind}{default}]",
            )


def _run(settings: Settings, _: argparse.Namespace) -> int:
    import asyncio  # noqa: PLC0415 - not for --help
    import gc  # noqa: PLC0415 - as above

    from prometheus_client import disable_created_metrics  # noqa: PLC0415

    from node_agent.app import App  # noqa: PLC0415
    from node_agent.log import make_logger  # noqa: PLC0415
    from node_agent.publish.access import AccessError  # noqa: PLC0415
    from node_agent.publish.counters import CountersError  # noqa: PLC0415
    from node_agent.publish.web import ListenError  # noqa: PLC0415

    disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter that nobody asked for
    log = make_logger(settings)

    async def agent() -> None:
        app = App(settings=settings, environ=os.environ, log=log)
        # Modules and parts stay for good. To look at them again in each collection of garbage
        # would hold up the loop for 50 ms.
        gc.collect()
        gc.freeze()
        await app.run()

    try:
        asyncio.run(agent())
    except (AccessError, CountersError, ListenError) as error:
        log.error("cannot start", error=str(error))  # noqa: TRY400 - the text says it all
        return FAILURE
    return 0


def _set_healthy(settings: Settings, options: argparse.Namespace) -> int:
    from node_agent import cli_local  # noqa: PLC0415

    return _beside_agent(lambda: cli_local.set_healthy(settings.socket, options.before))


def _release(settings: Settings, options: argparse.Namespace) -> int:
    from node_agent import cli_local  # noqa: PLC0415

    try:
        seconds = Duration.parse(options.time)
    except ValueError as error:
        say(f"node-agent: {error}", err=True)
        return USAGE_ERROR
    return _beside_agent(lambda: cli_local.release(settings.socket, seconds))


def _beside_agent(command: Callable[[], int]) -> int:
    from node_agent.cli_local import NoAgentError  # noqa: PLC0415

    try:
        return command()
    except NoAgentError as error:
        say(f"node-agent: {error}", err=True)
        return FAILURE


def _check(settings: Settings, options: argparse.Namespace) -> int:
    from node_agent.cli_check import show_check  # noqa: PLC0415

    return show_check(settings, as_json=options.output == "json")


def _faults(settings: Settings, options: argparse.Namespace) -> int:
    from node_agent.cli_faults import show_faults  # noqa: PLC0415

    return show_faults(settings, as_json=options.output == "json")


_COMMANDS: Final[dict[str, Callable[[Settings, argparse.Namespace], int]]] = {
    "run": _run,
    "set-healthy": _set_healthy,
    "release": _release,
    "check": _check,
    "faults": _faults,
}


if __name__ == "__main__":
    sys.exit(main())
