"""What a terminal may be given: text in which much was written by others.

Names of processes and pods, messages of drivers and of the API server: none of it may begin a line
of its own, or move the cursor and write over what stands there.
"""

from __future__ import annotations

import sys


def say(*lines: str, err: bool = False) -> None:
    """Print lines, each as one line; ``err``: on standard error."""
    print("\n".join(map(plain, lines)), file=sys.stderr if err else sys.stdout)


def plain(text: str) -> str:
    """Return a line as a terminal may have it: it stays one, and moves no cursor."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
