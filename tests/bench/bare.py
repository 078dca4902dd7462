"""The loop that a controller is measured against: one watch, and a PATCH for each bad node.

It does the same requests as the controller and nothing else: no store, no queue, no policy, no
guards, no session, no lease, no log. Prints `ready` when it watches; runs until SIGTERM.

    python -m tests.bench.bare FILE     (FILE: JSON with url, token, ca_file, workers, annotation)
"""

from __future__ import annotations

import asyncio
import http
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from tests.bench.wire import MERGE_PATCH, METADATA_ONLY, Node, Refused, Wire


async def main(given: dict[str, Any]) -> None:
    workers, annotation = given.pop("workers"), "x" * given.pop("annotation")
    given["ca_file"] = Path(given["ca_file"])
    latest: dict[str, Node] = {}
    todo: asyncio.Queue[str] = asyncio.Queue()

    async def work(wire: Wire) -> None:
        while True:
            name = await todo.get()
            while not await cordon(wire, tried := latest[name], annotation):
                while latest[name] is tried:  # noqa: ASYNC110 - rare
                    await asyncio.sleep(0.005)

    async with Wire(**given) as wire, asyncio.TaskGroup() as tasks:
        for _ in range(workers):
            tasks.create_task(work(wire))
        since = await wire.newest()
        print("ready", flush=True)
        seen: set[str] = set()
        async for events in wire.watch(since):
            for event in events:
                node = event.object
                name = node.metadata.name
                latest[name] = node
                if name not in seen and node.status.shows("GPUXidError", "True"):
                    seen.add(name)
                    todo.put_nowait(name)


async def cordon(wire: Wire, node: Node, annotation: str) -> bool:
    """The controller's merge patch: both preconditions, an annotation, `unschedulable`.

    Returns:
        False if the node changed meanwhile, which is rare.
    """
    meta = node.metadata
    body = {
        "metadata": {
            "resourceVersion": meta.resource_version,
            "uid": meta.uid,
            "annotations": {"gpu-remediator.io/session": annotation},
        },
        "spec": {"unschedulable": True},
    }
    path = f"/api/v1/nodes/{meta.name}?fieldManager=gpu-remediator"
    try:
        await wire.patch(path, msgspec.json.encode(body), MERGE_PATCH, accept=METADATA_ONLY)
    except Refused as error:
        if error.status == http.HTTPStatus.CONFLICT:
            return False
        print(error, file=sys.stderr, flush=True)
    return True


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text("utf-8"))))
