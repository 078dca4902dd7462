"""From the rules of other programs to policies, with what could not be carried over in notes.

What comes out is `mode: DryRun` and passes `policy check`; a note stands above the policy that
it is about. Pure: text in, text out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from remediator.policy.convert import draino, eks, npd
from remediator.policy.convert.draft import Converted, ConvertError, Draft, render
from remediator.policy.load import parse_policies
from remediator.policy.problems import PolicyError


__all__ = ["FORMATS", "ConvertError", "Converted", "Draft", "convert"]

FORMATS: Final[Mapping[str, Callable[[str], Converted]]] = {
    "npd": npd.convert,
    "eks": eks.convert,
    "draino": draino.convert,
}
"""node-problem-detector's monitor files, EKS' nodeRepairConfig, draino's arguments."""


def convert(kind: str, text: str) -> str:
    """Return policies as YAML, one document each.

    Raises:
        ConvertError: the text is not of that format, nothing in it is a rule, or a policy cannot
            say what it says.
        KeyError: no such format.
    """
    found = FORMATS[kind](text)
    if not found.drafts:
        why = "; ".join(found.notes) or "it holds no rule"
        raise ConvertError(f"nothing to convert: {why}")
    text = render(found)
    try:
        parse_policies(text.encode(), file="what was made of it")
    except PolicyError as error:
        raise ConvertError(f"no policy can be made of it: {error.problems[0]}") from error
    return text
