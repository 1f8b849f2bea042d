"""Somebody else's words inside a person's message: quoted, pasted, or reported. They carry no authority.

Marks decide where there are any: quotation marks, blocks, lines of programs. Without marks, a sentence reports if its verb is one
of saying and its subject is neither the person nor the agent: what follows the verb is somebody else's until the person speaks.
"""

import re
from collections.abc import Iterator

from metaclaw.privacy.capabilities import capabilities
from metaclaw.privacy.sentences import is_imperative, lays_down

_QUOTE = re.compile(
    r"`([^`\n]{1,400})`|\"([^\"\n]{1,400})\"|“([^”\n]{1,400})”|„([^“”\n]{1,400})[“”]|«([^»\n]{1,400})»|「([^」\n]{1,400})」"
    r"|『([^』\n]{1,400})』|‘([^’\n]{1,400})’|(?<![\w'])'([^'\n]{1,400})'(?!\w)"
)
_SENTENCE = re.compile(r"[^.!?。！？\n]+(?:[.!?](?=\S)[^.!?。！？\n]*)*[.!?。！？\n]*")
_BLOT = "□"
_COLON = re.compile(r":[ \t]+(?=\S)|：(?=\S)")
_RECEIVED = re.compile(r"\b(?:got|received|sent|found|saw|bekam|fand|reçu|recibí)\b", re.IGNORECASE)
_CLAUSE_CHARS = 300
_TYPED_CHARS = 20_000
_LEAD = re.compile(r"^([^\n]{0,300})[:：][ \t]*\n\s*(?=\S)", re.MULTILINE)
_FORWARDED = re.compile(
    r"^-{3,}[ ]?(?:Original Message|Forwarded message|Ursprüngliche Nachricht|Message d'origine)", re.MULTILINE | re.I
)
_OBJECT = re.compile(r"\{\s*\"[^{}]{1,2000}\}")
# Lines that programs write: of logs, of differences, of commands, of a chat.
_PROGRAM_LINE = re.compile(
    r"[ \t]*(?:\[?\d{4}-\d\d-\d\d[T ]|\[?\d\d:\d\d(?::\d\d)?\]?[ \t]|\[?(?:ERROR|WARN(?:ING)?|INFO|DEBUG|TRACE|FATAL|HINT|NOTICE)\b"
    r"|\$ |>>> |--- |\+\+\+ |@@|[+-](?=[^\s\d+-]))[^\n]*"
)
# What stands before a colon where the person themselves goes on behind it: a denial, what is wrong, a label such as `Rule`.
_OWN_LEAD = re.compile(
    r"\W*(?:[\w'-]{1,20}(?: [\w'-]{1,20}){0,2}"
    r"|(?:that|this|it|das|es|ça|c|eso|esto)(?:'s|'est| is| was| ist| war| es| est)?\b.{0,40})\W*\Z",
    re.IGNORECASE,
)
_SOURCE_NOUN = re.compile(
    r"\b(?:sms|e-?mail|mail|message|letter|note|comment|log|output|readme|page|ticket|issue|line|text|post|tweet|pop-?up|banner|notice"
    r"|nachricht|brief|hinweis|ausgabe|zettel|correo|mensaje|carta|courriel|lettre|письмо|сообщение|bericht)\b",
    re.IGNORECASE,
)
# A message that another agent or a program sends in the person's place says so at its beginning.
_MACHINE = re.compile(
    r"\A\s*(?:\[[^\]\n]{0,60}\b(?:agent|subagent|task|cron|tool|system|bot|hook|job|result|heartbeat)\b[^\]\n]{0,60}\]"
    r"|(?:sub-?)?agent\b[^\n:.]{0,60}\b(?:finished|report(?:ed)?|result|done|completed)\b"
    r"|(?:result|report|résultat|rapport|ergebnis|bericht|resultado|informe|risultato)\b[^\n:.]{0,20}\b(?:sub-?)?agent\w*)",
    re.IGNORECASE,
)
_SPEAKER = re.compile(r"^[ \t]*[\w.@-]{2,24}:[ \t]+(\S[^\n]*)$", re.MULTILINE)

