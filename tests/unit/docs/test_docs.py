"""The documentation hangs together: links, anchors, the named tests, and what it must not name."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest


ROOT = Path(__file__).parents[3]
INDEX = ROOT / "docs" / "index.md"

LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
FENCE = re.compile(r"^ *(```|~~~).*?^ *\1", re.MULTILINE | re.DOTALL)
TICKS = re.compile(r"`[^`\n]*`")
SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`")
# Where packages and images are fetched from is the user's own affair. A Go module's path is
# its name, hence the look behind; the names are spelt so that this file is no match itself.
REGISTRY = re.compile(
    r"(?:pypi|files\.pythonhosted)\.(?:org|io)|(?:proxy|sum)\.golang\.org"
    r"|(?:registry-1|index|registry\.hub)\.docker\.(?:io|com)|docker\.io/|ghcr\.io|quay\.io|gcr\.io"
    r"|registry\.k8s\.io|registry\.npmjs\.org|\bindex-url\s*=\s*https?|extra-index-url\s"
)
WORKPLACE = re.compile(r"(?<![\w.$}~/-])/(?:work|root|tmp/team)/\w|(?<![\w.])/home/\w\w+/")
WANTED_TARGETS = {
    *("demo", "test", "lint", "tools"),
    *("bench-cordon", "bench-storm", "bench-memory", "bench-agent"),
}


def _tracked() -> list[Path]:
    """Every file of the repository, also one that is to be committed next."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def _files() -> list[Path]:
    """The tracked files; in an unpacked archive, which has no history, all that look like ours."""
    if (ROOT / ".git").exists():
        return _tracked()
    found = (path for path in ROOT.rglob("*") if path.is_file())
    return [p for p in found if not any(part[0] == "." for part in p.relative_to(ROOT).parts[:-1])]


FILES = _files()
PAGES = [path for path in FILES if path.suffix == ".md"]


DIFFERENCES = [ROOT / "docs" / part / "known-differences.md" for part in ("agent", "controller")]
REPORTS = (95, 150)
"""How many reports of others each page names: those that were collected when it was written."""


def _links(page: Path) -> Iterator[tuple[Path, str]]:
    """Each relative link as the file and the anchor it points at."""
    text = TICKS.sub("", FENCE.sub("", page.read_text("utf-8")))
    for match in LINK.finditer(text):
        if SCHEME.match(match[1]):
            continue
        path, _, anchor = unquote(match[1]).partition("#")
        yield (page.parent / path).resolve() if path else page, anchor


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = FENCE.sub("", page.read_text("utf-8"))
    seen: dict[str, int] = {}
    found = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    for title in re.findall(r"^#{1,6} +(.*?) *#*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        times = seen.get(slug, 0)
        seen[slug] = times + 1
        found.add(f"{slug}-{times}" if times else slug)
    return found


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_relative_link_and_its_anchor_resolve(page: Path) -> None:
    broken = []
    for target, anchor in _links(page):
        if not target.is_relative_to(ROOT) or not target.exists():
            broken.append(f"{target}: no such file")
        elif anchor and (target.suffix != ".md" or anchor not in _anchors(target)):
            broken.append(f"{_name(target)} has no heading for #{anchor}")

    assert broken == []


def test_links_are_found_at_all() -> None:
    assert (ROOT / "docs" / "operations.md", "") in set(_links(ROOT / "README.md"))
    assert "on-your-own-cluster" in _anchors(ROOT / "README.md")


def test_every_page_is_reachable_from_the_index() -> None:
    reached, todo = set(), [INDEX]
    while todo:
        page = todo.pop()
        if page in reached or page.suffix != ".md" or not page.is_file():
            continue
        reached.add(page)
        # What leads away from docs/ leads back to all of it.
        todo += [target for target, _ in _links(page) if target.is_relative_to(ROOT / "docs")]

    lost = {_name(page) for page in PAGES if page.is_relative_to(ROOT / "docs")} - {
        _name(page) for page in reached
    }
    assert lost == set()


def test_make_help_lists_the_targets() -> None:
    told = subprocess.run(
        ["make", "--no-print-directory", "help"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    listed = dict(re.findall(r"^([a-z-]+) +(\S.*)$", told, re.MULTILINE))

    assert set(listed) >= WANTED_TARGETS


def test_every_test_that_the_architecture_names_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    file, missing, count = "", [], 0
    for path, test in NAMED_TEST.findall(text):
        if not path and not test:
            continue
        file = path or file
        source = ROOT / file
        known = source.is_file() and (not test or f"def {test}(" in source.read_text("utf-8"))
        missing += [] if known else [f"{file}::{test}"]
        count += 1

    assert count
    assert missing == []


@pytest.mark.parametrize("page", DIFFERENCES, ids=_name)
def test_every_test_that_a_page_of_differences_names_is_there(page: Path) -> None:
    written = "".join(path.read_text("utf-8") for path in ROOT.glob("tests/**/test_*.py"))
    there = set(re.findall(r"def (test_\w+)\(", written))
    named = set(re.findall(r"`(test_\w+)`", page.read_text("utf-8")))
    assert len(named) > 50
    assert named - there == set()


@pytest.mark.parametrize("page", DIFFERENCES, ids=_name)
def test_every_difference_has_its_proof(page: Path) -> None:
    differences = page.read_text("utf-8").partition("## Where they were reported")[0]
    rows = [line.strip("| ").split(" | ") for line in differences.splitlines() if "| " in line]
    rows = [row for row in rows if row[0] not in {"---", "what others do", "report"}]
    assert len(rows) > 50
    for row in rows:
        assert len(row) == 3, row
        assert re.search(r"`test_\w+|`make |\.py`|`(tests|remediator)/|cannot ", row[2]), row


@pytest.mark.parametrize(("page", "reports"), [*zip(DIFFERENCES, REPORTS, strict=True)], ids=str)
def test_the_pages_of_differences_answer_all_that_was_collected(page: Path, reports: int) -> None:
    assert len(set(re.findall(r"(?<=#)\d+", page.read_text("utf-8")))) >= reports


@pytest.mark.parametrize("pattern", [REGISTRY, WORKPLACE], ids=["registry host", "workplace path"])
def test_no_text_file_names_a(pattern: re.Pattern[str]) -> None:
    found = []
    for path in FILES:
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{_name(path)}: {match[0]}" for match in pattern.finditer(text)]

    assert found == []
