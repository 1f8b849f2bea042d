"""Phrases that people use about answers, in a dozen languages (`phrases.toml`), names and words of
programs (`programs.toml`), and the comparison of two requests by their words.

A phrase is searched in text normalised by `spoken`. It matches whole words; a star at its end
matches any ending; scripts without spaces are searched as they are."""

import re
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

_FOLDER = files("metaclaw.outcome")
_PHRASES, _PROGRAMS = (
    tomllib.loads(_FOLDER.joinpath(name).read_text(encoding="utf-8"))
    for name in ("phrases.toml", "programs.toml")
)


def programs_of(name: str) -> tuple[str, ...]:
    """A table of `programs.toml`."""
    return _entries(_PROGRAMS[name])


def _entries(table: str) -> tuple[str, ...]:
    return tuple(entry for entry in map(str.strip, table.split("|")) if entry)


_COLOUR = re.compile(r"\x1b\[[\d;]{0,12}m")


class ProgramWords:
    """Words with which programs and tools report something: some tables of `programs.toml`.

    An entry is found only as whole words: no letter, digit or underscore may touch it. So
    `enotfound` is not found in `ModuleNotFoundError`. A star at the end of an entry matches any
    ending. Each entry is searched as plain text first, because a regular expression with all of
    them takes ten times as long."""

    __slots__ = ("_entries",)

    def __init__(self, *entries: str) -> None:
        self._entries = tuple((entry.rstrip("*"), entry.endswith("*")) for entry in entries)

    def find(self, text: str) -> str | None:
        """The first entry that occurs in a text in lower case, without its star; None if there is
        none.
        """
        if "\x1b" in text:
            text = _COLOUR.sub("", text)
        return next(
            (
                entry
                for entry, is_open in self._entries
                if entry in text and _has_words(text, entry, is_open)
            ),
            None,
        )


def _has_words(text: str, entry: str, is_open: bool) -> bool:
    at = text.find(entry)
    while at >= 0:
        end = at + len(entry)
        # The letter of an escape such as \n, in JSON within a text, does not touch the entry.
        is_free = not _is_in_word(text[at - 1 : at]) or text[at - 2 : at - 1] == "\\"
        if is_free and (is_open or not _is_in_word(text[end : end + 1])):
            return True
        at = text.find(entry, end)
    return False


def _is_in_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def program_words(table: str) -> ProgramWords:
    """The entries of a table of `programs.toml`, as words to be found."""
    return ProgramWords(*programs_of(table))


MAX_CHARS = 800
_HEAD_CHARS = 600
_QUOTED = re.compile(
    r"```[^`]{0,2000}(?:```|$)|`[^`\n]{1,200}`|\"[^\"\n]{3,200}\"|“[^”\n]{1,200}”|«[^»\n]{1,200}»|「[^」\n]{1,200}」"
    r"|『[^』\n]{1,200}』|(?<!\w)'[^'\n]{3,200}'(?!\w)|^>[^\n]*$",
    re.MULTILINE,
)
_NOT_A_WORD = re.compile(r"[^\w'+#./:%-]+|(?<=\w)[./:'-]+(?=\s|$)|(?<!\S)[./:'-]+")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_DIGITS = (
    "zero null|one eins un uno une|two zwei deux dos|three drei trois tres|four vier quatre"
    " cuatro|five fünf cinq"
)
_NUMBERS = {
    word: str(number) for number, names in enumerate(_DIGITS.split("|")) for word in names.split()
}
_FILLER = frozenset(programs_of("filler"))


def spoken(text: str) -> str:
    """Normalise: remove quotations and code, lower the case, put a space at both ends. Of a long
    text only the beginning and the end are used, because the middle is mostly pasted."""
    if len(text) > MAX_CHARS:
        text = f"{text[:_HEAD_CHARS]} {text[_HEAD_CHARS - MAX_CHARS :]}"
    unquoted = _QUOTED.sub(" ", text.replace("’", "'"))
    said = " ".join(_NOT_A_WORD.sub(" ", unquoted.lower()).split())
    return f" {said} " if said else " "


