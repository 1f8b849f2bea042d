"""Find text in a user's message that is not their own: pasted mails, chats, logs and data,
quotations, and reported speech.

Instructions in it have no authority. Quotations are recognised by their marks. A sentence reports
if it has a verb of saying whose subject is neither the user nor the agent: the words after the verb
are another person's until the user speaks again."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import zip_longest

from metaclaw.privacy.capabilities import FORBIDS, capabilities
from metaclaw.text import begins_with_rule, begins_with_verb, introduces_rules, is_imperative

_MASK = "\ue000"
_CLOSED_FENCE = re.compile(
    r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n.*?^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL
)
_LEAD = re.compile(r"^([^\n]{0,300})[:：][ \t]*\n\s*(?=\S)", re.MULTILINE)
# A mail's header in any language: labelled lines, a blank line, text.
_HEADER = re.compile(
    r"^(?:[ \t]*[^\W\d][^\n:：]{0,30}[:：][ \t]*\S[^\n]*\n){2,12}[ \t]*\n(?=\s*\S)", re.MULTILINE
)
# A chat's line with a name and a time and nothing else.
_TIME = r"(?:[\d./-]{4,10},?[ \t]+)?\d{1,2}:\d\d(?::\d\d)?(?:[ \t]?[AaPp]\.?[Mm]\.?)?"
_NAME = r"[^\W\d][\w.@'-]{0,24}(?:[ \t]+[\w.@'-]{1,24}){0,2}"
_CHAT = re.compile(
    rf"^[ \t]*(?:\[[^\]\n]{{0,20}}?{_TIME}\](?:[ \t]*{_NAME}:?)?|{_TIME}[ \t]+{_NAME}:?"
    rf"|{_NAME}[ \t]*[,(\[—–-]?[ \t]*(?:\w+ at |\w+ um )?{_TIME}[\])]?:?)[ \t]*\n",
    re.MULTILINE,
)
# A line of separators, alone or around a label; dashes around a label count inside a line as well.
_SIGN = r"[-=<>*_~#+/\\|:%&^•─━═]"
_SEPARATOR = re.compile(
    rf"^[ \t]*(?P<mark>{_SIGN})(?:(?P=mark){{2,}}+[ \t]*$"
    r"|(?P=mark)++(?P<label>[ \t][^\n]{1,80}?["
    rf" \t]{_SIGN}{{2,}}|(?<![*_])(?<={_SIGN}{{3}})[^\n]{{1,80}}?{_SIGN}{{3,}})[ \t]*$)"
    r"|(?<!-)-{4,}+(?P<inline>[^\n-]{2,60})-{4,}",
    re.MULTILINE,
)
_CLOSES = {"<": ">"}
_BEGINS = re.compile(
    r"(?:(?<=[.!?\n])[ \t]*|\A)(?:(?P<named>start|begin(?:ning)?|anfang|début|inicio)["
    r" \t]+(?:of|des|der|du|de)\b[^.\n]{1,60}"
    r"|[^.:\n]{1,60}(?<! as) (?:follows|below|folgt))[.:]\s",
    re.IGNORECASE,
)
# A line that announces what the agent itself said.
_OF_AGENT = re.compile(
    r"\byou(?:'ve| have)?(?: just)? (?:wrote|written|said|answered|replied|gave|given|told"
    r" me|produced|printed|generated|put)\b"
    r"|\b(?:your|deine?|ihre?|ta|votre|tu|sua|tua) (?:last |letzte |dernière |última"
    r" )?(?:answer|reply|response|output|text"
    r"|draft|version|suggestion|summary|antwort|ausgabe|entwurf|réponse|texte|respuesta|texto|resposta)\b"
    r"|\b(?:hast du|du hast|haben sie) |\b(?:tu as|vous avez)"
    r" (?:écrit|dit|répondu)|\b(?:escribiste|dijiste|respondiste"
    r"|você (?:escreveu|disse))\b|[你您]的?(?:写|說|说|回答|输出)|あなたの(?:回答|答え|出力)",
    re.IGNORECASE,
)
_ENDS = re.compile(r"\b(?:end of|ende de[rs]|fin d[eu])\b[^.\n]{0,60}", re.IGNORECASE)
_MARKED_LINE = re.compile(r"(?<=[.!?:。])[ \t]+>[ \t]*\S[^\n]*")
# A source named after the text.
_SOURCE_BEHIND = re.compile(
    r"\((?:from|source|aus|von|quelle|tiré|fuente)\b[^)\n]{2,80}\)"
    r"|(?<=\s)[-–—][ \t]*(?:this|that|it|so|das|dies|c'|esto|eso|así)\b[^.\n]{0,80}"
    r"\b(?:what|how|verbatim|quote|source|steht|dit|dice)\b",
    re.IGNORECASE,
)
_LAST_SENTENCE = re.compile(r"[^.!?。！？\n]*[.!?。！？\s]*\Z")
_POINTS_ON = re.compile(
    r"\b(?:this|it|text[eo]?|these|following|below|das|dies\w*|folgend\w*|ça|ce|cet|cette|ces|suivant\w*|est[eao]s?"
    r"|siguiente\w*|iss?o|thread|table|list|diff|snippet|questo|questa|seguente|dit|deze"
    r"|эт\w+|следующ\w+)\b|这|這|下面|以下|次の|この|이|다음",
    re.IGNORECASE,
)
_ASKS_ABOUT = re.compile(
    r"(?:.*[.!?] )?(?:is|was|are|does|ist|war|sind|es|est-ce|è)["
    r" ](?:this|that|these|das|dies|esto|eso|ça)\b.*\?$",
    re.I,
)
_THIS_TEXT = re.compile(
    r"\b(?:this|these|the"
    r" following|dies\w*|folgend\w*|ce|cet|cette|ces|est[ea]s?|ess[ea]s?|questo|questa|этот?|эта)["
    r" ](?:\w+ )?"
    r"(?:e-?mails?|mail|message|letter|memo|note|comment|post|tweet|review|text\w*|article|paragraph|sentence|contract"
    r"|doc\w*|log|readme"
    r"|nachricht|brief|aushang|absatz|vertrag|kommentar|courriel|lettre|annonce|correo|mensaje|carta|comentario|mensagem|письмо)\b"
    r"|(?:这|這|此|该|下面|以下|上面)[条條段封篇个個份句则則]?(?:的)?[评評邮郵文话話信消合通内內公]|(?:この|次の|以下の|下の)(?:文|メ|コメ|手紙|記事|投稿|規)",
    re.IGNORECASE,
)
# Lines of program text, and headings that cut a message into parts.
_CODE_LINE = re.compile(
    r"[ \t]*(?://|/\*|\*/|#include|#!|(?:def|class|function|import|from|const|let|var|return|public|private|package"
    r"|use)\b.*[(){};:=]|.*(?:[{};]|=>|\):)[ \t]*$)"
)
_HEADING = re.compile(r"^#{1,4} \S[^\n]*$", re.MULTILINE)
_PARAGRAPH = re.compile(r"\S[^\n]*(?:\n(?![ \t]*\n)[^\n]*)*")
_REQUEST_CHARS = 300
_DIRECTED_CHARS = 240
_LIST = re.compile(r"[ \t]*(?:[-*•]|\d{1,2}[.)])[ \t]")
# Words by which the user adopts the text that follows.
_ADOPTS = re.compile(
    r"\b(?:use|follow|apply|stick|remember|adopt|obey|respect|keep to|do it|like"
    r" this|befolg|halt\w* dich|verwend|nutz"
    r"|benutz|merk|suis|suivez"
    r"|utilis|applique|retiens|sigue|usa|aplica|recuerda|segue|siga|aplique|lembr)\w*|遵守|遵循|使用|按照|照着|记住|従って|守って|使って",
    re.IGNORECASE,
)
_OBJECT = re.compile(r"\{\s*\"[^{}]{1,2000}\}")
# Lines that programs write: of logs, of differences, of commands, of a chat.
_PROGRAM_LINE = re.compile(
    r"[ \t]*(?:\[?\d{4}-\d\d-\d\d[T ]|\[?\d\d:\d\d(?::\d\d)?\]?["
    r" \t]|\[?(?:ERROR|WARN(?:ING)?|INFO|DEBUG|TRACE|FATAL|HINT|NOTICE)\b"
    r"|npm (?:ERR!|WARN|notice)|diff --git |index [0-9a-f]{6,}\.\.|Caused by:|at [\w.$<>]+\("
    r"|\$ |\|[ \t](?=[^|\n]*$)|\|(?=[^\n]*\|[ \t]*$)|>>> |--- |\+\+\+ |@@|[+-](?=[^\s\d+-]))[^\n]*",
    re.MULTILINE,
)
# The first line of a program's output, which lasts until the next blank line.
_OUTPUT_LEAD = re.compile(
    r"[ \t]*(?:Traceback\b|\[?\d{4}-\d\d-\d\d[T"
    r" ]|\[?(?:ERROR|WARN(?:ING)?|INFO|DEBUG|FATAL)\b|\w*(?:Error|Exception)\b)"
)
_LOG_LEVEL = re.compile(r"\d[\d:.,]*\]?[ \t]+\[?(?:ERROR|WARN(?:ING)?|INFO|DEBUG|TRACE|FATAL)\b")
_SIGN_OFF = re.compile(
    r"^[ \t]*(?:-- ?|(?:(?:kind|best|warm|many)["
    r" \t]+)?(?:regards|wishes|greetings|thanks|cheers|best|sincerely|yours)"
    r"|(?:mit )?(?:freundlichen |besten |vielen |viele |liebe"
    r" )?(?:grüßen?|dank)|cordialement|saludos|un saludo|atentamente)"
    r"[ \t]*[,.!]?[ \t]*\n(?:[ \t]*\S[^\n]*\n){1,4}[ \t]*\n",
    re.MULTILINE | re.IGNORECASE,
)
_OF_OWN = re.compile(
    r"\b(?:my|mine|me|i|i'm|mein\w*|mir|mich|ich|mon|ma|mes|moi|je|mi|mis|yo)\b", re.IGNORECASE
)
_POSTSCRIPT = re.compile(r"\W*p\.?[ ]?s\b", re.IGNORECASE)
# The beginning of a message that another agent or a program sent in the user's place.
_MACHINE = re.compile(
    r"\A\s*(?:\[[^\]\n]{0,60}\b(?:(?:sub)?agents?|tasks?|cron|tools?|system|bots?|hooks?|jobs?|results?|heartbeat|automated|auto"
    r"|workers?|runners?|pipeline|ci|build|alert|notification|forwarded|orchestrator)\b[^\]\n]{0,60}\]"
    r"|\([^)\n]{0,40}\b(?:agent|worker|bot)\b[^)\n]{0,40}\)"
    r"|[#*_\s]*(?:\w+["
    r" \t]+){0,2}(?:sub-?agent|agent|worker|bot|orchestrator)\b[^\n.:!?,]{0,40}(?:\b(?:here|report|says?"
    r"|finished|done|result)\b|:)|(?:sub-?)?agent\b[^\n:.]{0,60}\b(?:finished|report(?:ed)?|result|done|completed)\b"
    r"|(?:(?:sub)?task|job)\b[^\n:.]{0,40}\b(?:completed|finished|result|report)\b"
    r"|(?:final"
    r" )?(?:result|report|summary|résultat|rapport|ergebnis|bericht|resultado|informe|relatório|risultato|отчёт|результат)"
    r"\b[^\n:.]{0,20}\b(?:sub-?)?(?:agent\w*|агент\w*)"
    r"|(?:sub-?agent|子代理|サブエージェント)[^\n:：]{0,60}[:：])",
    re.IGNORECASE,
)
_SQL = re.compile(
    r"[ \t]*(?:INSERT[ \t]+INTO|UPDATE[ \t]+\S+[ \t]+SET|SELECT\b.*\bFROM|DELETE[ \t]+FROM|CREATE["
    r" \t]+TABLE|VALUES[ \t]*\()",
    re.IGNORECASE,
)
_TUPLE = re.compile(r"[ \t]*\((?:'[^'\n]*'|[^()'\n])*\)[ \t]*[,;]?[ \t]*\Z")
# Keys of data are identifiers; "Tests: run them" is a person's label.
_YAML_KEY = re.compile(r"[ \t]*(?:-[ \t]+)?[a-z_][\w.-]*:(?:[ \t]+\S.*)?\Z")
_YAML_ITEM = re.compile(r"[ \t]*-[ \t]+\S.*\Z")
_INI_SECTION = re.compile(r"[ \t]*\[[\w. -]+\][ \t]*\Z")
_SETTING = re.compile(r"[ \t]*(?:export[ \t]+)?[A-Za-z_][\w.-]*[ \t]*=[ \t]*\S.*\Z")
_FEWEST_ROWS = 3
_FEWEST_SETTINGS = 2
_KEY_CHARS = 24
_MOST_ROWS = 200  # rows of one block; the limit keeps the time linear


def foreign_blocks(text: str) -> Iterator[tuple[int, int]]:
    """Pasted text in a user's message, apart from fenced blocks. Blocks may overlap. The middle of
    a very long message counts as pasted."""
    # A line or request before a closed fence refers to the fence. The text after it is the user's
    # again.
    yield from in_typed_parts(_CLOSED_FENCE.sub(lambda fence: _MASK * len(fence[0]), text), _blocks)


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Text after a line that announces it or after mail headers, and lines that programs write."""
    if _MACHINE.match(text):
        yield 0, len(text)
    for lead in _LEAD.finditer(text):
        if text.startswith(_MASK, lead.end()):
            continue
        if not introduces_rules(lead[1]) or (
            _POINTS_ON.search(lead[1]) and not _ADOPTS.search(lead[1])
        ):
            yield lead.end(), _end_of_paste(text, lead)
            break
    for begins in (_HEADER, _CHAT):
        if (match := begins.search(text)) and not _LOG_LEVEL.search(match[0]):
            yield match.start(), end_of_mail(text, match.start())
    yield from _beside_request(text)
    yield from _separated(text)
    headings = list(_HEADING.finditer(text))
    if len(headings) > 1:
        yield headings[0].start(), headings[-1].end()
    for paragraph in _PARAGRAPH.finditer(text):
        if (
            any(map(_CODE_LINE.match, paragraph[0].split("\n")))
            and "\n" in paragraph[0]
            and _MASK not in paragraph[0]
        ):
            yield paragraph.span()
    begin = _BEGINS.search(text)
    if (
        begin
        and not text.startswith(_MASK, begin.end())
        and (begin["named"] or not (introduces_rules(begin[0]) or OWN_SUBJECT.search(begin[0])))
    ):
        end = _ENDS.search(text, begin.end())
        yield begin.end(), end.end() if end else len(text)
    yield from (match.span() for match in _MARKED_LINE.finditer(text))
    for source in _SOURCE_BEHIND.finditer(text):
        before = text[max(0, source.start() - CLAUSE_CHARS) : source.start()]
        sentence = _LAST_SENTENCE.search(before)
        yield source.start() - len(sentence[0] if sentence else ""), source.end()
    yield from (match.span() for match in _OBJECT.finditer(text))
    yield from data_blocks(text)
    at, is_output = 0, False
    for line in text.splitlines(keepends=True):
        is_output = bool(line.strip()) and (
            is_output or line.lstrip().startswith("$ ") or line.startswith("@@ ")
        )
        if is_output or _PROGRAM_LINE.match(line):
            yield at, at + len(line)
        at += len(line)


