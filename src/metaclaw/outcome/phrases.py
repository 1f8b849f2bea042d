"""What people say about an answer, in a dozen languages: the phrases of `phrases.toml`, and how they are looked for.

A phrase is looked for in `words.spoken` text. It stands between word borders; a star at its end lets the word go on; scripts
without spaces are searched as they are.
"""

from collections import defaultdict

from metaclaw.outcome.tables import phrases_of

_WIDE_FROM = "\u3040"


class Lexicon:
    """Phrases of one meaning. They are found by their first word, so that a long table costs no more than a short one."""

    __slots__ = ("_by_word", "_openings", "_stems", "_wide")

    def __init__(self, phrases: tuple[str, ...]) -> None:
        by_word: dict[str, list[str]] = defaultdict(list)
        self._wide = tuple(phrase.rstrip("*") for phrase in phrases if phrase[0] >= _WIDE_FROM)
        narrow = [phrase for phrase in phrases if phrase[0] < _WIDE_FROM]
        self._stems = tuple(f" {phrase[:-1]}" for phrase in narrow if phrase.endswith("*") and " " not in phrase)
        for phrase in narrow:
            if " " in phrase or not phrase.endswith("*"):
                by_word[phrase.split()[0]].append(f" {phrase[:-1]}" if phrase.endswith("*") else f" {phrase} ")
        self._by_word = dict(by_word)
        self._openings = (*self._wide, *self._stems, *(phrase for same in by_word.values() for phrase in same))

    def find(self, text: str) -> str | None:
        """One of them that is in a spoken text."""
        for word in dict.fromkeys(text.split()):
            for phrase in self._by_word.get(word, ()):
                if phrase in text:
                    return phrase.strip()
        others = self._stems if text.isascii() else self._stems + self._wide
        return next((phrase.strip() for phrase in others if phrase in text), None)

    def closes(self, text: str) -> bool:
        """Whether a spoken text ends with one of them."""
        return text.endswith(self._openings) or text.rstrip().endswith(self._openings)

    def opens(self, text: str) -> str | None:
        """One of them that a spoken text begins with."""
        if not text.startswith(self._openings) and not text.startswith(self._openings, 1):
            return None
        return next(phrase.strip() for phrase in self._openings if text.startswith(phrase) or text.startswith(phrase, 1))


def lexicon(table: str) -> Lexicon:
    """The phrases of one table."""
    return Lexicon(phrases_of(table))


DENIALS = lexicon("denials")
HARMLESS_DENIALS = lexicon("harmless_denials")
CORRECTIONS = lexicon("corrections")
COMPLAINTS = lexicon("complaints")
REPROACHES = lexicon("reproaches")
GIVES_UP = lexicon("gives_up")
OTHER_TOPIC = lexicon("other_topic")
RULES = lexicon("rules")
REQUIREMENTS = lexicon("requirements")
MISGIVINGS = lexicon("misgivings")
BUTS = lexicon("buts")
REDO = lexicon("redo")
UNDO = lexicon("undo")
UNDO_FORMS = lexicon("undo_forms")
ABOUT_UNDO = lexicon("about_undo")
PRAISE = lexicon("praise")
THANKS = lexicon("thanks")
ASSENT = lexicon("assent")
NEXT = lexicon("next")
CHANGED_MIND = lexicon("changed_mind")
OWN_MISTAKE = lexicon("own_mistake")
MANNERS = lexicon("manners")
APOLOGIES = lexicon("apologies")
REFUSALS = lexicon("refusals")
HARM = lexicon("harm")
EXPECTED_FAILURE = lexicon("expected_failure")
TROUBLE = lexicon("trouble")
CUT_OFF = lexicon("cut_off")
RESUME = lexicon("resume")
INTERRUPTED = lexicon("interrupted")
REFUSED_BY_PERSON = lexicon("refused_by_person")
QUESTIONS = lexicon("questions")
NEARLY = lexicon("nearly")
LEADING_QUESTIONS = lexicon("leading_questions")
POINTING = lexicon("pointing")
IMPERATIVES = lexicon("imperatives")
REQUESTS = lexicon("requests")
POLITE_ENDS = lexicon("polite_ends")
PLANS = lexicon("plans")
NEGATIONS = lexicon("negations")
WHYS = lexicon("whys")
