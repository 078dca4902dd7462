"""Bad files: what is said, and at which character."""

from pathlib import Path

import pytest

from remediator.policy.cluster import ClusterSpec
from remediator.policy.files import MAX_BYTES, find_files, read_text
from remediator.policy.load import check_channels, load_policies, parse_config, parse_policies
from remediator.policy.model import Mode
from remediator.policy.problems import PolicyError, Problem, render


HEAD = "apiVersion: gpu-remediator.io/v1alpha1\nkind: RemediationPolicy\nmetadata: {name: p}\n"
GOOD = HEAD + "spec:\n  when: [{xid: {codes: [79]}}]\n  steps: [{cordon: {}}]\n"
CONFIG = "apiVersion: gpu-remediator.io/v1alpha1\nkind: RemediatorConfig\n"


def problems_of(text: str | bytes) -> list[Problem]:
    data = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(PolicyError) as caught:
        parse_policies(data, file="p.yaml")
    return list(caught.value.problems)


def only(text: str | bytes) -> Problem:
    found = problems_of(text)
    assert len(found) == 1, "\n".join(map(str, found))
    return found[0]


def spec(lines: str) -> str:
    """A policy whose spec, from line 5 on, is `lines`."""
    return HEAD + "spec:\n" + lines


WHEN = "  when: [{xid: {codes: [79]}}]\n"
STEPS = "  steps: [{cordon: {}}]\n"

