"""Every YAML block of the documentation is what it says it is, and the recipes do what they say."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from remediator.cli.testing import run_file
from remediator.lab.file import TestFile, parse_tests
from remediator.lab.report import failed_lines
from remediator.policy.load import parse_config, parse_policies
from remediator.policy.model import RemediationPolicy, Spec
from remediator.policy.steps import ACTIONS


ROOT = Path(__file__).parents[3]
PAGES = (ROOT / "README.md", *ROOT.glob("d*/**/*.md"), *ROOT.glob("examples/**/*.md"))
RECIPES = ROOT / "docs" / "policies" / "recipes.md"
HEAD = "apiVersion: gpu-remediator.io/v1alpha1\nkind: {}\nmetadata: {{name: p}}\n"
FOR_OTHERS = {
    "# alertmanager.yml": 2,
    "# kustomization.yaml": 1,
    "apiVersion: kustomize.config.k8s.io/v1beta1": 1,
    "routes:": 1,
}
"""How blocks begin that other programs read, and how many there are."""


def blocks(page: Path) -> Iterator[tuple[int, str]]:
    """The YAML of a page, with the lines at which it begins."""
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"^ *```yaml\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
        yield text[: found.start()].count("\n") + 2, found.group(1)


def first_key(block: str) -> str:
    """The first key that stands in a block."""
    (line,) = re.findall(r"\A(?:\s*#[^\n]*\n)*([^\n]*)", block)
    return str(line).strip().removeprefix("- ").partition(":")[0]


def indented(block: str, prefix: str = "  ") -> str:
    return "".join(f"{prefix}{line}\n" for line in block.splitlines())


def document(block: str) -> tuple[str, str]:
    """A block as a whole document of ours, and its kind; "" for what others read."""
    kinds = re.findall(r"(?m)^kind: (RemediationPolicy|RemediatorConfig|PolicyTest)$", block)
    if kinds:
        return kinds[0], block
    key, policy = first_key(block), HEAD.format("RemediationPolicy") + "spec:\n"
    when, steps = "  when: [{xid: {codes: [79]}}]\n", "  steps: [{cordon: {}}]\n"
    if key in ACTIONS:
        return "RemediationPolicy", f"{policy}{when}  steps:\n{indented(block, '    ')}"
    if key in {info.alias or name for name, info in Spec.model_fields.items()}:
        rest = (when if "when:" not in block else "") + (steps if "steps:" not in block else "")
        return "RemediationPolicy", f"{policy}{indented(block)}{rest}"
    if key == "spec":
        peer = "  alertmanagers: [{name: main, urls: [http://a:9093]}]\n" * ("webhook:" in block)
        text = re.sub(r"^ *spec:\n", f"spec:\n{peer}", block, count=1, flags=re.MULTILINE)
        return "RemediatorConfig", HEAD.format("RemediatorConfig") + text
    return "", block


ALL = [(page, line, block) for page in sorted(PAGES) for line, block in blocks(page)]


@pytest.mark.parametrize(
    ("page", "line", "block"),
    [pytest.param(*one, id=f"{one[0].relative_to(ROOT)}:{one[1]}") for one in ALL],
)
def test_what_a_page_shows_is_valid(page: Path, line: int, block: str) -> None:
    kind, text = document(block)
    file = f"{page.name}:{line}"
    if kind == "RemediationPolicy":
        assert parse_policies(text.encode(), file=file).policies
    elif kind == "RemediatorConfig":
        parse_config(text.encode(), file=file)
    elif kind:
        assert parse_tests(text.encode(), file=file).spec.tests
    else:
        assert any(block.startswith(begin) for begin in FOR_OTHERS), "whose is it?"


def test_nothing_is_left_out_that_others_do_not_read() -> None:
    assert len(ALL) > 25
    others = [block for _, _, block in ALL if not document(block)[0]]
    counted = {begin: sum(one.startswith(begin) for one in others) for begin in FOR_OTHERS}
    assert counted == FOR_OTHERS


def recipes() -> list[tuple[RemediationPolicy, TestFile]]:
    """Each policy of the page, with the test that follows it."""
    texts = [block for _, block in blocks(RECIPES)]
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return [
        (
            parse_policies(policy.encode(), file="recipe.yaml").policies[0].policy,
            parse_tests(test.encode(), file="recipe.test.yaml"),
        )
        for policy, test in pairs
    ]


@pytest.mark.parametrize(
    ("policy", "tests"), [pytest.param(*one, id=one[0].name) for one in recipes()]
)
def test_a_recipe_does_what_its_test_says(policy: RemediationPolicy, tests: TestFile) -> None:
    for result in run_file(tests, (policy,)):
        assert result.passed, "\n".join(failed_lines(result))
