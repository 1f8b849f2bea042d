"""Find degenerate answers. Pure.

Useless answers may pass a check: the same answer to every question, a phrase repeated again and
again, the question repeated, an answer without an end, an answer several times as long as needed.
The gate compares a candidate's answers with the serving version's on the same held-out questions
(`find_degeneration`) and objects to:

- one answer to more than the share `_ONE_ANSWER` of the distinct questions, and twice as often as
  before, unless the checks accept no other answer
- answers that repeat themselves, have no end, are empty, or echo the question, if the share of such
  answers has grown by more than `_MORE_OFTEN` and significantly (a sign test on the questions on
  which the two versions differ, at `_ALPHA`)
- a median length of more than `_LONGER` times the old one and of at least `_LONG_TOKENS`

Shorter answers are reported but accepted: many rules ask for brevity. `is_degenerate` examines a
single answer; a degenerate answer gets no reward."""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

_LEAST_QUESTIONS: Final = 3
"""Fewer distinct questions are not judged."""
_ONE_ANSWER: Final = 0.6
_MORE_OFTEN: Final = 0.15
_ALPHA: Final = 0.05
_LONGER: Final = 3.0
_LONG_TOKENS: Final = 48
_RUN = re.compile(r"(.{1,48}?)\1{2,}", re.DOTALL)
_WORD = re.compile(r"\w+")
_WINDOW_CHARS: Final = 400
_LONG_UNIT: Final = re.compile(r"(?P<unit>.{4,100}?)(?P=unit){2,}", re.DOTALL)
_SHORT_UNIT: Final = re.compile(r"(?P<unit>.{1,3}?)(?P=unit){9,}", re.DOTALL)
_LEAST_SHARE: Final = 0.4
_WORD_OR_SIGN: Final = re.compile(r"\w+|[^\w\s]+")
_WORD_GRAM: Final = 4
_LEAST_GRAMS: Final = 24
_LEAST_DISTINCT: Final = 1 / 3


@dataclass(frozen=True, slots=True)
class HeldOutAnswer:
    """One answer to a held-out question. `is_whole` is False if `max_tokens` ended it."""

    question: str
    text: str
    tokens: int
    is_whole: bool = True


def find_degeneration(
    candidate: Sequence[HeldOutAnswer],
    serving: Sequence[HeldOutAnswer],
    demanded: Collection[str] = (),
) -> list[str]:
    """Objections to the candidate's answers, in words. Both versions answer the same questions in
    the same order. `demanded` are answers that are the only one their check accepts."""
    if len({answer.question for answer in candidate}) < _LEAST_QUESTIONS:
        return []
    is_demanded = one_answer(candidate) in demanded
    objections = [
        None if is_demanded else _same_answers(candidate, serving),
        _grown(candidate, serving),
    ]
    kinds: tuple[tuple[str, Callable[[HeldOutAnswer], bool]], ...] = (
        (
            "repeat themselves",
            lambda answer: (
                bool(answer.text.strip())
                and (is_degenerate(answer.text) or is_one_piece(answer.text))
            ),
        ),
        ("have no end", lambda answer: not answer.is_whole),
        ("are empty", lambda answer: not answer.text.strip()),
        ("only say the question again", lambda answer: echoes(answer.question, answer.text)),
    )
    objections += [_more_often(words, test, candidate, serving) for words, test in kinds]
    return [words for words in objections if words is not None]


def is_degenerate(text: str) -> bool:
    """Whether an answer says nothing or mostly repeats itself.

    It repeats itself if one piece occurs three or more times in a row (ten for a very short piece)
    and this fills much of the end of the answer, or if few of its sequences of four words are
    distinct. Lines, dots, blanks and zeros that fill a table do not count."""
    if not text.strip():
        return True
    end = (" ".join(text.split()) + " ")[-_WINDOW_CHARS:]
    for pattern in (_LONG_UNIT, _SHORT_UNIT):
        for match in pattern.finditer(end):
            if _says_something(match["unit"]) and len(match[0]) >= _LEAST_SHARE * len(end):
                return True
    words = _WORD_OR_SIGN.findall(text)
    grams = [tuple(words[at : at + _WORD_GRAM]) for at in range(len(words) - _WORD_GRAM + 1)]
    return len(grams) >= _LEAST_GRAMS and len(set(grams)) < _LEAST_DISTINCT * len(grams)


