"""A person's words made comparable: quotes and code taken out, lower case, one space between words; and how alike two requests are.

Only the beginning and the end of a long text are looked at: what people paste in between is not what they say about an answer.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from metaclaw.outcome.tables import programs_of

MAX_CHARS = 800
_HEAD_CHARS = 600
_QUOTED = re.compile(
    r"```[^`]{0,2000}(?:```|$)|`[^`\n]{1,200}`|\"[^\"\n]{3,200}\"|“[^”\n]{1,200}”|«[^»\n]{1,200}»|「[^」\n]{1,200}」"
    r"|『[^』\n]{1,200}』|(?<!\w)'[^'\n]{3,200}'(?!\w)|^>[^\n]*$",
    re.MULTILINE,
)
_NOT_A_WORD = re.compile(r"[^\w'+#./:%-]+|(?<=\w)[./:'-]+(?=\s|$)|(?<!\S)[./:'-]+")
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_DIGITS = (
    "zero null",
    "one eins un uno une",
    "two zwei deux dos",
    "three drei trois tres",
    "four vier quatre cuatro",
    "five fünf cinq",
)
_NUMBERS = {word: str(number) for number, names in enumerate(_DIGITS) for word in names.split()}
_FILLER = frozenset(programs_of("filler"))


def spoken(text: str) -> str:
    """The words without quotations and code, in lower case, with a space at both ends; a single space where there are none."""
    if len(text) > MAX_CHARS:
        text = f"{text[:_HEAD_CHARS]} {text[_HEAD_CHARS - MAX_CHARS :]}"
    unquoted = _QUOTED.sub(" ", text.replace("’", "'"))
    said = " ".join(_NOT_A_WORD.sub(" ", unquoted.lower()).split())
    return f" {said} " if said else " "


@lru_cache(maxsize=64)
def content_words(text: str) -> frozenset[str]:
    """What a request is about: its words without filler; single characters where a script has no spaces."""
    found: set[str] = set()
    for word in spoken(text).split():
        if _WIDE.search(word):
            found.update(word)
        elif word not in _FILLER:
            found.add(_NUMBERS.get(word, word))
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Likeness:
    """How a later request relates to an earlier one: `kept` is the share of the earlier one's `size` words that come again, `lost`
    how many do not, `added` how many are new."""

    kept: float
    lost: int
    added: int
    size: int

    @property
    def says_the_same(self) -> bool:
        """Nothing of the earlier request is given up and hardly anything is new."""
        return self.size >= 2 and self.kept >= 0.8 and not self.is_about_another and self.added <= max(1, self.size // 3)

    @property
    def puts_it_differently(self) -> bool:
        """Nothing of the earlier request is given up, and more is said about it."""
        return self.size >= 2 and self.lost == 0 and self.added <= 8

    @property
    def is_about_another(self) -> bool:
        """Something was put in the place of something else: the same wish for another thing."""
        return self.lost > 0 and self.added > 0

    @property
    def is_unrelated(self) -> bool:
        """Next to nothing in common."""
        return self.kept <= 0.25


def likeness(earlier: str, later: str) -> Likeness:
    """Compare two requests by what they are about."""
    before, after = content_words(earlier[:MAX_CHARS]), content_words(later[:MAX_CHARS])
    common = len(before & after)
    return Likeness(common / len(before) if before else 0.0, len(before) - common, len(after) - common, len(before))


def echoes(task: str, said: str) -> bool:
    """Whether a short reply only repeats words of the task: a part of it that was passed over."""
    words, asked = content_words(said[:MAX_CHARS]), content_words(task[:MAX_CHARS])
    return 0 < len(words) <= 4 and len(said) <= 60 and words <= asked
