"""Words as evidence: the terms of a sentence in one form, whatever their endings, and which of them say nothing on their own."""

import re
from functools import lru_cache

from metaclaw.privacy.unicode import plain

_WORD = re.compile(r"[^\W_]+(?:[-'’._/:@+#][^\W_]+)*|[^\W_]+")
_JOINT = re.compile(r"[-'’._/:@+#]")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_ENDINGS = ("ations", "ation", "ments", "ment", "ings", "ing", "edly", "ies", "ied", "ed", "es", "ly", "s", "e")
_STEM_CHARS = 6
_EMPTY = frozenset(
    ["a", "an", "the", "and", "or", "but", "if", "then", "than", "so", "as", "at", "by", "for", "from", "in", "into", "of", "on", "onto", "off", "over", "under", "to", "up", "with", "without", "within", "out", "about", "after", "before", "again", "all", "also", "am", "any", "are", "be", "been", "being", "both", "can", "could", "did", "do", "does", "doing", "done", "down", "each", "few", "had", "has", "have", "having", "he", "her", "here", "hers", "him", "his", "how", "i", "it", "its", "itself", "just", "me", "more", "most", "my", "no", "nor", "not", "now", "only", "other", "our", "ours", "own", "same", "she", "should", "some", "such", "that", "their", "them", "themselves", "these", "they", "this", "those", "through", "too", "until", "very", "was", "we", "were", "what", "when", "where", "which", "while", "who", "whom", "why", "will", "would", "you", "your", "yours", "yourself", "must", "may", "might", "shall", "need", "needs", "make", "makes", "made", "let", "get", "gets", "got", "go", "goes", "one", "two", "first", "next", "last", "always", "never", "every", "ever", "instead", "please", "don't", "do", "doesn't", "didn't", "isn't", "aren't", "can't", "won't", "shouldn't", "it's", "that's", "there", "there's", "i'm", "you're", "we're", "they're", "via", "per", "etc", "e.g", "i.e", "rather", "whenever", "there", "whether", "because", "since", "during", "upon", "against", "between", "them", "thing", "things", "way", "ways", "really", "actually", "currently", "still", "already", "even", "like", "use", "used", "using", "uses", "user", "users", "want", "wants", "sure", "case", "cases", "new", "old", "good", "right", "wrong", "correct", "der", "die", "das", "und", "oder", "nicht", "ein", "eine", "den", "dem", "des", "ist", "im", "in", "zu", "mit", "von", "für", "auf", "le", "la", "les", "un", "une", "de", "du", "des", "et", "ou", "ne", "pas", "est", "el", "los", "las", "y", "o", "no", "es", "en", "con", "por", "para", "il", "lo", "gli", "e", "non", "di", "da", "una", "het", "een", "van", "niet"]
)
GENERIC = frozenset(
    ["answer", "answers", "reply", "respond", "response", "task", "tasks", "request", "question", "result", "results", "output", "step", "steps", "check", "verify", "confirm", "test", "work", "error", "errors", "message", "read", "write", "run", "look", "think", "review", "ask", "say", "tell", "show", "give", "report", "finish", "start", "begin", "end", "done", "try", "repeat", "list", "explain", "note", "remember", "follow", "apply", "avoid", "keep", "change", "change", "fix", "problem", "issue", "information", "example", "examples", "clear", "clearly", "short", "brief", "exactly", "carefully", "double-check", "again", "skill", "instruction", "instructions", "rule", "trigger", "anti-pattern", "pattern", "reason", "fact", "facts", "data", "text", "word", "words", "line", "lines", "person", "people", "assistant", "agent", "model", "conversation", "session", "turn", "tool", "tools", "command", "commands", "action", "actions", "approach", "mistake", "failure", "fail", "failed", "correction", "corrected", "ensure", "important", "time", "times", "code", "file", "files", "project"]
)


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """The word without its ending and cut short, so that `configured` and `configuration` meet."""
    low = word.casefold().replace("’", "'").removesuffix("'s")
    if any(char in low for char in "._/:@+#") or any(map(str.isdigit, low)):
        return low
    for ending in _ENDINGS:
        if low.endswith(ending) and len(low) - len(ending) >= 3:
            low = low[: -len(ending)]
            break
    return low[:_STEM_CHARS] if low.isascii() else low[: _STEM_CHARS + 1]


_GENERIC_STEMS = frozenset(map(stem, GENERIC))
_EMPTY_STEMS = frozenset(word for word in _EMPTY)


def terms(text: str) -> frozenset[str]:
    """What a text speaks of. A compound (`build:prod`, `evil.example`) counts as itself and by its pieces."""
    found: set[str] = set()
    for match in _WORD.finditer(plain(text)):
        word = match[0]
        cjk = _CJK.findall(word)
        for run in cjk:
            found |= {run[at : at + 2] for at in range(len(run) - 1)} or {run}
        if cjk or word.casefold() in _EMPTY_STEMS:
            continue
        found.add(stem(word))
        pieces = _JOINT.split(word)
        if len(pieces) > 1:
            found |= {stem(piece) for piece in pieces if len(piece) > 2 and piece.casefold() not in _EMPTY_STEMS}
    return frozenset(term for term in found if len(term) > 1 or term.isdigit())


def telling(found: frozenset[str]) -> frozenset[str]:
    """Those terms that are not said of every task."""
    return found - _GENERIC_STEMS
