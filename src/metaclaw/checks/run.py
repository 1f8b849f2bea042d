"""Run a check on an answer: it passes, fails, or is unknown, with the reason."""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from math import isfinite
from typing import Any, Final, NamedTuple

from metaclaw.checks import matcher, program_server
from metaclaw.checks.answer import (
    MAX_ANSWER_CHARS,
    MAX_CALL_CHARS,
    documents_at,
    pattern_texts,
    program_input,
    size_of,
    texts_at,
    unread_part,
)
from metaclaw.checks.commands import SeenText
from metaclaw.checks.workers import WORKERS, ProgramResult, WorkerError, ask_matcher, run_program
from metaclaw.domain.chat import Json, Part, ToolCall
from metaclaw.domain.check import (
    Check,
    Conversation,
    Finding,
    PatternCheck,
    Place,
    ProgramCheck,
    SchemaCheck,
    scored,
)
from metaclaw.domain.verdict import Outcome

LIMIT_S = 5.0
_NO_CONVERSATION: Final = Conversation()
_MOST_REASON_CHARS: Final = 300
# A pattern without groups, alternatives, and repetitions except of one character a fixed number of
# times: it takes linear time.
_PLAIN = re.compile(
    r"(?:\(\?i\))?(?:(?:[^\\()\[\]{}*+?|^$]|\\[^0-9A-Za-z]|\\[dDwWsS]|\[\^?[^\[\]\\]+\])(?:\{\d{1,2}\})?|\\[bBAZ]|[\^$])+"
)


def run_check(
    check: Check, answer: Sequence[Part], conversation: Conversation = _NO_CONVERSATION
) -> Outcome:
    """Whether an answer passes a check, which may take `LIMIT_S` of processor time. Blocks: call it
    from a thread.
    """
    return examine(check, answer, conversation=conversation).outcome


def examine(
    check: Check,
    answer: Sequence[Part],
    limit_s: float = LIMIT_S,
    *,
    conversation: Conversation = _NO_CONVERSATION,
    is_strict: bool = False,
) -> Finding:
    """Run a check on an answer: outcome, score and reason. With `is_strict`, text that a pattern or
    schema does not cover must be ordinary words, and a score below 1 becomes 0."""
    is_of_calls = isinstance(check, PatternCheck) and check.where.place is Place.CALLS
    if (most := MAX_CALL_CHARS if is_of_calls else MAX_ANSWER_CHARS) < _size_for(check, answer):
        return _undecided(f"the answer has more than {most} characters")
    try:
        match check:
            case PatternCheck():
                found = _if_read(check, answer, _match(check, answer, limit_s, is_strict=is_strict))
            case SchemaCheck():
                found = _validate(check, answer, limit_s, is_strict=is_strict)
            case ProgramCheck():
                found = _run(check, answer, conversation, limit_s)
        # Scores for parts are for training; they are no evidence that the check passes.
        return (
            Finding(Outcome.FAIL, found.reason, 0.0)
            if is_strict and found.score not in (None, 1.0)
            else found
        )
    except OSError as error:
        return _failed(f"no process could be started: {error.strerror}")
    except WorkerError as error:
        return _failed(f"the process that tries checks broke: {error}")


def examine_many(
    check: Check,
    answers: Sequence[Sequence[Part]],
    limit_s: float = LIMIT_S,
    *,
    conversation: Conversation = _NO_CONVERSATION,
    is_strict: bool = False,
) -> list[Finding]:
    """`examine` for several answers to one conversation; programs run in parallel, one on each
    core.
    """

    def examine_one(answer: Sequence[Part]) -> Finding:
        return examine(check, answer, limit_s, conversation=conversation, is_strict=is_strict)

    if len(answers) < 2 or not isinstance(check, ProgramCheck):
        return [examine_one(answer) for answer in answers]
    with ThreadPoolExecutor(min(WORKERS, len(answers)), "check") as threads:
        return list(threads.map(examine_one, answers))


