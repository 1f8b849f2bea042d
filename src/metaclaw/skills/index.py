"""The lexical index over skills, and how much evidence a request gives for a skill.

An index is an immutable snapshot. `changed` makes the next one: it copies the postings it changes
and shares all others, so that readers need no lock, and a skill is added to 100,000 in a few
milliseconds.

A term's postings are sorted arrays of document numbers, one array per grade (see below), so that
each array has one weight. A search adds up the arrays, the highest weight first. After
`_MOST_POSTINGS` numbers, the remaining arrays, of common words, are searched only for the skills
with the most evidence so far. At 100,000 documents SQLite's FTS5 needs 180 ms for 15 common words.

**Informativeness.** A word that few skills have says more. Its weight is `ln((N + M) / (df +
M·p))`: df of N skills have the word, smoothed with M imagined documents of ordinary requests, in
which it has probability p (very common, common, or other). So "file" says little even in a library
of two skills; in a large library the counts matter more than p.

**Evidence.** A word of the request that a skill has counts with its informativeness times a grade,
which depends on where it is (name and trigger, one of them or several examples, one example, often
in the body, once in the body, once in a long body). The evidence for a skill is the sum over the
words: BM25 with the saturated term frequency rounded to six grades, in integers.

**Abstention.** As a log-likelihood, evidence of E means that about N·e^-E skills reach it by
chance. One word that no other skill has gives at most `ln(N + M)` = L, so the bar is set in units
of L: evidence must reach 0.74·L. That is a little more than one such word in the trigger gives
(0.75·(L - ln 2)), and less than one in name and trigger. So one rare word is not enough; two
informative words of the trigger, or the word in the skill's name, are. Three things change the bar:
- In a small library matches by chance are rarer: up to 100 skills 0.65 of the bar is enough, from
  10,000 on all of it.
- If the evidence explains nearly the whole request ("commit this please"), the bar is lower, by up
  to 55 %.
- The more words a request has, the more of them match by chance. Chance adds up like a random walk,
  so the evidence must also reach 0.8·√Q, where Q is the informativeness of all words of the
  request, including those that no skill has.

The constants were chosen on the hand-written cases of `benchmarks/retrieval_cases.py`, which also
prints their effect."""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import chain
from math import log, sqrt
from typing import Generic, NamedTuple, TypeVar

from metaclaw.domain.skill import Nearness, Skill, SkillKind, bar_of_similarity, combined_hash
from metaclaw.text import (
    COMMON_WORDS,
    MAX_WORD_CHARS,
    VERY_COMMON_WORDS,
    count_terms,
    list_terms,
    list_words,
    stem,
    terms_of,
)

UNIT = 1024
"""Evidence is counted in 1/1024 of a natural logarithm unit."""

GRADES = (0.86, 0.75, 0.65, 0.5, 0.3, 0.15)
NAME_AND_TRIGGER, NAME_OR_TRIGGER, IN_EXAMPLE, OFTEN_IN_BODY, IN_BODY, IN_LONG_BODY = range(
    len(GRADES)
)

_IMAGINED = 2000
_USUAL_BODY_TERMS = 120
_BAR = 0.74
_SMALL_LIBRARY, _LARGE_LIBRARY = 100, 10_000
_EASE_WHILE_SMALL = 0.65
_BAR_FALLS_BY = 0.55
_NOISE = 0.8

_imagined_with: dict[str, float] = {stem(word): _IMAGINED / 25 for word in COMMON_WORDS}
_imagined_with |= {stem(word): _IMAGINED / 5 for word in VERY_COMMON_WORDS}


def informativeness(term: str, having: int, skills: int) -> float:
    """How much a word says in a library of `skills`, `having` of which have it."""
    return log((skills + _IMAGINED) / (having + _imagined_with.get(term, 1.0)))


