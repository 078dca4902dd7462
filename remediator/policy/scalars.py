"""Plain scalars, as YAML 1.2 and 1.1 read them, and how to write them instead."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from remediator.policy.quantities import USUAL_AMOUNT, amount_meant, percent_meant


class Ambiguity(NamedTuple):
    """A form of plain scalar that YAML 1.1 and 1.2 read differently."""

    pattern: re.Pattern[str]
    meaning: str


_AMBIGUITIES: Final = (
    Ambiguity(
        re.compile(r"y|Y|yes|Yes|YES|n|N|no|No|NO|on|On|ON|off|Off|OFF"),
        "a boolean to YAML 1.1 readers such as kubectl, and text to YAML 1.2",
    ),
    Ambiguity(
        re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"),
        "a number in base 60 to YAML 1.1 readers such as kubectl, and text to YAML 1.2",
    ),
    Ambiguity(
        re.compile(r"[-+]?0[0-9_]+|[-+]?0o[0-7]+"),
        "octal to one version of YAML and not to the other",
    ),
    Ambiguity(
        re.compile(
            r"[-+]?0b[01_]+|[-+]0x[0-9a-fA-F_]+|0x[0-9a-fA-F]*_[0-9a-fA-F_]*|0x[0-9a-fA-F]{16,}"
            r"|(?=.*_)[-+]?(\.[0-9_]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9_]+)?"
        ),
        "a number to YAML 1.1 readers such as kubectl, and text to YAML 1.2",
    ),
    Ambiguity(
        re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?"),
        "a date to YAML 1.1 readers such as kubectl, and text to YAML 1.2",
    ),
    Ambiguity(re.compile(r"<<"), "a merge to YAML 1.1 readers such as kubectl, and text to 1.2"),
    Ambiguity(re.compile(r"="), "a special value to YAML 1.1 readers, and text to YAML 1.2"),
)
_NULL: Final = re.compile(r"|~|null|Null|NULL")
_TRUE: Final = re.compile(r"true|True|TRUE")
_FALSE: Final = re.compile(r"false|False|FALSE")
_INTEGER: Final = re.compile(r"[-+]?[0-9]{1,18}")
_HEXADECIMAL: Final = re.compile(r"0x[0-9a-fA-F]{1,15}")
_FRACTION: Final = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)


def ambiguity(text: str) -> str:
    """Say how versions of YAML differ on a plain scalar, "" if they agree."""
    return next((a.meaning for a in _AMBIGUITIES if a.pattern.fullmatch(text)), "")


def resolve_plain(text: str) -> str | int | bool | float | None:
    """YAML 1.2's core schema, https://yaml.org/spec/1.2.2/#103-core-schema."""
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text) or _FALSE.fullmatch(text):
        return text[0] in "tT"
    if _INTEGER.fullmatch(text):
        return int(text)
    if _HEXADECIMAL.fullmatch(text):
        return int(text, 16)
    return float("nan") if _FRACTION.fullmatch(text) else text


def rewrite(text: str) -> str:
    """Say how to write an ambiguous scalar so that both versions agree."""
    if text == "<<":
        return "write the keys out"
    quoted = f'write "{text}" in quotes if text is meant'
    if text.lower() in {"y", "yes", "on"}:
        return f"write true, or {quoted}"
    if text.lower() in {"n", "no", "off"}:
        return f"write false, or {quoted}"
    return quoted


def rewrite_fraction(text: str, key: str) -> str:
    """Say how to write a fraction that is the value of a key: a share is written in percent."""
    if key == "maxUnavailable":
        return f"write {amount_meant(text) or USUAL_AMOUNT}"
    if key == "percent" and (meant := percent_meant(text)):
        return f"write {meant}: it is in percent already"
    return f'write "{text}" in quotes if text is meant, and durations as 1500ms'


def syntax_hint(words: str, source: str, opened: str = "") -> str:
    """Guess from the parser's words and the line what its author should look at.

    ``opened``: the line of a bracket that is not closed, if that is what is wrong.
    """
    if opened:
        comment = "a # behind a space begins a comment: put it in quotes, or " * (" #" in opened)
        return f"{comment}close the bracket of `{opened.strip()}`"
    if "tab" in words:
        return "indent with spaces: YAML allows no tabs"
    if "mapping values are not allowed" in words:
        return "put text that holds a colon in quotes, and check the indentation"
    if "end of stream" in words or "<stream end>" in words:
        return "close the quote or bracket"
    if source.lstrip().startswith(("@", "`", "%", "*", "&")):
        return "put text that starts with a special character in quotes"
    return "check the indentation of this line and the one before"
