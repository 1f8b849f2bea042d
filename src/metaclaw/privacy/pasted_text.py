"""Pasted text in a person's message: mails, chats, logs, tables, YAML, INI and SQL. Instructions in it are not the person's."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from metaclaw.privacy.capabilities import FORBIDS
from metaclaw.privacy.reported_speech import (
    CLAUSE_CHARS,
    OWN_SUBJECT,
    RECEIVED,
    SENTENCE,
    SOURCE_NOUN,
    WORKS_ON,
    in_typed_parts,
    is_question,
    runs_programs,
)
from metaclaw.text import begins_with_rule, begins_with_verb, introduces_rules, is_imperative

_MASK = "\ue000"
_CLOSED_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n.*?^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL)
_LEAD = re.compile(r"^([^\n]{0,300})[:：][ \t]*\n\s*(?=\S)", re.MULTILINE)
# A mail's header in any language: labelled lines, a blank line, text.
_HEADER = re.compile(r"^(?:[ \t]*[^\W\d][^\n:：]{0,30}[:：][ \t]*\S[^\n]*\n){2,12}[ \t]*\n(?=\s*\S)", re.MULTILINE)
# A chat's line with a name and a time and nothing else.
_TIME = r"(?:[\d./-]{4,10},?[ \t]+)?\d{1,2}:\d\d(?::\d\d)?(?:[ \t]?[AaPp]\.?[Mm]\.?)?"
_NAME = r"[^\W\d][\w.@'-]{0,24}(?:[ \t]+[\w.@'-]{1,24}){0,2}"
_CHAT = re.compile(
    rf"^[ \t]*(?:\[[^\]\n]{{0,20}}?{_TIME}\](?:[ \t]*{_NAME}:?)?|{_TIME}[ \t]+{_NAME}:?"
    rf"|{_NAME}[ \t]*[,(\[—–-]?[ \t]*(?:\w+ at |\w+ um )?{_TIME}[\])]?:?)[ \t]*\n",
    re.MULTILINE,
)
# A line of separators, alone or around a label; dashes around a label count inside a line as well.
_RULE = r"[-=<>*_~#+/\\|:%&^•─━═]"
_SEPARATOR = re.compile(
    rf"^[ \t]*(?P<mark>{_RULE})(?:(?P=mark){{2,}}+[ \t]*$"
    rf"|(?P=mark)++(?P<label>[ \t][^\n]{{1,80}}?[ \t]{_RULE}{{2,}}|(?<![*_])(?<={_RULE}{{3}})[^\n]{{1,80}}?{_RULE}{{3,}})[ \t]*$)"
    r"|(?<!-)-{4,}+(?P<inline>[^\n-]{2,60})-{4,}",
    re.MULTILINE,
)
_CLOSES = {"<": ">"}
_BEGINS = re.compile(
    r"(?:(?<=[.!?\n])[ \t]*|\A)(?:(?P<named>start|begin(?:ning)?|anfang|début|inicio)[ \t]+(?:of|des|der|du|de)\b[^.\n]{1,60}"
    r"|[^.:\n]{1,60}(?<! as) (?:follows|below|folgt))[.:]\s",
    re.IGNORECASE,
)
# A line that announces what the agent itself said.
_OF_AGENT = re.compile(
    r"\byou(?:'ve| have)?(?: just)? (?:wrote|written|said|answered|replied|gave|given|told me|produced|printed|generated|put)\b"
    r"|\b(?:your|deine?|ihre?|ta|votre|tu|sua|tua) (?:last |letzte |dernière |última )?(?:answer|reply|response|output|text"
    r"|draft|version"
    r"|suggestion|summary|antwort|ausgabe|entwurf|réponse|texte|respuesta|texto|resposta)\b"
    r"|\b(?:hast du|du hast|haben sie) |\b(?:tu as|vous avez) (?:écrit|dit|répondu)|\b(?:escribiste|dijiste|respondiste"
    r"|você (?:escreveu|disse))\b"
    r"|[你您]的?(?:写|說|说|回答|输出)|あなたの(?:回答|答え|出力)",
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
    r"|siguiente\w*|iss?o"
    r"|thread|table|list|diff|snippet|questo|questa|seguente|dit|deze"
    r"|эт\w+|следующ\w+)\b|这|這|下面|以下|次の|この|이|다음",
    re.IGNORECASE,
)
_ASKS_ABOUT = re.compile(
    r"(?:.*[.!?] )?(?:is|was|are|does|ist|war|sind|es|est-ce|è)[ ](?:this|that|these|das|dies|esto|eso|ça)\b.*\?$", re.I
)
_THIS_TEXT = re.compile(
    r"\b(?:this|these|the following|dies\w*|folgend\w*|ce|cet|cette|ces|est[ea]s?|ess[ea]s?|questo|questa|этот?|эта)[ ](?:\w+ )?"
    r"(?:e-?mails?|mail|message|letter|memo|note|comment|post|tweet|review|text\w*|article|paragraph|sentence|contract"
    r"|doc\w*|log|readme"
    r"|nachricht|brief|aushang|absatz|vertrag|kommentar|courriel|lettre|annonce|correo|mensaje|carta|comentario|mensagem|письмо)\b"
    r"|(?:这|這|此|该|下面|以下|上面)[条條段封篇个個份句则則]?(?:的)?[评評邮郵文话話信消合通内內公]"
    r"|(?:この|次の|以下の|下の)(?:文|メ|コメ|手紙|記事|投稿|規)",
    re.IGNORECASE,
)
# Lines of program text, and headings that cut a message into parts.
_CODE_LINE = re.compile(
    r"[ \t]*(?://|/\*|\*/|#include|#!|(?:def|class|function|import|from|const|let|var|return|public|private|package"
    r"|use)\b.*[(){};:=]"
    r"|.*(?:[{};]|=>|\):)[ \t]*$)"
)
_HEADING = re.compile(r"^#{1,4} \S[^\n]*$", re.MULTILINE)
_PARAGRAPH = re.compile(r"\S[^\n]*(?:\n(?![ \t]*\n)[^\n]*)*")
_REQUEST_CHARS = 300
_DIRECTED_CHARS = 240
_LIST = re.compile(r"[ \t]*(?:[-*•]|\d{1,2}[.)])[ \t]")
# Words by which the user adopts the text that follows.
_ADOPTS = re.compile(
    r"\b(?:use|follow|apply|stick|remember|adopt|obey|respect|keep to|do it|like this|befolg|halt\w* dich|verwend|nutz"
    r"|benutz|merk|suis|suivez"
    r"|utilis|applique|retiens|sigue|usa|aplica|recuerda|segue|siga|aplique|lembr)\w*|遵守|遵循|使用|按照|照着|记住|従って|守って|使って",
    re.IGNORECASE,
)
_OBJECT = re.compile(r"\{\s*\"[^{}]{1,2000}\}")
# Lines that programs write: of logs, of differences, of commands, of a chat.
_PROGRAM_LINE = re.compile(
    r"[ \t]*(?:\[?\d{4}-\d\d-\d\d[T ]|\[?\d\d:\d\d(?::\d\d)?\]?[ \t]|\[?(?:ERROR|WARN(?:ING)?|INFO|DEBUG|TRACE|FATAL|HINT|NOTICE)\b"
    r"|npm (?:ERR!|WARN|notice)|diff --git |index [0-9a-f]{6,}\.\.|Caused by:|at [\w.$<>]+\("
    r"|\$ |\|[ \t](?=[^|\n]*$)|\|(?=[^\n]*\|[ \t]*$)|>>> |--- |\+\+\+ |@@|[+-](?=[^\s\d+-]))[^\n]*",
    re.MULTILINE,
)
# A line after which a program's output goes on to the next blank line.
_OUTPUT_LEAD = re.compile(
    r"[ \t]*(?:Traceback\b|\[?\d{4}-\d\d-\d\d[T ]|\[?(?:ERROR|WARN(?:ING)?|INFO|DEBUG|FATAL)\b|\w*(?:Error|Exception)\b)"
)
_LOG_LEVEL = re.compile(r"\d[\d:.,]*\]?[ \t]+\[?(?:ERROR|WARN(?:ING)?|INFO|DEBUG|TRACE|FATAL)\b")
_SIGN_OFF = re.compile(
    r"^[ \t]*(?:-- ?|(?:(?:kind|best|warm|many)[ \t]+)?(?:regards|wishes|greetings|thanks|cheers|best|sincerely|yours)"
    r"|(?:mit )?(?:freundlichen |besten |vielen |viele |liebe )?(?:grüßen?|dank)|cordialement|saludos|un saludo|atentamente)"
    r"[ \t]*[,.!]?[ \t]*\n(?:[ \t]*\S[^\n]*\n){1,4}[ \t]*\n",
    re.MULTILINE | re.IGNORECASE,
)
_OF_OWN = re.compile(r"\b(?:my|mine|me|i|i'm|mein\w*|mir|mich|ich|mon|ma|mes|moi|je|mi|mis|yo)\b", re.IGNORECASE)
_POSTSCRIPT = re.compile(r"\W*p\.?[ ]?s\b", re.IGNORECASE)
# The beginning of a message that another agent or a program sent in the user's place.
_MACHINE = re.compile(
    r"\A\s*(?:\[[^\]\n]{0,60}\b(?:(?:sub)?agents?|tasks?|cron|tools?|system|bots?|hooks?|jobs?|results?|heartbeat|automated|auto"
    r"|workers?|runners?|pipeline|ci|build|alert|notification|forwarded|orchestrator)\b[^\]\n]{0,60}\]"
    r"|\([^)\n]{0,40}\b(?:agent|worker|bot)\b[^)\n]{0,40}\)"
    r"|[#*_\s]*(?:\w+[ \t]+){0,2}(?:sub-?agent|agent|worker|bot|orchestrator)\b[^\n.:!?,]{0,40}(?:\b(?:here|report|says?"
    r"|finished|done|result)\b|:)"
    r"|(?:sub-?)?agent\b[^\n:.]{0,60}\b(?:finished|report(?:ed)?|result|done|completed)\b"
    r"|(?:(?:sub)?task|job)\b[^\n:.]{0,40}\b(?:completed|finished|result|report)\b"
    r"|(?:final )?(?:result|report|summary|résultat|rapport|ergebnis|bericht|resultado|informe|relatório|risultato|отчёт|результат)"
    r"\b"
    r"[^\n:.]{0,20}\b(?:sub-?)?(?:agent\w*|агент\w*)"
    r"|(?:sub-?agent|子代理|サブエージェント)[^\n:：]{0,60}[:：])",
    re.IGNORECASE,
)
_SQL = re.compile(
    r"[ \t]*(?:INSERT[ \t]+INTO|UPDATE[ \t]+\S+[ \t]+SET|SELECT\b.*\bFROM|DELETE[ \t]+FROM|CREATE[ \t]+TABLE|VALUES[ \t]*\()",
    re.IGNORECASE,
)
_TUPLE = re.compile(r"[ \t]*\((?:'[^'\n]*'|[^()'\n])*\)[ \t]*[,;]?[ \t]*\Z")
# Keys of data are identifiers; a person who writes "Tests: run them" writes a label.
_YAML_KEY = re.compile(r"[ \t]*(?:-[ \t]+)?[a-z_][\w.-]*:(?:[ \t]+\S.*)?\Z")
_YAML_ITEM = re.compile(r"[ \t]*-[ \t]+\S.*\Z")
_INI_SECTION = re.compile(r"[ \t]*\[[\w. -]+\][ \t]*\Z")
_SETTING = re.compile(r"[ \t]*(?:export[ \t]+)?[A-Za-z_][\w.-]*[ \t]*=[ \t]*\S.*\Z")
_FEWEST_ROWS = 3
_FEWEST_SETTINGS = 2
_KEY_CHARS = 24
_MOST_ROWS = 200  # of one block, so that time stays linear


def foreign_blocks(text: str) -> Iterator[tuple[int, int]]:
    """Pasted text in a user's message, apart from fenced blocks. Blocks may overlap. The middle of a message that is longer than
    a person types is pasted."""
    # A closed fence is what a line announces or a request refers to. The text after it is the user's again.
    yield from in_typed_parts(_CLOSED_FENCE.sub(lambda fence: _MASK * len(fence[0]), text), _blocks)


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Text after a line that announces it or after mail headers, and lines that programs write."""
    if _MACHINE.match(text):
        yield 0, len(text)
    for lead in _LEAD.finditer(text):
        if text.startswith(_MASK, lead.end()):
            continue
        if not introduces_rules(lead[1]) or (_POINTS_ON.search(lead[1]) and not _ADOPTS.search(lead[1])):
            yield lead.end(), _end_of_paste(text, lead)
            break
    for begins in (_HEADER, _CHAT):
        if (found := begins.search(text)) and not _LOG_LEVEL.search(found[0]):
            yield found.start(), end_of_mail(text, found.start())
    yield from _beside_request(text)
    yield from _separated(text)
    headings = list(_HEADING.finditer(text))
    if len(headings) > 1:
        yield headings[0].start(), headings[-1].end()
    for paragraph in _PARAGRAPH.finditer(text):
        if any(map(_CODE_LINE.match, paragraph[0].split("\n"))) and "\n" in paragraph[0] and _MASK not in paragraph[0]:
            yield paragraph.span()
    begin = _BEGINS.search(text)
    if (
        begin
        and not text.startswith(_MASK, begin.end())
        and (begin["named"] or not (introduces_rules(begin[0]) or OWN_SUBJECT.search(begin[0])))
    ):
        end = _ENDS.search(text, begin.end())
        yield begin.end(), end.end() if end else len(text)
    yield from (found.span() for found in _MARKED_LINE.finditer(text))
    for source in _SOURCE_BEHIND.finditer(text):
        before = text[max(0, source.start() - CLAUSE_CHARS) : source.start()]
        said = _LAST_SENTENCE.search(before)
        yield source.start() - len(said[0] if said else ""), source.end()
    yield from (found.span() for found in _OBJECT.finditer(text))
    yield from data_blocks(text)
    at, is_output = 0, False
    for line in text.splitlines(keepends=True):
        is_output = bool(line.strip()) and (is_output or line.lstrip().startswith("$ ") or line.startswith("@@ "))
        if is_output or _PROGRAM_LINE.match(line):
            yield at, at + len(line)
        at += len(line)