# (spec, line, column, path, words of the message, words of the fix)
BAD_SPECS = {
    "unknown key, near": (
        "  when: [{xid: {codes: [79]}}]\n  stepz: [{cordon: {}}]\n  steps: [{cordon: {}}]\n",
        (6, 3, "spec.stepz", "unknown key stepz", "did you mean steps?"),
    ),
    "unknown key in snake case": (
        WHEN + "  limits: {max_attempts: 2}\n" + STEPS,
        (6, 12, "spec.limits.max_attempts", "unknown key", "did you mean maxAttempts?"),
    ),
    "unknown key that belongs elsewhere": (
        WHEN + "  selector: {}\n" + STEPS,
        (6, 3, "spec.selector", "unknown key selector", "it belongs in spec.nodes"),
    ),
    "unknown key, far": (
        WHEN + STEPS + "  zzz: 1\n",
        (7, 3, "spec.zzz", "unknown key zzz in spec", "keys here: mode, emergency,"),
    ),
    "unknown key in a model without keys": (
        WHEN + "  steps: [{cordon: {now: true}}]\n",
        (6, 21, "spec.steps[0].cordon.now", "unknown key now", "it takes no keys"),
    ),
    "unknown step": (
        WHEN + "  steps: [{dance: {}}]\n",
        (6, 12, "spec.steps[0].dance", "unknown key dance", "cordon, taint, label, annotate"),
    ),
    "missing key": (
        WHEN,
        (4, 1, "spec.steps", "the key steps is missing", "under spec"),
    ),
    "missing key of a list entry": (
        "  when:\n    - xid: {codes: [79]}\n    - condition: {status: 'True'}\n" + STEPS,
        (7, 7, "spec.when[1].condition.type", "type is missing", "add `type: GPULost`"),
    ),
    "bad value of a choice": (
        "  mode: dryrun\n" + WHEN + STEPS,
        (5, 9, "spec.mode", "dryrun is not one of Disabled, DryRun, Enforce", "mean DryRun?"),
    ),
    "bad value of a choice, far": (
        "  mode: banana\n" + WHEN + STEPS,
        (5, 9, "spec.mode", "banana is not one of", "write one of them"),
    ),
    "boolean where text is meant": (
        "  when:\n    - condition: {type: Ready, status: True}\n" + STEPS,
        (6, 40, "spec.when[0].condition.status", "true is not one of", 'quotes: "True"'),
    ),
    "number for a label": (
        "  nodes: {selector: {matchLabels: {a: 1}}}\n" + WHEN + STEPS,
        (5, 39, "spec.nodes.selector.matchLabels.a", "text is expected", 'in quotes: "1"'),
    ),
    "bad label key": (
        "  nodes: {selector: {matchLabels: {'a b': x}}}\n" + WHEN + STEPS,
        (5, 36, 'spec.nodes.selector.matchLabels["a b"]', "a b is not valid", "a label key"),
    ),
    "text for a number": (
        '  when: [{xid: {codes: ["79"]}}]\n' + STEPS,
        (5, 25, "spec.when[0].xid.codes[0]", "not the text 79", "without quotes: 79"),
    ),
    "number too large": (
        "  when: [{xid: {codes: [79, 7900]}}]\n" + STEPS,
        (5, 29, "spec.when[0].xid.codes[1]", "7900 is too large", "999 or less"),
    ),
    "scalar for a list": (
        WHEN + "  steps: [{notify: {to: oncall}}]\n",
        (6, 25, "spec.steps[0].notify.to", "a list is expected", "write [oncall]"),
    ),
    "mapping for a list": (
        "  when: {xid: {codes: [79]}}\n" + STEPS,
        (5, 9, "spec.when", "a list is expected here, not a mapping", "with a dash"),
    ),
    "list for a mapping": (
        WHEN + STEPS + "  limits: []\n",
        (7, 11, "spec.limits", "a mapping", ""),
    ),
    "a step without its mapping": (
        WHEN + "  steps: [cordon]\n",
        (6, 11, "spec.steps[0]", "not the text cordon", "write cordon: {}"),
    ),
    "taint of a foreign key": (
        WHEN + "  steps: [{taint: {key: example.com/hot}}]\n",
        (6, 25, "spec.steps[0].taint.key", "is not valid here", "begins with gpu-remediator.io/"),
    ),
    "empty list": (
        "  when: []\n" + STEPS,
        (5, 9, "spec.when", "this list is empty", "at least 1 entry"),
    ),
    "no value": (
        WHEN + "  steps:\n    - cordon:\n    - notify: {to: [log]}\n",
        (7, 7, "spec.steps[0].cordon", "cordon has no value", "`cordon: {}`"),
    ),
    "empty list entry": (
        WHEN + "  steps:\n    -\n    - cordon: {}\n",
        (7, 6, "spec.steps[0]", "this list entry is empty", "remove the dash"),
    ),
    "two actions in a step": (
        WHEN + "  steps:\n    - cordon: {}\n      event: {}\n",
        (7, 7, "spec.steps[0]", "wait, approve; this one has cordon, event", ""),
    ),
    "nothing in an entry of when": (
        "  when: [{}]\n" + STEPS,
        (5, 10, "spec.when[0]", "needs at least one of: xid, sxid, condition", ""),
    ),
    "duration without unit": (
        WHEN + STEPS + "  recover: {for: 600}\n",
        (7, 18, "spec.recover.for", "600 is no duration", "a number with its unit"),
    ),
    "duration as a fraction": (
        WHEN + STEPS + "  recover: {for: 1.5}\n",
        (7, 18, "spec.recover.for", "1.5 is a fraction", "1500ms"),
    ),
    "rate of zero": (
        WHEN + STEPS + "  limits: {rate: {cordon: 0/10m}}\n",
        (7, 27, "spec.limits.rate.cordon", "0/10m' is no rate", "10/10m"),
    ),
    "percentage over 100": (
        WHEN + STEPS + "  limits: {budget: {maxUnavailable: 110%}}\n",
        (7, 37, "spec.limits.budget.maxUnavailable", "110%' is neither", ""),
    ),
    "operator without values": (
        "  nodes: {selector: {matchExpressions: [{key: a, operator: In}]}}\n" + WHEN + STEPS,
        (5, 41, "spec.nodes.selector.matchExpressions[0]", "In takes at least one value", ""),
    ),
    "reason in lower case": (
        WHEN + "  steps: [{event: {reason: bad}}]\n",
        (6, 28, "spec.steps[0].event.reason", "bad is not valid", "capital"),
    ),
    "the same key twice": (
        WHEN + STEPS + STEPS,
        (7, 3, "spec.steps", "the key steps is given twice", "see line 6"),
    ),
    "a boolean of YAML 1.1": (
        "  emergency: yes\n" + WHEN + STEPS,
        (5, 14, "spec.emergency", "yes is a boolean to YAML 1.1", "write true"),
    ),
    "off as a mode": (
        "  mode: off\n" + WHEN + STEPS,
        (5, 9, "spec.mode", "off is a boolean to YAML 1.1", "write false"),
    ),
    "on as a key": (
        WHEN + STEPS + "  on: 1\n",
        (7, 3, "spec.on", "the key on is a boolean", ""),
    ),
    "base 60": (
        "  nodes: {selector: {matchLabels: {a: 1:30}}}\n" + WHEN + STEPS,
        (5, 39, "spec.nodes.selector.matchLabels.a", "1:30 is a number in base 60", '"1:30"'),
    ),
    "octal": (
        "  when: [{xid: {codes: [010]}}]\n" + STEPS,
        (5, 25, "spec.when[0].xid.codes[0]", "010 is octal to one", ""),
    ),
    "a date": (
        "  nodes: {selector: {matchLabels: {a: 2026-01-02}}}\n" + WHEN + STEPS,
        (5, 39, "spec.nodes.selector.matchLabels.a", "a date to YAML 1.1", '"2026-01-02"'),
    ),
    "merge key": (
        WHEN + "  recover: &r {when: manual}\n  limits: {<<: *r}\n" + STEPS,
        (7, 12, 'spec.limits["<<"]', "a merge to YAML 1.1", "write the keys out"),
    ),
    "a number as a key": (
        "  nodes: {selector: {matchLabels: {1: a}}}\n" + WHEN + STEPS,
        (5, 36, "spec.nodes.selector.matchLabels.1", "the key 1 is not text", "quotes"),
    ),
    "a tag": (
        "  mode: !!python/name:os.system x\n" + WHEN + STEPS,
        (5, 9, "spec.mode", "the tag !!python/name:os.system is not used", "remove it"),
    ),
}


