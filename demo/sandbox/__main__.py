"""Start the sandbox, or let something happen on one of its nodes.

python -m demo.sandbox [--policies FOLDER] [--config FILE] [--nodes N]
python -m demo.sandbox happen NODE ENTRY        (with $KUBECONFIG, as the first one prints it)
"""

import argparse
import json
import os
import shlex
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from demo.paper import Paper
from demo.sandbox.happen import SandboxError, play, read
from demo.sandbox.world import World, set_up
from testbed.api import Api, ApiError
from testbed.binaries import provide
from testbed.processes import ServerFailedError


_POLICIES = Path(__file__).parents[2] / "policies"
_LOOPBACK = "127.0.0.1"


def main() -> int:
    """Do what the arguments say; the exit code."""
    given = _arguments().parse_args()
    try:
        if given.command == "happen":
            api, entry = _api(), read(given.entry)
            for name in given.nodes.split(","):
                play(api, name, entry, wait=time.sleep)
            return 0
        return _run(given.policies, given.config, given.count)
    except (SandboxError, ServerFailedError, ApiError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0  # that is how it ends


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m demo.sandbox", description=__doc__)
    parser.set_defaults(command="run")
    parser.add_argument("--policies", type=Path, default=_POLICIES, help="folder or file")
    parser.add_argument("--config", type=Path, help="RemediatorConfig; default: dry-run")
    parser.add_argument("--nodes", dest="count", type=int, default=5, help="how many GPU nodes")
    commands = parser.add_subparsers()
    happen = commands.add_parser("happen", help="let something happen on a node")
    happen.set_defaults(command="happen")
    happen.add_argument("nodes", help="one of them, or several: gpu-1,gpu-2")
    happen.add_argument("entry", help="as in a test's timeline: 'xid: {code: 79}', 'clear: {}'")
    return parser


def _run(policies: Path, config: Path | None, count: int) -> int:
    paper = Paper()
    if not policies.exists():
        raise SandboxError(f"there is no {policies}: give a folder or a file of policies")
    paper.say(f"starting a control plane, {count} GPU nodes, and a controller on {policies} ...")
    with set_up(policies.resolve(), config=config and config.resolve(), count=count) as world:
        _tell(paper, world, policies)
        while world.controller.running:
            time.sleep(0.5)
        paper.say(world.controller.log_tail())
        paper.say("The controller has ended; above is what it said last.")
    return 1


def _tell(paper: Paper, world: World, policies: Path) -> None:
    """What people can do with it."""
    node, policy = world.nodes[0], shlex.quote(str(policies))
    happen = f"python -m demo.sandbox happen {node}"
    path = f"{Path(sys.executable).parent}:{provide('kubectl').parent}"
    paper.chapter("A sandbox: nothing outside it is touched; Ctrl-C ends it")
    for what, *commands in (
        (
            "in another terminal, in this folder:",
            f'export KUBECONFIG={world.kubeconfig} PATH="{path}:$PATH"',
        ),
        ("make a node faulty, as in a policy test's timeline:", f"{happen} 'xid: {{code: 79}}'"),
        (
            "what the controller would do, or does; and its log:",
            "remediator status",
            f"remediator policy explain {node} --policies {policy}",
            f"tail -f {world.controller.log}",
        ),
        (
            "the cluster, and what was done on it:",
            "kubectl get nodes",
            "kubectl get pods,pdb -n team -o wide",
            "kubectl get remediations,remediationpolicies",
        ),
        _enforce(world),
        (
            "the GPU is well again, with or without a restart of the node:",
            f"{happen} 'clear: {{}}'",
            f"{happen} 'reboot: {{takes: 5s}}'",
        ),
    ):
        paper.say(f"\n# {what}")
        for command in commands:
            paper.say(command)
    paper.say("")


def _enforce(world: World) -> tuple[str, ...]:
    """How to enforce; a file of people's own is to be as it was afterwards."""
    file = shlex.quote(str(world.config))
    on = f"sed -i 's/^  mode: DryRun/  mode: Enforce/' {file}"
    if world.own:
        return "enforce: write `mode: Enforce` in the policy, and here:", on
    off = f"sed -i 's/^  mode: Enforce/  mode: DryRun/' {file}"
    what = "enforce: write `mode: Enforce` in the policy, and in your file; it is yours, so put it"
    return f"{what}\n# back with the second line before you install it:", on, off


def _api() -> Api:
    """The API server of $KUBECONFIG, if it is a sandbox's."""
    path = os.environ.get("KUBECONFIG", "")
    if not path:
        raise SandboxError("set KUBECONFIG as the sandbox printed it")
    try:
        found = json.loads(Path(path).read_text("utf-8"))
        cluster, user = found["clusters"][0]["cluster"], found["users"][0]["user"]
        url, token = cluster["server"], user["token"]
        ca_file = Path(cluster["certificate-authority"])
    except (OSError, ValueError, LookupError) as error:
        raise SandboxError(f"KUBECONFIG={path} is not the file that a sandbox wrote") from error
    if urlsplit(url).hostname != _LOOPBACK:
        raise SandboxError(f"{url} is no sandbox: faults are played on this machine only")
    return Api(url, token=token, ca_file=ca_file)


if __name__ == "__main__":
    sys.exit(main())
