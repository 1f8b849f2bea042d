"""Quotations and reported speech in a person's own sentences. They are another person's words and carry no authority.

A quotation is recognised by its marks. A sentence reports if its verb is one of saying and its subject is neither the person nor
the agent: what follows the verb is another person's words until the person speaks again.
"""

import re
from collections.abc import Callable, Iterator
from itertools import zip_longest

from metaclaw.privacy.capabilities import capabilities
from metaclaw.text import begins_with_verb, introduces_rules, is_imperative

_QUOTE = re.compile(
    r"`([^`\n]{1,400})`|\"([^\"\n]{1,400})\"|“([^”\n]{1,400})”|„([^“”\n]{1,400})[“”]|«([^»\n]{1,400})»|「([^」\n]{1,400})」"
    r"|『([^』\n]{1,400})』|《([^》\n]{1,400})》|‹([^›\n]{1,400})›|[＂″]([^＂″\n]{1,400})[＂″]|''([^'\n]{1,400})''"
    r"|[(\[]quote[)\]](?P<spoken>[^\n]{1,400}?)[(\[](?:un|end |/)quote[)\]]|‘([^’\n]{1,400})’|(?<![\w'])'([^'\n]{1,400})'(?!\w)"
)
SENTENCE = re.compile(
    r"[^.!?。！？\n]+(?:(?:[.!?](?=\S)|(?<=\bDr)\.|(?<=\bMr)\.|(?<=\bMs)\.|(?<=\bMrs)\.|(?<=\bProf)\.|(?<=\bz\.B)\.|(?<=\be\.g)\."
    r"|[。！？](?=[」』》”]))[^.!?。！？\n]*)*[.!?。！？\n]*"
)
_BLOT = "□"
_COLON = re.compile(r"[ \t]?:[ \t]+(?=\S)|：(?=\S)")
RECEIVED = re.compile(
    r"\b(?:i|we|ich|wir|my \w+)[ \t]+(?:just[ \t]+)?(?:(?:got|received|found|saw|copied|pasted) (?:this|that|it|an?|the"
    r"|these)|bekam|fand|kopierte)\b"
    r"|\b(?:sent me|sent us"
    r"|j'ai reçu|he recibido|me ha llegado|me llegó|recebi|habe ich bekommen|gefunden auf)\b|收到|转发|転送|届い",
    re.IGNORECASE,
)
CLAUSE_CHARS = 300
_TYPED_CHARS = 20_000
# A request to edit or explain a text.
WORKS_ON = re.compile(
    r"\b(?:translat|summari[sz]|proof-?read|typos?\b|spelling|tl;?dr|transcri[bp]|polish|shorten|reply to|respond to"
    r"|answer to|rephras|paraphras|re-?word|rewrit|sum\b.{0,20}\bup\b|make of|think (?:of|about)"
    r"|what\b.{0,40}\bmean|explain|comment on"
    r"|übersetz|fass\w*\b.{0,40}\bzusammen|korrigier|lektorier|hältst|tradu|résum|resum|riassum|corrig|revis|vertaal|nakijk"
    r"|kürz(?:er|en)|formulier|raccourci|acort|encurt"
    r"|перевед|исправь|przetłumacz)|翻译|翻譯|总结|總結|概括|摘要|润色|校对|怎么看|改得|改写|改成|回复一?[下封]|写个回复|語にして|返信を書|訳|要約|添削|校正|번역|요약",
    re.IGNORECASE,
)
_FEW_WORDS = re.compile(r"\W*\w+(?:\W+\w+)?\W*")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
# The user adopts what another person wants: "so please always do that".
_TAKES_OVER = re.compile(
    r"\b(?:do (?:that|this|it|so)|(?:follow|respect|observe|apply) (?:that|this|it)|(?:stick|keep) to (?:that|this|it)"
    r"|mach\w* (?:das|es)|halt\w* dich daran|fais(?:-le| le| ça| comme ça)|haz(?:lo| eso)|faça isso)\b"
    r"|照(?:做|办)|そうして",
    re.IGNORECASE,
)
_REFUSES = re.compile(r"\b(?:not|n't|never|no|nicht|nie|kein\w*|pas|jamais|nunca|não|ignore)\b|n't\b|不要|别", re.IGNORECASE)
# A label that is a speaker's name unless it is one of the person's own: one word, or words with capitals.
_SPEAKER = re.compile(r"\W*(?:(?:Dr|Mr|Mrs|Ms|Herr|Frau)\b\.?[ \t]*)?[\w.@-]{1,24}(?:[ \t]+[A-Z0-9][\w.@-]{0,24}){0,2}\s*\Z")
_OWN_LABEL = re.compile(
    r"\W*(?:(?:for|with|about|für|pour|para|con|per|voor)\b(?! \w+ (?:says|is|was)).*|no|nope|wrong|correction"
    r"|rules?|note|notes|nb|ps|important|remember|reminder|fyi|btw|tests?|also|and|but|so|please|style|format|tone|language"
    r"|todo|edit|update"
    r"|instructions?|preferences?|requirements?|constraints?|conventions?|polic(?:y|ies)|always|never|generally|again|first"
    r"|finally|future|henceforth|memo"
    r"|nein|falsch|regeln?|wichtig|hinweis|merke?|notiz|bitte|künftig|zukünftig|ab jetzt"
    r"|non|faux|règles?|rappel|retiens|désormais|à retenir"
    r"|regla|reglas|importante|nota|recuerda|recordatorio|siempre|нет|важно|правило|запомни"
    r"|规则|規則|注意|重要|提醒|记住|記住|要求|另外|今后|以后|不对|ルール|覚えて|メモ|今後|お願い)\b",
    re.IGNORECASE,
)
# Where something applies: "in every project of mine: …".
_PLACE = re.compile(r"\W*(?:in|on|at|im|bei|auf|dans|sur|en|em|no|na|в|на)(?: [\w'-]{1,20}){1,4}\s*\Z", re.IGNORECASE)
# Before a colon, if the user's own words follow: a denial, a complaint, a label such as `Rule`.
_OWN_LEAD = re.compile(
    r"\W*(?:[\w'-]{1,20}(?: [\w'-]{1,20}){0,2}"
    r"|(?:that|this|it|das|es|ça|c|eso|esto)(?:'s|'est| is| was| ist| war| es| est)?\b.{0,40})\W*\Z",
    re.IGNORECASE,
)
SOURCE_NOUN = re.compile(
    r"\b(?:sms|e-?mail|mail|message|letter|note|comment|log|output|readme|page|ticket|issue|line|text|post|tweet|pop-?up"
    r"|banner|notice|review|terms|doc|document|contract|guide|article|script"
    r"|nachricht|brief|hinweis|ausgabe|zettel|correo|mensaje|carta|courriel|lettre|письмо|сообщение|bericht|vertrag"
    r"|contrat[o]?|règlement|avis|reseña|contrato)\b",
    re.IGNORECASE,
)

