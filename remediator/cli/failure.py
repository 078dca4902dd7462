"""How a command ends when it cannot do its work."""

from __future__ import annotations


class Failure(Exception):  # noqa: N818 - the user reads "failure", not "error"
    """A sentence for the user and the exit code: 1 the cluster's answer, 2 bad input."""

    def __init__(self, sentence: str, *, code: int = 1) -> None:
        super().__init__(sentence)
        self.code = code
