"""The lexical index over skills: immutable snapshots, changed by making the next one, searched rarest words first.

A term's postings are sorted arrays of document numbers, one per grade (see `evidence`), so that each list has one weight. A
search walks the lists by falling weight and stops where a skill seen in none of them so far could no longer reach the evidence
needed; the remaining, long lists of ordinary words are only probed for the skills still in play. The result is that of scoring
everything, except where a request has so many long lists that `_MOST_POSTINGS` is reached: then the lightest are only probed.

`changed` copies the postings it touches and shares all others, so a reader that holds a snapshot never sees half a change and
takes no lock, while one skill is added to 100,000 in a few milliseconds.

Measured beside it at 100,000 short documents: SQLite's FTS5 needs 180 ms for an OR of 15 ordinary words (it scores every match),
and tantivy 2 to 6 ms plus a native dependency, and neither gives what abstention needs. numpy is no part of the base install.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from metaclaw.domain.nearness import Nearness, bar_of_similarity
from metaclaw.domain.skill import Skill, SkillKind
from metaclaw.skills.evidence import GRADES, UNIT, evidence_needed, grade_terms, informativeness
from metaclaw.skills.scopes import Members, MembersDraft
from metaclaw.text import MAX_WORD_CHARS, list_words, terms_of

V = TypeVar("V")
_SHARDS = 256
MOST_RANKED = 128
"""Most skills that are put in order for a request."""

Postings = tuple["array[int]", ...]

_MOST_QUERY_CHARS = 12_000
_MOST_TERMS = 24
_MOST_WORDS = 8_192
_MOST_READ = 256
_MOST_READ_WORDS = 128
_MOST_SOUGHT = 14
_MOST_POSTINGS = 20_000
_LONG_LIST = 2_000
_NEAR_BEST = 0.6
_MOST_KINDS = 4  # where only some kinds are wanted, so many times the limit is looked at
_PROBE_COST = 16  # one binary search costs about as much as walking this many postings
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


class _Evident(NamedTuple):
    skill: Skill
    evidence: int


class _PostingList(NamedTuple):
    weight: int
    term: str
    documents: "array[int]"


class SkillIndex:
    """One immutable state of the index."""

    __slots__ = ("_documents", "_free", "_members", "_numbers", "_postings", "_read", "_scoped", "_words")

    def __init__(self) -> None:
        self._documents: list[Skill | None] = []
        self._free: tuple[int, ...] = ()
        self._scoped: dict[int, str] = {}
        self._members = Members()
        self._numbers: PersistentMap[int] = PersistentMap()
        self._postings: PersistentMap[Postings] = PersistentMap()
        self._words: dict[str, dict[str, float]] = {}
        self._read: dict[tuple[str, ...], SkillQuery] = {}

    def __len__(self) -> int:
        return len(self._numbers)

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

    def changed(self, put: Iterable[Skill], removed: Iterable[str] = ()) -> "SkillIndex":
        """The next state: `removed` names taken out, `put` added or, where the name is known, replaced."""
        draft = _Draft(self)
        for name in removed:
            draft.remove(name)
        for skill in put:
            draft.remove(skill.name)
            draft.add(skill)
        return draft.finish()

    def search(self, query: str, limit: int = 3, scopes: frozenset[str] = frozenset()) -> list[FoundSkill]:
        """The skills there is enough evidence for, best first, none far behind the best; ties by name. Often none.

        A skill with a scope is found only where its scope is among `scopes`.
        """
        return self.find(self.read(query), limit, scopes)

    def read(self, query: str) -> SkillQuery:
        """What a request asks of this library: everything the search depends on."""
        # A ticket's number, a date and the like say nothing, and make no other request of it.
        words = tuple([word for word in list_words(query[:_MOST_QUERY_CHARS]) if word.isalpha() or terms_of(word)])
        wanted = self._read.get(words)
        if wanted is None:
            request, mass = self._weigh(words)
            wanted = SkillQuery(tuple(sorted(request.items())), evidence_needed(mass, len(self)))
            if len(words) <= _MOST_READ_WORDS:
                if len(self._read) >= _MOST_READ:
                    self._read.clear()
                self._read[words] = wanted
        return wanted

    def find(self, wanted: SkillQuery, limit: int, scopes: frozenset[str]) -> list[FoundSkill]:
        """The skills for a request that has been read."""
        floor, lists = wanted.floor, self._lists(dict(wanted.terms))
        evidence, rest = self._walk(lists, floor, scopes)
        found = self._best_of(evidence, rest, floor, limit, scopes)
        near = [one for one in found if one.evidence >= found[0].evidence * _NEAR_BEST]
        return [FoundSkill(one.skill, one.evidence / floor, True) for one in near]

    def rank(
        self,
        query: str | SkillQuery,
        nearness: Nearness | None = None,
        kinds: frozenset[SkillKind] | None = None,
        scopes: frozenset[str] = frozenset(),
        limit: int = MOST_RANKED,
    ) -> list[FoundSkill]:
        """Up to `limit` skills, rules and facts that have anything in common with a request, best first; ties by name.

        `nearness` says how near each is in meaning; without it words decide alone. `kinds` leaves out other kinds; `scopes` as in
        `search`.
        """
        wanted = self.read(query) if isinstance(query, str) else query
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
        evidence, rest = self._walk(self._lists(dict(wanted.terms)), 1, scopes)
        admitted, scoped = scopes | {_EVERYWHERE}, self._scoped
        mine = evidence if not scoped else {n: worth for n, worth in evidence.items() if scoped.get(n, _EVERYWHERE) in admitted}
        best = dict(nlargest(limit, mine.items(), key=lambda one: one[1])) if len(mine) > limit else dict(mine)
        for weight, _, documents in rest:
            for number in _common(list(best), documents):
                best[number] += weight
        return best

    def _weigh(self, words: Sequence[str]) -> tuple[dict[str, float], float]:
        """The request's most telling known terms with their informativeness, and the mass of its most telling terms, known or not:
        words that no skill has are what the request is about that no skill explains."""
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
        """The terms of a word with how much each says here; negative where no skill has it. Remembered, since requests use the
        same words all day; what is no word will hardly come again."""
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

    def _lists(self, request: dict[str, float]) -> list[_PostingList]:
        lists = []
        for term, weight in request.items():
            for grade, documents in zip(GRADES, self._postings.get(term) or (), strict=False):
                if documents:
                    lists.append(_PostingList(round(UNIT * weight * grade), term, documents))
        lists.sort(key=lambda one: -one.weight)
        return lists

    def _walk(self, lists: list[_PostingList], floor: int, scopes: frozenset[str]) -> tuple[dict[int, int], list[_PostingList]]:
        """Add up evidence from the weightiest lists; give it, and the long lists that are left to probe.

        Once the lists from here on cannot bring a skill to the floor by themselves, only skills already in play matter: for these
        the short lists are still walked, which is cheaper than probing.
        """
        evidence: dict[int, int] = {}
        get = evidence.get
        bounds = _most_from(lists)
        rest: list[_PostingList] = []
        postings = 0
        for position, posting_list in enumerate(lists):
            weight, _, documents = posting_list
            is_long = len(documents) > _LONG_LIST
            if is_long and evidence:
                floor = max(floor, int(self._best(evidence, scopes) * _NEAR_BEST))
            if bounds[position] >= floor and postings + len(documents) <= _MOST_POSTINGS:
                postings += len(documents)
                for number in documents:
                    evidence[number] = get(number, 0) + weight
            elif is_long:
                rest.append(posting_list)
            else:
                for number in documents:
                    if number in evidence:
                        evidence[number] += weight
        return evidence, rest

    def _best(self, evidence: dict[int, int], scopes: frozenset[str]) -> int:
        if not self._scoped:
            return max(evidence.values())
        scoped, scopes = self._scoped, scopes | {_EVERYWHERE}
        return max((worth for number, worth in evidence.items() if scoped.get(number, _EVERYWHERE) in scopes), default=0)

    def _best_of(
        self, evidence: dict[int, int], rest: list[_PostingList], floor: int, limit: int, scopes: frozenset[str]
    ) -> list[_Evident]:
        """The best `limit` skills in play. Skills with equal evidence so far go on together, the best first, and as soon as `limit`
        are found the floor is the last of them."""
        bounds = _most_from(rest)
        hoped = bounds[0] if rest else 0
        least, scoped, scopes = floor - hoped, self._scoped, scopes | {_EVERYWHERE}
        together: dict[int, list[int]] = {}
        for number, worth in [one for one in evidence.items() if one[1] >= least]:
            if scoped.get(number, _EVERYWHERE) in scopes:
                together.setdefault(worth, []).append(number)
        found: list[_Evident] = []
        for worth in sorted(together, reverse=True):
            if worth + hoped < floor:
                break
            for number, total in _probe(worth, together[worth], rest, bounds, floor):
                skill = self._documents[number]
                if skill is not None:
                    found.append(_Evident(skill, total))
            found.sort(key=lambda one: (-one.evidence, one.skill.name))
            del found[limit:]
            if found:
                floor = max(floor, int(found[0].evidence * _NEAR_BEST), found[-1].evidence if len(found) == limit else 0)
        return found


def _probe(worth: int, numbers: list[int], rest: list[_PostingList], bounds: list[int], floor: int) -> Iterator[tuple[int, int]]:
    """Add the remaining lists to skills of equal evidence, letting go of those that can no longer reach the floor."""
    waiting = [(0, worth, numbers)]
    while waiting:
        position, worth, numbers = waiting.pop()
        if position == len(rest):
            yield from ((number, worth) for number in numbers if worth >= floor)
        elif worth + bounds[position] >= floor:
            weight, _, documents = rest[position]
            inside = _common(numbers, documents)
            if inside:
                waiting.append((position + 1, worth + weight, list(inside)))
                numbers = [number for number in numbers if number not in inside]
            if numbers:
                waiting.append((position + 1, worth, numbers))


def _common(numbers: list[int], documents: "array[int]") -> set[int]:
    if len(numbers) * _PROBE_COST > len(documents):
        return set(numbers).intersection(documents)
    size = len(documents)
    return {number for number in numbers if (at := bisect_left(documents, number)) < size and documents[at] == number}


def _most_from(lists: list[_PostingList]) -> list[int]:
    """For each position, the most evidence a skill can get from the lists from there on: one list per term."""
    most, by_term, bounds = 0, dict[str, int](), [0] * len(lists)
    for position in range(len(lists) - 1, -1, -1):
        weight, term, _ = lists[position]
        most += weight - by_term.get(term, 0)  # lists come by falling weight, so this one is the term's greatest so far
        by_term[term] = weight
        bounds[position] = most
    return bounds


class _Draft:
    """The next state of an index while it is being made."""

    def __init__(self, index: SkillIndex) -> None:
        self._index = index
        self._documents = index._documents.copy()
        self._free = list(index._free)
        self._scoped = index._scoped.copy()
        self._members = MembersDraft(index._members)
        self._numbers: dict[str, int | None] = {}
        self._touched: tuple[dict[str, array[int]], ...] = tuple({} for _ in GRADES)

    def add(self, skill: Skill) -> None:
        """Put in a skill whose name is not there."""
        if self._free:
            number = self._free.pop()
            self._documents[number] = skill
        else:
            number = len(self._documents)
            self._documents.append(skill)
        self._numbers[skill.name] = number
        if skill.scope is not None:
            self._scoped[number] = skill.scope
        self._members.add(skill)
        for term, grade in grade_terms(skill).items():
            documents = self._touched[grade].get(term)
            if documents is None:
                documents = self._own(term, grade)
            if documents and documents[-1] > number:
                documents.insert(bisect_left(documents, number), number)
            else:
                documents.append(number)

    def remove(self, name: str) -> None:
        """Take a skill out, if it is there."""
        number = self._numbers[name] if name in self._numbers else self._index._numbers.get(name)
        skill = None if number is None else self._documents[number]
        if number is None or skill is None:
            return
        for term, grade in grade_terms(skill).items():
            documents = self._own(term, grade)
            del documents[bisect_left(documents, number)]
        self._documents[number] = None
        self._scoped.pop(number, None)
        self._members.remove(skill)
        self._free.append(number)
        self._numbers[name] = None

    def _own(self, term: str, grade: int) -> "array[int]":
        """The draft's own copy of one list."""
        documents = self._touched[grade].get(term)
        if documents is None:
            shared = self._index._postings.get(term)
            documents = self._touched[grade][term] = array("I", shared[grade] if shared else ())
        return documents

    def finish(self) -> SkillIndex:
        """The finished state."""
        index = SkillIndex.__new__(SkillIndex)
        index._documents = self._documents
        index._free = tuple(self._free)
        index._scoped = self._scoped
        index._members = self._members.finish()
        index._words, index._read = {}, {}
        index._numbers = self._index._numbers.changed(self._numbers)
        index._postings = self._index._postings.changed({term: self._merged(term) for term in set().union(*self._touched)})
        return index

    def _merged(self, term: str) -> Postings | None:
        shared = self._index._postings.get(term) or (_NONE,) * len(GRADES)
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

    def values(self) -> Iterator[V]:
        """Every value, in no particular order."""
        for shard in self._shards:
            yield from shard.values()

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