@pytest.mark.parametrize("case", BAD_SPECS)
def test_a_bad_value_is_named_to_the_character(case: str) -> None:
    text, (line, column, path, message, fix) = BAD_SPECS[case]
    problem = only(spec(text))
    assert (problem.line, problem.column, problem.path) == (line, column, path)
    assert message in problem.message
    assert fix in problem.fix
    assert problem.source == spec(text).splitlines()[line - 1]


BROKEN_FILES = {
    "not YAML": (b"a: [1,\n", 2, 1, "this is not YAML", "close the quote or bracket"),
    "tab": (b"a:\n\tb: 1\n", 2, 1, "tab", "indent with spaces"),
    "colon": (b"a: b: c\n", 1, 5, "mapping values are not allowed", "colon in quotes"),
    "NUL": (b"a: 1\nb: \x00\n", 2, 4, "U+0000", "is this a text file?"),
    "not UTF-8": (b"a: 1\nb: \xff\n", 2, 4, "not UTF-8 (byte 0xff)", "save it as UTF-8"),
    "empty": (b"", 0, 0, "holds no document", "remove the file"),
    "comments only": (b"# nothing\n---\n", 0, 0, "holds no document", "remove the file"),
    "a list": (b"- a\n- b\n", 1, 1, "a mapping is expected", ""),
    "text": (b"hello\n", 1, 1, "a mapping is expected", ""),
    "deep": (b"a: " + b"[" * 5000, 1, 35, "nested more than 32", ""),
    "deep blocks": (
        b"\n".join(b" " * n + b"a:" for n in range(5000)),
        33,
        33,
        "nested more than 32",
        "",
    ),
    "unknown alias": (b"a: *nowhere\n", 1, 4, "*nowhere refers to no anchor", ""),
    "a key that is a list": (b"? [a]\n: b\n", 1, 3, "cannot be a key", ""),
    "another kind": (b"kind: ConfigMap\n", 1, 7, "this is a ConfigMap", "kind: RemediationPolicy"),
    "config among policies": (CONFIG.encode(), 2, 7, "this is a RemediatorConfig", "by --config"),
}