def _end_of_paste(text: str, lead: re.Match[str]) -> int:
    """Where text after such a line ends. After the agent's own answer or a program's output, the last paragraph is the user's
    again."""
    is_output = _OUTPUT_LEAD.match(lead[1]) is not None
    last = text.rstrip().rfind("\n\n", lead.end()) if is_output or _OF_AGENT.search(lead[1]) else -1
    if last < 0 or (is_output and not _is_directed(text[last:].strip())):
        return len(text)
    return last


def end_of_mail(text: str, start: int) -> int:
    """Where a pasted mail or chat ends: after its last sign-off, if one paragraph follows in which the user speaks of
    themselves; else with the message."""
    signed = [found.end() for found in _SIGN_OFF.finditer(text, start)]
    if not signed:
        return len(text)
    rest = text[signed[-1] :].strip()
    is_own = _OF_OWN.search(rest) and "\n\n" not in rest and not _POSTSCRIPT.match(rest) and not runs_programs(rest)
    return signed[-1] if is_own and len(rest) <= _DIRECTED_CHARS else len(text)


def _beside_request(text: str) -> Iterator[tuple[int, int]]:
    """The text after a first paragraph that asks about it or wants it edited, up to a final question."""
    paragraphs = [found.span() for found in _PARAGRAPH.finditer(text)]
    if len(paragraphs) < 2 or _SEPARATOR.search(text):
        return
    request, end = text[slice(*paragraphs[0])], paragraphs[0][1]
    if len(request) > _REQUEST_CHARS or _LIST.match(request) or _MASK in text[: paragraphs[1][1]]:
        return
    if _points_to_text(request) or (_is_about_text(request) and not _is_directed(text[end:].strip())):
        last = paragraphs[-1][0]
        yield end, last if len(paragraphs) > 2 and is_question(text[last:]) else len(text)


