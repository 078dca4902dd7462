"""Something that is done again and again beside a test or a demo, in a thread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread


@contextmanager
def repeating(work: Callable[[], None], *, seconds: float, name: str) -> Iterator[None]:
    """Call `work` after each so many seconds, until the block is left.

    Args:
        work: an exception of it ends the repetition, and is shown as the thread's.
        seconds: from the end of one call to the beginning of the next.
        name: of the thread.
    """
    over = Event()

    def run() -> None:
        while not over.wait(seconds):
            work()

    thread = Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
