"""The page of lint rules, written from the rules.

    python -m remediator.policy.lint.reference docs/policies/lint.md

A test compares the page with what this gives, so that it cannot drift.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from remediator.policy.lint import RULES


_INTRO: Final = """\
# Lint rules

`remediator policy check` first reads policies as the controller does; what is wrong then is an
error. After that it lints: what is allowed, and its author can hardly mean.

```
$ remediator policy check my-policies/
my-policies/xid.yaml:9:18: warning [quick-recovery]: spec.recover.for: well for 10s is soon said
     9 |   recover: {for: 10s}
       |                  ^
       = fix: write 10m or more
ok: 1 policy in 1 file, 1 warning
not checked: whether the channels exist, and what templates hold (give --config FILE)
```

- An *error* means that the policy cannot do what it says; the exit code is 2.
- A *warning* leaves the exit code at 0, unless `--strict` is given (use it in CI).
- `--rule ID`, which may be repeated, asks these rules only.
- `--config FILE` gives the rules about channels, budgets and modes what they need to know. Some ask
  that file itself, too (a budget or a breaker in it holds for every policy), and the files of its
  templates, which are read as the controller would. Without policies, that file alone is asked.
- A policy that means it says so, and `RemediatorConfig` likewise: `metadata.annotations`
  `gpu-remediator.io/lint-ignore: "late-notify, quick-recovery"`.

This page is generated from the rules
(`python -m remediator.policy.lint.reference docs/policies/lint.md`).
"""


def reference() -> str:
    """Return the page."""
    parts = [_INTRO, "| rule | severity | says |\n|---|---|---|"]
    parts[-1] += "".join(f"\n| [`{r.id}`](#{r.id}) | {r.severity} | {r.says} |" for r in RULES)
    parts[-1] += "\n"
    for rule in RULES:
        parts.append(f"## {rule.id}\n\n{rule.says} ({rule.severity})\n")
        parts.append(f"*Why:* {rule.why}\n\n*Fix:* {rule.fix}\n")
        if rule.asks_config:
            parts.append("Asked of `RemediatorConfig`, too.\n")
    return "\n".join(parts)


def main(arguments: list[str]) -> None:
    """Write the page to the file that is named."""
    Path(arguments[0]).write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
