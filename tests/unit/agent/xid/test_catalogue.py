"""The data file: complete, in line with its own rule, and read as it says."""

import pytest

from node_agent.contract import Severity
from node_agent.xid.catalogue import Action, load_catalogue


CATALOGUE = load_catalogue()

# Node repair of others, as published: EKS node monitoring agent and Karpenter's preview.
KARPENTER_REPAIRS = {46, 48, 54, 62, 63, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143}
KARPENTER_REPAIRS |= {155, 156, 158}
DIFFERS_ON_PURPOSE = {63, 109}


def test_every_code_of_the_drivers_list_has_a_row() -> None:
    assert set(CATALOGUE.xid) == set(range(1, 177))


@pytest.mark.parametrize("code", [8, 13, 31, 32, 43, 45, 68, 69, 137, 139])
def test_application_errors_are_informational(code: int) -> None:
    verdict = CATALOGUE.of_xid(code)
    assert verdict.application
    assert verdict.severity is Severity.INFO


def test_every_application_error_is_informational_and_nothing_else_is_one() -> None:
    rows = CATALOGUE.xid.values()
    assert {row.severity for row in rows if row.application} == {Severity.INFO}


@pytest.mark.parametrize("code", [63, 92, 93, 94, 109, 121, 38, 44])
def test_what_needs_a_look_but_no_immediate_cordon_is_a_warning(code: int) -> None:
    verdict = CATALOGUE.of_xid(code)
    assert verdict.severity is Severity.WARNING
    assert not verdict.application


def test_fatal_is_what_needs_a_reset_a_reboot_or_a_repair() -> None:
    hard = {Action.RESET_GPU, Action.RESTART_BM, Action.RESTART_VM}
    by_action = {row.code for row in CATALOGUE.xid.values() if row.action in hard}
    fatal = {row.code for row in CATALOGUE.xid.values() if row.severity is Severity.FATAL}
    assert fatal == by_action - {109} | {48, 54, 74}


def test_fatal_agrees_with_other_repair_policies_where_it_does_not_say_why_not() -> None:
    fatal = {row.code for row in CATALOGUE.xid.values() if row.severity is Severity.FATAL}
    assert KARPENTER_REPAIRS - fatal == DIFFERS_ON_PURPOSE
    assert all(CATALOGUE.xid[code].note for code in DIFFERS_ON_PURPOSE)


@pytest.mark.parametrize(
    ("code", "word", "severity"),
    [
        (20034, None, Severity.FATAL),
        (20034, False, Severity.WARNING),
        (20009, True, Severity.FATAL),
        (24001, False, Severity.INFO),
        (77777, True, Severity.FATAL),
        (77777, None, Severity.WARNING),
    ],
)
def test_an_sxids_literal_word_wins(code: int, word: bool | None, severity: Severity) -> None:  # noqa: FBT001 -- parametrized
    assert CATALOGUE.of_sxid(code, fatal=word).severity is severity


def test_all_94_published_nvlink5_rules_are_there() -> None:
    rules = CATALOGUE.nvlink5_rules
    assert sum(max(1, len(r.statuses)) * max(1, len(r.subcodes)) for r in rules) == 94


@pytest.mark.parametrize(
    ("subcode", "severity", "action"),
    [
        (0b000100, Severity.FATAL, Action.RESET_GPU),
        (0b100110, Severity.WARNING, Action.IGNORE),
        (0b111111, Severity.FATAL, Action.RESET_GPU),
    ],
)
def test_a_link_event_is_decoded_by_its_subcode(
    subcode: int, severity: Severity, action: Action
) -> None:
    verdict = CATALOGUE.of_nvlink5(
        149, unit="NETIR_LINK_EVT", subcode=subcode, status=0, fatal=True
    )
    assert (verdict.severity, verdict.action) == (severity, action)


def test_a_status_that_refers_to_an_xid_154_says_so() -> None:
    verdict = CATALOGUE.of_nvlink5(145, unit="RLW_REMAP", subcode=0, status=4, fatal=False)
    assert (verdict.severity, verdict.action) == (Severity.WARNING, Action.XID_154)