def examine_all(
    checks: Sequence[Check],
    answer: Sequence[Part],
    limit_s: float = LIMIT_S,
    *,
    conversation: Conversation = _NO_CONVERSATION,
) -> list[Finding]:
    """Run several checks on one answer. All patterns are sent to the matcher in one task with one
    limit; a slow pattern does not take the time of the others."""
    is_small = size_of(answer) <= MAX_ANSWER_CHARS
    wanted = {
        at: (check, seen)
        for at, check in enumerate(checks)
        if is_small and isinstance(check, PatternCheck) and (seen := pattern_texts(answer, check))
    }
    together: dict[int, Finding] = {}
    if len(wanted) > 1:
        # A fault of one is told by `examine`, which runs each alone.
        with suppress(OSError, ValueError, WorkerError):
            found = _ask(list(wanted.values()), limit_s)
            together = {
                at: _if_read(check, answer, _matched(check, seen, result, limit_s, is_strict=False))
                for (at, (check, seen)), result in zip(wanted.items(), found, strict=True)
            }
    return [
        together.get(at) or examine(check, answer, limit_s, conversation=conversation)
        for at, check in enumerate(checks)
    ]


def _size_for(check: Check, answer: Sequence[Part]) -> int:
    """The number of characters that a check reads. A long call of one tool must not disable a check
    on the calls of another.
    """
    if isinstance(check, ProgramCheck) or size_of(answer) <= MAX_ANSWER_CHARS:
        return size_of(answer)
    seen = [part for part in answer if isinstance(part, ToolCall) and texts_at([part], check.where)]
    return size_of(seen if check.where.place is Place.CALLS else answer)


def _ask(wanted: Sequence[tuple[PatternCheck, list[SeenText]]], limit_s: float) -> Sequence[Any]:
    """The matcher's result for each pattern and its texts."""
    numbers: dict[str, int] = {}
    patterns: list[Json] = [
        [check.pattern, [numbers.setdefault(one.text, len(numbers)) for one in seen]]
        for check, seen in wanted
    ]
    task: dict[str, Json] = {"texts": list[Json](numbers), "patterns": patterns}
    found: Any = ask_matcher(task, limit_s)
    return found or [None] * len(wanted)


def _if_read(check: PatternCheck, answer: Sequence[Part], finding: Finding) -> Finding:
    """The finding; unknown if it passes because a forbidden pattern was not found, but a command
    could not be read.
    """
    if finding.outcome is not Outcome.PASS or check.must_match:
        return finding
    unread = unread_part(answer, check.where)
    return _undecided(f"a command could not be read: {unread}") if unread else finding


def _match(
    check: PatternCheck, answer: Sequence[Part], limit_s: float, *, is_strict: bool
) -> Finding:
    seen = pattern_texts(answer, check)
    if not seen:
        if unread := unread_part(answer, check.where):
            return _undecided(f"a command could not be read: {unread}")
        return _unknown(f"there is nothing to look at in the {check.where.place}")
    if _PLAIN.fullmatch(check.pattern):
        found: Any = matcher.match(check.pattern, [text.text for text in seen])
    else:
        (found,) = _ask([(check, seen)], limit_s)
    return _matched(check, seen, found, limit_s, is_strict=is_strict)


def _matched(
    check: PatternCheck,
    seen: Sequence[SeenText],
    matches: Any,
    limit_s: float,
    *,
    is_strict: bool,
) -> Finding:
    """The finding for the matcher's result."""
    if matches is None:
        return _failed(f"the pattern took longer than {limit_s:g} s")
    if isinstance(matches, str):
        return _failed(f"the pattern broke: {matches}")
    is_found = any(
        text.counts(begin, end)
        for text, result in zip(seen, matches, strict=True)
        for begin, end in result["spans"]
    )
    reason = "the pattern was found" if is_found else "the pattern was not found"
    if is_found is not check.must_match:
        return scored(0.0 if is_found else max(map(_partly, matches)), reason)
    is_whole_wanted = is_strict and check.must_match and check.where.place is Place.ANSWER
    if is_whole_wanted and not is_ordinary_beside(seen[0].text, matches[0]["spans"]):
        return scored(0.0, "the pattern was found, but the rest is no ordinary text")
    return scored(1.0, reason)


