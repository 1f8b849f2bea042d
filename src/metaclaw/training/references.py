"""Reference answers: what a person wanted, read from their corrections.

A correction gives a reference if it states the answer ("No, that is wrong. It should be
2051-03-07/nb"), not if it only says what is wrong. Which part of it is the answer is read from
its structure, in any language: a block, a quotation, or the end of the message, if that is

- another version of the answer (most of its characters, other words), or
- digits and signs that the answer or the question has in another form, or
- what is left behind words with which the same person began other corrections ("It should be …").

A correction that repeats the answer with more words ("not on Tuesday") denies it and states
nothing. A reference is for its own turn, and for turns in which the same person asked the same, perhaps
with some words before or after it. What was shown to an evolver, or became a rule, is none, and a turn
that is kept for the gate lends none to a turn that trains."""

import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Final

from metaclaw.domain.ids import TurnId
from metaclaw.domain.turn import Step
from metaclaw.learn import in_words, is_corrected
from metaclaw.text import list_terms

_LOOK_EVERY_S: Final = 10.0
_MOST_CHARS: Final = 2_000
_MOST_STARTS: Final = 64
_REMEMBERED: Final = 4_096
_FENCED: Final = re.compile(
    r"^[ \t]*(```|~~~)[^\n`]*\n(?P<text>.*?)^[ \t]*\1[ \t]*$", re.DOTALL | re.MULTILINE
)
_QUOTED: Final = re.compile(r"[\"“„«「『`‘](?P<text>[^\"”“»」』`’]+)[\"”“»」』`’]\W*\Z", re.DOTALL)
# Han characters and kana are written without blanks: each counts as a word.
_WORD: Final = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff]|[^\s\u3000-\u30ff\u3400-\u9fff\uff00-\uff20]+"
)
_ENDS: Final = ".!?,;:。！？，；：、"
_EXACT: Final = re.compile(r"[!-~]*(?:\d|\w[/_:.@#+=-]\w)[!-~]*")
_DIGITS: Final = re.compile(r"\d+")
_VERSION: Final = 0.5
_BLOCK_VERSION: Final = 0.6
_FRAMED_BY: Final = 3
_COMPARABLE: Final = 2.0
_NEAR: Final = 0.7
_LEAST_NEAR: Final = 4
_Speaker = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Correction:
    """What a person said about an answer to a task; `read` is what a listening model read in it."""

    said: str
    answer: str
    task: str
    read: str = ""


def stated_answer(correction: Correction, frames: Mapping[tuple[str, ...], int]) -> str | None:
    """The answer that a correction states, or None. `frames` counts with which words the person's
    other corrections begin.
    """
    said, answer = correction.said.strip(), correction.answer.strip()
    if not said or len(said) > _MOST_CHARS:
        return None
    if (fenced := _FENCED.search(said)) is not None:
        block = fenced["text"].strip()
        return block if _is_version(block, answer, _BLOCK_VERSION) else None
    said = _without_denial(said, answer)
    if (quoted := _QUOTED.search(said)) is not None:
        text = quoted["text"].strip()
        return text if text not in answer and _is_about(text, correction) else None
    words = list(_WORD.finditer(said))
    rest = _behind_frame(said, words, answer, frames)
    for text in (_exact_end(words), rest):
        if text and (text == rest or _has_form_of(text, correction)):
            found = text if len(text) >= len(rest or "") else rest
            return None if found == answer else found
    return _other_version(said, answer)


def frames_of(corrections: Sequence[str]) -> Counter[tuple[str, ...]]:
    """How many of these corrections begin with some words."""
    counts: Counter[tuple[str, ...]] = Counter()
    for said in set(corrections):
        words = _plain_words(said)
        counts.update(tuple(words[:size]) for size in range(1, len(words)))
    return counts


def _behind_frame(
    said: str, words: Sequence[re.Match[str]], answer: str, frames: Mapping[tuple[str, ...], int]
) -> str | None:
    """What is left behind the words with which other corrections begin as well."""
    plain, answered = _plain_words(said), _plain_words(answer)
    size, before = 0, 0
    while size + 1 < len(plain):
        count = frames.get(tuple(plain[: size + 1]), 0)
        if count < _FRAMED_BY or 2 * count < before:
            break
        size, before = size + 1, count
    # References that begin alike, as the answer does, share more than the frame.
    for shared in range(min(size, len(answered)), 0, -1):
        if plain[size - shared : size] == answered[:shared]:
            size -= shared
            break
    rest = _bare(said[words[size].start() :]) if size else ""
    longer, shorter = max(len(rest), len(answer)), min(len(rest), len(answer))
    return rest if shorter and longer <= _COMPARABLE * shorter else None