def _points_to_text(request: str) -> bool:
    """Whether a request asks to edit the text next to it, or says where that text is from."""
    is_pointing = WORKS_ON.search(request) and _POINTS_ON.search(request)
    is_asking = _ASKS_ABOUT.match(request.split("\n")[-1])
    return bool(RECEIVED.search(request) or is_asking or is_pointing or _THIS_TEXT.search(request))


def _is_about_text(request: str) -> bool:
    """Whether a request may be about a text next to it."""
    is_wish = "?" in request or "？" in request or (is_imperative(request) and not FORBIDS.search(request))
    return bool(WORKS_ON.search(request) or (is_wish and (_POINTS_ON.search(request) or SOURCE_NOUN.search(request))))


def _is_directed(rest: str) -> bool:
    """Whether the text is one sentence that instructs the agent."""
    is_one = "\n" not in rest and len(rest) <= _DIRECTED_CHARS and len(SENTENCE.findall(rest)) == 1
    return is_one and (begins_with_verb(rest) or begins_with_rule(rest))


def _separated(text: str) -> Iterator[tuple[int, int]]:
    """The text from the first separator to the last, or to the end unless the last one closes the first."""
    found = list(_SEPARATOR.finditer(text))
    if found:
        yield found[0].start(), found[-1].end() if len(found) % 2 == 0 and _closes(found[0], found[-1]) else len(text)


