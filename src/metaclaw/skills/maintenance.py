"""Maintenance of a library that grows: which skills are near-duplicates, stale, or learned by enough users to be shared.

Near-duplicates of one scope are merged, skills that no task matches are retired (`find_retirements`), and a lesson that several
users learned by themselves is promoted to a wider scope (`find_promotions`). Each result is a proposal: it goes through the gate.
"""

import hashlib
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import eq
from typing import NamedTuple

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.skills.gate.clashes import contrary, is_same_situation, overlap, situation_terms, text_terms, width
from metaclaw.skills.gate.gate import lint

_BINS = 36
_ROWS = 3
_NEAREST = 4
_SLACK = 0.15  # how far the share of agreeing bins may fall short of the overlap: two standard errors
_NO_TERMS: list[int | None] = [None] * _BINS
_MEMO = 200_000
_hashes: dict[str, int] = {}
Minhash = tuple[int, ...]

_MOST_PARENTS = 4
LEAST_USERS = 3
SAME_LESSON = 0.5
_WORD = re.compile(r"\w+")


class SimilarPair(NamedTuple):
    """Two skills of the same scope that say nearly the same."""

    one: Skill
    other: Skill
    overlap: float


def find_similar(skills: Sequence[Skill], at_least: float = 0.7, *, across_scopes: bool = False) -> list[SimilarPair]:
    """Pairs with at least this overlap, the most alike first; ties by name. Within a scope, unless told otherwise.

    Not every two skills are compared. Each term has one 64-bit hash. A skill's hashes fall into `_BINS` bins by their
    remainder; the least of each bin is one minhash (an empty bin borrows from the next). Two skills agree in a bin with the
    probability of their overlap (Jaccard), so in `_ROWS` bins at once with that to the power of `_ROWS`: of 12 bands of 3, an
    overlap of 0.7 shares a band with probability 0.99, one of 0.2 with 0.09. Only skills that share a band are compared: first
    by how many bins agree, which is cheap, and then by their true overlap. In a band that very many share (a library written
    from one template) they are sorted by their other bins and each is compared with its `_NEAREST` neighbours, so the work
    stays linear.
    """
    hashes = [array("Q", map(_hash, text_terms(skill))) for skill in skills]  # a tenth of the memory of the terms themselves
    likely = sorted(_likely_pairs(skills, list(map(_minhash, hashes)), _BINS * (at_least - _SLACK), across_scopes))
    pairs = (SimilarPair(skills[a], skills[b], overlap(hashes[a], hashes[b])) for a, b in likely)
    alike = (pair for pair in pairs if pair.overlap >= at_least)
    return sorted(alike, key=lambda pair: (-pair.overlap, pair.one.name, pair.other.name))


def group_similar(pairs: Iterable[SimilarPair]) -> list[tuple[Skill, ...]]:
    """Skills that are similar to one another, directly or over a third, as groups; each by name."""
    leader: dict[str, str] = {}
    skills: dict[str, Skill] = {}
    for pair in pairs:
        for skill in (pair.one, pair.other):
            skills.setdefault(skill.name, skill)
        leader[_lead(leader, pair.one.name)] = _lead(leader, pair.other.name)
    groups: dict[str, list[Skill]] = {}
    for name in sorted(skills):
        groups.setdefault(_lead(leader, name), []).append(skills[name])
    return [tuple(group) for group in groups.values()]


def _likely_pairs(
    skills: Sequence[Skill], minhashes: Sequence[Minhash], least_bins: float, across_scopes: bool
) -> set[tuple[int, int]]:
    """Numbers of skills that share a band and agree in enough bins. One band at a time: the buckets of all would be large."""
    likely: set[tuple[int, int]] = set()
    for band in range(0, _BINS, _ROWS):
        buckets: dict[tuple[object, ...], list[int]] = {}
        for number, minhash in enumerate(minhashes):
            if minhash:
                scope = None if across_scopes else skills[number].scope
                buckets.setdefault((scope, *minhash[band : band + _ROWS]), []).append(number)
        for bucket in buckets.values():
            if len(bucket) > _NEAREST:
                bucket.sort(key=lambda number: minhashes[number][band:] + minhashes[number][:band])
            for one, other in _near_by(bucket):
                if sum(map(eq, minhashes[one], minhashes[other])) >= least_bins:
                    likely.add((min(one, other), max(one, other)))
    return likely