def grade_terms(skill: Skill) -> dict[str, int]:
    """The terms of a skill, each with its grade (an index into GRADES)."""
    body, trigger = count_terms(skill.body), list_terms(skill.trigger)
    scale = max(1.0, sum(body.values()) / _USUAL_BODY_TERMS)
    often, once = 3 * scale, 0.5 * scale
    rare = dict.fromkeys(body, IN_LONG_BODY)
    common = {term: IN_BODY for term, times in body.items() if times >= once}
    grades = {**rare, **common}
    grades.update((term, OFTEN_IN_BODY) for term, times in body.items() if times >= often)
    if examples := skill.examples:
        among = Counter(term for example in examples for term in set(list_terms(example)))
        grades.update(
            {term: NAME_OR_TRIGGER if times > 1 else IN_EXAMPLE for term, times in among.items()}
        )
    grades.update(dict.fromkeys(trigger, NAME_OR_TRIGGER))
    for term in list_terms(skill.name):
        grades[term] = NAME_AND_TRIGGER if term in trigger else NAME_OR_TRIGGER
    return grades


def evidence_needed(mass: float, skills: int) -> int:
    """The least evidence to place a skill for a request of mass Q: E >= b·(1 - f·(E/Q)²), with bar
    b and fall f, solved for E.
    """
    if mass <= 0:
        return UNIT * UNIT
    growth = log(max(skills, _SMALL_LIBRARY) / _SMALL_LIBRARY) / log(
        _LARGE_LIBRARY / _SMALL_LIBRARY
    )
    ease = min(1.0, _EASE_WHILE_SMALL + (1 - _EASE_WHILE_SMALL) * growth)
    bar = _BAR * ease * log(skills + _IMAGINED)
    bend = bar * _BAR_FALLS_BY / (mass * mass)
    least = (sqrt(1 + 4 * bend * bar) - 1) / (2 * bend)
    return round(UNIT * max(least, _NOISE * sqrt(mass)))


V = TypeVar("V")
_SHARDS = 256
MOST_RANKED = 128
"""The most skills that are ranked for a request."""

Postings = tuple["array[int]", ...]

_MOST_QUERY_CHARS = 12_000
_MOST_TERMS = 24
_MOST_WORDS = 8_192
_MOST_SOUGHT = 14
_MOST_POSTINGS = 20_000
_NEAR_BEST = 0.6
_MOST_KINDS = (
    4  # if only some kinds are wanted, 4 times the limit is ranked before the others are removed
)
_EVERYWHERE = ""
_NONE: "array[int]" = array("I")
_SAYS_NOTHING: dict[str, float] = {}


class FoundSkill(NamedTuple):
    """A skill, its score for a request (at least 1.0 to be placed), and whether it matches well
    enough.
    """

    skill: Skill
    score: float
    is_match: bool


class SkillQuery(NamedTuple):
    """A request's most telling terms with their informativeness, and the evidence a skill needs."""

    terms: tuple[tuple[str, float], ...]
    floor: int


def telling_words(query: str) -> list[str]:
    """The words of a request by which skills are found, without ticket numbers, dates and the
    like.
    """
    return [
        word for word in list_words(query[:_MOST_QUERY_CHARS]) if word.isalpha() or terms_of(word)
    ]


MOST_LISTABLE = 512
"""A scope with more skills than this is never listed completely: only their number is stored."""
Group = Mapping[str, Skill]
_EMPTY: Group = {}


