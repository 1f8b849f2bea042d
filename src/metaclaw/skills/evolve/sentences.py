"""A person's own sentences in what they wrote: without code, logs, quotations, and texts they only want worked on.

A sentence keeps its words as they were written; beside them stands the same text with everything quoted blotted out, for rules to
look at, so that a rule that somebody quotes is not taken for one that they give.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_CHARS = 20_000
BLOT = "□"
_MOST_TAGS = 100
_I, _M, _S = re.IGNORECASE, re.MULTILINE, re.DOTALL

_FENCE = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[ \t]*$|\Z)", _S | _M)
_ELEMENT = re.compile(r"<([a-z][\w-]{0,40})(?:\s[^<>]{0,200})?>.{0,20000}?</\1>", _S | _I)
_QUOTED = re.compile(
    r"`[^`\n]+`|\"[^\"\n]+\"|“[^”\n]+”|„[^“”\n]+[“”]|«[^»\n]+»|「[^」\n]+」|『[^』\n]+』|‘[^’\n]+’|(?<![\w'])'[^'\n]+'(?!\w)"
)
_NOT_PROSE = re.compile(
    r"\s*(?:>|\$ |>>> |\+\+\+|---|@@|//|/\*|\*/|#|;|\||[+-](?=[^\s\d])|</?[a-z]|[{}\[\]()]+[,;]?\s*$"
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\[?\d\d:\d\d:\d\d"
    r"|\[?(?:ERROR|WARN(?:ING)?|INFO|DEBUG|TRACE|FATAL|CRITICAL|NOTICE)\b"
    r"|Traceback \(|File \"|at [\w.$]+\(|\w+(?:Error|Exception)\b|(?:E|F|W)\d{3,4}\b|fatal:|error:|warning:|panic:|npm ERR)"
)
_INDENTED = re.compile(r"(?: {4,}|\t+)(?![-*•]\s|\d+[.)]\s)")
_CODE_END = re.compile(r"[{;]\s*$|=>|\)\s*:\s*$|^\s*(?:def|class|import|return|const|let|var|if \(|for \()\b")
_BULLET = re.compile(r"\s*(?:[-*•–]\s+|\d{1,2}[.)]\s+)")
# "Translate this:", "Here is the log:": what follows is material, not the person speaking to us.
_MATERIAL = re.compile(
    r"\b(?:translat\w+|proof-?read\w*|summari[sz]\w+|rephras\w+|paraphras\w+|rewrite|reword\w*|correct|edit|classify|analy[sz]e"
    r"|explain|review|log|logs|output|error|errors|traceback|stack ?trace|transcript|text|document|article|e-?mail|letter|message"
    r"|following|below|here(?:'s| is| are)|readme|style ?guide|poem|sentence|paragraph|quote|says?|said|wrote"
    r"|übersetz\w*|fasse|korrigier\w*|folgend\w*|ausgabe|protokoll|traduc\w+|traduis\w*|resum\w+|résum\w+|corrig\w+|siguiente"
    r"|suivant"
    r"|registro|journal)\b[^\n]{0,60}:\s*$|(?:翻译|翻譯|总结|總結|校对|日志|日誌|翻訳|要約|校正|ログ)[^\n]{0,20}[:：]\s*$",
    _I,
)
_MATERIAL_BEHIND = re.compile(
    r"^\W*(?:(?:please|can you|could you|bitte) )*(?:translat\w*|proof-?read\w*|summari[sz]\w*|rephras\w*|paraphras\w*|rewrite"
    r"|reword\w*|correct|explain|classify|übersetz\w*|korrigier\w*|traduc\w*|tradui\w*|résum\w*|corrig\w*|翻译|翻譯|翻訳)[^:：]{0,60}[:：](?=.)",
    _I,
)
_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])\s*")
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|approx|no|nr|bzw|ca|usw|z\. ?b|d\. ?h|p\. ?ej|p\. ?ex|mr|mrs|dr|st)|\b[a-z])\.$", _I
)


@dataclass(frozen=True, slots=True)
class Sentence:
    """`words` as written, `seen` with quotations blotted out (of equal length), and whether a list belongs to it."""

    words: str
    seen: str
    heads_list: bool = False
    in_list: bool = False


def own_sentences(text: str) -> list[Sentence]:
    """What the person says themselves, sentence by sentence."""
    text = text[:MAX_CHARS].replace("\r\n", "\n").replace("’", "'")
    text = _FENCE.sub("\n", text)
    if text.count("<") <= _MOST_TAGS:  # more than that is markup, whose lines are no prose anyway
        text = _ELEMENT.sub("\n", text)
    sentences: list[Sentence] = []
    for line in text.split("\n"):
        if not line.strip() or _NOT_PROSE.match(line) or _INDENTED.match(line) or _CODE_END.search(line):
            continue
        bullet = _BULLET.match(line)
        prose = line[bullet.end() :] if bullet else line
        sentences += _split(prose.strip(), in_list=bullet is not None)
        if _MATERIAL.search(_blot(prose)):
            break
    return sentences


def _split(prose: str, *, in_list: bool) -> Iterator[Sentence]:
    start = 0
    for end in _END.finditer(prose):
        if not _ABBREVIATION.search(prose[start : end.start()]):
            yield from _sentence(prose[start : end.start()], in_list)
            start = end.end()
    yield from _sentence(prose[start:], in_list)


def _sentence(words: str, in_list: bool) -> Iterator[Sentence]:
    words = words.strip()
    if words:
        yield Sentence(words, _blot(words), heads_list=words.endswith((":", "：")), in_list=in_list)


def _blot(words: str) -> str:
    seen = _QUOTED.sub(lambda quoted: BLOT * len(quoted[0]), words)
    material = _MATERIAL_BEHIND.match(seen)
    return seen if material is None else seen[: material.end()] + BLOT * (len(seen) - material.end())
