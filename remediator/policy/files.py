"""Policy files on the disk: which there are, and their bytes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from remediator.policy.problems import PolicyError, Problem


MAX_BYTES: Final = 512 * 1024
"""Of one file; a policy is about 1 KiB, a ConfigMap at most 1 MiB."""
SUFFIXES: Final = (".yaml", ".yml")
TEST_SUFFIXES: Final = (".test.yaml", ".test.yml")
"""Tests of policies lie beside them."""


def read_text(path: Path) -> bytes:
    """Read a file, at most `MAX_BYTES`.

    Raises:
        PolicyError: it is missing, a folder, not readable or too large.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in its name
        raise PolicyError([Problem(file=str(path), message=_why_unreadable(error))]) from error
    if len(data) > MAX_BYTES:
        raise PolicyError(
            [
                Problem(
                    file=str(path),
                    message=f"the file is larger than {MAX_BYTES // 1024} KiB",
                    fix="split it",
                )
            ]
        )
    return data


def find_files(paths: Iterable[Path]) -> list[Path]:
    """Return the policy files: files as given, and of a folder its `*.yaml` and `*.yml`.

    Names that start with a dot (also the `..data` of a ConfigMap mount) and `*.test.yaml`
    are left out; subfolders are not entered.

    Raises:
        PolicyError: a path does not exist or a folder cannot be listed.
    """
    found: list[Path] = []
    for path in paths:
        try:
            names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else None
            exists = names is not None or path.exists()
        except OSError as error:
            raise PolicyError([Problem(file=str(path), message=_why_unreadable(error))]) from error
        if not exists:
            raise PolicyError([Problem(file=str(path), message="there is no such file or folder")])
        if names is None:
            found.append(path)
        else:
            found += [path / name for name in names if is_policy_name(name)]
    return list(dict.fromkeys(found))


def is_policy_name(name: str) -> bool:
    """Tell whether a file of this name in a folder is a policy file."""
    return name.endswith(SUFFIXES) and not name.endswith(TEST_SUFFIXES) and not name.startswith(".")


def _why_unreadable(error: OSError | ValueError) -> str:
    if isinstance(error, ValueError):
        return "this is no name of a file"
    if isinstance(error, IsADirectoryError):
        return "this is a folder, not a file"
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    return f"cannot be read: {error.strerror or error}"
