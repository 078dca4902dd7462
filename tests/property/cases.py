"""How many cases the large searches look at."""

from __future__ import annotations

import os
from typing import Final


TIMES: Final = int(os.environ.get("CASES", "1"))
"""`CASES=100 make test ARGS=tests/property` looks at a hundred times as many as CI does."""
