"""Trying a check on an answer. Three-valued: what could not be looked at, or could not be tried, is unknown and says why."""

import re
import sys
from collections.abc import Sequence

from metaclaw.domain.chat import Json, Part
from metaclaw.domain.check import Check, Finding, PatternCheck, Place, ProgramCheck, SchemaCheck
from metaclaw.domain.verdict import Outcome
from metaclaw.skills.checks import inside
from metaclaw.skills.checks.answer import MAX_ANSWER_CHARS, answer_json, documents_at, size_of, texts_at
from metaclaw.skills.checks.child import Ended, run_child

LIMIT_S = 5.0
# No group, no alternative, and nothing repeated but a single character a fixed number of times: takes time linear in the text.
_PLAIN = re.compile(
    r"(?:\(\?i\))?(?:(?:[^\\()\[\]{}*+?|^$]|\\[^0-9A-Za-z]|\\[dDwWsS]|\[\^?[^\[\]\\]+\])(?:\{\d{1,2}\})?|\\[bBAZ]|[\^$])+"
)


def run_check(check: Check, answer: Sequence[Part]) -> Outcome:
    """Whether an answer passes a check. Blocks for up to some seconds: call it from a thread."""
    return examine(check, answer).outcome


def examine(check: Check, answer: Sequence[Part], limit_s: float = LIMIT_S) -> Finding:
    """The same with the reason."""
    if size_of(answer) > MAX_ANSWER_CHARS:
        return _unknown(f"the answer has more than {MAX_ANSWER_CHARS} characters")
    try:
        match check:
            case PatternCheck():
                return _match(check, answer, limit_s)
            case SchemaCheck():
                return _validate(check, answer, limit_s)
            case ProgramCheck():
                return _run(check, answer, limit_s)
    except OSError as error:
        return _unknown(f"no process could be started: {error.strerror}")


def _match(check: PatternCheck, answer: Sequence[Part], limit_s: float) -> Finding:
    texts = texts_at(answer, check.where)
    if not texts:
        return _unknown(f"there is nothing to look at in the {check.where.place}")
    if _PLAIN.fullmatch(check.pattern):
        return _found(check, any(re.search(check.pattern, text) for text in texts))
    ended = run_child({"what": "pattern", "pattern": check.pattern, "texts": list(texts)}, limit_s)
    if ended.status not in (inside.PASSED, inside.FAILED) or ended.errors:
        return _undecided(ended, "the pattern", limit_s)
    return _found(check, ended.status == inside.PASSED)


def _found(check: PatternCheck, is_found: bool) -> Finding:
    outcome = Outcome.PASS if is_found is check.must_match else Outcome.FAIL
    return Finding(outcome, "the pattern was found" if is_found else "the pattern was not found")


def _validate(check: SchemaCheck, answer: Sequence[Part], limit_s: float) -> Finding:
    documents = documents_at(answer, check.where)
    if documents is None:
        return _unknown(f"there is nothing to look at in the {check.where.place}")
    if not documents:
        return Finding(Outcome.FAIL, "there is no JSON in the answer")
    task: dict[str, Json] = {
        "what": "schema",
        "schema": dict(check.schema),
        "documents": documents,
        "every": check.where.place is Place.CALLS,
    }
    ended = run_child(task, limit_s, with_libraries=True)
    match ended.status:
        case inside.PASSED:
            return Finding(Outcome.PASS, "the JSON satisfies the schema")
        case inside.FAILED if ended.output and not ended.errors:
            return Finding(Outcome.FAIL, ended.output)
        case _:
            return _undecided(ended, "the schema", limit_s)


def _run(check: ProgramCheck, answer: Sequence[Part], limit_s: float) -> Finding:
    if not check.approved:
        return _unknown("the program waits for a person to agree to it")
    if sys.platform != "linux":
        return _unknown("programs are run on Linux only, where they can be walled in")
    ended = run_child({"what": "program", "source": check.source, "answer": answer_json(answer)}, limit_s)
    walls, _, said = ended.output.partition("\n")
    match ended.status:
        case inside.PASSED if walls:
            return Finding(Outcome.PASS, f"the program passed it; {walls}")
        case inside.FAILED if walls:
            return Finding(Outcome.FAIL, f"the program failed it: {(said or ended.errors).strip()[:300]}; {walls}")
        case inside.NO_WALLS:
            return _unknown(f"the program could not be walled in here, so it was not run; {walls or 'walls: none'}")
        case _:
            return _undecided(ended, "the program", limit_s)


def _undecided(ended: Ended, what: str, limit_s: float) -> Finding:
    if ended.status is None:
        return _unknown(f"{what} took longer than {limit_s:g} s")
    last = (ended.errors.strip().splitlines() or [f"status {ended.status}"])[-1]
    return _unknown(f"{what} broke: {last[:300]}")


def _unknown(reason: str) -> Finding:
    return Finding(Outcome.UNKNOWN, reason)
