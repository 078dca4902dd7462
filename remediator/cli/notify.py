"""``remediator notify test CHANNEL``: one real message, one attempt, and what came of it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from remediator.act.channels import make_channels, open_session
from remediator.act.envelope import Envelope, RefusedError, RetryLaterError, pack
from remediator.cli.failure import Failure
from remediator.cli.terminal import say
from remediator.decide.decision import SendMessage, Urgency
from remediator.log import configure_logging
from remediator.policy.cluster import ClusterSpec
from remediator.policy.load import load_config
from remediator.policy.problems import PolicyError


NODE: Final = "no-node"


def send_test(name: str, *, config: Path | None, dry_run: bool) -> None:
    """Send a test message to a channel, and its end, so that no incident stays open.

    Raises:
        Failure: code 2 for a bad file or no such channel, 1 if the receiver did not take it.
    """
    configure_logging()
    try:
        cluster = load_config(config) if config is not None else ClusterSpec()
    except PolicyError as error:
        raise Failure(*map(str, error.problems), code=2) from None
    known = {"log", *cluster.channels}
    if name not in known:
        there = f"the file has {', '.join(sorted(known))}"
        where = there if config is not None else "give the file that has it by --config"
        raise Failure(f"error: there is no channel {name}: {where}", code=2)
    folder = Path() if config is None else config.parent
    failed: list[str] = []
    asyncio.run(_send(name, cluster, folder, dry_run=dry_run, failed=failed))
    if failed:
        raise Failure(f"{name} got it, in the built-in words: its template failed, see above")
    say(f"{name} took the test message, and its end")


async def _send(
    name: str, cluster: ClusterSpec, folder: Path, *, dry_run: bool, failed: list[str]
) -> None:
    async with open_session() as session:
        channels = make_channels(
            cluster.channels, session=session, folder=folder, template_failed=failed.append
        )
        for envelope in _envelopes(name, time.time(), dry_run=dry_run):
            try:
                await channels[name].send(envelope)
            except RefusedError as error:
                raise Failure(f"{name} refused it: {error}") from None
            except RetryLaterError as error:
                raise Failure(f"{name} did not take it now: {error}") from None


def _envelopes(name: str, now: float, *, dry_run: bool) -> list[Envelope]:
    session = f"test-{int(now * 1000):x}"
    begin = SendMessage(
        key=f"{session}/test/0",
        to=(name,),
        title="test of gpu-remediator's messages",
        text=f"Somebody ran `remediator notify test {name}`. Nothing happened to any node.",
        node=NODE,
        policy="test",
        urgency=Urgency.INFO,
    )
    end = SendMessage(
        key=f"{session}/test/end",
        to=(name,),
        title="end of the test",
        text="This is how the end of a remediation looks.",
        node=NODE,
        policy="test",
        urgency=Urgency.INFO,
        resolves=True,
    )
    return [pack([one], channel=name, dry_run=dry_run, created=now) for one in (begin, end)]