def _end_of_paste(text: str, lead: re.Match[str]) -> int:
    """Where the text announced by the line `lead` ends. After the agent's own answer or a program's
    output, the last paragraph is the user's again."""
    is_output = _OUTPUT_LEAD.match(lead[1]) is not None
    last = text.rstrip().rfind("\n\n", lead.end()) if is_output or _OF_AGENT.search(lead[1]) else -1
    if last < 0 or (is_output and not _is_directed(text[last:].strip())):
        return len(text)
    return last


def end_of_mail(text: str, start: int) -> int:
    """Where a pasted mail or chat ends: after its last sign-off, if one paragraph with words such
    as `I` and `my` follows; else at the end of the message."""
    signed = [match.end() for match in _SIGN_OFF.finditer(text, start)]
    if not signed:
        return len(text)
    rest = text[signed[-1] :].strip()
    is_own = (
        _OF_OWN.search(rest)
        and "\n\n" not in rest
        and not _POSTSCRIPT.match(rest)
        and not runs_programs(rest)
    )
    return signed[-1] if is_own and len(rest) <= _DIRECTED_CHARS else len(text)


def _beside_request(text: str) -> Iterator[tuple[int, int]]:
    """The text after a first paragraph that asks about it or asks to edit it, up to a final
    question.
    """
    paragraphs = [match.span() for match in _PARAGRAPH.finditer(text)]
    if len(paragraphs) < 2 or _SEPARATOR.search(text):
        return
    request, end = text[slice(*paragraphs[0])], paragraphs[0][1]
    if len(request) > _REQUEST_CHARS or _LIST.match(request) or _MASK in text[: paragraphs[1][1]]:
        return
    if _points_to_text(request) or (
        _is_about_text(request) and not _is_directed(text[end:].strip())
    ):
        last = paragraphs[-1][0]
        yield end, last if len(paragraphs) > 2 and is_question(text[last:]) else len(text)


