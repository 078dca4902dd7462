"""Looks from outside the event loop whether a lost lease has ended the process.

A loop that hangs (a blocking call, a stopped and resumed process) cannot end
itself; this thread can.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Callable


class Watchdog:
    """Asks `overdue` every `period` seconds; a reason that it gives ends the process.

    Args:
        overdue: why the process must end now, "" while all is well.
        end: ends the process; called at most once, from the thread.
        period: seconds between two looks.
    """

    def __init__(
        self, overdue: Callable[[], str], end: Callable[[str], None], *, period: float
    ) -> None:
        self._overdue = overdue
        self._end = end
        self._period = period
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease watchdog", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._period):
            reason = self._overdue()
            if reason:
                self._end(reason)
                return


def end_process(reason: str) -> None:
    """End at once: no clean-up could be trusted in a process whose loop hangs."""
    os.write(2, f"remediator: {reason}; ending the process\n".encode())
    os._exit(70)