@lru_cache(maxsize=64)
def content_words(text: str) -> frozenset[str]:
    """The words of a request without filler; single characters in scripts without spaces."""
    found: set[str] = set()
    for word in spoken(text).split():
        if _CJK.search(word):
            found.update(word)
        elif word not in _FILLER:
            found.add(_NUMBERS.get(word, word))
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Likeness:
    """How a later request relates to an earlier one: `kept` is the share of the earlier one's
    `size` words that it repeats, `lost` how many do not, `added` how many are new."""

    kept: float
    lost: int
    added: int
    size: int

    @property
    def says_the_same(self) -> bool:
        return (
            self.size >= 2
            and self.kept >= 0.8
            and not self.is_about_another
            and self.added <= max(1, self.size // 3)
        )

    @property
    def puts_it_differently(self) -> bool:
        """Whether the later request repeats all of the earlier one and adds to it."""
        return self.size >= 2 and self.lost == 0 and self.added <= 8

    @property
    def is_about_another(self) -> bool:
        """Whether some words were replaced by others: the same request for another thing."""
        return self.lost > 0 and self.added > 0


def likeness(earlier: str, later: str) -> Likeness:
    """Compare two requests by their content words."""
    before, after = content_words(earlier[:MAX_CHARS]), content_words(later[:MAX_CHARS])
    common = len(before & after)
    return Likeness(
        common / len(before) if before else 0.0,
        len(before) - common,
        len(after) - common,
        len(before),
    )


def echoes(task: str, text: str) -> bool:
    """Whether a short reply only repeats words of the task: a part of it was not done."""
    words, task_words = content_words(text[:MAX_CHARS]), content_words(task[:MAX_CHARS])
    return 0 < len(words) <= 4 and len(text) <= 60 and words <= task_words


_WIDE_FROM = "\u3040"


class Lexicon:
    """Phrases of one meaning, indexed by their first word, so that the length of the table does not
    matter.
    """

    __slots__ = ("_by_word", "_openings", "_stems", "_wide")

    def __init__(self, phrases: tuple[str, ...]) -> None:
        by_word: dict[str, list[str]] = defaultdict(list)
        self._wide = tuple(phrase.rstrip("*") for phrase in phrases if phrase[0] >= _WIDE_FROM)
        narrow = [phrase for phrase in phrases if phrase[0] < _WIDE_FROM]
        self._stems = tuple(
            f" {phrase[:-1]}" for phrase in narrow if phrase.endswith("*") and " " not in phrase
        )
        for phrase in narrow:
            if " " in phrase or not phrase.endswith("*"):
                by_word[phrase.split()[0]].append(
                    f" {phrase[:-1]}" if phrase.endswith("*") else f" {phrase} "
                )
        self._by_word = dict(by_word)
        self._openings = (
            *self._wide,
            *self._stems,
            *(phrase for same in by_word.values() for phrase in same),
        )

    def find(self, text: str) -> str | None:
        """A phrase that occurs in a normalised text, or None."""
        for word in dict.fromkeys(text.split()):
            for phrase in self._by_word.get(word, ()):
                if phrase in text:
                    return phrase.strip()
        others = self._stems if text.isascii() else self._stems + self._wide
        return next((phrase.strip() for phrase in others if phrase in text), None)

    def closes(self, text: str) -> bool:
        """Whether a normalised text ends with one of the phrases."""
        return text.endswith(self._openings) or text.rstrip().endswith(self._openings)

    def opens(self, text: str) -> str | None:
        """The phrase that a normalised text begins with, or None."""
        if not text.startswith(self._openings) and not text.startswith(self._openings, 1):
            return None
        return next(
            phrase.strip()
            for phrase in self._openings
            if text.startswith(phrase) or text.startswith(phrase, 1)
        )


def lexicon(table: str) -> Lexicon:
    """The phrases of one table of `phrases.toml`."""
    return Lexicon(_entries(_PHRASES[table]))


DENIALS = lexicon("denials")
HARMLESS_DENIALS = lexicon("harmless_denials")
CORRECTIONS = lexicon("corrections")
COMPLAINTS = lexicon("complaints")
REPROACHES = lexicon("reproaches")
GIVES_UP = lexicon("gives_up")
OTHER_TOPIC = lexicon("other_topic")
RULES = lexicon("rules")
RULES_AFTER_FAULT = lexicon("rules_after_fault")
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
REFUSING, HARMLESS_REFUSALS = lexicon("refusing"), lexicon("harmless_refusals")
WHYS = lexicon("whys")