def _points_to_text(request: str) -> bool:
    """Whether a request asks to edit the text next to it, or says where that text is from."""
    is_pointing = WORKS_ON.search(request) and _POINTS_ON.search(request)
    is_asking = _ASKS_ABOUT.match(request.split("\n")[-1])
    return bool(RECEIVED.search(request) or is_asking or is_pointing or _THIS_TEXT.search(request))


def _is_about_text(request: str) -> bool:
    """Whether a request may be about a text next to it."""
    is_wish = (
        "?" in request
        or "？" in request
        or (is_imperative(request) and not FORBIDS.search(request))
    )
    return bool(
        WORKS_ON.search(request)
        or (is_wish and (_POINTS_ON.search(request) or SOURCE_NOUN.search(request)))
    )


def _is_directed(rest: str) -> bool:
    """Whether the text is one sentence that instructs the agent."""
    is_one = "\n" not in rest and len(rest) <= _DIRECTED_CHARS and len(SENTENCE.findall(rest)) == 1
    return is_one and (begins_with_verb(rest) or begins_with_rule(rest))


def _separated(text: str) -> Iterator[tuple[int, int]]:
    """The text from the first separator to the last, or to the end unless the last one closes the
    first.
    """
    separators = list(_SEPARATOR.finditer(text))
    if separators:
        first, last = separators[0], separators[-1]
        yield (
            first.start(),
            last.end() if len(separators) % 2 == 0 and _closes(first, last) else len(text),
        )


