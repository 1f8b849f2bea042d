"""Standing instructions in a person's own words: "always…", "never…", "from now on…".

What is found is kept verbatim: nobody's "never push to main" may become "push to main". Where it is not clear that the person
lays down a rule (questions, quotations, reports, once-only requests), nothing is found: a rule that is missed can be said again,
one that was never given cannot be unsaid. Nor is anything found in a briefing, which programs send in a person's place: its rules
are for the task it comes with.
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
_ROLES = (
    "(?:sub-?)?agent|ai|analyst|architect|assistant|bot|chatbot|classifier|coder|component|designer|developer|editor|engineer"
    "|evaluator|expert|generator|judge|model|planner|professional|programmer|researcher|reviewer|scientist|specialist|system"
    "|tester|translator|tutor|worker|writer"
)
_GIVES_A_ROLE = re.compile(
    rf"\W*(?:(?:you are|act) (?:now )?(?:acting )?(?:as )?(?!my\b|our\b)(?:an? |the )?[\w ,/-]{{0,60}}\b(?:{_ROLES})\b"
    r"|du bist (?:jetzt )?eine?r? |sie sind eine?r? |eres una? |tu es une? |vous êtes une? "
    r"|你(?:现在|現在)?是(?:一|个|個)|あなたは)",
    re.IGNORECASE,
)
_STRUCTURE = re.compile(r"^\s*(?:#{1,6} \S|[-*•] \S|\d{1,2}[.)] \S|<[a-z][\w-]*>\s*$)", re.MULTILINE)
_STRUCTURED_CHARS = 800
_STRUCTURED_LINES = 4
_BRIEFING_CHARS = 2_500


@dataclass(frozen=True, slots=True)
class Instruction:
    """One standing instruction: the person's words, what they ask for, and their language."""

    words: str
    polarity: Polarity
    language: str


def find_instructions(text: str) -> tuple[Instruction, ...]:
    """The standing instructions in what a person said, in order."""
    if is_briefing(text):
        return ()
    sentences = own_sentences(text)
    found: list[Instruction] = []
    at = 0
    while at < len(sentences):
        instruction, read = _read(sentences, at)
        if instruction is not None and instruction.words not in {other.words for other in found}:
            found.append(instruction)
        at += read
    return tuple(found)


def is_briefing(text: str) -> bool:
    """Whether a text reads as what a program, or somebody who writes prompts, sends to a model: it gives it a role, or is long, or
    is built of headings and lists."""
    if _GIVES_A_ROLE.match(text) or len(text) > _BRIEFING_CHARS:
        return True
    return len(text) > _STRUCTURED_CHARS and len(_STRUCTURE.findall(text)) >= _STRUCTURED_LINES


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