def one_answer(answers: Sequence[HeldOutAnswer]) -> str:
    """The answer given to the most questions, in lower case and without extra space; empty without
    answers.
    """
    first = _first_answers(answers)
    return Counter(first).most_common(1)[0][0] if first else ""


def describe_length(
    candidate: Sequence[HeldOutAnswer], serving: Sequence[HeldOutAnswer]
) -> str | None:
    """How the median length changed, if it at least doubled or halved."""
    if not candidate or not serving:
        return None
    new, old = _median_tokens(candidate), _median_tokens(serving)
    if 0.5 < new / old < 2.0:
        return None
    return (
        f"answers became {'longer' if new > old else 'shorter'}: {new:g} tokens instead of {old:g}"
        " (median)"
    )


def is_one_piece(text: str) -> bool:
    """Whether a text, however short, is one character or word repeated, or another piece three
    times or more.
    """
    text = _normal(text)
    words = text.split()
    return (
        (len(words) > 1 and len(set(words)) == 1)
        or (len(text) > 1 and len(set(text)) == 1)
        or _RUN.fullmatch(text) is not None
    )


def echoes(question: str, text: str) -> bool:
    """Whether an answer is the question, or most of it, and little else."""
    asked, answered = _words(question), _words(text)
    if len(asked) < 2 or not answered:
        return False
    shared = sum((Counter(asked) & Counter(answered)).values())
    return shared >= 0.8 * len(asked) and shared >= 0.8 * len(answered)


def _same_answers(
    candidate: Sequence[HeldOutAnswer],
    serving: Sequence[HeldOutAnswer],
) -> str | None:
    new, old = _first_answers(candidate), _first_answers(serving)
    (text, count), (_, before) = Counter(new).most_common(1)[0], Counter(old).most_common(1)[0]
    if count <= _ONE_ANSWER * len(new) or count < 2 * before:
        return None
    return f"gives one answer to {count} of {len(new)} different questions: {text[:40]!r}"


def _more_often(
    words: str,
    test: Callable[[HeldOutAnswer], bool],
    candidate: Sequence[HeldOutAnswer],
    serving: Sequence[HeldOutAnswer],
) -> str | None:
    new, old = [test(answer) for answer in candidate], [test(answer) for answer in serving]
    only_new = sum(is_now and not was for is_now, was in zip(new, old, strict=True))
    only_old = sum(was and not is_now for is_now, was in zip(new, old, strict=True))
    if (
        only_new - only_old <= _MORE_OFTEN * len(new)
        or _chance(only_new, only_new + only_old) > _ALPHA
    ):
        return None
    return f"{sum(new)} of {len(new)} answers {words}, before {sum(old)}"


def _grown(
    candidate: Sequence[HeldOutAnswer],
    serving: Sequence[HeldOutAnswer],
) -> str | None:
    new, old = _median_tokens(candidate), _median_tokens(serving)
    if new < _LONG_TOKENS or new <= _LONGER * old:
        return None
    return f"answers grew to {new:g} tokens from {old:g} (median)"


def _median_tokens(answers: Sequence[HeldOutAnswer]) -> float:
    return median(answer.tokens for answer in answers)


def _chance(count: int, tries: int) -> float:
    """P(Binomial(tries, 1/2) >= count)."""
    return math.fsum(math.comb(tries, at) for at in range(count, tries + 1)) / 2.0**tries


def _first_answers(answers: Sequence[HeldOutAnswer]) -> list[str]:
    """The first answer to each distinct question."""
    first: dict[str, str] = {}
    for answer in answers:
        first.setdefault(answer.question, _normal(answer.text))
    return list(first.values())


def _normal(text: str) -> str:
    return " ".join(text.split()).casefold()


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _says_something(unit: str) -> bool:
    return any(sign.isalnum() for sign in unit) and not set(unit) <= set("0 .,|-_\t\n")