def _minhash(hashes: Iterable[int]) -> Minhash:
    """The least hash of each bin, or nothing for a text without terms."""
    least: list[int | None] = [None] * _BINS
    for value in hashes:
        at = value % _BINS
        known = least[at]
        if known is None or value < known:
            least[at] = value
    if least == _NO_TERMS:
        return ()
    return tuple([one if one is not None else _borrow(least, at) for at, one in enumerate(least)])


def _borrow(least: Sequence[int | None], at: int) -> int:
    for step in range(1, _BINS):
        value = least[(at + step) % _BINS]
        if value is not None:
            return value + step
    raise ValueError("a text without terms has no minhash")


def _hash(term: str) -> int:
    value = _hashes.get(term)
    if value is None:
        if len(_hashes) >= _MEMO:
            _hashes.clear()
        value = _hashes[term] = int.from_bytes(
            hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big"
        )
    return value


def _near_by(bucket: Sequence[int]) -> Iterator[tuple[int, int]]:
    for at, number in enumerate(bucket):
        for other in bucket[at + 1 : at + 1 + _NEAREST]:
            yield number, other


def _lead(leader: dict[str, str], name: str) -> str:
    while (above := leader.setdefault(name, name)) != name:
        leader[name] = leader[above]
        name = above
    return name


@dataclass(frozen=True, slots=True)
class RetireRules:
    """A skill is stale if it was unmatched for this long *and* over this many tasks in its scope: a holiday makes none stale."""

    stale_after: timedelta = timedelta(days=90)
    stale_opportunities: int = 500


@dataclass(frozen=True, slots=True)
class Life:
    """A skill in force and its use. `last_matched` is when it last matched a task, or came into force; `opportunities` is how many
    tasks in its scope there were since."""

    skill: Skill
    last_matched: datetime
    opportunities: int


@dataclass(frozen=True, slots=True)
class Retirement:
    """A skill to retire, and the reason in words."""

    skill: SkillName
    reason: str


def find_retirements(lives: Iterable[Life], now: datetime, rules: RetireRules | None = None) -> list[Retirement]:
    """The skills that are stale."""
    found = (_retirement(life, now, rules or RetireRules()) for life in lives)
    return [one for one in found if one is not None]


def _retirement(life: Life, now: datetime, rules: RetireRules) -> Retirement | None:
    skill = life.skill
    if skill.author is not Authorship.EVOLVER or skill.pinned or skill.state not in (SkillState.CANARY, SkillState.LIVE):
        return None
    if now - life.last_matched < rules.stale_after or life.opportunities < rules.stale_opportunities:
        return None
    days = (now - life.last_matched).days
    return Retirement(skill.name, f"no task has matched it for {days} days and {life.opportunities} tasks")


def find_merges(skills: Sequence[Skill], at_least: float = 0.7) -> list[tuple[Skill, ...]]:
    """Groups of near-duplicates of one scope that the program may merge: nothing a person wrote, said or pinned."""
    own = [skill for skill in skills if skill.author is Authorship.EVOLVER and not skill.pinned]
    return [group[:_MOST_PARENTS] for group in group_similar(find_similar(own, at_least))]


@dataclass(frozen=True, slots=True)
class Promotion:
    """A lesson that may go to a wider scope: its shared text, and the private skills it was learned in."""

    skill: Skill
    learned_in: tuple[SkillName, ...]
    users: int


