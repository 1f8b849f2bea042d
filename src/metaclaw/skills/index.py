"""The lexical index over skills, and how much evidence a request gives for a skill.

An index is an immutable snapshot. `changed` makes the next one: it copies the postings it touches and shares all others, so that
readers need no lock and a skill is added to 100,000 in a few milliseconds.

A term's postings are sorted arrays of document numbers, one per grade (see below), so that each list has one weight. A search adds
up the lists by falling weight; once `_MOST_POSTINGS` are added up, the remaining lists of ordinary words are only probed for the
skills with the most evidence so far. At 100,000 documents SQLite's FTS5 needs 180 ms for 15 ordinary words.

**Informativeness.** A word that few skills have says more. Its weight is `ln((N + M) / (df + M·p))`: N skills, of which df have the
word, smoothed with M imagined documents of ordinary requests in which it has probability p (very common, common, or the rest). So
"file" says little even in a library of two skills; in a large library what was counted outweighs the lists.

**Evidence.** A word found in a skill counts with its informativeness times a grade: where it is (name and trigger, one of them or
several examples, one example, often in the body, once in the body, once in a long body). The evidence for a skill is the sum over
the request's words: BM25 with its saturated term frequency rounded to six grades, in integers, so that order does not matter.

**Abstention.** Read as a log-likelihood, evidence of E is a coincidence that about N·e^-E skills show by chance. One word that no
other skill has gives at most `ln(N + M)` = L, so the bar is set in units of L: evidence must reach 0.74·L, a little more than one
such word in the trigger alone gives (0.75·(L - ln 2)) and less than one in name and trigger. So a lone rare word is not enough; two
informative words of the trigger, or the word a skill is named after, are. Three things move the bar:
- In a small library a coincidence is rarer still: up to 100 skills 0.65 of the bar is enough, from 10,000 on all of it.
- Where the evidence explains nearly the whole request ("commit this please"), there is little else it could have been about: the
  bar falls, by up to 55 %.
- The more words a request has, the more of them are met by chance. Chance adds up like a random walk, so the evidence must also
  reach 0.8·√Q, Q being the informativeness of all the request's words, those that no skill knows included.

The constants were chosen on the hand-written cases of `benchmarks/retrieval_cases.py`; the benchmark prints what they do.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from heapq import nlargest
from itertools import chain
from math import log, sqrt
from typing import Generic, NamedTuple, TypeVar

from metaclaw.domain.skill import Nearness, Skill, SkillKind, bar_of_similarity, combined_hash
from metaclaw.text import COMMON_WORDS, MAX_WORD_CHARS, VERY_COMMON_WORDS, count_terms, list_terms, list_words, stem, terms_of

UNIT = 1024
"""Evidence is counted in 1/1024 of a natural logarithm unit."""

GRADES = (0.86, 0.75, 0.65, 0.5, 0.3, 0.15)
NAME_AND_TRIGGER, NAME_OR_TRIGGER, IN_EXAMPLE, OFTEN_IN_BODY, IN_BODY, IN_LONG_BODY = range(len(GRADES))

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
    grades = {term: OFTEN_IN_BODY if times >= often else IN_BODY if times >= once else IN_LONG_BODY for term, times in body.items()}
    if examples := skill.examples:
        among = Counter(term for example in examples for term in set(list_terms(example)))
        grades.update({term: NAME_OR_TRIGGER if times > 1 else IN_EXAMPLE for term, times in among.items()})
    grades.update(dict.fromkeys(trigger, NAME_OR_TRIGGER))
    for term in list_terms(skill.name):
        grades[term] = NAME_AND_TRIGGER if term in trigger else NAME_OR_TRIGGER
    return grades


def evidence_needed(mass: float, skills: int) -> int:
    """The least evidence to place a skill for a request of mass Q: E >= b·(1 - f·(E/Q)²), with bar b and fall f, solved for E."""
    if mass <= 0:
        return UNIT * UNIT
    growth = log(max(skills, _SMALL_LIBRARY) / _SMALL_LIBRARY) / log(_LARGE_LIBRARY / _SMALL_LIBRARY)
    ease = min(1.0, _EASE_WHILE_SMALL + (1 - _EASE_WHILE_SMALL) * growth)
    bar = _BAR * ease * log(skills + _IMAGINED)
    bend = bar * _BAR_FALLS_BY / (mass * mass)
    least = (sqrt(1 + 4 * bend * bar) - 1) / (2 * bend)
    return round(UNIT * max(least, _NOISE * sqrt(mass)))


V = TypeVar("V")
_SHARDS = 256
MOST_RANKED = 128
"""Most skills that are put in order for a request."""

Postings = tuple["array[int]", ...]

_MOST_QUERY_CHARS = 12_000
_MOST_TERMS = 24
_MOST_WORDS = 8_192
_MOST_SOUGHT = 14
_MOST_POSTINGS = 20_000
_NEAR_BEST = 0.6
_MOST_KINDS = 4  # where only some kinds are wanted, so many times the limit is looked at
_EVERYWHERE = ""
_NONE: "array[int]" = array("I")
_SAYS_NOTHING: dict[str, float] = {}


class FoundSkill(NamedTuple):
    """A skill, how well it fits a request (1.0 is the least with which it is placed), and whether it fits well enough."""

    skill: Skill
    score: float
    is_match: bool


class SkillQuery(NamedTuple):
    """A request's most telling terms with their informativeness, and the evidence a skill needs."""

    terms: tuple[tuple[str, float], ...]
    floor: int