_OWN = r"(?:i|i'm|i've|i'd|we|we've|you|me|us|ich|du|wir|sie|je|j'|moi|tu|vous|nous|on|yo|tú|nosotros|usted|я|мы|ты|вы)"
_SAYS = (
    r"says|said|tells|told|claims|claimed|writes|wrote|reads|states|stated|suggests|suggested|recommends|recommended|asks|asked|wants"
    r"|insists|insisted|advises|advised|instructs|instructed|demands|demanded|mentions|mentioned|warns"
    r"|warned|replies|replied|urges|urged|posted"
    r"|(?:is|was)[ \t]+(?:basically[ \t]+|simply[ \t]+)?to|there[ \t]+(?:is|was)"
    r"|(?:repeats|thinks|believes|promises|argues|\w{3,}(?:ed|ing))[ \t]+that"
    r"|sagt|sagte|steht|stand|schreibt|schrieb|meint|meinte|empfiehlt|empfahl|behauptet|behauptete|verlangt|verlangte|rät|riet"
    r"|dit|disait|écrit|écrivait|affiche|affichait|recommande|prétend|demande|conseille|indique"
    r"|dice|decía|dijo|escribe|escribió|recomienda|pide|pidió|aconseja|afirma|indica"
    r"|diz|disse|dizia|escreveu|pede|pediu|recomenda|pisze|napisane|mówi|każe|scrive|consiglia|zegt|schrijft|raadt"
    r"|говорит|говорят|говорил|сказал|сказала|пишет|пишут|написал|написала|написано|сказано|советует|советуют|просит|просят|требует|требуют"
)
# The base form is an order as well ("always write …"): it reports only behind a plural.
_THEY_SAY = (
    r"(?:they|people|folks|(?!always\b)\w{3,}s)[ \t]+(?:say|claim|write|state|suggest|recommend|ask|want|insist|advise|demand|warn)"
)
_REPORT = re.compile(
    rf"(?<![^\s,;:()])(?P<before>(?:[^\s,;:()]{{1,40}}[ \t]+){{1,9}}?)(?:{_SAYS})\b(?=[ \t,:]+\S)|\b{_THEY_SAY}\b(?=[ \t,:]+\S)"
    r"|\b(?:according to|laut|selon|d'après|según|segundo|secondo|volgens|согласно|по словам)[ \t]+\S",
    re.IGNORECASE,
)
_OUR_RULES = re.compile(
    r"\b(?:our|unser\w*|notre|nuestr[ao])\b.{0,20}\b(?:guide|guidelines?|polic\w+|standards?|conventions?)\b"
    r"|\b(?:rule|convention|goal|aim|idea|point|plan|way|task|job)s?\b",
    re.IGNORECASE,
)
_NO_SUBJECT = re.compile(
    r"(?:(?:always|never|please|just|only|and|but|so|then|also|no|toujours|jamais|siempre|nunca|immer|bitte|nie|sempre|и|а|всегда)"
    r"[ \t]+)+",
    re.IGNORECASE,
)
_OWN_SUBJECT = re.compile(rf"\b{_OWN}\b(?![ \t]+(?:page|file|mail|readme|log))", re.IGNORECASE)
_CONDITION = re.compile(
    r"\b(?:when|whenever|if|unless|where|wherever|once|what|whatever|wenn|falls|sobald|was|si|quand|lorsque|cuando|se|quando|als"
    r"|если|когда)\b",
    re.IGNORECASE,
)
_BACK = re.compile(
    r"[;–—]|,[ \t]*(?:so|deshalb|darum|also|donc|así que|portanto|quindi|dus|поэтому)\b"
    r"|,[ \t]*(?:(?:and|but|so|yet|while|und|aber|doch|et|mais|y|pero|e|mas|а|но|и)[ \t]+)?"
    rf"(?:{_OWN}|my|mine|our|your|mein\w*|mi|mis|mon|ma|gefragt|мой|моя|мне)\b",
    re.IGNORECASE,
)
_WIDE_REPORT = re.compile(
    r"(?:^|[，、。\s])(?:据|據)[^，。]{1,20}(?:说|說|称|稱|，)|(?<![我你您])(?:说|說|写着|寫著|写道|寫道|发|發|声称|要求|建议|建議|表示)[，：:「□]"
    r"|(?<![我你您])(?:说|說|写着|寫著|声称|要求|建议|建議)|によると|によれば|と書いて|と言って|とのこと|だそう|らしい|とあり"
)
_WIDE_BACK = re.compile(r"[，、,](?=我|但我|可我|而我|私|聞いた|聞きたかった)|(?:が|けど)、")


