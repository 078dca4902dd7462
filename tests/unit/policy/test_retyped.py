"""A value of the wrong kind: the fix is what its author meant, ready to be copied."""

from collections.abc import Iterator
from typing import Any

import pytest

from remediator.policy.advice import PATTERNS
from remediator.policy.load import parse_config, parse_policies
from remediator.policy.problems import PolicyError
from remediator.policy.quantities import DURATION_PATTERN, RATE_PATTERN
from remediator.policy.schema import json_schema


HEAD = "apiVersion: gpu-remediator.io/v1alpha1\nkind: {}\nmetadata: {{name: p}}\nspec:\n"
WHEN = "  when: [{xid: {codes: [79]}}]\n"
STEPS = "  steps: [{cordon: {}}]\n"

# spec of a policy: what its author is told to write
POLICIES = {
    "a code for its clause": ("  when: [{xid: 79}]\n" + STEPS, "write {codes: [79]}"),
    "codes for their clause": ("  when: [{xid: [79, 94]}]\n" + STEPS, "write {codes: [79, 94]}"),
    "a type for its clause": (
        "  when: [{condition: GPULost}]\n" + STEPS,
        "write {type: GPULost}",
    ),
    "a code with its word": (
        "  when: [{xid: {codes: [Xid94]}}]\n" + STEPS,
        "write the number alone: 94",
    ),
    "a number for a budget": (
        WHEN + STEPS + "  limits: {budget: 2}\n",
        "write {maxUnavailable: 2}",
    ),
    "a share for a budget": (
        WHEN + STEPS + "  limits: {budget: 10%}\n",
        "write {maxUnavailable: 10%}",
    ),
    "a word for an amount": (
        WHEN + STEPS + "  limits: {budget: {maxUnavailable: unlimited}}\n",
        "write 3, or 10%",
    ),
    **{
        f"{given} for an amount": (
            WHEN + STEPS + f"  limits: {{budget: {{maxUnavailable: {given}}}}}\n",
            f"write {meant}",
        )
        for given, meant in {
            "0.1": "10%",
            "0.125": "12%",
            ".5": "50%",
            "0.001": "1%",
            '"0.1"': "10%",
            "10 %": "10%",
            "10 percent": "10%",
            "12.5%": "12%",
            "110%": "100%",
            '"3"': "3, without quotes",
            "3.0": "3",
            "1.0": "1, or 100%",
            "0.0": "0",
            "10.5": "3, or 10%",
            "1e-1": "3, or 10%",
            ".nan": "3, or 10%",
        }.items()
    },
    "a share for a percentage": (
        WHEN + STEPS + "  limits: {breaker: {percent: 0.2}}\n",
        "write 20: it is in percent already",
    ),
    "a fraction of a node": (
        WHEN + STEPS + "  limits: {breaker: {minNodes: 2.5}}\n",
        'write "2.5" in quotes if text is meant, and durations as 1500ms',
    ),
    "one rate for all": (WHEN + STEPS + "  limits: {rate: 2/1h}\n", "write {cordon: 2/1h}"),
    "a word for the recovery": (WHEN + STEPS + "  recover: cleared\n", "write {when: cleared}"),
    "a channel for a message": (WHEN + "  steps: [{notify: ops}]\n", "write {to: [ops]}"),
    "a time for a wait": (WHEN + "  steps: [{wait: 10m}]\n", "write {for: 10m}"),
    "a template for a Job": (WHEN + "  steps: [{job: gpu-reset}]\n", "write {template: gpu-reset}"),
    "true for a step": (WHEN + "  steps: [{cordon: true}]\n", "write cordon: {}"),
    "a text that YAML takes for true": (
        WHEN + '  steps: [{notify: "on"}]\n',
        'write {to: ["on"]}',
    ),
    "labels for their selector": (
        WHEN + STEPS + "  nodes: {selector: {pool: h100}}\n",
        "write matchLabels: {pool: h100}",
    ),
    "labels for their step": (
        WHEN + "  steps: [{label: {tier: bad}}]\n",
        "write set: {tier: bad}",
    ),
    "a day in full": (WHEN + STEPS + "  windows: [{days: [Saturday]}]\n", "did you mean Sat?"),
    "an hour of one digit": (
        WHEN + STEPS + '  windows: [{start: "6:00"}]\n',
        'write a time of day in quotes, of two digits each: "06:00"',
    ),
    "two actions in a step": (
        WHEN + "  steps: [{cordon: {}, drain: {}}]\n",
        "keep one here, and write the other as an entry of its own",
    ),
    "no action in a step": (WHEN + "  steps: [{timeout: 5m}]\n", "write one of them"),
    "nothing to ask for": ("  when: [{}]\n" + STEPS, "write one of them"),
    "codes and how bad they are": (
        "  when: [{xid: {codes: [79], minSeverity: fatal}}]\n" + STEPS,
        "write one of them, and no other",
    ),
    "to go on without an approval": (
        WHEN + "  steps: [{approve: {}, onFailure: continue}]\n",
        "write onFailure: hold, or leave it out",
    ),
    "dates that are the wrong way round": (
        WHEN + STEPS + '  windows: [{from: "2026-12-24", until: "2026-11-01"}]\n',
        "write the later date as until",
    ),
    "an expression that is none": (
        "  when: [{xid: {codes: [79]}, cel: 'pool = 1'}]\n" + STEPS,
        "write it in CEL, as docs/policies/when.md shows",
    ),
    "a label of ours": (
        WHEN + "  steps: [{label: {set: {gpu-remediator.io/mode: x}}}]\n",
        "write a key of your own",
    ),
    "minutes in words": (WHEN + STEPS + "  recover: {for: 10min}\n", "write 10m"),
    "an hour in words": (WHEN + STEPS + "  recover: {for: 1 Hour}\n", "write 1h"),
    "weeks": (
        WHEN + STEPS + "  recover: {for: 1w}\n",
        "write a number with its unit, such as 30s or 10m",
    ),
    "a rate an hour": (WHEN + STEPS + "  limits: {rate: {drain: 2/h}}\n", "write 2/1h"),
    "a rate in words": (WHEN + STEPS + "  limits: {rate: {drain: 2 per 10 min}}\n", "write 2/10m"),
    "a rate of no time": (
        WHEN + STEPS + "  limits: {rate: {drain: 2/0h}}\n",
        "write starts per time, such as 10/10m",
    ),
    "no starts": (
        WHEN + STEPS + "  limits: {rate: {drain: 0/h}}\n",
        "write starts per time, such as 10/10m",
    ),
    "a step of others": (WHEN + "  steps: [{evict: {}}]\n", "write drain: {}"),
    "how often a code came, in its clause": (
        "  when: [{xid: {codes: [94], atLeast: 3}}]\n" + STEPS,
        "in place of xid, write count: {xid: [94], atLeast: 3, within: 24h}",
    ),
    "a channel's name that YAML takes for a comment": (
        WHEN + "  steps: [{notify: {to: [ #gpu]}}]\n  recover: {}\n",
        (
            "a # behind a space begins a comment: put it in quotes, "
            "or close the bracket of `steps: [{notify: {to: [ #gpu]}}]`"
        ),
    ),
    "a bracket that is not closed": (
        "  when: [{xid: {codes: [79]}}\n" + STEPS,
        "close the bracket of `when: [{xid: {codes: [79]}}`",
    ),
    "a key of kubectl drain": (
        WHEN + "  steps: [{cordon: {}}, {drain: {deleteEmptyDirData: true}}]\n",
        "write despite: [emptyDir]",
    ),
}
# spec of a RemediatorConfig: the same
CONFIGS = {
    "a misspelt key of a channel": (
        "  channels: {ops: {slack: {tokenFile: /t, chanel: C01}}}\n",
        "did you mean channel?",
    ),
    "a secret in a channel": (
        "  channels: {ops: {slack: {xoxb: x, channel: C01}}}\n",
        "keys here: timeout, giveUpAfter, tokenFile, channel, webhookUrlFile, apiUrl",
    ),
    "an address for its channel": (
        "  channels: {ops: {webhook: 'https://example.com/x'}}\n",
        'write {url: "https://example.com/x"}',
    ),
    "a token without its channel": (
        "  channels: {ops: {slack: {tokenFile: /t}}}\n",
        "write both, or neither",
    ),
    "a channel of two kinds": (
        "  channels: {ops: {log: {}, apprise: {urlFile: x}}}\n",
        "write one of them, and no other",
    ),
    "a share for a budget of the cluster": (
        "  budgets: [{maxUnavailable: 0.25, per: zone}]\n",
        "write 25%",
    ),
    "a share for silent agents": (
        "  sanity: {percent: 0.3}\n",
        "write 30: it is in percent already",
    ),
    "a key of a template": ("  templates: {reset: {path: a.yaml}}\n", "keys here: file"),
    "a file for its template": ("  templates: {reset: a.yaml}\n", "write {file: a.yaml}"),
    "an address without its scheme": (
        "  alertmanagers: [{name: main, urls: ['am:9093']}]\n",
        "write an address such as http://alertmanager-0:9093, without ? and #",
    ),
    "an address with the API's path": (
        "  prometheus: [{name: main, url: 'http://prom:9090/x/api/v1/query'}]\n",
        "write url: http://prom:9090/x",
    ),
}