class Members:
    """Rules, facts and skills by scope (None: everyone's), each group by name. Immutable; `changed`
    shares unchanged groups.
    """

    __slots__ = ("_counts", "_groups")

    def __init__(self) -> None:
        self._groups: dict[tuple[str | None, bool], dict[str, Skill]] = {}
        self._counts: Counter[str | None] = Counter()

    def standing(self, scope: str | None) -> Group:
        """The rules and facts of a scope, and its skills that apply to every task."""
        return self._groups.get((scope, False), _EMPTY)

    def skills(self, scope: str | None) -> Group | None:
        """The other skills of a scope, or None if there are too many to list."""
        skills = self._groups.get((scope, True), _EMPTY)
        return skills if len(skills) == self._counts[scope] else None

    def changed(self, changes: Iterable[tuple[Skill, bool]]) -> "Members":
        """The next state: each skill is added (True) or removed, in this order."""
        members = Members()
        groups, counts = self._groups.copy(), self._counts.copy()
        members._groups, members._counts = groups, counts
        own: set[tuple[str | None, bool]] = set()
        for skill, is_added in changes:
            key = skill.scope, skill.is_skill and not skill.applies_always
            if key[1]:
                counts[skill.scope] += 1 if is_added else -1
            if key not in own:
                own.add(key)
                groups[key] = dict(groups.get(key, _EMPTY))
            if is_added and not (key[1] and counts[skill.scope] > MOST_LISTABLE):
                groups[key][skill.name] = skill
            elif not is_added:
                groups[key].pop(skill.name, None)
        return members