def _closes(first: re.Match[str], last: re.Match[str]) -> bool:
    """Whether the marks match and the labels differ but share a word, as `BEGIN MAIL` and `END
    MAIL`, or both are empty.
    """
    opened, closed = (
        separator["label"] or separator["inline"] or "" for separator in (first, last)
    )
    shared = set(opened.lower().split()) & set(closed.lower().split())
    mark = first["mark"] or "-"
    return (last["mark"] or "-") == _CLOSES.get(mark, mark) and (
        not opened + closed or (opened != closed and bool(shared))
    )


def data_blocks(text: str) -> Iterator[tuple[int, int]]:
    """Blocks of data lines. They do not overlap."""
    whole = text.splitlines(keepends=True)
    lines = [line.rstrip("\r\n") for line in whole]
    at = number = 0
    while number < len(lines):
        count = max(find(lines, number) for find in _FINDERS) if lines[number].strip() else 0
        end = at + sum(map(len, whole[number : number + max(count, 1)]))
        if count:
            yield at, end
        at, number = end, number + max(count, 1)


def _rows(lines: Sequence[str], begin: int) -> int:
    """The number of rows of a table from here: lines with the same number of separators and a short
    first column.
    """
    for mark in ("\t", ";", ","):
        columns = lines[begin].count(mark)
        if columns < (1 if mark == "\t" else 2):
            continue
        is_row = partial(_is_row, mark, columns)
        rows = lines[begin : _end(lines, begin, is_row)]
        is_table = (
            mark == "\t"
            or all(mark + " " not in row for row in rows)
            or all(row.lstrip()[:1].isdigit() for row in rows[1:])
        )
        if len(rows) >= (_FEWEST_SETTINGS if mark == "\t" else _FEWEST_ROWS) and is_table:
            return len(rows)
    return 0