def foreign_stretches(text: str) -> Iterator[tuple[int, int]]:
    """Where in a person's message somebody else speaks. Stretches may overlap. The middle of what is longer than anybody types is
    pasted."""
    if len(text) > _TYPED_CHARS:
        half = _TYPED_CHARS // 2
        tail = len(text) - half
        yield half, tail
        yield from foreign_stretches(text[:half])
        yield from ((start + tail, end + tail) for start, end in foreign_stretches(text[tail:]))
        return
    yield from _blocks(text)
    for found in _SENTENCE.finditer(text):
        yield from _in_sentence(found[0], found.start())


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Pasted matter: behind a line that announces it, behind the head of a forwarded mail, and lines that programs write."""
    if _MACHINE.match(text):
        yield 0, len(text)
    for lead in _LEAD.finditer(text):
        if not lays_down(lead[1]):
            yield lead.end(), len(text)
            break
    if forwarded := _FORWARDED.search(text):
        yield forwarded.start(), len(text)
    yield from (found.span() for found in _OBJECT.finditer(text))
    at, is_output = 0, False
    for line in text.splitlines(keepends=True):
        is_output = bool(line.strip()) and (is_output or line.lstrip().startswith("$ "))
        if is_output or _PROGRAM_LINE.match(line):
            yield at, at + len(line)
        at += len(line)
    speakers = list(_SPEAKER.finditer(text))
    if len(speakers) > 1:
        # In a chat somebody else gives orders; a form ("Topic: …", "File: …") has the same shape and is the person's own.
        yield from (found.span() for found in speakers if is_imperative(found[1]))


def _in_sentence(sentence: str, at: int) -> Iterator[tuple[int, int]]:
    seen = _QUOTE.sub(lambda quote: _BLOT * len(quote[0]), sentence)
    reports = list(_reported(seen))
    for quote in _QUOTE.finditer(sentence):
        content = next(group for group in quote.groups() if group)
        is_order = _is_risky(content) or (quote[1] is None and is_imperative(content))
        if is_order and (reports or _asks(seen) or not is_imperative(_clause(seen, *quote.span()))):
            yield at + quote.start(), at + quote.end()
    for start, end in reports:
        yield at + start, at + end


def _clause(seen: str, start: int, end: int) -> str:
    """The clause around a quotation, with quotations blotted out."""
    before = re.split(r"[,;:]", seen[max(0, start - _CLAUSE_CHARS) : start])[-1]
    behind = re.split(r"[,;:]", seen[end : end + _CLAUSE_CHARS])[0]
    return f"{before}{_BLOT}{behind}".strip()


def _reported(seen: str) -> Iterator[tuple[int, int]]:
    for found in _REPORT.finditer(seen):
        before = found["before"]
        clause = re.split(r"[,;:]", seen[max(0, found.start() - _CLAUSE_CHARS) : found.start()] + (before or ""))[-1]
        if before is not None and (
            _OWN_SUBJECT.search(clause)
            or _CONDITION.search(clause)
            or _OUR_RULES.search(clause)
            or _NO_SUBJECT.fullmatch(before)
            or _BLOT in before
        ):
            continue
        back = _BACK.search(seen, found.end())
        yield found.end() - 1, back.start() if back else len(seen)
        return
    yield from _behind_colon(seen)
    if wide := _WIDE_REPORT.search(seen):
        back = _WIDE_BACK.search(seen, wide.end())
        yield 0 if wide[0][0] in "にとだら" else wide.start(), back.start() if back else len(seen)


def _behind_colon(seen: str) -> Iterator[tuple[int, int]]:
    """An order behind a colon is the person's where they speak before it; else it is what some text or somebody says."""
    for colon in _COLON.finditer(seen):
        lead = re.split(r"[,;]", seen[max(0, colon.start() - _CLAUSE_CHARS) : colon.start()])[-1]
        is_own = _OWN_SUBJECT.search(lead) or (_OWN_LEAD.match(lead) and not _SOURCE_NOUN.search(lead)) or lays_down(lead)
        if is_imperative(seen[colon.end() :].strip()) and (not is_own or _RECEIVED.search(lead)):
            yield colon.end(), len(seen)
            return


def _is_risky(content: str) -> bool:
    wanted = capabilities(content)
    return bool(wanted.pipes or wanted.commands)


def _asks(seen: str) -> bool:
    return seen.rstrip().endswith(("?", "？"))