def _exact_end(words: Sequence[re.Match[str]]) -> str | None:
    """The words with digits or signs at the end."""
    found: list[str] = []
    for word in reversed(words):
        text = word[0] if found else _bare(word[0])
        if not _EXACT.fullmatch(text) or (found and text[-1] in _ENDS):
            break
        found.insert(0, text)
    return _bare(" ".join(found)) or None


@lru_cache(_REMEMBERED)
def _other_version(said: str, answer: str) -> str | None:
    """The end of a correction that is the most like the answer, if it is another version of it."""
    starts = islice(_WORD.finditer(said), _MOST_STARTS)
    ends = {_bare(said[word.start() :]) for word in starts} - {""}
    best = max(ends, key=lambda text: (similarity(text, answer), text), default="")
    return best if _is_version(best, answer, _VERSION) else None


def _is_version(text: str, answer: str, least: float) -> bool:
    return text != answer and similarity(text, answer) >= least and not _adds_words(text, answer)


def _adds_words(text: str, answer: str) -> bool:
    """Whether a text has all words of the answer in their order, and more."""
    said, left = _plain_words(text), iter(_plain_words(text))
    answered = _plain_words(answer)
    return len(said) > len(answered) and all(word in left for word in answered)


def _without_denial(said: str, answer: str) -> str:
    """The correction without a last clause that denies what was answered: "…, not 2:17 pm"."""
    answered = f" {' '.join(_plain_words(answer))} "
    for comma in re.finditer(r"[,，]", said):
        denied = " ".join(_plain_words(said[comma.end() :])[1:])
        if denied and f" {denied} " in answered:
            return said[: comma.start()]
    return said


def _has_form_of(text: str, correction: Correction) -> bool:
    """Whether exact words are the answer or the question in another form: the same number, or
    the same pattern of letters and digits.
    """
    known = {int(one) for one in _DIGITS.findall(f"{correction.answer} {correction.task}")}
    return (
        bool(known & {int(one) for one in _DIGITS.findall(text)})
        or _pattern(text) == _pattern(_bare(correction.answer))
        or _is_version(text, correction.answer, _VERSION)
    )


def _is_about(text: str, correction: Correction) -> bool:
    """Whether a quotation shares a rare word or a number with the answer or the question."""
    known = _terms(f"{correction.answer} {correction.task}")
    return bool(known & _terms(text)) or _is_version(text, correction.answer, _VERSION)


def _terms(text: str) -> set[str]:
    return {*list_terms(text), *_DIGITS.findall(text)}


def _pattern(text: str) -> str:
    return re.sub(r"[^\W\d_]+", "a", re.sub(r"\d+", "0", text))


def _bare(text: str) -> str:
    """A text without the quotation marks around it and the sign at its end."""
    return text.strip().rstrip(_ENDS).strip(' \t\n"“”„«»「」『』`‘’').strip()


def _plain_words(text: str) -> list[str]:
    """Words in lower case, without the signs around them."""
    found = (word[0].casefold().strip(f"{_ENDS}\"“”„«»()'") for word in _WORD.finditer(text))
    return [word for word in found if word]


def is_near(task: str, other: str) -> bool:
    """Whether one of two tasks is the other with a few words before or after it."""
    one, two = sorted((_plain_words(task), _plain_words(other)), key=len)
    if one == two:
        return bool(one)
    if len(one) < max(_LEAST_NEAR, _NEAR * len(two)):
        return False
    rest = [two[at : at + len(one)] for at in range(len(two) - len(one) + 1)]
    added = (set(two) - set(one)) if one in rest else {"0"}
    return not any(_EXACT.fullmatch(word) for word in added)


@dataclass(frozen=True, slots=True)
class _Known:
    """A correction on record, and the answer that it states."""

    turn: TurnId
    task: str
    wanted: str


