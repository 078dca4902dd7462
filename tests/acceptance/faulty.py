"""A process that makes one application error on the GPU: an ordinary faulty kernel.

Makes its context, prints `ready`, waits for a line, launches the kernel, prints one JSON object
with the times (CLOCK_MONOTONIC) and the error, and ends. The context is lost by the error and
belongs to this process alone; the GPU itself is not harmed.

    python -m tests.acceptance.faulty KIND [cupy]
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Final


KINDS: Final = {
    "unmapped": "a store to an address that is not mapped: Xid 31",
    "misaligned": "a store of 4 bytes to an odd address in its own memory: Xid 13",
    "both": "a store of 4 bytes to an odd address that is not mapped: Xid 13, then 31",
}
_UNMAPPED: Final = 0x10
_UNMAPPED_AND_ODD: Final = 0x3


def main(kind: str, library: str = "") -> None:
    """Fail once."""
    fail = (_cupy if library == "cupy" else _driver)(kind)
    print("ready", flush=True)
    sys.stdin.readline()
    begun = time.monotonic()
    error = fail()
    times = {"launched": begun, "returned": time.monotonic()}
    print(json.dumps({"pid": os.getpid(), "kind": kind, "error": error, **times}), flush=True)
    os._exit(0)  # the context cannot be cleaned up any more


def _driver(kind: str) -> Callable[[], str]:
    from tests.acceptance.cuda import Context, CudaError  # noqa: PLC0415 - one of two ways

    context = Context()
    own = context.allocate(4096)

    def fail() -> str:
        try:
            context.launch("store", _address(kind, own))
            context.synchronize()
        except CudaError as error:
            return str(error)
        return "none"

    return fail


def _cupy(kind: str) -> Callable[[], str]:
    import cupy  # type: ignore[import-not-found] # noqa: PLC0415 - takes a second, and is not everywhere

    own = cupy.zeros(1024, dtype=cupy.int32)
    source = 'extern "C" __global__ void store(unsigned long long a) { *(volatile int *)a = 1; }'
    kernel = cupy.RawKernel(source, "store")
    kernel.compile()
    cupy.cuda.Device().synchronize()

    def fail() -> str:
        try:
            kernel((1,), (1,), (cupy.uint64(_address(kind, own.data.ptr)),))
            cupy.cuda.Device().synchronize()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            return str(error)
        return "none"

    return fail


def _address(kind: str, own: int) -> int:
    return {"unmapped": _UNMAPPED, "misaligned": own + 1, "both": _UNMAPPED_AND_ODD}[kind]


if __name__ == "__main__":
    main(*sys.argv[1:])
