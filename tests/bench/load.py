"""The storm: the agents of many nodes report Xid 79 within one second. A process of its own.

Patches start at even distances whatever becomes of those before them, as agents that know
nothing of each other would. Prints one JSON object: when the first one started, when the last
one started, when the last one was answered (monotonic clock of this machine), and failures.

    python -m tests.bench.load FILE     (FILE: JSON with url, token, ca_file, names, seconds)
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.bench.site import status_patch
from tests.bench.wire import STRATEGIC_MERGE, Refused, Wire


async def storm(names: list[str], seconds: float, wire: Wire) -> dict[str, float]:
    body = status_patch(bad=True, boot_id="bench")
    failures = 0

    async def patch(name: str) -> None:
        nonlocal failures
        try:
            await wire.patch(f"/api/v1/nodes/{name}/status", body, STRATEGIC_MERGE)
        except Refused as error:
            failures += 1
            print(error, file=sys.stderr)

    started = last = time.monotonic()
    tasks = []
    for number, name in enumerate(names):
        wait = started + seconds * number / len(names) - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        last = time.monotonic()
        tasks.append(asyncio.create_task(patch(name)))
    await asyncio.gather(*tasks)
    return {
        "started": started,
        "last_started": last,
        "answered": time.monotonic(),
        "failures": failures,
    }


async def main(given: dict[str, Any]) -> None:
    names, seconds = given.pop("names"), given.pop("seconds")
    given["ca_file"] = Path(given["ca_file"])
    async with Wire(**given) as wire:
        # Agents keep their connections; opening a hundred at once is not what is measured.
        await asyncio.gather(*(wire.newest() for _ in range(100)))
        gc.disable()
        print(json.dumps(await storm(names, seconds, wire)))


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text("utf-8"))))