def _closes(first: re.Match[str], last: re.Match[str]) -> bool:
    """Whether the marks match and the labels differ but share a word, as `BEGIN MAIL` and `END MAIL`, or both are empty."""
    opened, closed = (one["label"] or one["inline"] or "" for one in (first, last))
    shared = set(opened.lower().split()) & set(closed.lower().split())
    mark = first["mark"] or "-"
    return (last["mark"] or "-") == _CLOSES.get(mark, mark) and (not opened + closed or (opened != closed and bool(shared)))


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
    """The number of rows of a table from here: lines with the same number of separators and a short first column."""
    for mark in ("\t", ";", ","):
        columns = lines[begin].count(mark)
        if columns < (1 if mark == "\t" else 2):
            continue
        is_row = partial(_is_row, mark, columns)
        rows = lines[begin : _end(lines, begin, is_row)]
        is_table = mark == "\t" or all(mark + " " not in row for row in rows) or all(row.lstrip()[:1].isdigit() for row in rows[1:])
        if len(rows) >= (_FEWEST_SETTINGS if mark == "\t" else _FEWEST_ROWS) and is_table:
            return len(rows)
    return 0


def _is_row(mark: str, columns: int, line: str) -> bool:
    return line.count(mark) == columns and line.index(mark) <= _KEY_CHARS


