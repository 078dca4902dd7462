"""The command line: ``node-agent run`` and ``node-agent set-healthy``.

Imports of the agent proper happen inside the commands, so that ``--help`` and the small
client of the local socket stay quick.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import sys
from collections.abc import Sequence
from typing import Final

from node_agent import __version__
from node_agent.settings import (
    CONFIG_VARIABLE,
    PREFIX,
    Settings,
    SettingsError,
    definitions,
    load_settings,
)


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
        print(f"node-agent: {error}", file=sys.stderr)
        return USAGE_ERROR
    if options.command == "run":
        return _run(settings)
    return _set_healthy(settings, options.before)


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
    for command, names in ((run, None), (healthy, {"socket"})):
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
    return parser


def _run(settings: Settings) -> int:
    import asyncio  # noqa: PLC0415 - not for --help

    from prometheus_client import disable_created_metrics  # noqa: PLC0415

    from node_agent.app import App  # noqa: PLC0415
    from node_agent.log import make_logger  # noqa: PLC0415
    from node_agent.publish.access import AccessError  # noqa: PLC0415
    from node_agent.publish.counters import CountersError  # noqa: PLC0415
    from node_agent.publish.web import ListenError  # noqa: PLC0415

    disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter that nobody asked for
    log = make_logger(settings)

    async def agent() -> None:
        await App(settings=settings, environ=os.environ, log=log).run()

    try:
        asyncio.run(agent())
    except (AccessError, CountersError, ListenError) as error:
        log.error("cannot start", error=str(error))  # noqa: TRY400 - the text says it all
        return FAILURE
    return 0


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=10)
        self._path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _set_healthy(settings: Settings, before: str) -> int:
    connection = _UnixConnection(settings.socket)
    try:
        connection.request("POST", "/set-healthy", body=json.dumps({"before": before}))
        response = connection.getresponse()
        answer = json.loads(response.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        print(
            f"node-agent: no answer from the agent at {settings.socket}: {error}\n"
            "Run this beside the agent (kubectl exec), or give its --socket.",
            file=sys.stderr,
        )
        return FAILURE
    finally:
        connection.close()
    if answer.get("refused"):
        print(f"node-agent: refused: {answer['refused']}", file=sys.stderr)
        return FAILURE
    for line in answer.get("cleared", ()):
        print(f"cleared: {line}")
    if not answer.get("cleared"):
        print("nothing to clear")
    return 0


if __name__ == "__main__":
    sys.exit(main())
