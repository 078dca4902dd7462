"""Whatever a policy says, lint says what is questionable, where that is, and what to do."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from remediator.policy.cluster import RemediatorConfig
from remediator.policy.lint import IGNORE_ANNOTATION, RULES, Finding, lint, lint_config
from remediator.policy.model import RemediationPolicy
from remediator.policy.problems import Location
from tests.property.cases import cases
from tests.property.policy.test_round_trip import configs, policies


EVERY_RULE = ", ".join(one.id for one in RULES)
NOON = 1_800_000_000.0


def there(data: Any, at: Location) -> bool:
    """Tell whether a place is there: all of it, or all but a last key that has a default."""
    for index, part in enumerate(at):
        known = isinstance(data, dict) and part in data
        known = known or (isinstance(data, list) and isinstance(part, int) and part < len(data))
        if not known:
            return index == len(at) - 1 and isinstance(part, str)
        data = data[part]
    return True


def told(found: list[Finding], data: dict[str, Any]) -> None:
    for one in found:
        assert one.message, one.rule.id
        assert one.fix, one.rule.id
        assert there(data, one.at), (one.rule.id, one.at)


def as_written(model: RemediationPolicy | RemediatorConfig) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True)


@settings(max_examples=cases(80))
@given(st.lists(policies, min_size=1, max_size=3, unique_by=lambda one: one.name), configs)
def test_each_finding_has_its_place_its_words_and_its_fix(
    loaded: list[RemediationPolicy], config: RemediatorConfig
) -> None:
    by_name = {one.name: as_written(one) for one in loaded}
    for cluster in (None, config.spec):
        for one in lint(loaded, cluster=cluster, now=NOON):
            told([one], by_name[one.policy])
    told(list(lint_config(config)), as_written(config))


@settings(max_examples=cases(20))
@given(policies)
def test_an_author_has_the_last_word(policy: RemediationPolicy) -> None:
    metadata = policy.metadata.model_copy(update={"annotations": {IGNORE_ANNOTATION: EVERY_RULE}})
    silenced = policy.model_copy(update={"metadata": metadata})
    assert list(lint([silenced], now=NOON)) == []