def _validate(
    check: SchemaCheck, answer: Sequence[Part], limit_s: float, *, is_strict: bool
) -> Finding:
    documents = documents_at(answer, check.where)
    if documents is None:
        return _unknown(f"there is nothing to look at in the {check.where.place}")
    if not documents:
        return scored(0.0, "there is no JSON in the answer")
    found: Any
    try:
        found = ask_matcher({"schema": dict(check.schema), "documents": documents}, limit_s)
    except ValueError as error:
        return _failed(f"the schema broke: {error}")
    if found is None:
        return _failed(f"the schema took longer than {limit_s:g} s")
    faults = [result for result in found if result["fault"] is not None]
    is_each_wanted = check.where.place is Place.CALLS or is_strict
    if (
        is_strict
        and not faults
        and not any(_has_property(document, check.schema) for document in documents)
    ):
        return scored(0.0, "the JSON has none of the properties that the schema names")
    if not faults or (len(faults) < len(found) and not is_each_wanted):
        return scored(1.0, "the JSON satisfies the schema")
    scores = [_partly(fault) for fault in faults]
    return scored(min(scores) if is_each_wanted else max(scores), faults[0]["fault"])


def _has_property(document: Json, schema: Mapping[str, Json]) -> bool:
    """Whether an object has any of the properties that a schema names; True if it names none."""
    named = schema.get("properties")
    return (
        not isinstance(named, dict)
        or not isinstance(document, dict)
        or not named.keys().isdisjoint(document)
    )


def _partly(earned: dict[str, int]) -> float:
    """The score of an answer that does not pass, by the parts of it that are right; always below
    one half.
    """
    return earned["parts"] / (2 * earned["of"] + 1)


def _run(
    check: ProgramCheck, answer: Sequence[Part], conversation: Conversation, limit_s: float
) -> Finding:
    if not check.approved:
        return _undecided("the program waits for a person to agree to it")
    if sys.platform != "linux":
        return _failed("programs are run on Linux only, where there is a sandbox for them")
    given = program_input(answer, conversation, has_consent="consent" in check.source)
    result = run_program(check.source, given, limit_s)
    layers, _, said = result.output.partition("\n")
    if result.status in (program_server.PASSED, program_server.FAILED) and layers:
        return _judged(result, layers, said)
    if result.status == program_server.NO_SANDBOX:
        return _failed(
            f"there is no sandbox here, so the program was not run; {layers or 'sandbox: none'}"
        )
    if result.status == program_server.NOT_CONCERNED:
        return _unknown("the program has nothing to say of such an answer")
    if result.status is None:
        return _failed(f"the program took longer than {limit_s:g} s")
    last = (result.errors.strip().splitlines() or [f"status {result.status}"])[-1]
    return _failed(f"the program broke: {last[:_MOST_REASON_CHARS]}")


def _judged(result: ProgramResult, layers: str, output: str) -> Finding:
    """The score in the last line of a program's output; if there is none, the exit status
    decides.
    """
    verdict = _last_object(output)
    if verdict is not None and "score" in verdict:
        score, reason = verdict["score"], verdict.get("reason")
        if (
            isinstance(score, bool)
            or not isinstance(score, int | float)
            or not isfinite(score)
            or not 0 <= score <= 1
        ):
            return _failed(f"the program's score {str(score)[:40]} is no number from 0 to 1")
        return scored(
            float(score),
            f"{str(reason or f'the program gave {score:g}')[:_MOST_REASON_CHARS]}; {layers}",
        )
    if result.status == program_server.PASSED:
        return scored(1.0, f"the program passed it; {layers}")
    return scored(
        0.0,
        f"the program failed it: {(output or result.errors).strip()[:_MOST_REASON_CHARS]};"
        f" {layers}",
    )


def _last_object(output: str) -> dict[str, object] | None:
    lines = output.strip().splitlines()
    if not lines or not lines[-1].lstrip().startswith("{"):
        return None
    try:
        found = json.loads(lines[-1])
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _unknown(reason: str) -> Finding:
    return Finding(Outcome.UNKNOWN, reason)


def _undecided(reason: str) -> Finding:
    return Finding(Outcome.UNKNOWN, reason, is_undecided=True)


def _failed(reason: str) -> Finding:
    return Finding(Outcome.UNKNOWN, reason, has_failed=True)


_LETTER: Final = re.compile(r"[^\W\d_]")
_GLUED_BEFORE: Final = re.compile(r"\S*\Z")
_GLUED_AFTER: Final = re.compile(r"\A\S*")
_LEAST_REPEATED: Final = 3
_MOST_STRANGE: Final = 4


