"""Kinds of failure: which failures within one scope are the same mistake, so that they are learned
from together.

Two failures are of one kind if the same thing went wrong in similar tasks. What went wrong is the
detector's signal and the class of error, or what the person said. Similarity is measured on index
terms, rare ones counting more, and averaged over a group. The result does not depend on the order
of the failures."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import combinations
from math import log, sqrt

from metaclaw.domain.ids import TurnId
from metaclaw.domain.turn import Step
from metaclaw.domain.verdict import Fault, Source, Verdict
from metaclaw.skills.rules import digest, slug
from metaclaw.skills.scopes import scope_of_lesson
from metaclaw.text import list_terms, list_words

CORRECTION_READ = "correction.read"
"""The detector of a verdict that rests on what a model read in the person's next message."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A turn and its verdict."""

    step: Step
    verdict: Verdict

    def __post_init__(self) -> None:
        if self.step.turn != self.verdict.turn:
            raise ValueError(
                f"the verdict on turn {self.verdict.turn} is not about turn {self.step.turn}"
            )

    @property
    def complaint(self) -> str:
        """What the person said was wrong, in feedback or in their next message; may be empty."""
        comment = self.verdict.comment.strip() if self.verdict.source is Source.USER else ""
        return comment or (self.step.said_after or "").strip()


def is_spoken_against(failure: Failure) -> bool:
    """Whether the person objected to the answer, in feedback or in their next message."""
    return is_on_users_word(failure) or any(
        one.detector.startswith("correction.") for one in failure.verdict.signals
    )


def is_on_users_word(failure: Failure) -> bool:
    """Whether the person said what was wrong, in feedback or in a message that a model read: then
    one failure is enough to learn from."""
    verdict = failure.verdict
    is_read = any(signal.detector == CORRECTION_READ for signal in verdict.signals)
    return verdict.teaches and (
        is_read or (verdict.source is Source.USER and bool(verdict.comment.strip()))
    )


