"""How a command ends when it cannot do its work."""

from __future__ import annotations

from remediator.cli.terminal import shown


class Failure(Exception):  # noqa: N818 - the user reads "failure", not "error"
    """What the user reads, and the exit code: 1 the cluster's answer, 2 bad input.

    Args:
        lines: most often one sentence. Whatever is in them, each is one line.
        code: with which the command ends.
    """

    def __init__(self, *lines: str, code: int = 1) -> None:
        super().__init__(shown(lines))
        self.code = code