def telling_words(query: str) -> list[str]:
    """The words of a request by which skills are found. A ticket's number, a date and the like are none."""
    return [word for word in list_words(query[:_MOST_QUERY_CHARS]) if word.isalpha() or terms_of(word)]


def words_digest(words: Sequence[str]) -> bytes:
    """A short key for the words of a request, which keeps no text of it."""
    return blake2b(" ".join(words).encode("utf-8", "surrogatepass"), digest_size=16).digest()


MOST_LISTABLE = 512
"""A scope with more skills than this is never listed whole, so only their number is kept."""
Group = Mapping[str, Skill]
_EMPTY: Group = {}


class Members:
    """Rules, facts and skills by scope (None: everyone's), each group by name. Never changes; what is not touched is shared."""

    __slots__ = ("_counts", "_groups")

    def __init__(self) -> None:
        self._groups: dict[tuple[str | None, bool], dict[str, Skill]] = {}
        self._counts: Counter[str | None] = Counter()

    def standing(self, scope: str | None) -> Group:
        """The rules and facts of a scope, and its skills that apply to every task."""
        return self._groups.get((scope, False), _EMPTY)

    def skills(self, scope: str | None) -> Group | None:
        """The other skills of a scope, or None where they are too many to be listed."""
        found = self._groups.get((scope, True), _EMPTY)
        return found if len(found) == self._counts[scope] else None

    def changed(self, changes: Iterable[tuple[Skill, bool]]) -> "Members":
        """The next state: each skill put in (True) or taken out, in this order."""
        members = Members()
        groups, counts = self._groups.copy(), self._counts.copy()
        members._groups, members._counts = groups, counts
        own: set[tuple[str | None, bool]] = set()
        for skill, is_added in changes:
            key = skill.scope, skill.kind is SkillKind.SKILL and not skill.applies_always
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

    __slots__ = ("_documents", "_free", "_hash", "_hashes", "_members", "_numbers", "_postings", "_scoped", "_words")

    def __init__(self) -> None:
        self._documents: list[Skill | None] = []
        self._hashes: list[str] = []  # sorted by `hash`; copied with each change, so that no text is hashed twice
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
        """The skill of this name."""
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
        """The next state: `removed` names taken out, `put` added or, where the name is known, replaced."""
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

    def search(self, query: str, limit: int = 3, scopes: frozenset[str] = frozenset()) -> list[FoundSkill]:
        """The skills with enough evidence, best first, none far behind the best; ties by name. Scoped skills only if their scope is
        in `scopes`."""
        return [one for one in self.rank(query, scopes=scopes) if one.is_match][:limit]

    def read(self, words: Sequence[str]) -> SkillQuery:
        """What a request with these telling words asks of this library: everything the search depends on."""
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
        """Up to `limit` skills, rules and facts that share anything with a request, best first; ties by name. `nearness` is their
        similarity in meaning, without it only words count; `kinds` restricts the kinds, `scopes` is as in `search`."""
        wanted = self.read(telling_words(query)) if isinstance(query, str) else query
        evidence = self._evidence(wanted, scopes, limit * _MOST_KINDS if kinds else limit)
        if nearness:
            admitted = scopes | {_EVERYWHERE}
            for name in nearness.names:
                number = self._numbers.get(name)
                if number is not None and self._scoped.get(number, _EVERYWHERE) in admitted:
                    evidence.setdefault(number, 0)
        bar, lower = (bar_of_similarity(len(self), is_rule=is_rule) for is_rule in (False, True))
        found = []
        for number, amount in evidence.items():
            skill = self._documents[number]
            if skill is not None and (kinds is None or skill.kind in kinds):
                score = amount / wanted.floor
                if nearness is not None:
                    score = nearness.score(skill.name, score, bar if skill.kind is SkillKind.SKILL else lower)
                found.append((score, skill))
        found.sort(key=lambda one: (-one[0], one[1].name))
        least = max(1.0, found[0][0] * _NEAR_BEST) if found and nearness is None else 1.0
        return [FoundSkill(skill, score, score >= least) for score, skill in found[:limit]]

    def _evidence(self, wanted: SkillQuery, scopes: frozenset[str], limit: int) -> dict[int, int]:
        """The evidence for the skills with the most of it."""
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
            evidence = {number: worth for number, worth in evidence.items() if scoped.get(number, _EVERYWHERE) in admitted}
        best = dict(nlargest(limit, evidence.items(), key=lambda one: one[1])) if len(evidence) > limit else evidence
        for weight, documents in rest:
            for number in best:
                at = bisect_left(documents, number)
                if at < len(documents) and documents[at] == number:
                    best[number] += weight
        return best

    def _lists(self, wanted: SkillQuery) -> list[tuple[int, "array[int]"]]:
        """The postings of a request's terms, each list with its weight, the weightiest first."""
        lists = [
            (round(UNIT * weight * grade), documents)
            for term, weight in wanted.terms
            for grade, documents in zip(GRADES, self._postings.get(term) or (), strict=False)
            if documents
        ]
        return sorted(lists, key=lambda one: -one[0])

    def _weigh(self, words: Sequence[str]) -> tuple[dict[str, float], float]:
        """The request's most telling known terms with their informativeness, and the mass of its most telling terms, known or not:
        words that no skill has are what no skill explains."""
        get = self._words.get
        telling = [terms for word in words if (terms := found if (found := get(word)) is not None else self._weigh_word(word))]
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
        """The terms of a word with their informativeness, negative if no skill has the term. Words are cached; other tokens rarely
        recur."""
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
    """The next state of an index while it is being made."""

    def __init__(self, index: SkillIndex) -> None:
        self._old = index
        self._documents, self._hashes = index._documents.copy(), index._hashes.copy()
        self._free = list(index._free)
        self._scoped = index._scoped.copy()
        self._numbers: dict[str, int | None] = {}
        self._changes: list[tuple[Skill, bool]] = []
        self._touched: tuple[dict[str, array[int]], ...] = tuple({} for _ in GRADES)

    def add(self, skill: Skill) -> None:
        """Put in a skill whose name is not there."""
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
        """Take a skill out, if it is there."""
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
        """The draft's own copy of one list."""
        documents = self._touched[grade].get(term)
        if documents is None:
            shared = self._old._postings.get(term)
            documents = self._touched[grade][term] = array("I", shared[grade] if shared else ())
        return documents

    def finish(self) -> SkillIndex:
        """The finished state."""
        index = SkillIndex()
        index._documents, index._free = self._documents, tuple(self._free)
        index._hashes = self._hashes
        index._scoped = self._scoped
        index._numbers = self._old._numbers.changed(self._numbers)
        index._members = self._old._members.changed(self._changes)
        index._postings = self._old._postings.changed({term: self._merged(term) for term in set().union(*self._touched)})
        return index

    def _merged(self, term: str) -> Postings | None:
        shared = self._old._postings.get(term) or (_NONE,) * len(GRADES)
        merged = tuple(own.get(term, old) or _NONE for own, old in zip(self._touched, shared, strict=True))
        return merged if any(merged) else None


class PersistentMap(Generic[V]):
    """An immutable map from strings, split into shards by hash. `changed` shares every shard it does not touch."""

    __slots__ = ("_shards", "_size")

    def __init__(self) -> None:
        self._shards: tuple[dict[str, V], ...] = tuple({} for _ in range(_SHARDS))
        self._size = 0

    def get(self, key: str) -> V | None:
        """The value of a key, or None."""
        return self._shards[hash(key) % _SHARDS].get(key)

    def __len__(self) -> int:
        return self._size

    def changed(self, changes: Mapping[str, V | None]) -> "PersistentMap[V]":
        """A new map with these keys set; None takes a key out."""
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
