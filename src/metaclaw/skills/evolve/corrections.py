"""Corrections in a person's own words: what should have been done, where they say it.

"Wrong", "no" and "try again" are corrections too, but nobody can learn from them what to do; those give nothing here. So does a
next task, which is why an imperative counts only beside a complaint, or where it names what it is to replace.
"""

import re

from metaclaw.skills.evolve.sentences import Sentence, own_sentences
from metaclaw.skills.terms import list_terms

MAX_WORDS_CHARS = 1_000
_MAX_SENTENCES = 6
_I = re.IGNORECASE

_COMPLAINT = re.compile(
    r"\b(?:no|nope|wrong|incorrect|mistake|not (?:right|correct|what|like|how|ok|okay|good)|isn't|wasn't|aren't|that's not|bad"
    r"|broken|you forgot|you missed"
    r"|again|still|too (?:long|short|much|many|formal|verbose|complicated|slow)|hate|annoying|disappoint\w+|you (?:ignored"
    r"|skipped|broke|deleted|changed)"
    r"|falsch|nein|nicht (?:richtig|so|das)|schon wieder|fehler|zu (?:lang|kurz)|mal|incorrecto|está mal|otra vez|demasiado"
    r"|faux|mauvais|pas (?:bon|ça)|encore|trop)\b"
    r"|错|不对|不對|不是这|太长|太短|違う|違い|間違|だめ|ダメ|長すぎ",
    _I,
)
_SAYS_WHAT = re.compile(
    r"\b(?:should(?:n't)?(?: have)?|must(?:n't)?|has to|have to|needs? to|ought to|supposed to|instead|rather than|i (?:wanted"
    r"|asked for|meant|need|want|expected)"
    r"|not \w[^.]* but|but \w+|without|don't|do not|never|always|only|is called|the (?:right|correct) \w+ is|not in|in \w+, not"
    r"|make sure|remember|next time"
    r"|sollte\w*|sollst|muss|müssen|stattdessen|statt|sondern|ich (?:wollte|meinte)|ohne|kein\w*"
    r"|debe\w*|deberías?|en lugar de|en vez de|sino|quería|tiene que|sin"
    r"|devrait|doit|au lieu de|plutôt|je voulais|il faut|sans)\b"
    r"|, not (?:an? |the )?\w+\W*$|\bit'?s \w+[^.]*, not\b|应该|应当|應該|改成|改为|改為|而不是|而是|要用|请用|請用|不要|べき"
    r"|ではなく|代わり|てください|ないで|必要があ",
    _I,
)
_IMPERATIVE = re.compile(
    r"^(?:\W|\b(?:no|nope|wrong|please|bitte|por favor|nein|non|so|then|and|but|ok|okay)\b)*"
    r"(?:use|put|write|add|keep|give|call|name|format|return|answer|reply|respond|include|leave|make|start|end|sort|round|show"
    r"|read|run|ask|quote|convert|spell"
    r"|follow|split|wrap|remove|drop|avoid|stop|set|check|verify|list|order|send|stick|prefer|translate"
    r"|verwende|nutze|benutze|nimm|schreib\w*|antworte|gib|lass|usa|utiliza|escribe|pon|responde|utilise|écris|mets|réponds)\b",
    _I,
)
_ONE_OFF = re.compile(
    r"\b(?:this time|for now|just (?:this )?once|for the moment|today|diesmal|vorerst|esta vez|por ahora|cette fois|pour"
    r" l'instant)\b|这次|暂时|今回|とりあえず",
    _I,
)
_EMPTY = """
again answer answers antwort asked bad better bug careful check correct correctly did different doing encore error expected
fail failed falsch faux fehler fix forget forgot happen incorrect issue job long look mal mauvais mean meant mistake must need
nochmal otra output problem properly read redo response result richtig right same short should still stop terrible thing time
try vez versuch want wanted work working works wrong
"""
_SAYS_NOTHING = frozenset(list_terms(_EMPTY))


def find_correction(text: str) -> str | None:
    """The sentences that say what to do or to leave, verbatim; None where they only complain, ask, or go on to something else."""
    sentences = own_sentences(text)
    is_complaint = any(_COMPLAINT.search(sentence.seen) for sentence in sentences)
    telling = [sentence.words for sentence in sentences if _tells(sentence, is_complaint=is_complaint)]
    words = " ".join(telling[:_MAX_SENTENCES])
    return words if words and len(words) <= MAX_WORDS_CHARS else None


def _tells(sentence: Sentence, *, is_complaint: bool) -> bool:
    if sentence.seen.rstrip().endswith(("?", "？")) or _ONE_OFF.search(sentence.seen):
        return False
    if not (_SAYS_WHAT.search(sentence.seen) or (is_complaint and _IMPERATIVE.match(sentence.seen))):
        return False
    return any(term not in _SAYS_NOTHING for term in list_terms(sentence.words))