@dataclass(eq=False, kw_only=True)
class References:
    """The reference answers of everybody, read from the failures that are on record. `correction`
    reads the correction of a turn, None without one; `is_support` says whether a turn was shown to
    an evolver or became a rule, `is_held_out` whether it is kept for the gate. Each may block."""

    failures: Callable[[], Sequence[TurnId]]
    correction: Callable[[TurnId], tuple[Step, Correction] | None]
    is_support: Callable[[TurnId], bool]
    is_held_out: Callable[[TurnId], bool]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._looked_at = -_LOOK_EVERY_S
        self._read: dict[TurnId, tuple[_Speaker, Correction] | None] = {}
        self._known: dict[_Speaker, list[_Known]] = {}

    def count(self) -> int:
        """How many reference answers are known now."""
        with self._lock:
            self._look()
            return sum(map(len, self._known.values()))

    def of(self, step: Step) -> str | None:
        """The answer that the person wanted to this turn; else to the newest one that asked the
        same.
        """
        with self._lock:
            self._look()
            known = self._known.get(_speaker(step), ())
        mine = next((one.wanted for one in known if one.turn == step.turn), None)
        if mine is not None or self._read.get(step.turn) is not None:
            return mine
        side = self.is_held_out(step.turn)
        return next(
            (
                one.wanted
                for one in known
                if is_near(one.task, step.task)
                and self.is_held_out(one.turn) == side
                and not self.is_support(one.turn)
            ),
            None,
        )

    def _look(self) -> None:
        if self.clock() - self._looked_at < _LOOK_EVERY_S:
            return
        self._looked_at = self.clock()
        failures = self.failures()
        if failures == list(self._read):
            return
        self._read = {
            turn: self._read[turn] if turn in self._read else self._correction(turn)
            for turn in failures
        }
        by_speaker: dict[_Speaker, dict[TurnId, Correction]] = defaultdict(dict)
        for turn, read in self._read.items():
            if read is not None:
                by_speaker[read[0]][turn] = read[1]
        self._known = {
            speaker: list(_stated(corrections)) for speaker, corrections in by_speaker.items()
        }

    def _correction(self, turn: TurnId) -> tuple[_Speaker, Correction] | None:
        found = self.correction(turn)
        return None if found is None else (_speaker(found[0]), found[1])


def correction_of(step: Step, read: str | None) -> Correction | None:
    """The correction of a step's answer by the person's next message, of which a listening model
    has `read` that it is one, or which says so itself.
    """
    if read is None and not is_corrected(step):
        return None
    return Correction(step.said_after or "", in_words(step.answer, ()), step.task, read or "")


def _stated(corrections: Mapping[TurnId, Correction]) -> Iterator[_Known]:
    frames = frames_of([one.said for one in corrections.values()])
    for turn, one in corrections.items():
        wanted = stated_answer(one, frames) or stated_answer(replace(one, said=one.read), {})
        if wanted is not None:
            yield _Known(turn, one.task, wanted)


def _speaker(step: Step) -> _Speaker:
    return step.scope.user or "", step.scope.workspace or ""


def similarity(one: str, two: str) -> float:
    """From 0, nothing in common, to 1, equal: one minus the edit distance over the length of the
    longer text.
    """
    longer = max(len(one), len(two))
    return 1.0 - edit_distance(one, two) / longer if longer else 1.0


def edit_distance(one: str, two: str) -> int:
    """The Levenshtein distance, by Myers' bit-parallel algorithm in Hyyrö's form.

    A column of the table of distances is two integers: bit i of `rises` is set where the distance
    grows by one from row i to row i + 1, bit i of `falls` where it shrinks. Each character of `two`
    moves the whole column on by a few operations on them."""
    if not one or not two:
        return len(one) + len(two)
    rows_of: dict[str, int] = {}
    for row, sign in enumerate(one):
        rows_of[sign] = rows_of.get(sign, 0) | (1 << row)
    mask = (1 << len(one)) - 1
    last_row = 1 << (len(one) - 1)
    rises, falls, distance = mask, 0, len(one)
    for sign in two:
        same = rows_of.get(sign, 0)
        level = same | falls | (((same & rises) + rises) ^ rises)
        right_rises = falls | ~(level | rises) & mask
        right_falls = rises & level
        if right_rises & last_row:
            distance += 1
        elif right_falls & last_row:
            distance -= 1
        right_rises = (right_rises << 1 | 1) & mask
        right_falls = right_falls << 1 & mask
        rises = right_falls | ~(level | right_rises) & mask
        falls = right_rises & level
    return distance
