"""The loop that a drain is measured against: one POST for each pod, 16 under way, no more.

python -m tests.bench.evict FILE    (FILE: JSON with url, token, ca_file, names)
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from tests.bench.wire import Wire


async def main(given: dict[str, Any]) -> None:
    names = iter(given.pop("names"))
    given["ca_file"] = Path(given["ca_file"])

    async def work(wire: Wire) -> None:
        for name in names:
            path = f"/api/v1/namespaces/gpu-remediator/pods/{name}/eviction"
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            await wire.call("POST", path, json.dumps(body).encode(), "application/json")

    async with Wire(**given) as wire, asyncio.TaskGroup() as tasks:
        for _ in range(16):
            tasks.create_task(work(wire))


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text("utf-8"))))
