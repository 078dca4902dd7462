"""The command line `remediator`.

`root` names the commands and their flags and imports nothing else, so that
`remediator --help` answers at once; what a command does is in a module of its own,
imported when it runs.
"""


def main() -> None:
    """Entry point of the console script."""
    from remediator.cli.root import app  # noqa: PLC0415 - importing the package costs nothing

    app()


__all__ = ["main"]
