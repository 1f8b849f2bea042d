"""Find checks that accept almost any answer, which training would learn to exploit; and make sample
answers to try a check on.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final

from metaclaw.checks.calls import decoded
from metaclaw.checks.run import examine_many
from metaclaw.checks.syntax import check_of
from metaclaw.domain.chat import Json, Part, Text, ToolCall
from metaclaw.domain.check import Check, Finding, PatternCheck, Place, ProgramCheck, ToolClass
from metaclaw.domain.skill import Skill
from metaclaw.errors import SkillError
from metaclaw.text import COMMON_WORDS, stem

_FOREIGN: Final = "The museum opens on Sunday, and tickets are sold at the door."
TRIVIAL_ANSWERS: Final = (
    *("a", "7", "ok"),
    _FOREIGN,
    (
        f"{_FOREIGN} Children pay half. A map of all rooms hangs beside the stairs, where guides"
        " also wait for groups. The café on the second floor sells soup, bread and cake until"
        " five. Bags and umbrellas stay below. Photographs are allowed without a flash."
    ),
)
"""Answers that are wrong for any real request: very short ones, and text about something else."""
_MOST_CHANGED: Final = 12
_MOST_SIGNS: Final = 3
_COMMON: Final = 0.6
_LEAST_TEXTS: Final = 5
_LIMIT_S: Final = 1.0
_WORD: Final = re.compile(r"[^\W_]+")


class CheckKind(StrEnum):
    """Whether the checks of a turn demand something of the answer or only forbid something; NONE if
    there are no checks.
    """

    NONE = "none"
    FORBIDS = "forbids"
    DEMANDS = "demands"


def kind_of(checks: Sequence[Check]) -> CheckKind:
    """The kind of several checks together."""
    if not checks:
        return CheckKind.NONE
    is_forbidding = all(
        isinstance(check, PatternCheck) and not check.must_match for check in checks
    )
    return CheckKind.FORBIDS if is_forbidding else CheckKind.DEMANDS


def trial_trouble(skill: Skill) -> str | None:
    """What is wrong with the check of a skill when it is tried on trivial answers, in words; None
    if nothing is, or if it cannot be read. Blocks."""
    check = _demanding(skill)
    if check is None:
        return None
    findings = _strictly(check, TRIVIAL_ANSWERS)
    if all(finding.has_failed for finding in findings):
        return (
            f"fails on answers without a question ({findings[0].reason}); metaclaw status says if"
            " it fails on real turns, too"
        )
    trivial = _accepted(check, findings)
    if trivial is None:
        return None
    return (
        f"accepts {trivial!r} to any request: training on it is useless, and it proves no weights"
        " without [judge]"
    )


def form_note(skill: Skill) -> str | None:
    """That the check of a skill cannot see whether an answer is right, in words; None if it may, or
    has nothing to demand.
    """
    check = _demanding(skill)
    if check is None or isinstance(check, ProgramCheck):
        return None
    return (
        "tests the form alone: it does not compare an answer with its question, as a program: can"
    )


def _demanding(skill: Skill) -> Check | None:
    """The check of a skill, if it can be read and demands something."""
    try:
        check = check_of(skill)
    except SkillError:
        return None
    return check if check is not None and kind_of([check]) is CheckKind.DEMANDS else None


def _accepted(check: Check, findings: Sequence[Finding]) -> str | None:
    """The first trivial answer that passes a check, by the findings on all of them; None if the
    check accepts only that answer.
    """
    for trivial, finding in zip(TRIVIAL_ANSWERS, findings, strict=True):
        if finding.score == 1.0 and any(
            near.score != 0.0 for near in _strictly(check, near_answers(trivial))
        ):
            return trivial
    return None


def near_answers(text: str) -> list[str]:
    """Variants of an answer: a letter or digit changed, the text repeated, or words added."""
    places = [at for at, sign in enumerate(text) if sign.isalnum()]
    chosen = places[:: max(1, len(places) // _MOST_CHANGED)]
    changed = [f"{text[:at]}{_another(text[at])}{text[at + 1 :]}" for at in chosen]
    return [
        *changed,
        f"{text}{text}",
        f"{text} {text}",
        f"{text} 7",
        f"{text} and so on",
        f"Well, {text}",
    ]


def constant_parts(answers: Sequence[tuple[str, str]]) -> list[str]:
    """Texts that a policy may have learned to say to any question, from pairs of a question and a
    passing answer: the most frequent characters, and parts that make up most of most answers and
    are not taken from the question."""
    # The same text as the answer to several questions counts as often: that is what is looked for.
    texts = [
        text for _, text in dict.fromkeys((question, text.strip()) for question, text in answers)
    ]
    signs = Counter(sign for text in texts for sign in set(text) if not sign.isspace())
    if len(texts) < _LEAST_TEXTS:
        return [
            sign for sign, _ in signs.most_common(_MOST_SIGNS)
        ]  # common words of few texts may be chance
    least = _COMMON * len(texts)
    words = Counter(word for text in texts for word in dict.fromkeys(text.split()))
    shared = {word for word, count in words.items() if count > least}
    first = next((text for text in texts if shared <= set(text.split())), "")
    common = [" ".join(word for word in dict.fromkeys(first.split()) if word in shared)]
    common += [_common_beginning(texts), _common_beginning([text[::-1] for text in texts])[::-1]]
    parts = [part.strip() for part in common if _is_most(part, answers)]
    return list(
        dict.fromkeys([*(sign for sign, _ in signs.most_common(_MOST_SIGNS)), *filter(None, parts)])
    )


def fixed_words(answers: Sequence[tuple[str, str]]) -> frozenset[str]:
    """The words of a fixed wording, from pairs of a question and an answer: most answers add the
    same words to those of their question, or consist mostly of the same words that all questions
    have; and they do not mention all in which their question differs from others. Empty if they say
    something of their own to different questions, or mention all that is different."""
    asked = [_words(question) for question, _ in answers]
    shared = _frequent(asked)
    said = [_words(text) for _, text in answers]
    is_partial = [
        not _mentions_all(text, words - shared)
        for words, (_, text) in zip(asked, answers, strict=True)
    ]
    own = [text - words for words, text in zip(asked, said, strict=True)]
    added, common = _frequent(own), _frequent(said)
    for wording, is_fixed in (
        (added, [bool(words) and words <= added for words in own]),
        (
            common,
            [
                not words and text & shared == common and 2 * len(common) >= len(text)
                for words, text in zip(own, said, strict=True)
            ],
        ),
    ):
        if wording and 2 * sum(
            one and two for one, two in zip(is_fixed, is_partial, strict=True)
        ) >= len(answers):
            return wording
    return frozenset()


def _mentions_all(text: str, words: frozenset[str]) -> bool:
    """Whether a text mentions all of some words that are not common ones; False if there are
    none.
    """
    sought, folded = words.difference(COMMON_WORDS), text.casefold()
    return bool(sought) and all(word in folded or stem(word) in folded for word in sought)


def _frequent(texts: Sequence[frozenset[str]]) -> frozenset[str]:
    """The words of at least half of some texts."""
    counts = Counter(word for words in texts for word in words)
    return frozenset(word for word, count in counts.items() if 2 * count >= len(texts))


def change_words(text: str, words: Collection[str]) -> list[str]:
    """Variants of a text, each with one letter or digit of one of some words changed."""
    places = [match.start() for match in _WORD.finditer(text) if match[0].casefold() in words]
    return [f"{text[:at]}{_another(text[at])}{text[at + 1 :]}" for at in places]


def with_gaps(text: str, question: str, other: str) -> str:
    """The text with a gap for each word that it takes from its question and that another question
    does not have.
    """
    gaps = _words(question) - _words(other)
    return _WORD.sub(lambda match: "…" if match[0].casefold() in gaps else match[0], text)


def _words(text: str) -> frozenset[str]:
    return frozenset(word.casefold() for word in _WORD.findall(text))


def _strictly(check: Check, texts: Sequence[str]) -> list[Finding]:
    return examine_many(
        check, [sample_answer(check, text) for text in texts], _LIMIT_S, is_strict=True
    )


def _another(sign: str) -> str:
    if sign.isdigit():
        return str((int(sign) + 1) % 10) if sign.isascii() else "7"
    if sign in "aA":
        return "b"
    return "a" if sign.islower() else "A"


def _common_beginning(texts: Sequence[str]) -> str:
    """The longest beginning that most texts have."""
    longest = ""
    for size in range(1, max(map(len, texts), default=0) + 1):
        beginning, count = Counter(text[:size] for text in texts if len(text) >= size).most_common(
            1
        )[0]
        if count <= _COMMON * len(texts):
            break
        longest = beginning
    return longest


def _is_most(part: str, answers: Sequence[tuple[str, str]]) -> bool:
    """Whether a part, without the words of the question, is at least half of most answers."""
    covered = 0
    for question, text in answers:
        asked = set(question.casefold().split())
        own = sum(len(word) for word in part.split() if word.casefold() not in asked)
        covered += own * 2 >= len("".join(text.split()))
    return covered * 2 > len(answers)


_FENCE: Final = re.compile(r"\A\s*```[^\n]*\n(.*?)\n?```\s*\Z", re.DOTALL)
_PROMPT: Final = re.compile(r"\A\$ ")
_IN_PROSE: Final = re.compile(
    r"(?:the"
    r" agent|it|i|run|runs|ran|running|call|calls|called|use|uses|used)\b[^`]*`([^`\n]+)`[^`]*",
    re.IGNORECASE,
)


def sample_answer(check: Check, sample: str) -> tuple[Part, ...]:
    """The answer for a sample text. For a check on calls the sample is a command, a file (path on
    the first line, new text below), or JSON with a tool's name and arguments."""
    if isinstance(check, ProgramCheck) or check.where.place is Place.ANSWER:
        return (Text(sample),)
    return (_call(check.where.tools, sample),)