class SkillIndex:
    """One immutable state of the index."""

    __slots__ = (
        "_documents",
        "_free",
        "_hash",
        "_hashes",
        "_members",
        "_numbers",
        "_postings",
        "_scoped",
        "_words",
    )

    def __init__(self) -> None:
        self._documents: list[Skill | None] = []
        self._hashes: list[
            str
        ] = []  # sorted by `hash`; copied with each change, so that no text is hashed twice
        self._hash: str | None = None
        self._free: tuple[int, ...] = ()
        self._scoped: dict[int, str] = {}
        self._members = Members()
        self._numbers: PersistentMap[int] = PersistentMap()
        self._postings: PersistentMap[Postings] = PersistentMap()
        self._words: dict[str, dict[str, float]] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def hash(self) -> str:
        """One hash for the whole set of skills."""
        if self._hash is None:
            self._hashes.sort()
            self._hash = combined_hash(self._hashes)
        return self._hash

    def get(self, name: str) -> Skill | None:
        number = self._numbers.get(name)
        return None if number is None else self._documents[number]

    def skills(self) -> list[Skill]:
        """Every skill, in no particular order."""
        return [skill for skill in self._documents if skill is not None]

    @property
    def scopes(self) -> frozenset[str]:
        """Every scope that some skill has."""
        return frozenset(self._scoped.values())

    @property
    def members(self) -> Members:
        """Rules, facts and skills by scope."""
        return self._members

    def changed(self, put: Sequence[Skill], removed: Iterable[str] = ()) -> "SkillIndex":
        """The next state, without the names in `removed` and with the skills in `put`, which
        replace those of the same name.
        """
        removed = [name for name in removed if self._numbers.get(name) is not None]
        if not put and not removed:
            return self
        draft = _Draft(self)
        for name in removed:
            draft.remove(name)
        for skill in put:
            draft.remove(skill.name)
            draft.add(skill)
        return draft.finish()

    def search(
        self, query: str, limit: int = 3, scopes: frozenset[str] = frozenset()
    ) -> list[FoundSkill]:
        """The skills that match, best first, ties by name. Scoped skills only if their scope is in
        `scopes`.
        """
        return [hit for hit in self.rank(query, scopes=scopes) if hit.is_match][:limit]

    def read(self, words: Sequence[str]) -> SkillQuery:
        """The query for a request with these words: everything that the ranking depends on."""
        request, mass = self._weigh(words)
        return SkillQuery(tuple(sorted(request.items())), evidence_needed(mass, len(self)))

    def rank(
        self,
        query: str | SkillQuery,
        nearness: Nearness | None = None,
        kinds: frozenset[SkillKind] | None = None,
        scopes: frozenset[str] = frozenset(),
        limit: int = MOST_RANKED,
    ) -> list[FoundSkill]:
        """Up to `limit` skills, rules and facts that share a term with a request, best first, ties
        by name. `nearness` is similarity in meaning; None: words only. `kinds` restricts the kinds,
        `scopes` is as in `search`."""
        wanted = self.read(telling_words(query)) if isinstance(query, str) else query
        evidence = self._evidence(wanted, scopes, limit * _MOST_KINDS if kinds else limit)
        if nearness:
            admitted = scopes | {_EVERYWHERE}
            for name in nearness.names:
                number = self._numbers.get(name)
                if number is not None and self._scoped.get(number, _EVERYWHERE) in admitted:
                    evidence.setdefault(number, 0)
        bar = lower = 0.0
        if nearness is not None:
            size = len(self)
            bar = bar_of_similarity(size, is_rule=False)
            lower = bar_of_similarity(size, is_rule=True)
        scored = []
        for number, amount in evidence.items():
            skill = self._documents[number]
            if skill is not None and (kinds is None or skill.kind in kinds):
                score = amount / wanted.floor
                if nearness is not None:
                    score = nearness.score(skill.name, score, bar if skill.is_skill else lower)
                scored.append((score, skill))
        scored.sort(key=lambda pair: (-pair[0], pair[1].name))
        least = max(1.0, scored[0][0] * _NEAR_BEST) if scored and nearness is None else 1.0
        return [FoundSkill(skill, score, score >= least) for score, skill in scored[:limit]]

    def _evidence(self, wanted: SkillQuery, scopes: frozenset[str], limit: int) -> dict[int, int]:
        """The evidence for the skills that have the most."""
        evidence: dict[int, int] = {}
        get, added_up, rest = evidence.get, 0, []
        for weight, documents in self._lists(wanted):
            added_up += len(documents)
            if added_up > _MOST_POSTINGS:
                rest.append((weight, documents))
                continue
            for number in documents:
                evidence[number] = get(number, 0) + weight
        if self._scoped:
            admitted, scoped = scopes | {_EVERYWHERE}, self._scoped
            evidence = {
                number: worth
                for number, worth in evidence.items()
                if scoped.get(number, _EVERYWHERE) in admitted
            }
        best = (
            dict(nlargest(limit, evidence.items(), key=lambda item: item[1]))
            if len(evidence) > limit
            else evidence
        )
        for weight, documents in rest:
            for number in best:
                at = bisect_left(documents, number)
                if at < len(documents) and documents[at] == number:
                    best[number] += weight
        return best

    def _lists(self, wanted: SkillQuery) -> list[tuple[int, "array[int]"]]:
        """The arrays of document numbers of a request's terms, each with its weight, the highest
        first.
        """
        lists = [
            (round(UNIT * weight * grade), documents)
            for term, weight in wanted.terms
            for grade, documents in zip(GRADES, self._postings.get(term) or (), strict=False)
            if documents
        ]
        return sorted(lists, key=lambda pair: -pair[0])

    def _weigh(self, words: Sequence[str]) -> tuple[dict[str, float], float]:
        """The request's most telling known terms with their informativeness, and the mass: the
        informativeness of its most telling terms, including terms that no skill has."""
        get = self._words.get
        telling = [
            terms
            for word in words
            if (terms := found if (found := get(word)) is not None else self._weigh_word(word))
        ]
        weights: dict[str, float] = {}
        for terms in telling:
            weights.update(terms)
        known = {term: weight for term, weight in weights.items() if weight > 0}
        mass = sum(sorted(map(abs, weights.values()), reverse=True)[:_MOST_TERMS])
        if len(known) > _MOST_SOUGHT:
            counts = Counter(chain.from_iterable(telling))
            ranked = sorted(known, key=lambda term: (-known[term] * min(counts[term], 3), term))
            known = {term: known[term] for term in ranked[:_MOST_SOUGHT]}
        return known, mass

    def _weigh_word(self, word: str) -> dict[str, float]:
        """The terms of a word with their informativeness, negative if no skill has the term. Words
        are cached; other tokens rarely recur."""
        weighed = {term: self._weigh_anew(term) for term in terms_of(word)} or _SAYS_NOTHING
        if len(word) <= MAX_WORD_CHARS and word.isalpha():
            if len(self._words) >= _MOST_WORDS:
                self._words.clear()
            self._words[word] = weighed
        return weighed

    def _weigh_anew(self, term: str) -> float:
        postings = self._postings.get(term)
        weight = informativeness(term, sum(map(len, postings)) if postings else 0, len(self))
        return weight if postings else -weight


