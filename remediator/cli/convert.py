"""`policy convert`: rules of other programs as policies."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from remediator.cli.failure import Failure
from remediator.policy.convert import FORMATS, ConvertError, convert
from remediator.policy.files import read_text
from remediator.policy.problems import PolicyError


def show_converted(kind: str, path: Path) -> None:
    """Print policies made of a file of another program; `-` is standard input.

    Raises:
        Failure: no such format, or the file is not of it (2).
    """
    if kind not in FORMATS:
        raise Failure(f"error: {kind} is none of: {', '.join(FORMATS)}", code=2)
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else read_text(path)
        typer.echo(convert(kind, data.decode("utf-8")), nl=False)
    except (ConvertError, UnicodeDecodeError) as error:
        raise Failure(f"error: {path}: {error}", code=2) from error
    except PolicyError as error:
        raise Failure(*map(str, error.problems), code=2) from error