def find_promotions(skills: Sequence[Skill], scope: str | None, least_users: int = LEAST_USERS) -> list[Promotion]:
    """Lessons that enough users have in common, as skills for `scope`. `skills` are those of the users who are in that scope.

    At least `least_users` distinct users each have a live skill of their own that says nearly the same, and no user has one
    that contradicts it in the same situation. The shared text is made only of lines whose every word those users share: a name,
    a host or a number that fewer of them wrote is left out with its line. The rest must still pass `gate.lint`.
    """
    private = [skill for skill in skills if width(skill.scope) == 0]
    lessons = [skill for skill in private if skill.state is SkillState.LIVE]  # what is still a canary has proven nothing
    groups = [
        group
        for group in group_similar(find_similar(lessons, SAME_LESSON, across_scopes=True))
        if len({skill.scope for skill in group}) >= least_users
    ]
    situations = _Situations(private) if groups else None
    promotions = []
    for group in groups:
        shared = shared_text(group, scope, least_users)
        if shared is not None and situations is not None and not situations.hold_contrary(group):
            promotions.append(Promotion(shared, tuple(skill.name for skill in group), len({skill.scope for skill in group})))
    return promotions


def shared_text(group: Sequence[Skill], scope: str | None, least_users: int = LEAST_USERS) -> Skill | None:
    """What the skills of a group have in common, as one skill, or None where that is no whole skill."""
    common = _common_words(group, least_users)
    for skill in _most_typical_first(group):
        body = "\n".join(line for line in skill.body.splitlines() if _words(line) <= common).strip()
        name = "-".join(word for word in skill.name.split("-") if word in common)[:64].strip("-")
        if not body or not name or not _words(skill.trigger) <= common:
            continue
        shared = Skill(SkillName(name), skill.trigger, body, None, scope, {}, SkillState.DRAFT, Authorship.EVOLVER)
        if not lint(shared):
            return shared
    return None


class _Situations:
    """Skills by the words of their situation, to find those that may contradict a group without looking at all of them."""

    def __init__(self, skills: Sequence[Skill]) -> None:
        self._skills = skills
        self._having: dict[str, list[int]] = {}
        for number, skill in enumerate(skills):
            for term in situation_terms(skill):
                self._having.setdefault(term, []).append(number)

    def hold_contrary(self, group: Sequence[Skill]) -> bool:
        """Whether another skill for the same situation contradicts one of these."""
        return any(
            other.name != skill.name and is_same_situation(skill, other) and contrary(skill.body, other.body) is not None
            for skill in group
            for other in self._near(skill)
        )

    def _near(self, skill: Skill) -> list[Skill]:
        """Skills that share one of its rarest words: two for the same situation share a third of all, the rare ones among them."""
        rarest = sorted(situation_terms(skill), key=lambda term: (len(self._having.get(term, ())), term))
        looked = dict.fromkeys(number for term in rarest[: 1 + 2 * len(rarest) // 3] for number in self._having.get(term, ()))
        return [self._skills[number] for number in looked]


def _common_words(group: Iterable[Skill], least_users: int) -> set[str]:
    """Words that at least this many users wrote."""
    by_user: dict[str | None, set[str]] = {}
    for skill in group:
        by_user.setdefault(skill.scope, set()).update(_words(f"{skill.name} {skill.trigger}\n{skill.body}"))
    counts: dict[str, int] = {}
    for words in by_user.values():
        for word in words:
            counts[word] = counts.get(word, 0) + 1
    return {word for word, users in counts.items() if users >= least_users}


def _words(text: str) -> set[str]:
    """Every word and number, as written but for its case: stricter than the terms of retrieval, which leave out some."""
    return set(_WORD.findall(text.casefold()))


def _most_typical_first(group: Sequence[Skill]) -> list[Skill]:
    terms = {skill.name: text_terms(skill) for skill in group}
    alike = {name: sum(overlap(own, other) for other in terms.values()) for name, own in terms.items()}
    return sorted(group, key=lambda skill: (-alike[skill.name], skill.name))
