"""Mutation testing: change the code in small ways, one at a time; some test has to notice.

`make mutate MODULES="guards/*.py calm.py"` takes modules of `remediator/decide/`; the tests are
those of `tests/unit/decide` and the quick properties. mutmut works on a copy of the files that
git knows, as they are now, so that nobody's working tree is touched by a half-done run.

The last line counts mutants: `killed`, `survived`, and the share of killed ones, `score`. The
survivors are listed above it; `mutmut show NAME` in the printed folder shows one.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final, TextIO

from tests.bench.figures import finish, say


ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "build" / "mutate"
MODULES: Final = ("*.py",)
"""All, those of `guards/` too: two hours of one core. A score is of its module: name it."""
TESTS: Final = (
    "tests/unit/decide",
    "tests/property/test_calm.py",
    "tests/property/test_nesting.py",
    "tests/property/test_topics.py",
    "tests/unit/record/test_messages.py",
)
RESULT: Final = re.compile(r"^\s*(remediator\.\S+)\.\S+?__mutmut_\d+: (\w+)", re.MULTILINE)


def copy_tree() -> Path:
    """Copy what git knows, or would know after the next commit."""
    tree = FOLDER / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    for name in listed.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    return tree


def configure(tree: Path, modules: tuple[str, ...]) -> None:
    """Tell mutmut, in the copy, what to change and which tests to ask."""

    def toml(items: tuple[str, ...]) -> str:
        return "[" + ", ".join(f'"{one}"' for one in items) + "]"

    settings = {
        "source_paths": ("remediator",),
        "only_mutate": tuple(f"remediator/decide/{one}" for one in modules),
        "also_copy": ("remediator", "node-agent", "testbed", "policies", "deploy"),
        "pytest_add_cli_args": ("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:warnings"),
        "pytest_add_cli_args_test_selection": TESTS,
    }
    lines = [f"{key} = {toml(value)}" for key, value in settings.items()]
    with (tree / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("\n".join(["", "[tool.mutmut]", *lines, ""]))


def alone() -> TextIO:
    """Take the folder for this run: another one would delete the copy under our feet."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    lock = (FOLDER / "lock").open("w", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"another run is under way in {FOLDER}: wait for its end")
    return lock


def main(modules: tuple[str, ...]) -> None:
    with alone():
        run(modules)


def run(modules: tuple[str, ...]) -> None:
    tree = copy_tree()
    configure(tree, modules)
    program = str(Path(sys.executable).with_name("mutmut"))
    say(f"changing {', '.join(modules)} of remediator/decide in {tree}")
    env = {**os.environ, "PYTHONPATH": str(tree / "node-agent")}
    with (FOLDER / "mutmut.log").open("wb") as log:
        done = subprocess.run(
            [program, "run", "--max-children", "1"],
            cwd=tree,
            env=env,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    told = subprocess.run(
        [program, "results", "--all", "true"],
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    results = RESULT.findall(told)
    if done.returncode or not results:
        sys.exit(f"mutmut did not get through, see {FOLDER / 'mutmut.log'}")
    print("\n".join(line for line in told.splitlines() if not line.endswith(": killed")))
    show(results)


def show(results: list[tuple[str, str]]) -> None:
    """Print a line for each module, and the figures of all of them as the last."""
    known = {module for module, _ in results}
    for module in sorted(known):
        count = Counter(result for name, result in results if name == module)
        total = count.total()
        say(f"{module}: {count['killed']} of {total} ({100 * count['killed'] / total:.0f} %)")
    count = Counter(result for _, result in results)
    killed = count["killed"] + count["timeout"]
    finish({"killed": killed, "survived": len(results) - killed, "score": killed / len(results)})


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or MODULES)