_OWN = r"(?:i|i'm|i've|i'd|we|we've|you|me|us|ich|du|wir|sie|je|j'|moi|tu|vous|nous|on|yo|tú|nosotros|usted|я|мы|ты|вы)"
_SAYS = (
    r"says|said|tells|told|claims|claimed|writes|wrote|reads|states|stated|suggests|suggested|recommends|recommended|asks"
    r"|asked|wants"
    r"|insists|insisted|advises|advised|instructs|instructed|demands|demanded|mentions|mentioned|warns"
    r"|warned|replies|replied|urges|urged|posted"
    r"|(?:is|was)[ \t]+(?:basically[ \t]+|simply[ \t]+)?to|there[ \t]+(?:is|was)|used[ \t]+to[ \t]+say|requires?|expects"
    r"|orders|prescribes|exige|impose|demande|ordonne|pide|ordena|fordert|schreibt[ \t]+vor"
    r"|(?:repeats|thinks|believes|promises|argues|\w{3,}(?:ed|ing))[ \t]+that"
    r"|sagt|sagte|steht|stand|schreibt|schrieb|meint|meinte|empfiehlt|empfahl|behauptet|behauptete|verlangt|verlangte|rät|riet"
    r"|dit|disait|écrit|écrivait|affiche|affichait|recommande|prétend|demande|conseille|indique"
    r"|dice|decía|dijo|escribe|escribió|recomienda|pide|pidió|aconseja|afirma|indica"
    r"|diz|disse|dizia|escreveu|pede|pediu|recomenda|pisze|napisane|mówi|każe|scrive|consiglia|zegt|schrijft|raadt"
    r"|говорит|говорят|говорил|сказал|сказала|пишет|пишут|написал|написала|написано|сказано|советует|советуют|просит|просят"
    r"|требует|требуют"
)
# The base form may be an order ("always write …"): it reports only after a plural.
_THEY_SAY = (
    r"(?:they|people|folks|(?!always\b)\w{3,}s)[ \t]+(?:say|claim|write|state|suggest|recommend|ask|want|insist|advise|demand|warn)"
)
_REPORT = re.compile(
    rf"(?<![^\s,;:()])(?P<before>(?:[^\s,;:()]{{1,40}}[ \t]+){{1,9}}?)(?:{_SAYS})\b(?=[ \t,:]+\S)|\b{_THEY_SAY}\b(?=[ \t,:]+\S)"
    r"|\bI[ \t]+(?:saw|read|heard|found|got)[ \t]+(?:it[ \t]+)?(?:on|in|at|from|somewhere)\b(?![ \t]+your?\b)(?=[ \t]+\S)"
    r"|\bheißt es\b(?=[ \t,:]+\S)|\b(?:according to|laut|selon|d'après|según|segundo|secondo|volgens|согласно|по словам)[ \t]+\S",
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
OWN_SUBJECT = re.compile(rf"\b{_OWN}\b(?![ \t]+(?:page|file|mail|readme|log))", re.IGNORECASE)
_CONDITION = re.compile(
    r"\W*(?:and |but |so |und |et |y )?(?:when|whenever|if|unless|where|wherever|once|what|whatever|wenn|falls|sobald|was|si|quand"
    r"|lorsque|cuando|se|quando|als|если|когда)\b",
    re.IGNORECASE,
)
_BACK = re.compile(
    r"[;–—]|,[ \t]*(?:so|deshalb|darum|also|donc|así que|portanto|quindi|dus|поэтому)\b"
    r"|,[ \t]*(?:(?:and|but|so|yet|while|und|aber|doch|et|mais|y|pero|e|mas|а|но|и)[ \t]+)?"
    rf"(?:{_OWN}|please|bitte|s'il|por favor|per favore|my|mine|our|your|mein\w*|mi|mis|mon|ma|gefragt|мой|моя|мне)\b",
    re.IGNORECASE,
)
_WIDE_REPORT = re.compile(
    r"(?:^|[，、。\s])(?:根?据|根?據|按照|依照)(?!我)[^，。]{1,20}(?:说|說|称|稱|，)|(?<![我你您便如是来話话])(?:说|說|写着|寫著|写道|寫道|发|發|声称|要求|建议|建議|表示)[，：:「□]"
    r"|(?<![我你您便如是来話话])(?:说|說)(?!一下|一句|明|实话|實話)|(?<![我你您])(?:写着|寫著|声称|要求|建议|建議)|によると|によれば|と(?:書いて|言って)(?!くだ|下さ|ほし|欲し)|とのこと|だそう|らしい|とあり"
)
_WIDE_BACK = re.compile(r"[，、,](?=我|但我|可我|而我|私|聞いた|聞きたかった)|(?:が|けど)、")


def foreign_clauses(text: str) -> Iterator[tuple[int, int]]:
    """Clauses in which the user quotes or reports another person. They may overlap."""
    yield from in_typed_parts(text, _clauses)


def in_typed_parts(text: str, find: Callable[[str], Iterator[tuple[int, int]]]) -> Iterator[tuple[int, int]]:
    if len(text) <= _TYPED_CHARS:
        yield from find(text)
        return
    half = _TYPED_CHARS // 2
    tail = len(text) - half
    yield half, tail
    yield from find(text[:half])
    yield from ((start + tail, end + tail) for start, end in find(text[tail:]))


def _clauses(text: str) -> Iterator[tuple[int, int]]:
    sentences = list(SENTENCE.finditer(text))
    for found, later in zip_longest(sentences, sentences[1:]):
        is_asked = is_question(found[0]) or (later is not None and is_question(later[0]))
        yield from _in_sentence(found[0], found.start(), "" if later is None else later[0], is_asked=is_asked)


def _is_given(clause: str) -> bool:
    """Whether the clause around a quotation makes it the user's: they speak in it, or it tells the agent what to do with it."""
    return is_imperative(clause) and (OWN_SUBJECT.search(clause) is not None or begins_with_verb(clause))


def _in_sentence(sentence: str, at: int, later: str, *, is_asked: bool) -> Iterator[tuple[int, int]]:
    """Quotations and reports in one sentence. `later` is the next sentence; `is_asked` if either is a question."""
    seen = _QUOTE.sub(lambda quote: _BLOT * len(quote[0]), sentence)
    reports = list(_reported(seen, later))
    for quote in _QUOTE.finditer(sentence):
        content = next(group for group in quote.groups() if group)
        is_word = _FEW_WORDS.fullmatch(content) is not None and not _CJK.search(content)
        is_order = runs_programs(content) or (quote[1] is None and not is_word and is_imperative(content))
        if is_order and (reports or quote["spoken"] or is_asked or not _is_given(_clause(seen, *quote.span()))):
            yield at + quote.start(), at + quote.end()
    for start, end in reports:
        yield at + start, at + end


def _clause(seen: str, start: int, end: int) -> str:
    """The clause around a quotation, with quotations masked."""
    before = re.split(r"[,;:]", seen[max(0, start - CLAUSE_CHARS) : start])[-1]
    behind = re.split(r"[,;:]", seen[end : end + CLAUSE_CHARS])[0]
    return f"{before}{_BLOT}{behind}".strip()


def _reported(seen: str, later: str) -> Iterator[tuple[int, int]]:
    for found in _REPORT.finditer(seen):
        before = found["before"]
        clause = re.split(r"[,;:]", seen[max(0, found.start() - CLAUSE_CHARS) : found.start()] + (before or ""))[-1]
        if before is not None and (
            OWN_SUBJECT.search(clause)
            or _CONDITION.match(clause)
            or _OUR_RULES.search(clause)
            or _NO_SUBJECT.fullmatch(before)
            or _BLOT in before
        ):
            continue
        back = _BACK.search(seen, found.end() + 1)
        end = back.start() if back else len(seen)
        if before is not None and not SOURCE_NOUN.search(clause) and _takes_over(seen[end:] or later, seen[found.end() : end]):
            return
        yield found.end() - 1, end
        return
    yield from _behind_colon(seen)
    if wide := _WIDE_REPORT.search(seen):
        back = _WIDE_BACK.search(seen, wide.end())
        yield 0 if wide[0][0] in "にとだら" else wide.start(), back.start() if back else len(seen)


def _behind_colon(seen: str) -> Iterator[tuple[int, int]]:
    """Orders after a colon, unless the user speaks before it."""
    for colon in _COLON.finditer(seen):
        lead = re.split(r"[,;]", seen[max(0, colon.start() - CLAUSE_CHARS) : colon.start()])[-1]
        # A plural such as `Commits` is a topic, not a name.
        is_named = _SPEAKER.match(lead) and not (_OWN_LABEL.match(lead) or introduces_rules(lead.strip().removesuffix("s")))
        is_label = _OWN_LEAD.match(lead) and not (is_named or SOURCE_NOUN.search(lead) or WORKS_ON.search(lead))
        is_place = _PLACE.match(lead) and not SOURCE_NOUN.search(lead)
        is_own = OWN_SUBJECT.search(lead) or _OWN_LABEL.match(lead) or is_label or is_place or introduces_rules(lead)
        if is_imperative(seen[colon.end() :].strip()) and (not is_own or RECEIVED.search(lead)):
            yield colon.end(), len(seen)
            return


def _takes_over(own: str, reported: str) -> bool:
    """Whether the user adopts another person's wish. Running programs they must order in their own words."""
    takes = _TAKES_OVER.search(own) is not None and not _REFUSES.search(own) and not is_question(own)
    return takes and _BLOT not in reported and not runs_programs(reported)


def runs_programs(content: str) -> bool:
    wanted = capabilities(content)
    return bool(wanted.pipes or wanted.commands)


def is_question(seen: str) -> bool:
    return seen.rstrip().endswith(("?", "？"))
