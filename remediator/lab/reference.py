"""The reference page of policy tests, written from the model.

    python -m remediator.lab.reference > docs/policies/testing-reference.md

A test compares the page with what this gives, so that it cannot drift.
"""

from __future__ import annotations

import sys
from typing import Final

from remediator.lab.case import KIND, PolicyTest
from remediator.policy.reference import sections
from remediator.policy.schema import schema_of


_INTRO: Final = """\
# Policy tests: reference

Every key of a `*.test.yaml` file. How to write one, with examples, is in
[Testing policies](testing.md). This page is generated from the model
(`python -m remediator.lab.reference > docs/policies/testing-reference.md`); the same model gives
the JSON schema: `remediator policy schema --kind PolicyTest`.

*duration* is a number with its unit, such as `30s`, `10m` or `1h30m`; times count from the
beginning of the test. Keys in bold must be given.
"""


def reference() -> str:
    """Return the page."""
    return "\n".join([_INTRO, *sections(KIND, schema_of(PolicyTest), set())])


if __name__ == "__main__":
    sys.stdout.write(reference())