@pytest.mark.parametrize("case", BROKEN_FILES)
def test_a_broken_file_is_refused_with_its_place(case: str) -> None:
    data, line, column, message, fix = BROKEN_FILES[case]
    problem = only(data)
    assert (problem.line, problem.column) == (line, column)
    assert message in problem.message
    assert fix in problem.fix


def test_an_alias_bomb_is_refused_before_it_grows() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
    )
    assert "more than 50000 values" in only(bomb).message


def test_aliases_that_nest_through_anchors_are_bounded_too() -> None:
    chain = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 60))
    assert "nested more than 32" in only(chain).message


def test_an_alias_stands_for_its_value() -> None:
    text = spec(WHEN + "  steps:\n    - notify: {to: &who [log]}\n  recover: {notify: *who}\n")
    (one,) = parse_policies(text.encode(), file="p").policies
    assert one.policy.spec.recover.notify == ("log",)


def test_every_problem_of_a_file_is_reported_at_once_in_its_order() -> None:
    text = spec("  mode: dryrun\n  whem: []\n  recover: {for: 5}\n") + "---\nkind: Nope\n"
    found = [(problem.line, problem.path) for problem in problems_of(text)]
    assert found == [
        (4, "spec.when"),
        (4, "spec.steps"),
        (5, "spec.mode"),
        (6, "spec.whem"),
        (7, "spec.recover.for"),
        (9, "kind"),
    ]


def test_a_parent_is_not_blamed_for_its_child() -> None:
    """Of a list whose only entry failed, pydantic adds that it is too short."""
    assert only(spec('  when: [{xid: {codes: ["x"]}}]\n' + STEPS)).path.endswith("codes[0]")


def test_several_documents_make_several_policies() -> None:
    text = GOOD + "---\n" + GOOD.replace("name: p", "name: q") + "---\n"
    parsed = parse_policies(text.encode(), file="p.yaml")
    assert [one.policy.name for one in parsed.policies] == ["p", "q"]
    assert parsed.policies[0].policy.spec.mode is Mode.DRY_RUN


def test_the_same_name_twice_in_a_file() -> None:
    problem = only(GOOD + "---\n" + GOOD)
    assert (problem.line, problem.column, problem.path) == (10, 18, "metadata.name")
    assert "see line 3" in problem.fix


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm() -> None:
    text = "\ufeff" + (GOOD + "  mode: dryrun\n").replace("\n", "\r\n")
    problem = only(text)
    assert (problem.line, problem.column) == (7, 9)
    assert problem.source == "  mode: dryrun"


def test_another_yaml_version_is_refused() -> None:
    assert "read as YAML 1.2" in only("%YAML 1.1\n---\n" + GOOD).message


def test_a_name_with_a_newline_is_no_name() -> None:
    assert only(GOOD.replace("{name: p}", '{name: "p\\n"}')).path == "metadata.name"


def test_render_puts_a_caret_under_the_character() -> None:
    problem = only(spec("  mode: dryrun\n" + WHEN + STEPS))
    assert render(problem).splitlines() == [
        "p.yaml:5:9: error: spec.mode: dryrun is not one of Disabled, DryRun, Enforce",
        "     5 |   mode: dryrun",
        "       |         ^",
        "       = fix: did you mean DryRun?",
    ]


def test_render_keeps_a_very_long_line_short() -> None:
    text = spec("  mode: " + "x" * 5000 + "\n" + WHEN + STEPS)
    lines = render(only(text)).splitlines()
    assert max(map(len, lines)) < 250
    assert lines[1][lines[2].index("^")] == "x"


def test_channels_are_checked_against_the_config(tmp_path: Path) -> None:
    cluster = parse_config(
        (
            CONFIG + "spec: {channels: {oncall: {webhook: {url: 'http://x'}}}, alertsTo: [oncall]}"
        ).encode(),
        file="c",
    )
    text = spec(WHEN + "  steps:\n    - notify: {to: [log, onkall]}\n  recover: {notify: [sms]}\n")
    parsed = parse_policies(text.encode(), file="p.yaml")
    near, far = check_channels(parsed, cluster)
    assert (near.line, near.column, near.path) == (7, 26, "spec.steps[0].notify.to[1]")
    assert near.fix == "did you mean oncall?"
    assert (far.line, far.column) == (8, 22)
    assert "log, oncall" in far.fix
    (tmp_path / "p.yaml").write_text(text)
    assert len(load_policies([tmp_path])) == 1  # without a config, channels are not judged


