"""Whether what a model read out of a person's message is the person's: their own words carry it, not text they pasted or quoted.

A model that is fooled repeats an order it found in foreign text as if the person had given it. So each item is compared with the
person's own sentences and with the foreign text around them. The comparison is in words: a rule that was translated or rephrased
shares few words with anything and passes; one whose words stand in foreign text, and not in the person's own, does not.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from metaclaw.domain.encoded_text import hides_text
from metaclaw.privacy.authority import Doubt, disguises
from metaclaw.privacy.capabilities import Capabilities, capabilities
from metaclaw.privacy.sentences import open_text, sentences
from metaclaw.privacy.terms import telling, terms

_CARRIED: Final = 0.5
_EXPLAINED: Final = 0.6
_SAID: Final = 0.75
_WINDOW: Final = 3
_SPELLED_OUT: Final = 3
_HINTED: Final = 0.25


@dataclass(frozen=True, slots=True)
class Ungrounded:
    """Why an item is not taken."""

    reason: str
    source: str = ""


def ungrounded(text: str, said: str, about: str, foreign: Iterable[str]) -> Ungrounded | None:
    """Why a text may not become a rule of the person whose own words `said` are; None where it may.

    `about` is what they answer; `foreign` is what stood around them: pasted, quoted and reported text, what tools and the client
    said.
    """
    if hides_text(text):
        return Ungrounded("it holds encoded text", text)
    meant = telling(terms(text)) or terms(text)
    known = terms(said)
    carried = _share(meant, known)
    if carried < _SAID:
        hidden = next((one for one in disguises(text) if one.doubt in (Doubt.HIDDEN, Doubt.FORGED, Doubt.OVERRIDE)), None)
        if hidden is not None:
            return Ungrounded(hidden.reason, hidden.instruction)
    if reach := _reach(text, said):
        return Ungrounded(f"the person did not name {reach.words()}")
    if len(text) > _SPELLED_OUT * len(said) and _share(meant, known | terms(about)) < _HINTED:
        return Ungrounded("the message is too short to say so")
    if carried < _CARRIED:
        for piece in _pieces(foreign):
            if _share(meant, terms(piece)) >= _EXPLAINED and len((meant - known) & terms(piece)) >= min(2, len(meant)):
                return Ungrounded("only text that the person pasted, quoted or reported says so", piece)
    return None


def _share(meant: frozenset[str], known: frozenset[str]) -> float:
    return len(meant & known) / len(meant) if meant else 0.0


def _reach(text: str, said: str) -> Capabilities:
    """What the text reaches for that the person did not name. Paths alone are harmless: a model may spell one out."""
    return replace(capabilities(text) - capabilities(said), paths=frozenset(), credentials=frozenset())


def _pieces(foreign: Iterable[str]) -> Iterable[str]:
    """The sentences of foreign text, and neighbouring ones together: an order may be spread over two or three."""
    for text in foreign:
        found = list(sentences(open_text(text), with_code=True))
        yield from found
        yield from (" ".join(found[at : at + _WINDOW]) for at in range(max(0, len(found) - 1)))