def _statements(lines: Sequence[str], begin: int) -> int:
    is_statement = _SQL.match(lines[begin]) is not None
    count = _end(lines, begin, lambda line: bool(_TUPLE.match(line) or (is_statement and _SQL.match(line)))) - begin
    return count if is_statement or count >= _FEWEST_SETTINGS else 0


def _yaml(lines: Sequence[str], begin: int) -> int:
    if not _YAML_KEY.match(lines[begin]) or lines[begin].lstrip().startswith("-"):
        return 0
    found = lines[begin : _end(lines, begin, lambda line: bool(_YAML_KEY.match(line) or _YAML_ITEM.match(line)))]
    keys = [line for line in found if _YAML_KEY.match(line)]
    is_nested = any(line.endswith(":") for line in keys) or any(line[:1] in " \t" for line in found[1:])
    return len(found) if len(found) >= _FEWEST_ROWS and (is_nested or len(keys) >= _FEWEST_ROWS) else 0


def _settings(lines: Sequence[str], begin: int) -> int:
    head = 1 if _INI_SECTION.match(lines[begin]) else 0
    count = _end(lines, begin + head, lambda line: _SETTING.match(line) is not None) - begin - head
    return head + count if count >= (1 if head else _FEWEST_SETTINGS) else 0


def _end(lines: Sequence[str], begin: int, is_data: Callable[[str], bool]) -> int:
    """Index after the last consecutive line of this kind."""
    most = min(len(lines), begin + _MOST_ROWS)
    return next((at for at in range(begin, most) if not is_data(lines[at])), most)


_FINDERS: tuple[Callable[[Sequence[str], int], int], ...] = (_rows, _statements, _yaml, _settings)