SAID = "correction"
JUDGED = "judged"
_CAUSES = {
    SAID: "you corrected the answer",
    JUDGED: "the judge found the answer wrong",
    "tool-error": "a tool call failed",
    "exit": "a command failed",
    "exception": "a program ended with an exception",
    "schema": "a tool refused its arguments",
    "hollow": "the agent said it was done, and it was not",
    "tests": "tests failed",
    "repeat": "the agent did the same again and again",
    "redo": "you asked for the same again",
    "interrupt": "you stopped the agent",
    "undone": "a change was undone",
    "apology": "the agent took its answer back",
    "ending": "the answer was empty, cut off or refused",
    "reply": "your reply spoke against the answer",
}
"""What went wrong, in words, by how the cause begins."""
_MAX_TASK_CHARS = 4_000
_LIKE = 0.3
_WORDS_IN_NAME = 3
# Words with digits may be personal numbers or identifiers.
_PLAIN_WORD = re.compile(r"[^\W\d_]{2,24}")
_ERROR_CLASS = re.compile(
    r"\b([A-Z]\w{2,40}(?:Error|Exception|Warning))\b|\b(E[A-Z]{3,12})\b|\bexit(?:ed)?(?: with)?(?:"
    r" code|"
    r" status)?[ :=]+(\d{1,3})\b|\b(\w+-error)\b"
)


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failures of one kind. `name` is a slug made of the cause and what the tasks were about."""

    name: str
    scope: str
    cause: str
    failures: tuple[Failure, ...]

    @property
    def turns(self) -> tuple[TurnId, ...]:
        """The turns that failed, oldest first."""
        return tuple(failure.step.turn for failure in self.failures)

    @property
    def in_words(self) -> str:
        """What went wrong and what the tasks were about, for people."""
        what = next(
            (words for cause, words in _CAUSES.items() if self.cause.startswith(cause)),
            "the answer failed",
        )
        about = self.name.removeprefix(self.cause).strip("-").replace("-", ", ")
        return what if not about or any(map(str.isdigit, about)) else f"{what} (about: {about})"


def group_failures(failures: Sequence[Failure]) -> list[FailureGroup]:
    """Group failures of the agent by kind. Turns that passed, are unknown or failed by the
    environment are left out.
    """
    together: dict[tuple[str, str], list[_Trait]] = defaultdict(list)
    distinct = {failure.step.turn: failure for failure in failures if failure.verdict.teaches}
    for turn in sorted(distinct):
        trait = _trait(distinct[turn])
        together[scope_of_lesson(trait.failure.step.scope), trait.cause].append(trait)
    kinds = [
        FailureGroup(_name(cause, members), scope, cause, tuple(trait.failure for trait in members))
        for (scope, cause), traits in sorted(together.items())
        for members in _clusters(traits)
    ]
    return sorted(kinds, key=lambda kind: kind.turns)


def is_learnable(kind: FailureGroup, min_failures: int) -> bool:
    """Whether there is enough to learn from: `min_failures`, or one where the person said what was
    wrong.
    """
    return len(kind.failures) >= min_failures or any(
        is_on_users_word(failure) for failure in kind.failures
    )


@dataclass(frozen=True, slots=True)
class _Trait:
    """What failures are compared by. `said` is empty if the person did not say what was wrong."""

    failure: Failure
    cause: str
    said: frozenset[str]
    task: frozenset[str]


def _trait(failure: Failure) -> _Trait:
    is_said = is_spoken_against(failure)
    texts = (failure.complaint if is_said else "", failure.step.task)
    said, task = (frozenset(list_terms(text[:_MAX_TASK_CHARS])) for text in texts)
    return _Trait(failure, SAID if is_said else _cause(failure), said, task)


def _cause(failure: Failure) -> str:
    """The strongest signal of the detectors with the class of the error; `JUDGED` if only the judge
    found it wrong.
    """
    against = [
        signal
        for signal in failure.verdict.signals
        if signal.evidence > 0 and signal.fault is Fault.AGENT
    ]
    if not against:
        return JUDGED
    strongest = max(against, key=lambda signal: (signal.evidence, signal.detector, signal.quote))
    found = _ERROR_CLASS.search(strongest.quote)
    return (
        slug([strongest.detector, next(filter(None, found.groups()), "") if found else ""])
        or JUDGED
    )


def _clusters(traits: list[_Trait]) -> list[list[_Trait]]:
    """Average-link clustering: join the two most similar groups until none are similar enough. Ties
    go by birth. Similarities of pairs are summed up where groups are joined; outdated heap entries
    are skipped."""
    weights = _Weights(traits)
    groups = {number: [number] for number in range(len(traits))}
    sums = {
        pair: like
        for pair in combinations(groups, 2)
        if (like := _likeness(traits[pair[0]], traits[pair[1]], weights)) > 0
    }
    heap = [(-like, first, second, 2) for (first, second), like in sums.items()]
    heapify(heap)
    while heap and -heap[0][0] >= _LIKE:
        _, first, second, size = heappop(heap)
        if (
            first not in groups
            or second not in groups
            or len(groups[first]) + len(groups[second]) != size
        ):
            continue
        groups[first] = sorted(groups[first] + groups.pop(second))
        for other in groups.keys() - {first}:
            pair, gone = (
                (min(first, other), max(first, other)),
                (min(second, other), max(second, other)),
            )
            total = sums.get(pair, 0.0) + sums.pop(gone, 0.0)
            if total > 0:
                sums[pair] = total
                pairs = len(groups[first]) * len(groups[other])
                heappush(
                    heap, (-round(total / pairs, 9), *pair, len(groups[first]) + len(groups[other]))
                )
    return [[traits[number] for number in members] for members in groups.values()]


def _likeness(one: _Trait, other: _Trait, weights: "_Weights") -> float:
    tasks = weights.overlap(one.task, other.task)
    if one.cause != SAID or not (one.said or other.said):
        return tasks
    said = weights.overlap(one.said, other.said)
    return said if said < _LIKE / 2 else max(said, (2 * said + tasks) / 3)


class _Weights:
    """Weights of terms: a term that many failures have counts less."""

    def __init__(self, traits: Sequence[_Trait]) -> None:
        having = Counter(term for trait in traits for term in trait.said | trait.task)
        self._weights = {term: log(1 + (len(traits) + 4) / count) for term, count in having.items()}
        texts = {terms for trait in traits for terms in (trait.said, trait.task)}
        self._roots = {terms: sqrt(self._sum(terms)) for terms in texts}

    def overlap(self, one: frozenset[str], other: frozenset[str]) -> float:
        """The cosine of two texts' weighted terms; 1 for two empty texts."""
        if not one or not other:
            return 1.0 if one == other else 0.0
        return self._sum(one & other) / (self._roots[one] * self._roots[other])

    def _sum(self, terms: frozenset[str]) -> float:
        # In a fixed order: floating point sums depend on it, and sets have none.
        return sum(self._weights[term] for term in sorted(terms))


def _name(cause: str, members: Sequence[_Trait]) -> str:
    """The cause and the commonest words of what was said, or of the tasks; a digest if there are
    none.
    """
    words: Counter[str] = Counter()
    for trait in members:
        text = trait.failure.complaint if trait.said else trait.failure.step.task
        plain = (
            word
            for word in list_words(text[:_MAX_TASK_CHARS])
            if _PLAIN_WORD.fullmatch(word) and list_terms(word)
        )
        words.update({word.casefold() for word in plain})
    chosen = sorted(words, key=lambda word: (-words[word], word))[:_WORDS_IN_NAME]
    return slug([cause, *chosen]) if slug(chosen) else slug([cause, digest(*chosen)])
