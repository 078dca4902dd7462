"""Certificate authorities and what they sign, made by Go: no openssl, no package."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.binaries import GO_MODULES, BinaryUnavailableError


def make_certificates(folder: Path, authorities: Mapping[str, Sequence[str]]) -> None:
    """Make `NAME.pem` and `NAME.key` for each authority and each of the names that it signs.

    The signed ones are valid for both sides of a connection to 127.0.0.1.

    Raises:
        BinaryUnavailableError: there is no Go.
    """
    go = shutil.which("go")
    if go is None:
        raise BinaryUnavailableError("no `go` on PATH: install Go (https://go.dev/dl)")
    wanted = [f"{authority}={','.join(names)}" for authority, names in authorities.items()]
    source = GO_MODULES / "certificates" / "main.go"
    subprocess.run([go, "run", str(source), str(folder), *wanted], check=True, capture_output=True)
