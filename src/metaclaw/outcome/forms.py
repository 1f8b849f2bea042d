"""What kind of sentence a person's reply is, and what it is about: the clues that remain where no phrase tells."""

import re
from enum import StrEnum

from metaclaw.outcome import phrases, words
from metaclaw.outcome.reading import Reading


class Form(StrEnum):
    """A question, a request, a statement, or too little to tell."""

    QUESTION = "question"
    REQUEST = "request"
    STATEMENT = "statement"
    SCRAP = "scrap"


_OPENERS = re.compile(
    r"^(?: (?:ok|okay|alright|great|good|nice|cool|and|then|now|so|please|also|well|hm|hmm|lol|haha|bitte|dann|jetzt|und|gut"
    r"|ahora|bueno|y|et|alors|maintenant|bon)){1,4}(?= )"
)
_STATE_NOW = re.compile(
    r"^ (?:\w{1,20} )?(?:now|jetzt|ahora|maintenant) (?:the|it|it's|its|my|all|every|everything|everybody|nothing|there|they|we"
    r"|none|i get|i have|ist|sind|geht|das|der|die|alles|el|la|los|todo|le|les|tout) "
)
_CLAUSE_WORDS = 3
_SHORT = 3  # content words: who says so little speaks of what is in front of them


def form_of(reading: Reading, said: str) -> Form:
    """What kind of sentence it is."""
    raw = reading.raw
    if not is_clause(said):
        return Form.SCRAP
    if phrases.REQUESTS.opens(said) or phrases.POLITE_ENDS.closes(said):
        return Form.REQUEST
    if raw.endswith(("?", "？")) or phrases.QUESTIONS.opens(said):
        return Form.QUESTION
    bare = _OPENERS.sub("", said)
    if phrases.IMPERATIVES.opens(bare) or phrases.REQUESTS.opens(bare):
        return Form.REQUEST
    return Form.STATEMENT


def is_clause(said: str) -> bool:
    """Whether there are words enough for a sentence."""
    text = said.strip()
    return len(text.split()) >= _CLAUSE_WORDS or (not text.isascii() and len(text) > _CLAUSE_WORDS)


def turns_to_new(said: str) -> bool:
    """Whether the first words lead on to something new. "Now the page is blank" does not."""
    if not said.strip():
        return True
    return phrases.NEXT.opens(said) is not None and not _STATE_NOW.match(said) and not phrases.WHYS.opens(said)


def is_about_it(reading: Reading, said: str) -> bool:
    """Whether they speak of the answer: they point at it, or use words of it or of the task, or say very little."""
    spoken = words.content_words(said)
    return phrases.POINTING.find(said) is not None or len(spoken) <= _SHORT or shares_words(reading, said)


def shares_words(reading: Reading, said: str) -> bool:
    """Whether they use words of the answer or of the task."""
    about = words.content_words(reading.step.task[: words.MAX_CHARS]) | words.content_words(reading.answer[: words.MAX_CHARS])
    return bool(words.content_words(said) & about)
