"""How many cases each search looks at: the one place that says it.

A test names the number that suits CI, by `cases`; `CASES=100 make test ARGS=tests/property`
looks at a hundred times as many, in every property at once, and `CASES=0.1` at a tenth.
"""

from __future__ import annotations

import os
from typing import Final


TIMES: Final = float(os.environ.get("CASES", "1"))


def cases(usual: int) -> int:
    """Return how many cases this run looks at where an ordinary one looks at ``usual`` many."""
    return max(1, round(usual * TIMES))