def is_ordinary_beside(text: str, spans: Sequence[Sequence[int]]) -> bool:
    """Whether the rest of a text is empty or ordinary words. It is not if digits or a piece of the
    match touch a match, if long matches touch each other, if one match is repeated many times, or
    if most of the rest is no words."""
    long_ones = [(first, last) for first, last in spans if last - first > _LEAST_REPEATED]
    if any(before[1] == after[0] for before, after in pairwise(long_ones)):
        return False
    begin, end = spans[0]
    match = text[begin:end]
    rest = _without(text, spans)
    if not rest.strip():
        return len(spans) == 1 or len({text[first:last] for first, last in spans}) > len(spans) // 2
    if any(
        _is_foreign(glued, match)
        for glued in (_GLUED_BEFORE.search(text[:begin]), _GLUED_AFTER.search(text[end:]))
    ):
        return False
    if len(match) > _LEAST_REPEATED and (text.count(match) - 1) * len(match) * 2 > len(
        text.strip()
    ):
        return False
    words = rest.split()
    strange = sum(_LETTER.search(word) is None for word in words)
    # Another rule may ask for a date or a number, but not for a row of them.
    return strange < _MOST_STRANGE or 2 * strange <= len(words)


def _without(text: str, spans: Sequence[Sequence[int]]) -> str:
    kept, at = [], 0
    for begin, end in spans:
        kept.append(text[at:begin])
        at = end
    return "".join([*kept, text[at:]])


def _is_foreign(glued: re.Match[str] | None, match: str) -> bool:
    """Whether the text that touches a match is more than an ending or a punctuation mark."""
    beside = "" if glued is None else glued[0]
    size = _LEAST_REPEATED
    pieces = {beside[at : at + size] for at in range(len(beside) - size + 1)}
    return any(sign.isdigit() for sign in beside) or any(piece in match for piece in pieces)


_REPEATS: Final = frozenset(("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"))
_LEAST_CHARS: Final = 2


class Screen(NamedTuple):
    """A quick test for a pattern: every text in which it is found contains at least one of
    `groups`.
    """

    groups: tuple[str, ...]
    ignores_case: bool

    def may_match(self, texts: Iterable[str]) -> bool:
        """Whether the pattern may be found in one of the texts; False is certain."""
        for text in texts:
            if self.ignores_case:
                if not text.isascii():
                    return True  # letters outside ASCII have several lower cases
                text = text.lower()
            for group in self.groups:  # any() with a generator takes longer than the search
                if group in text:
                    return True
        return False


@lru_cache(1024)
def screen_of(pattern: str) -> Screen | None:
    """The screen of a pattern; None if no letters are certain."""
    try:
        compiled = re.compile(pattern)
        parsed = re._parser.parse(pattern)  # type: ignore[attr-defined]
    except (re.error, OverflowError, RecursionError):
        return None
    if compiled.flags & (re.VERBOSE | re.LOCALE):
        return None
    ignores_case = bool(compiled.flags & re.IGNORECASE)
    groups = _certain(list(parsed))
    if groups is None or (ignores_case and not all(group.isascii() for group in groups)):
        return None
    return Screen(
        tuple(group.lower() for group in groups) if ignores_case else groups, ignores_case
    )


def _certain(items: Sequence[Any]) -> tuple[str, ...] | None:
    """The best groups of letters of a sequence: its longest run, or one run of each alternative."""
    found: list[tuple[str, ...]] = []
    run = ""
    for operation, argument in [*items, (None, None)]:
        name = str(operation)
        if name == "LITERAL":
            run += chr(argument)
            continue
        if len(run) >= _LEAST_CHARS:
            found.append((run,))
        run = ""
        inner = _inner(name, argument)
        if inner is not None:
            found.append(inner)
    return max(found, key=lambda groups: min(map(len, groups)), default=None)


def _inner(name: str, argument: Any) -> tuple[str, ...] | None:
    if name == "SUBPATTERN":
        _, added, removed, items = argument
        return None if added or removed else _certain(list(items))
    if name == "ATOMIC_GROUP":
        return _certain(list(argument))
    if name in _REPEATS:
        least, _, items = argument
        return _certain(list(items)) if least else None
    if name == "BRANCH":
        branches = [_certain(list(branch)) for branch in argument[1]]
        if all(branch is not None for branch in branches):
            return tuple(group for branch in branches for group in branch or ())
    return None