BAD_CONFIGS = {
    "unknown channel": (
        "spec: {alertsTo: [pager]}\n",
        (3, 18, "spec.alertsTo", "pager is no channel", "log"),
    ),
    "two kinds": (
        "spec: {channels: {a: {log: {}, webhook: {url: 'http://x'}}}}\n",
        (3, 22, "spec.channels.a", "exactly one of", ""),
    ),
    "no address": (
        "spec: {channels: {a: {webhook: {}}}}\n",
        (3, 32, "spec.channels.a.webhook", "exactly one of: url, urlFile", ""),
    ),
    "not an address": (
        "spec: {channels: {a: {webhook: {url: ftp://x}}}}\n",
        (3, 38, "spec.channels.a.webhook.url", "ftp://x is not valid", "http://"),
    ),
    "mode": ("spec: {mode: enforce}\n", (3, 14, "spec.mode", "not one of", "Enforce?")),
}


@pytest.mark.parametrize("case", BAD_CONFIGS)
def test_a_bad_config_is_named_to_the_character(case: str) -> None:
    text, (line, column, path, message, fix) = BAD_CONFIGS[case]
    with pytest.raises(PolicyError) as caught:
        parse_config((CONFIG + text).encode(), file="c.yaml")
    (problem,) = caught.value.problems
    assert (problem.line, problem.column, problem.path) == (line, column, path)
    assert message in problem.message
    assert fix in problem.fix


def test_a_config_without_spec_is_the_defaults() -> None:
    assert parse_config(CONFIG.encode(), file="c") == ClusterSpec()


def test_a_config_of_two_documents_is_refused() -> None:
    with pytest.raises(PolicyError, match="is one document"):
        parse_config((CONFIG + "---\n" + CONFIG).encode(), file="c")


def test_a_policy_given_as_config_says_where_it_belongs() -> None:
    with pytest.raises(PolicyError, match="--policies"):
        parse_config(GOOD.encode(), file="c")


def test_files_of_a_folder(tmp_path: Path) -> None:
    for name in ("b.yml", "a.yaml", "a.test.yaml", ".hidden.yaml", "readme.md"):
        (tmp_path / name).touch()
    (tmp_path / "..data").mkdir()
    assert [path.name for path in find_files([tmp_path])] == ["a.yaml", "b.yml"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("missing.yaml", "no such file"), ("folder", "a folder, not a file")],
)
def test_what_cannot_be_read_says_why(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(PolicyError, match=message):
        read_text(tmp_path / name)


def test_a_file_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root, who may run the tests, reads everything
    with pytest.raises(PolicyError, match="no permission"):
        read_text(Path("p.yaml"))


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    with path.open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    with pytest.raises(PolicyError, match="larger than 512 KiB"):
        read_text(path)


def test_the_same_name_in_two_files(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "b.yaml").write_text("# second\n" + GOOD)
    with pytest.raises(PolicyError) as caught:
        load_policies([tmp_path])
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == (str(tmp_path / "b.yaml"), 4)
    assert str(tmp_path / "a.yaml") in problem.message


@pytest.mark.parametrize("escapes", [r"\ud83d\ude00", r"\U0001f600"])
def test_a_character_of_two_escapes_as_json_writes_it_is_one(escapes: str) -> None:
    step = f'  steps: [{{notify: {{to: [log], message: "{escapes}"}}}}]\n'
    (one,) = parse_policies(spec(WHEN + step).encode(), file="p").policies
    notify = one.policy.spec.steps[0].notify
    assert notify is not None
    assert notify.message == "\U0001f600"


def test_half_a_character_is_an_error() -> None:
    step = '  steps: [{notify: {to: [log], message: "\\ud83d"}}]\n'
    assert "half a character" in only(spec(WHEN + step)).message
