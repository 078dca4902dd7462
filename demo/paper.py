"""How the demo looks: chapters, a timeline in milliseconds, the output of other commands."""

import sys
import time


_WIDTH = 100
_CODES = {"bold": "1", "red": "31", "green": "32", "yellow": "33", "dim": "2"}


class Paper:
    """Prints the demo. Colours only on a terminal."""

    def __init__(self) -> None:
        self._colours = sys.stdout.isatty()
        self._zero = time.time()

    def chapter(self, title: str) -> None:
        """A heading."""
        rule = self.ink("dim", "─" * (_WIDTH - len(title) - 4))
        print(f"\n{self.ink('bold', f'── {title} ')}{rule}")

    def say(self, text: str) -> None:
        """A plain line."""
        print(text, flush=True)

    def zero(self, at: float | None = None) -> float:
        """Set the timeline's zero to a time, by default to now, and return it."""
        self._zero = time.time() if at is None else at
        return self._zero

    def at(self, when: float, text: str, *, colour: str = "") -> None:
        """A line of the timeline: milliseconds after its zero."""
        stamp = f"+{(when - self._zero) * 1000:8.1f} ms"
        print(
            f"  {self.ink('dim', stamp)}  {self.ink(colour, text) if colour else text}", flush=True
        )

    def quote(self, command: str, output: str) -> None:
        """A command and what it printed."""
        print(self.ink("dim", f"  $ {command}"))
        for line in output.rstrip().splitlines():
            print(f"  {line}".rstrip())
        sys.stdout.flush()

    def ink(self, colour: str, text: str) -> str:
        """The text in a colour, on a terminal."""
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if self._colours else text