@pytest.mark.parametrize("case", POLICIES)
def test_the_fix_of_a_policy_is_what_was_meant(case: str) -> None:
    spec, fix = POLICIES[case]
    with pytest.raises(PolicyError) as caught:
        parse_policies((HEAD.format("RemediationPolicy") + spec).encode(), file="p.yaml")
    assert fix in [one.fix for one in caught.value.problems]


@pytest.mark.parametrize("case", CONFIGS)
def test_the_fix_of_a_config_is_what_was_meant(case: str) -> None:
    spec, fix = CONFIGS[case]
    with pytest.raises(PolicyError) as caught:
        parse_config((HEAD.format("RemediatorConfig") + spec).encode(), file="c.yaml")
    assert fix in [one.fix for one in caught.value.problems]


def test_the_namespace_of_an_object_is_no_mistake_in_its_file() -> None:
    text = HEAD.format("RemediationPolicy").replace("name: p", "name: p, namespace: gpus")
    (parsed,) = parse_policies((text + WHEN + STEPS).encode(), file="p.yaml").policies
    assert parsed.policy.name == "p"


def test_the_one_value_that_there_is_is_written_out() -> None:
    text = HEAD.format("RemediationPolicy").replace("gpu-remediator.io/v1alpha1", "v1")
    with pytest.raises(PolicyError) as caught:
        parse_policies((text + WHEN + STEPS).encode(), file="p.yaml")
    found = caught.value.problems[0]
    assert (found.message, found.fix) == (
        "v1 is not gpu-remediator.io/v1alpha1",
        "write gpu-remediator.io/v1alpha1",
    )


def patterns(schema: Any) -> Iterator[str]:
    """All patterns of a schema, wherever they stand."""
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        for one in schema.values():
            yield from patterns(one)
    elif isinstance(schema, list):
        for one in schema:
            yield from patterns(one)


@pytest.mark.parametrize("kind", ["RemediationPolicy", "RemediatorConfig"])
def test_no_author_is_shown_a_regular_expression(kind: str) -> None:
    said_otherwise = {DURATION_PATTERN, RATE_PATTERN, r"^(100|[0-9]{1,2})%$"}
    assert set(patterns(json_schema(kind))) - said_otherwise <= PATTERNS.keys()