def _is_row(mark: str, columns: int, line: str) -> bool:
    return line.count(mark) == columns and line.index(mark) <= _KEY_CHARS


def _statements(lines: Sequence[str], begin: int) -> int:
    is_statement = _SQL.match(lines[begin]) is not None
    count = (
        _end(
            lines,
            begin,
            lambda line: bool(_TUPLE.match(line) or (is_statement and _SQL.match(line))),
        )
        - begin
    )
    return count if is_statement or count >= _FEWEST_SETTINGS else 0


def _yaml(lines: Sequence[str], begin: int) -> int:
    if not _YAML_KEY.match(lines[begin]) or lines[begin].lstrip().startswith("-"):
        return 0
    block = lines[
        begin : _end(
            lines, begin, lambda line: bool(_YAML_KEY.match(line) or _YAML_ITEM.match(line))
        )
    ]
    keys = [line for line in block if _YAML_KEY.match(line)]
    is_nested = any(line.endswith(":") for line in keys) or any(
        line[:1] in " \t" for line in block[1:]
    )
    return (
        len(block) if len(block) >= _FEWEST_ROWS and (is_nested or len(keys) >= _FEWEST_ROWS) else 0
    )


def _settings(lines: Sequence[str], begin: int) -> int:
    head = 1 if _INI_SECTION.match(lines[begin]) else 0
    count = _end(lines, begin + head, lambda line: _SETTING.match(line) is not None) - begin - head
    return head + count if count >= (1 if head else _FEWEST_SETTINGS) else 0


def _end(lines: Sequence[str], begin: int, is_data: Callable[[str], bool]) -> int:
    """Index after the last consecutive line of this kind."""
    most = min(len(lines), begin + _MOST_ROWS)
    return next((at for at in range(begin, most) if not is_data(lines[at])), most)


_FINDERS: tuple[Callable[[Sequence[str], int], int], ...] = (_rows, _statements, _yaml, _settings)