class _Draft:
    """Builds the next state of an index."""

    def __init__(self, index: SkillIndex) -> None:
        self._old = index
        self._documents, self._hashes = index._documents.copy(), index._hashes.copy()
        self._free = list(index._free)
        self._scoped = index._scoped.copy()
        self._numbers: dict[str, int | None] = {}
        self._changes: list[tuple[Skill, bool]] = []
        self._touched: tuple[dict[str, array[int]], ...] = tuple({} for _ in GRADES)

    def add(self, skill: Skill) -> None:
        """Add a skill whose name is free."""
        if self._free:
            number = self._free.pop()
        else:
            number = len(self._documents)
            self._documents.append(None)
        self._documents[number] = skill
        self._hashes.append(skill.content_hash)
        self._numbers[skill.name] = number
        self._changes.append((skill, True))
        if skill.scope is not None:
            self._scoped[number] = skill.scope
        for term, grade in grade_terms(skill).items():
            documents = self._own(term, grade)
            if documents and documents[-1] > number:
                documents.insert(bisect_left(documents, number), number)
            else:
                documents.append(number)

    def remove(self, name: str) -> None:
        """Remove a skill, if the name is known."""
        number = self._numbers[name] if name in self._numbers else self._old._numbers.get(name)
        skill = None if number is None else self._documents[number]
        if number is None or skill is None:
            return
        for term, grade in grade_terms(skill).items():
            documents = self._own(term, grade)
            del documents[bisect_left(documents, number)]
        self._documents[number] = None
        self._hashes.remove(skill.content_hash)
        self._scoped.pop(number, None)
        self._changes.append((skill, False))
        self._free.append(number)
        self._numbers[name] = None

    def _own(self, term: str, grade: int) -> "array[int]":
        """The draft's copy of one array, made at its first use."""
        documents = self._touched[grade].get(term)
        if documents is None:
            shared = self._old._postings.get(term)
            documents = self._touched[grade][term] = array("I", shared[grade] if shared else ())
        return documents

    def finish(self) -> SkillIndex:
        index = SkillIndex()
        index._documents, index._free = self._documents, tuple(self._free)
        index._hashes = self._hashes
        index._scoped = self._scoped
        index._numbers = self._old._numbers.changed(self._numbers)
        index._members = self._old._members.changed(self._changes)
        index._postings = self._old._postings.changed(
            {term: self._merged(term) for term in set().union(*self._touched)}
        )
        return index

    def _merged(self, term: str) -> Postings | None:
        shared = self._old._postings.get(term) or (_NONE,) * len(GRADES)
        merged = tuple(
            own.get(term, old) or _NONE for own, old in zip(self._touched, shared, strict=True)
        )
        return merged if any(merged) else None


class PersistentMap(Generic[V]):
    """An immutable map from strings, split into shards by hash. `changed` shares every shard it
    does not touch.
    """

    __slots__ = ("_shards", "_size")

    def __init__(self) -> None:
        self._shards: tuple[dict[str, V], ...] = tuple({} for _ in range(_SHARDS))
        self._size = 0

    def get(self, key: str) -> V | None:
        return self._shards[hash(key) % _SHARDS].get(key)

    def __len__(self) -> int:
        return self._size

    def changed(self, changes: Mapping[str, V | None]) -> "PersistentMap[V]":
        """A new map with these keys set; None removes a key."""
        shards = list(self._shards)
        copied: set[int] = set()
        size = self._size
        for key, value in changes.items():
            number = hash(key) % _SHARDS
            if number not in copied:
                copied.add(number)
                shards[number] = shards[number].copy()
            shard = shards[number]
            size -= key in shard
            if value is None:
                shard.pop(key, None)
            else:
                shard[key] = value
                size += 1
        result: PersistentMap[V] = PersistentMap.__new__(PersistentMap)
        result._shards = tuple(shards)
        result._size = size
        return result
