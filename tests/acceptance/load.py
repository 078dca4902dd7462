"""A known load on the GPU, until its input ends. Says once a second what it achieves.

    python -m tests.acceptance.load matmul|copy|memory|fp32|spin

`matmul`: bf16 products, FLOP/s; `copy`: pinned host memory to the device, bytes/s; `memory`: copies
on the device, bytes read and written a second; `fp32`: float32 arithmetic without tensor cores,
FLOP/s; `spin`: as that, without PyTorch and without a figure.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable
from typing import Any, Final


_SIZE: Final = 8192
_BYTES: Final = 1 << 30
_REPEAT: Final = 8


def main(kind: str) -> None:
    """Run it."""
    turn, amount, wait = _LOADS[kind]()
    turn()
    wait()
    print("ready", flush=True)
    since, done = time.monotonic(), 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        turn()
        wait()
        done += 1
        if time.monotonic() - since >= 1:
            rate = done * amount / (time.monotonic() - since)
            print(json.dumps({"at": time.monotonic(), "per_second": rate}), flush=True)
            since, done = time.monotonic(), 0


_Load = tuple[Callable[[], object], float, Callable[[], object]]


def _matmul() -> _Load:
    import torch  # type: ignore[import-not-found] # noqa: PLC0415 - heavy, and `spin` does without

    a, b = (_random(torch, torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)

    def turn() -> None:
        for _ in range(_REPEAT):
            torch.matmul(a, b, out=out)

    return turn, 2.0 * _SIZE**3 * _REPEAT, torch.cuda.synchronize


def _fp32() -> _Load:
    import torch  # noqa: PLC0415

    torch.backends.cuda.matmul.allow_tf32 = False
    a, b = (_random(torch, torch.float32) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.matmul(a, b, out=out), 2.0 * _SIZE**3, torch.cuda.synchronize


def _copy() -> _Load:
    import torch  # noqa: PLC0415

    host = torch.ones(_BYTES, dtype=torch.uint8).pin_memory()
    device = torch.empty(_BYTES, dtype=torch.uint8, device="cuda")
    return lambda: device.copy_(host, non_blocking=True), _BYTES, torch.cuda.synchronize


def _memory() -> _Load:
    import torch  # noqa: PLC0415

    source = torch.ones(4 * _BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def turn() -> None:
        for _ in range(_REPEAT):
            target.copy_(source)

    return turn, 2.0 * 4 * _BYTES * _REPEAT, torch.cuda.synchronize


def _spin() -> _Load:
    from tests.acceptance.cuda import Context  # noqa: PLC0415 - one of several ways

    context = Context()
    return (
        lambda: context.launch("spin", 10_000_000, blocks=4096, threads=256),
        0.0,
        context.synchronize,
    )


def _random(torch: Any, kind: Any) -> Any:
    return torch.randn(_SIZE, _SIZE, device="cuda").to(kind)


_LOADS: Final[dict[str, Callable[[], _Load]]] = {
    "matmul": _matmul,
    "fp32": _fp32,
    "copy": _copy,
    "memory": _memory,
    "spin": _spin,
}

if __name__ == "__main__":
    main(sys.argv[1])