_QUOTE = re.compile(
    r"`([^`\n]{1,400})`|\"([^\"\n]{1,400})\"|“([^”\n]{1,400})”|„([^“”\n]{1,400})[“”]|«([^»\n]{1,400})»|「([^」\n]{1,400})」"
    r"|『([^』\n]{1,400})』|《([^》\n]{1,400})》|‹([^›\n]{1,400})›|[＂″]([^＂″\n]{1,400})[＂″]|''([^'\n]{1,400})''"
    r"|[(\[]quote[)\]](?P<spoken>[^\n]{1,400}?)[(\[](?:un|end"
    r" |/)quote[)\]]|‘([^’\n]{1,400})’|(?<![\w'])'([^'\n]{1,400})'(?!\w)"
)
SENTENCE = re.compile(
    r"[^.!?。"
    r"！？\n]+(?:(?:[.!?](?=\S)|(?<=\bDr)\.|(?<=\bMr)\.|(?<=\bMs)\.|(?<=\bMrs)\.|(?<=\bProf)\.|(?<=\bz\.B)\.|(?<=\be\.g)\."
    r"|[。！？](?=[」』》”]))[^.!?。！？\n]*)*[.!?。！？\n]*"
)
_BLOT = "□"
_COLON = re.compile(r"[ \t]?:[ \t]+(?=\S)|：(?=\S)")
RECEIVED = re.compile(
    r"\b(?:i|we|ich|wir|my \w+)[ \t]+(?:just[ \t]+)?(?:(?:got|received|found|saw|copied|pasted)"
    r" (?:this|that|it|an?|the"
    r"|these)|bekam|fand|kopierte)\b|\b(?:sent me|sent us"
    r"|j'ai reçu|he recibido|me ha llegado|me llegó|recebi|habe ich bekommen|gefunden"
    r" auf)\b|收到|转发|転送|届い",
    re.IGNORECASE,
)
CLAUSE_CHARS = 300
_TYPED_CHARS = 20_000
# A request to edit or explain a text.
WORKS_ON = re.compile(
    r"\b(?:translat|summari[sz]|proof-?read|typos?\b|spelling|tl;?dr|transcri[bp]|polish|shorten|reply"
    r" to|respond to"
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
    r"\b(?:do (?:that|this|it|so)|(?:follow|respect|observe|apply) (?:that|this|it)|(?:stick|keep)"
    r" to (?:that|this|it)"
    r"|mach\w* (?:das|es)|halt\w* dich daran|fais(?:-le| le| ça| comme ça)|haz(?:lo| eso)|faça"
    r" isso)\b|照(?:做|办)|そうして",
    re.IGNORECASE,
)
_REFUSES = re.compile(
    r"\b(?:not|n't|never|no|nicht|nie|kein\w*|pas|jamais|nunca|não|ignore)\b|n't\b|不要|别",
    re.IGNORECASE,
)
# A label that is a speaker's name unless it is one of the person's own: one word, or words with
# capitals.
_SPEAKER = re.compile(
    r"\W*(?:(?:Dr|Mr|Mrs|Ms|Herr|Frau)\b\.?[ \t]*)?[\w.@-]{1,24}(?:["
    r" \t]+[A-Z0-9][\w.@-]{0,24}){0,2}\s*\Z"
)
_OWN_LABEL = re.compile(
    r"\W*(?:(?:for|with|about|für|pour|para|con|per|voor)\b(?! \w+"
    r" (?:says|is|was)).*|no|nope|wrong|correction"
    r"|rules?|note|notes|nb|ps|important|remember|reminder|fyi|btw|tests?|also|and|but|so|please|style|format|tone|language"
    r"|todo|edit|update"
    r"|instructions?|preferences?|requirements?|constraints?|conventions?|polic(?:y|ies)|always|never|generally|again|first"
    r"|finally|future|henceforth|memo|nein|falsch|regeln?|wichtig|hinweis|merke?|notiz|bitte|künftig|zukünftig|ab"
    r" jetzt"
    r"|non|faux|règles?|rappel|retiens|désormais|à retenir"
    r"|regla|reglas|importante|nota|recuerda|recordatorio|siempre|нет|важно|правило|запомни"
    r"|规则|規則|注意|重要|提醒|记住|記住|要求|另外|今后|以后|不对|ルール|覚えて|メモ|今後|お願い)\b",
    re.IGNORECASE,
)
# Where something applies: "in every project of mine: …".
_PLACE = re.compile(
    r"\W*(?:in|on|at|im|bei|auf|dans|sur|en|em|no|na|в|на)(?: [\w'-]{1,20}){1,4}\s*\Z",
    re.IGNORECASE,
)
# Before a colon, if the user's own words follow: a denial, a complaint, a label such as `Rule`.
_OWN_LEAD = re.compile(
    r"\W*(?:[\w'-]{1,20}(?: [\w'-]{1,20}){0,2}"
    r"|(?:that|this|it|das|es|ça|c|eso|esto)(?:'s|'est| is| was| ist| war| es|"
    r" est)?\b.{0,40})\W*\Z",
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
    r"|asked|wants|insists|insisted|advises|advised|instructs|instructed|demands|demanded|mentions|mentioned|warns"
    r"|warned|replies|replied|urges|urged|posted"
    r"|(?:is|was)[ \t]+(?:basically[ \t]+|simply[ \t]+)?to|there[ \t]+(?:is|was)|used[ \t]+to["
    r" \t]+say|requires?|expects"
    r"|orders|prescribes|exige|impose|demande|ordonne|pide|ordena|fordert|schreibt[ \t]+vor"
    r"|(?:repeats|thinks|believes|promises|argues|\w{3,}(?:ed|ing))[ \t]+that"
    r"|sagt|sagte|steht|stand|schreibt|schrieb|meint|meinte|empfiehlt|empfahl|behauptet|behauptete|verlangt|verlangte|rät|riet"
    r"|dit|disait|écrit|écrivait|affiche|affichait|recommande|prétend|demande|conseille|indique"
    r"|dice|decía|dijo|escribe|escribió|recomienda|pide|pidió|aconseja|afirma|indica"
    r"|diz|disse|dizia|escreveu|pede|pediu|recomenda|pisze|napisane|mówi|każe|scrive|consiglia|zegt|schrijft|raadt"
    r"|говорит|говорят|говорил|сказал|сказала|пишет|пишут|написал|написала|написано|сказано|советует|советуют|просит|просят"
    r"|требует|требуют"
)
# The base form may be an order ("always write …"), so it counts as a report only after a plural.
_THEY_SAY = (
    r"(?:they|people|folks|(?!always\b)\w{3,}s)["
    r" \t]+(?:say|claim|write|state|suggest|recommend|ask|want|insist|advise|demand|warn)"
)
_REPORT = re.compile(
    rf"(?<![^\s,;:()])(?P<before>(?:[^\s,;:()]{{1,40}}[ \t]+){{1,9}}?)(?:{_SAYS})\b(?=["
    rf" \t,:]+\S)|\b{_THEY_SAY}\b(?=[ \t,:]+\S)"
    r"|\bI[ \t]+(?:saw|read|heard|found|got)[ \t]+(?:it[ \t]+)?(?:on|in|at|from|somewhere)\b(?!["
    r" \t]+your?\b)(?=[ \t]+\S)"
    r"|\bheißt es\b(?=[ \t,:]+\S)|\b(?:according"
    r" to|laut|selon|d'après|según|segundo|secondo|volgens|согласно|по словам)[ \t]+\S",
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
    r"\W*(?:and |but |so |und |et |y"
    r" )?(?:when|whenever|if|unless|where|wherever|once|what|whatever|wenn|falls|sobald|was|si|quand"
    r"|lorsque|cuando|se|quando|als|если|когда)\b",
    re.IGNORECASE,
)
_BACK = re.compile(
    r"[;–—]|,[ \t]*(?:so|deshalb|darum|also|donc|así que|portanto|quindi|dus|поэтому)\b"
    r"|,[ \t]*(?:(?:and|but|so|yet|while|und|aber|doch|et|mais|y|pero|e|mas|а|но|и)[ \t]+)?"
    rf"(?:{_OWN}|please|bitte|s'il|por favor|per"
    r" favore|my|mine|our|your|mein\w*|mi|mis|mon|ma|gefragt|мой|моя|мне)\b",
    re.IGNORECASE,
)
_WIDE_REPORT = re.compile(
    r"(?:^|[，、。\s])(?:根?据|根?據|按照|依照)(?!我)[^，。]{1,20}(?:说|說|称|稱|，"
    r")|(?<![我你您便如是来話话])(?:说|說|写着|寫著|写道|寫道|发|發|声称|要求|建议|建議|表示)[，"
    r"：:「□]"
    r"|(?<![我你您便如是来話话])(?:说|說)(?!一下|一句|明|实话|實話)|(?<![我你您])(?:写着|寫著|声称|要求|建议|建議)|によると|によれば|と(?:書いて|言って)(?!くだ|下さ|ほし|欲し)|とのこと|だそう|らしい|とあり"
)
_WIDE_BACK = re.compile(r"[，、,](?=我|但我|可我|而我|私|聞いた|聞きたかった)|(?:が|けど)、")


