"""Standing instructions in a person's own words: "always…", "never…", "from now on…".

What is found is kept verbatim: nobody's "never push to main" may become "push to main". Where it is not clear that the person
lays down a rule (questions, quotations, reports, once-only requests), nothing is found: a rule that is missed can be said again,
one that was never given cannot be unsaid.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from metaclaw.skills.evolve.chinese import CHINESE
from metaclaw.skills.evolve.english import ENGLISH
from metaclaw.skills.evolve.french import FRENCH
from metaclaw.skills.evolve.german import GERMAN
from metaclaw.skills.evolve.grammar import Grammar, Polarity
from metaclaw.skills.evolve.japanese import JAPANESE
from metaclaw.skills.evolve.sentences import Sentence, own_sentences
from metaclaw.skills.evolve.spanish import SPANISH

GRAMMARS: tuple[Grammar, ...] = (ENGLISH, GERMAN, SPANISH, FRENCH, CHINESE, JAPANESE)
MAX_SENTENCE_CHARS = 500
_MAX_LIST_ITEMS = 12
_TITLE = re.compile(r"^\W*(?:Always|Never)(?: [A-Z][\w']*){2,} (?:is|was|are|by|from)\b")
_WORD = re.compile(r"\w")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One standing instruction: the person's words, what they ask for, and their language."""

    words: str
    polarity: Polarity
    language: str


def find_instructions(text: str) -> tuple[Instruction, ...]:
    """The standing instructions in what a person said, in order."""
    sentences = own_sentences(text)
    found: list[Instruction] = []
    at = 0
    while at < len(sentences):
        instruction, read = _read(sentences, at)
        if instruction is not None and instruction.words not in {other.words for other in found}:
            found.append(instruction)
        at += read
    return tuple(found)


def _read(sentences: Sequence[Sentence], at: int) -> tuple[Instruction | None, int]:
    """The instruction that begins here, if any, and how many sentences it takes: one, or one and the list it heads."""
    sentence = sentences[at]
    if len(sentence.words) > MAX_SENTENCE_CHARS or _TITLE.match(sentence.words):
        return None, 1
    seen = sentence.seen.lower()
    grammar = next((grammar for grammar in GRAMMARS if grammar.is_instruction(seen)), None)
    if grammar is None:
        return None, 1
    items = _items(sentences[at + 1 :]) if sentence.heads_list else []
    if sentence.heads_list and not items:
        return None, 1
    polarity = grammar.polarity("; ".join([seen, *(item.seen.lower() for item in items)]))
    words = "\n".join([sentence.words, *(f"- {item.words}" for item in items)])
    return Instruction(words, polarity, grammar.language), 1 + len(items)


def _items(sentences: Sequence[Sentence]) -> list[Sentence]:
    items: list[Sentence] = []
    for sentence in sentences[:_MAX_LIST_ITEMS]:
        if not sentence.in_list or not _WORD.search(sentence.seen):
            break
        items.append(sentence)
    return items
