"""How long what we write on a node may become: never so long that we would not read it again.

A session longer than that freezes its node, a history lets no session begin. Both grow while
people retry steps and policies come and go. What grows is bounded one by one: results of a
step, characters of a text. Where all of it together is too much, notes go first, then results
of a step but the last; they are still counted, since each attempt has a key of its own.

Room is counted in characters of JSON, as the reader does: some characters take six.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from remediator.decide.session import (
    MAX_SESSION_BYTES,
    History,
    PolicyHold,
    Session,
    StepResult,
    encode,
    encode_text,
)


MAX_WRITTEN: Final = MAX_SESSION_BYTES * 3 // 4
"""Characters of a session, and of a history, that we write. The rest is a margin."""
ROOM_TO_BEGIN: Final = MAX_SESSION_BYTES // 2
"""Characters of a session with the plan of a further policy, and a result of each step."""
ROOM_OF_A_RESULT: Final = 200
"""Characters of a result without a note, with the key of a message that is not told yet."""
KEPT_RESULTS: Final = 5
"""Of one step, the newest: a person who retries it for weeks reads those."""
MAX_NOTE: Final = 400
MAX_WHY: Final = 450
"""Characters of what the history says: why a session ended, why a fault was waived."""
MAX_OWED: Final = 16
"""Messages that a history owes people, the newest."""
_BRIEF: Final = 80


def cut(text: str, limit: int) -> str:
    """Return a text whose JSON takes at most so many characters, its end left out if need be."""
    if 6 * len(text) <= limit or len(encode_text(text)) - 2 <= limit:
        return text
    kept, room = 0, limit - 3
    for character in text:
        room -= len(encode_text(character)) - 2
        if room < 0:
            break
        kept += 1
    return f"{text[:kept]}..."


def with_room(hold: PolicyHold, one: StepResult, *, kept: int = KEPT_RESULTS) -> PolicyHold:
    """Add a result to a hold. The oldest of the same step are only counted."""
    same = [at for at, known in enumerate(hold.results) if known.step == one.step]
    going = same[: max(0, len(same) + 1 - kept)]
    spent = hold.spent
    if going:
        spent = {**spent, one.step: spent.get(one.step, 0) + len(going)}
    stay = (known for at, known in enumerate(hold.results) if at not in going)
    return replace(hold, results=(*stay, one), spent=spent)


def fitted(session: Session) -> Session:
    """Return a session as it can be written: what is dispensable is left out if it is too long."""
    for shorter in (_with_notes(_BRIEF), _with_notes(0), _last_results, _brief_reasons):
        if len(encode(session)) <= MAX_WRITTEN:
            break
        session = replace(session, holds=tuple(shorter(hold) for hold in session.holds))
    return session


def too_long(session: Session) -> bool:
    """Tell whether a session must not be written: it could not be read again."""
    return len(encode(session)) > MAX_SESSION_BYTES


def fitted_history(history: History) -> History:
    """Return a history as it can be written. No waiver is ever left out, only why it was given."""
    for limit in (MAX_WHY, _BRIEF, 0):
        waivers = tuple(
            replace(one, why=cut(one.why, limit) if limit else "") for one in history.waivers
        )
        owed = tuple(
            replace(one, title=cut(one.title, MAX_WHY), text=cut(one.text, max(limit, _BRIEF)))
            for one in history.owed[-MAX_OWED:]
        )
        history = replace(history, waivers=waivers, owed=owed, last=cut(history.last, MAX_WHY))
        if len(encode(history)) <= MAX_WRITTEN:
            break
    return history


def _with_notes(limit: int) -> Callable[[PolicyHold], PolicyHold]:
    def shorter(hold: PolicyHold) -> PolicyHold:
        results = tuple(
            replace(one, note=cut(one.note, limit) if limit else "") for one in hold.results
        )
        return replace(hold, results=results)

    return shorter


def _last_results(hold: PolicyHold) -> PolicyHold:
    last = {one.step: one for one in hold.results}
    going = Counter(one.step for one in hold.results if one is not last[one.step])
    spent = {step: hold.spent.get(step, 0) + going[step] for step in {*hold.spent, *going}}
    kept = tuple(one for one in hold.results if one is last[one.step])
    return replace(hold, results=kept, spent=spent)


def _brief_reasons(hold: PolicyHold) -> PolicyHold:
    return replace(hold, reasons=tuple(cut(one, _BRIEF) for one in hold.reasons[:3]))