def foreign_clauses(text: str) -> Iterator[tuple[int, int]]:
    """Clauses in which the user quotes or reports another person. They may overlap."""
    yield from in_typed_parts(text, _clauses)


def in_typed_parts(
    text: str, find: Callable[[str], Iterator[tuple[int, int]]]
) -> Iterator[tuple[int, int]]:
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
    for sentence, later in zip_longest(sentences, sentences[1:]):
        is_asked = is_question(sentence[0]) or (later is not None and is_question(later[0]))
        yield from _in_sentence(
            sentence[0], sentence.start(), "" if later is None else later[0], is_asked=is_asked
        )


def _is_given(clause: str) -> bool:
    """Whether the clause around a quotation makes it the user's: it has words such as `I`, or tells
    the agent to use it.
    """
    return is_imperative(clause) and (
        OWN_SUBJECT.search(clause) is not None or begins_with_verb(clause)
    )


def _in_sentence(
    sentence: str, at: int, later: str, *, is_asked: bool
) -> Iterator[tuple[int, int]]:
    """Quotations and reports in one sentence. `later` is the next sentence; `is_asked` says that
    either is a question.
    """
    seen = _QUOTE.sub(lambda quote: _BLOT * len(quote[0]), sentence)
    reports = list(_reported(seen, later))
    for quote in _QUOTE.finditer(sentence):
        content = next(group for group in quote.groups() if group)
        is_word = _FEW_WORDS.fullmatch(content) is not None and not _CJK.search(content)
        is_order = runs_programs(content) or (
            quote[1] is None and not is_word and is_imperative(content)
        )
        if is_order and (
            reports or quote["spoken"] or is_asked or not _is_given(_clause(seen, *quote.span()))
        ):
            yield at + quote.start(), at + quote.end()
    for start, end in reports:
        yield at + start, at + end


