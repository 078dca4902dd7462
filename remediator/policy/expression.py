"""CEL expressions: an optional filter in ``when``, by the package of the extra ``cel``.

Structured clauses are the language; an expression is for what they cannot say. It is bounded
(declared variables only, an iteration budget in the library, RE2 patterns), must give a
boolean, and is compiled when the policy is loaded. What fails while it runs is UNKNOWN.
"""

from __future__ import annotations


def check(text: str) -> None:
    """Compile an expression. Raises ValueError that says what is wrong with it."""
    raise ValueError(f"cel is not supported yet: {text}")