def _call(tools: tuple[str, ...], sample: str) -> ToolCall:
    fenced = _FENCE.match(sample)
    bare = _PROMPT.sub("", fenced[1] if fenced else sample.strip())
    match decoded(bare):
        case {"name": str(name), "arguments": dict(arguments)}:
            return _made(name, arguments)
        case {"name": str(name), "arguments": str(arguments)}:
            return ToolCall("sample", name, arguments)
        case dict(arguments) if tools and tools[0] not in list(ToolClass):
            return _made(tools[0], arguments)
    tool = tools[0] if tools else ToolClass.SHELL.value
    match tool:
        case ToolClass.SHELL:
            in_prose = _IN_PROSE.fullmatch(bare)
            return _made("bash", {"command": in_prose[1] if in_prose else bare})
        case ToolClass.EDIT:
            path, _, text = bare.partition("\n")
            return _made("write", {"path": path.strip(), "content": text})
        case ToolClass.READ:
            return _made("read", {"path": bare})
        case ToolClass.WEB:
            return _made("web_fetch", {"url": bare})
        case _:
            return _made(tool, {"command": bare})


def _made(name: str, arguments: Mapping[str, Json]) -> ToolCall:
    return ToolCall("sample", name, json.dumps(arguments, ensure_ascii=False))
