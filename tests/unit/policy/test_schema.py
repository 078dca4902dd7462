"""The JSON schema and the loader agree; what is shipped passes both."""

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from remediator.policy import reference
from remediator.policy.cluster import RemediatorConfig
from remediator.policy.files import find_files
from remediator.policy.load import load_config, load_policies, parse_policies
from remediator.policy.model import Mode, RemediationPolicy
from remediator.policy.problems import PolicyError
from remediator.policy.schema import json_schema
from remediator.policy.steps import ACTIONS
from remediator.policy.templates import Template


ROOT = Path(__file__).parents[3]
SHIPPED = find_files([ROOT / "policies", ROOT / "examples" / "policies"])
EXAMPLE = ROOT / "examples" / "remediator-config.yaml"
JOBS = ROOT / "examples" / "jobs"
VALIDATOR = Draft202012Validator(json_schema())
CONFIG_VALIDATOR = Draft202012Validator(json_schema("RemediatorConfig"))


def read(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


@pytest.mark.parametrize("kind", ["RemediationPolicy", "RemediatorConfig"])
def test_the_schema_is_a_schema(kind: str) -> None:
    Draft202012Validator.check_schema(json_schema(kind))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_policy_is_valid_safe_and_explained(path: Path) -> None:
    VALIDATOR.validate(read(path.read_text()))
    templates = {path.stem: Template(file=str(path)) for path in JOBS.glob("*.yaml")}
    cluster = load_config(EXAMPLE).model_copy(update={"templates": templates})
    (policy,) = load_policies([path], cluster=cluster)
    assert policy.name == path.stem
    assert policy.spec.mode is Mode.DRY_RUN
    comment = path.read_text().partition("apiVersion")[0]
    for word in ("Why", "What it does", "What undoes it"):
        assert f"# {word}" in comment


def test_shipped_policies_are_no_duplicates_of_each_other() -> None:
    policies = load_policies([ROOT / "policies"])
    codes = [
        code for p in policies for when in p.spec.when if when.xid for code in when.xid.codes or ()
    ]
    assert len(codes) == len(set(codes))
    assert 79 in codes


def test_the_example_config_is_valid_and_safe() -> None:
    CONFIG_VALIDATOR.validate(read(EXAMPLE.read_text()))
    assert load_config(EXAMPLE).mode is Mode.DRY_RUN


HEAD = "apiVersion: gpu-remediator.io/v1alpha1\nkind: RemediationPolicy\nmetadata: {name: p}\n"
WHEN = "when: [{xid: {codes: [79]}}]"
STEPS = "steps: [{cordon: {}}]"
REFUSED = [
    f"spec: {{{WHEN}}}",
    f"spec: {{{STEPS}}}",
    f"spec: {{when: [], {STEPS}}}",
    f"spec: {{when: [{{}}], {STEPS}}}",
    f"spec: {{when: [{{xid: {{}}}}], {STEPS}}}",
    f"spec: {{when: [{{xid: {{codes: []}}}}], {STEPS}}}",
    f"spec: {{when: [{{xid: {{minSeverity: bad}}}}], {STEPS}}}",
    f"spec: {{when: [{{xid: {{codes: [79], minSeverity: fatal}}}}], {STEPS}}}",
    f"spec: {{when: [{{sxid: {{codes: [20034], except: [20034]}}}}], {STEPS}}}",
    f"spec: {{{WHEN}, steps: [{{}}]}}",
    f"spec: {{{WHEN}, steps: [{{cordon: {{}}, event: {{}}}}]}}",
    f"spec: {{{WHEN}, steps: [{{cordon: null}}]}}",
    f"spec: {{{WHEN}, steps: [{{dance: {{}}}}]}}",
    f"spec: {{{WHEN}, steps: [{{cordon: {{x: 1}}}}]}}",
    f"spec: {{{WHEN}, steps: [{{notify: {{to: []}}}}]}}",
    f"spec: {{{WHEN}, steps: [{{notify: {{to: log}}}}]}}",
    f"spec: {{{WHEN}, steps: [{{event: {{reason: bad}}}}]}}",
    f"spec: {{{WHEN}, steps: [{{cordon: {{}}, timeout: 30}}]}}",
    f"spec: {{{WHEN}, steps: [{{cordon: {{}}, timeout: 30 s}}]}}",
    f"spec: {{{WHEN}, steps: [{{cordon: {{}}, onFailure: panic}}]}}",
    f"spec: {{{WHEN}, steps: [{{taint: {{effect: NoExecute}}}}]}}",
    f"spec: {{{WHEN}, steps: [{{create: {{template: a, failOn: {{type: Failed}}}}}}]}}",
    f"spec: {{{WHEN}, steps: [{{taint: {{key: example.com/a}}}}]}}",
    f"spec: {{{WHEN}, {STEPS}, mode: dryrun}}",
    f"spec: {{{WHEN}, {STEPS}, mode: null}}",
    f"spec: {{{WHEN}, {STEPS}, emergency: 'true'}}",
    f"spec: {{{WHEN}, {STEPS}, whem: 1}}",
    f"spec: {{{WHEN}, {STEPS}, limits: {{budget: {{}}}}}}",
    f"spec: {{{WHEN}, {STEPS}, limits: {{budget: {{maxUnavailable: 101%}}}}}}",
    f"spec: {{{WHEN}, {STEPS}, limits: {{budget: {{maxUnavailable: -1}}}}}}",
    f"spec: {{{WHEN}, {STEPS}, limits: {{rate: {{cordon: 0/10m}}}}}}",
    f"spec: {{{WHEN}, {STEPS}, limits: {{rate: {{cordon: 10/0m}}}}}}",
    f"spec: {{{WHEN}, {STEPS}, limits: {{maxAttempts: 0}}}}",
    f"spec: {{{WHEN}, {STEPS}, nodes: {{selector: {{matchLabels: {{a b: c}}}}}}}}",
    f"spec: {{{WHEN}, {STEPS}, nodes: {{selector: {{matchLabels: {{a: 1}}}}}}}}",
    (
        f"spec: {{{WHEN}, {STEPS}, nodes: {{selector: {{matchExpressions: "
        "[{key: a, operator: In}]}}}"
    ),
    (
        f"spec: {{{WHEN}, {STEPS}, nodes: {{selector: {{matchExpressions: "
        "[{key: a, operator: Exists, values: [b]}]}}}"
    ),
    f"spec: {{when: [{{xid: {{codes: [0]}}}}], {STEPS}}}",
    f"spec: {{when: [{{xid: {{codes: ['79']}}}}], {STEPS}}}",
    f"spec: {{when: [{{condition: {{type: Ready, status: true}}}}], {STEPS}}}",
    f"spec: {{when: [{{condition: {{type: Hot, clearFor: 1m}}}}], {STEPS}}}",
]
ACCEPTED = [
    f"spec: {{{WHEN}, {STEPS}}}",
    f"spec: {{{WHEN}, {STEPS}, limits: {{budget: {{maxUnavailable: 0}}}}}}",
    f"spec: {{{WHEN}, {STEPS}, limits: {{budget: {{maxUnavailable: 100%, per: zone}}}}}}",
    f"spec: {{{WHEN}, steps: [{{taint: {{}}}}, {{taint: {{effect: PreferNoSchedule}}}}]}}",
    f"spec: {{{WHEN}, steps: [{{taint: {{effect: NoExecute, acknowledge: evicts-daemons}}}}]}}",
    (
        f"spec: {{{WHEN}, steps: [{{create: {{template: a, waitFor: {{type: B}},"
        " failOn: {type: C}}}]}"
    ),
    f"spec: {{{WHEN}, {STEPS}, recover: {{when: never, for: 1h30m}}}}",
    f"spec: {{when: [{{xid: {{codes: [79]}}, sxid: {{codes: [1]}}}}], {STEPS}}}",
]


@pytest.mark.parametrize("text", REFUSED)
def test_what_the_loader_refuses_the_schema_refuses(text: str) -> None:
    with pytest.raises(PolicyError):
        parse_policies((HEAD + text).encode(), file="p")
    assert not VALIDATOR.is_valid(read(HEAD + text))


@pytest.mark.parametrize("text", ACCEPTED)
def test_what_the_loader_takes_the_schema_takes(text: str) -> None:
    parse_policies((HEAD + text).encode(), file="p")
    VALIDATOR.validate(read(HEAD + text))


def test_defaults_are_written_as_people_write_them() -> None:
    definitions = json_schema()["$defs"]
    assert definitions["Recover"]["properties"]["for"]["default"] == "10m"
    assert "null" not in str(json_schema())


def test_the_reference_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "policies" / "reference.md").read_text(encoding="utf-8")
    assert page == reference.reference(), (
        "run: python -m remediator.policy.reference docs/policies/reference.md"
    )


@pytest.mark.parametrize("model", [RemediationPolicy, RemediatorConfig])
def test_every_key_is_documented(model: type[RemediationPolicy]) -> None:
    kind = model.__name__
    for name, definition in json_schema(kind)["$defs"].items():
        for key, about in definition.get("properties", {}).items():
            assert about.get("description"), f"{name}.{key} has no description"


def test_every_action_is_a_key_of_a_step() -> None:
    assert set(ACTIONS) <= set(json_schema()["$defs"]["Step"]["properties"])