def _clause(seen: str, start: int, end: int) -> str:
    """The clause around a quotation, with quotations masked."""
    before = re.split(r"[,;:]", seen[max(0, start - CLAUSE_CHARS) : start])[-1]
    behind = re.split(r"[,;:]", seen[end : end + CLAUSE_CHARS])[0]
    return f"{before}{_BLOT}{behind}".strip()


def _reported(seen: str, later: str) -> Iterator[tuple[int, int]]:
    for report in _REPORT.finditer(seen):
        before = report["before"]
        clause = re.split(
            r"[,;:]", seen[max(0, report.start() - CLAUSE_CHARS) : report.start()] + (before or "")
        )[-1]
        if before is not None and (
            OWN_SUBJECT.search(clause)
            or _CONDITION.match(clause)
            or _OUR_RULES.search(clause)
            or _NO_SUBJECT.fullmatch(before)
            or _BLOT in before
        ):
            continue
        back = _BACK.search(seen, report.end() + 1)
        end = back.start() if back else len(seen)
        if (
            before is not None
            and not SOURCE_NOUN.search(clause)
            and _takes_over(seen[end:] or later, seen[report.end() : end])
        ):
            return
        yield report.end() - 1, end
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
        is_named = _SPEAKER.match(lead) and not (
            _OWN_LABEL.match(lead) or introduces_rules(lead.strip().removesuffix("s"))
        )
        is_label = _OWN_LEAD.match(lead) and not (
            is_named or SOURCE_NOUN.search(lead) or WORKS_ON.search(lead)
        )
        is_place = _PLACE.match(lead) and not SOURCE_NOUN.search(lead)
        is_own = (
            OWN_SUBJECT.search(lead)
            or _OWN_LABEL.match(lead)
            or is_label
            or is_place
            or introduces_rules(lead)
        )
        if is_imperative(seen[colon.end() :].strip()) and (not is_own or RECEIVED.search(lead)):
            yield colon.end(), len(seen)
            return


def _takes_over(own: str, reported: str) -> bool:
    """Whether the user adopts another person's wish. A wish that runs programs does not count: the
    user must order it directly.
    """
    takes = (
        _TAKES_OVER.search(own) is not None and not _REFUSES.search(own) and not is_question(own)
    )
    return takes and _BLOT not in reported and not runs_programs(reported)


def runs_programs(content: str) -> bool:
    wanted = capabilities(content)
    return bool(wanted.pipes or wanted.commands)


def is_question(seen: str) -> bool:
    return seen.rstrip().endswith(("?", "？"))
