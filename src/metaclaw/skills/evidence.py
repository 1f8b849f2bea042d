"""Retrieval scores: how much evidence a request gives for a skill, and how much is needed to place it.

**Informativeness.** A word that few skills have says more. Its weight is `ln((N + M) / (df + M·p))`: N skills, of which df have the
word, smoothed with M imagined documents of ordinary requests in which it has probability p (from three short lists: very common,
common, the rest). So "file" says little even in a library of two skills, where counting alone would call it rare; in a large
library what was counted outweighs the lists.

**Evidence.** A word found in a skill counts with its informativeness times a grade: how firmly the skill stands for that word (in
its name and trigger, in one of them or several examples, in one example, often in the body, once in the body, once in a long
body). The evidence for a skill is the sum over the request's words. This is BM25 with its saturated term frequency rounded to six
grades; integers, so that sums do not depend on their order.

**Abstention.** Read as a log-likelihood, evidence of E is a coincidence that about N·e^-E skills show by chance. One word that no
other skill has gives at most `ln(N + M)` = L, so the bar is set in units of L: evidence must reach 0.74·L, a little more than one
such word in the trigger alone gives (0.75·(L - ln 2)) and less than one in name and trigger. So a lone rare word, or some stray
words of a body, are not enough; two informative words of the trigger, or the word a skill is named after, are. Three things move
the bar:
- In a small library a coincidence is rarer still: up to 100 skills 0.65 of the bar is enough, from 10,000 on all of it.
- Where the evidence explains nearly the whole request ("commit this please"), there is little else it could have been about: the
  bar falls, by up to 55 %.
- The more words a request has, the more of them are met by chance. Chance adds up like a random walk, so the evidence must also
  reach 0.8·√Q, Q being the informativeness of all the request's words, those that no skill knows included.

The constants were chosen on the hand-written cases of `benchmarks/retrieval_cases.py`; the benchmark prints what they do.
"""

from collections import Counter
from math import log, sqrt

from metaclaw.domain.skill import Skill
from metaclaw.text import COMMON_WORDS, VERY_COMMON_WORDS, count_terms, list_terms, stem

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
    """The least evidence with which a skill is placed for a request whose words have this much informativeness in all.

    With the bar b and the request's whole mass Q, a skill passes where E >= b·(1 - f·(E/Q)²), f being the fall; solved for E.
    """
    if mass <= 0:
        return UNIT * UNIT
    bar = _BAR * _ease(skills) * log(skills + _IMAGINED)
    bend = bar * _BAR_FALLS_BY / (mass * mass)
    least = (sqrt(1 + 4 * bend * bar) - 1) / (2 * bend)
    return round(UNIT * max(least, _NOISE * sqrt(mass)))


def _ease(skills: int) -> float:
    """The share of the bar that is asked for in a library of this size."""
    growth = log(max(skills, _SMALL_LIBRARY) / _SMALL_LIBRARY) / log(_LARGE_LIBRARY / _SMALL_LIBRARY)
    return min(1.0, _EASE_WHILE_SMALL + (1 - _EASE_WHILE_SMALL) * growth)
