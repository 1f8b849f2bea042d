"""Cuts texts into sentences and finds those that tell somebody what to do, in the languages people write to agents in."""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

from metaclaw.privacy.unicode import plain

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_BREAK = re.compile(
    r"(?<=[.!?;])(?<!\d\.)\s+|(?<=[。！？；])|\n[ \t]*\n|\n(?=[ \t]*(?:[-*•+>]|\d{1,3}[.)]|#{1,6})[ \t])|\n|(?<=:)[ ](?=[A-Z])| — | – "
)
_LEAD = re.compile(
    r"(?:[-*•+>#\s]|\d{1,3}[.)]|\[[ x]\]|\*\*|__|step \d+:?|note:|important:|first,?|then,?|next,?|finally,?|also,?|and|please,?|so|but|instead,?|now,?)+\s*",
    re.IGNORECASE,
)
_CLAUSE = re.compile(
    r"(?:when(?:ever)?|if|before|after|while|once|until|unless|for|in|on|to|with|as|at|during|because|since|where|wherever|by|under|given|upon|each time|every time|any time)\b[^,\n]{2,160},\s*",
    re.IGNORECASE,
)
_SHELL = frozenset(
    ("", "sh", "bash", "shell", "zsh", "console", "fish", "powershell", "ps1", "cmd", "bat", "terminal", "shell-session")
)
_PROMPT = re.compile(r"^[ \t]*(?:\$|%|>|#)[ \t]+(?=\S)")
_COMMAND = re.compile(
    r"^[ \t]*(?:sudo[ \t]+)?(?:curl|wget|bash|sh|zsh|eval|source|ssh|scp|rsync|nc|ncat|git|pip3?|pipx|uv|npm|npx|pnpm|yarn|brew|apt(?:-get)?|python3?|node|ruby"
    r"|perl|chmod|chown|cat|echo|export|docker|kubectl|make|cargo|go|openssl|base64|crontab|systemctl|rm|cp|mv|tar|\./|~/|/)\S*[ \t]"
)

_VERBS = (
    "abort accept access activate add adjust adopt aim allow always analyse analyze announce answer append apply approve archive ask assert"
    " assign assume attach avoid await back backup base be begin block bring browse build bump call cancel capture change check choose cite clean"
    " clear click clone close collect combine comment commit compare compile complete compute configure confirm connect consider"
    " contact continue convert copy correct count create cut debug declare decode default define delete deliver deny deploy describe"
    " disable discard display do document don't double-check download draft drop dump echo edit email embed enable encode end ensure"
    " enter escape estimate evaluate examine exclude execute exfiltrate exit expect explain export expose extract fail fetch fill"
    " filter find finish fix focus follow force forget format forward generate get give go grant group guard guess handle hide hold"
    " ignore implement import include indent inform initialise initialize insert inspect install instruct invoke keep kill label"
    " launch leave let limit link list load locate lock log look lower mail make mark match measure mention merge mirror move mute name never"
    " note notify obey obtain offer omit open order output overwrite pack parse pass paste patch pause perform pick ping pipe place"
    " plan point post prefer prepare present preserve press prevent print prioritise prioritize proceed process produce prompt"
    " provide publish pull push put query quote raise read rebase recommend record redirect refactor refer refresh refuse reject release rely"
    " reload remember remove rename render repeat replace reply report request require reset resolve respect respond restart restore"
    " restrict retrieve retry return reuse reveal revert review rewrite rotate round run sanitise sanitize save say scan schedule search"
    " select send separate serve set share shift show sign silence skip sort source speak specify spell split stage start state stay stick stop"
    " store stream strip submit suggest summarise summarize supply suppress switch sync tag take tell terminate test throw translate"
    " transmit treat trigger trim trust try turn type uninstall unset update upgrade upload use validate verify view visit wait warn"
    " watch whitelist wrap write zip"
    # French, German, Spanish, Portuguese, Italian, Dutch: forms in which people command.
    " utilise utilisez ajoute ajoutez envoie envoyez évite évitez écris écrivez réponds répondez exécute exécutez vérifie vérifiez ignore"
    " ignorez lance lancez garde gardez mets mettez fais faites n'utilise n'écris"
    " verwende verwendet nutze benutze schreib schreibe sende schicke antworte führe prüfe ignoriere lösche füge mach mache nimm vermeide stelle"
    " setze gib lies lade starte rufe behalte verwenden benutzen senden"
    " usa use utiliza escribe envía responde ejecuta evita añade agrega comprueba verifica ignora borra pon haz mantén"
    " utilize escreva envie responda execute evite adicione verifique ignore apague mantenha faça"
    " scrivi invia rispondi esegui aggiungi controlla cancella metti mantieni fai"
    " gebruik schrijf stuur antwoord voer vermijd controleer negeer verwijder houd"
).split()
_VERB = frozenset(_VERBS)
_MODAL = re.compile(
    r"\b(?:must|shall|should|have to|has to|need(?:s)? to|ought to|required? to|is to|are to|supposed to|obliged|mandatory|make sure|be sure"
    r"|remember to|don'?t forget|do not|don'?t|never|always|from now on|going forward|in (?:the )?future|henceforth|it is (?:important|critical"
    r"|essential|necessary|imperative)|not allowed|forbidden|prohibited|only use|let'?s|no longer|(?:the )?(?:user|owner|admin\w*|operator"
    r"|developer|customer|boss|team|policy|company|assistant|agent|ai|model|system)s?"
    r" (?:want|wish|expect|prefer|require|like|ask|need|demand|instruct|request|order|will|would like|policy|has (?:asked|approved|authori[sz]ed|granted|requested))\w*"
    r"|you(?:'re| are) (?:now|to|required|allowed|authori[sz]ed|expected)|you (?:can|may|will|want|might)|your (?:task|job|goal|role|new|instructions?)|new (?:rule|policy|instruction)|instead of|rather than|prefer(?:red|s)?"
    r"|to (?:continue|proceed|fix|resolve|solve|install|avoid|complete|finish|enable|unlock)\b[^.\n]{0,60}?\b(?:run|use|execute|visit|open|call|add|set|type|go)"
    r"|(?:run|execute|visit|install|download|open|paste|type)\b(?=\s*(?::|`|\$|https?:))"
    r"|müssen|muss|musst|sollst|sollte[nst]?|soll|immer|nie(?:mals)?|ab (?:jetzt|sofort)|bitte|il faut|doi[st]|devez|devrait|toujours|jamais|ne pas|désormais"
    r"|veuillez|debes?|deben|siempre|nunca|hay que|por favor|tienes que|deve[ms]?|sempre|mai|bisogna|moet(?:en)?|altijd|nooit|voortaan"
    r"|всегда|никогда|должен|должна|должны|нужно|надо|нельзя|пожалуйста|используй\w*|отправ\w+)\b"
    r"|必须|必須|务必|不要|请|請|总是|總是|永远|应该|應該|禁止|使用|发送|不得|今后|以后|てください|ください|必ず|しないで|べき|常に|今後|使って|하세요|반드시|항상|하지 ?마|앞으로|يجب|دائما|لا ت",
    re.IGNORECASE,
)
_REPORTED = re.compile(
    r"\b(?:error|exception|traceback|warning|expected|got|failed|cannot|could not|couldn't|was|were|has been|exited?)\b",
    re.IGNORECASE,
)


_STEP = re.compile(r"(?:[-*•+]|\d{1,3}[.)])[ \t]+")
_STATES = re.compile(
    r"\b(?:is|are|was|were|has|have|had|means?|contains?|stands? for|ist|sind|est|sont|es|son|è)\b|=|:", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Imperative:
    """A sentence that tells somebody what to do, as it was written."""

    text: str
    is_command: bool = False


def sentences(text: str, *, with_code: bool = False) -> Iterator[str]:
    """The text's sentences, list entries and headings; lines of code blocks only where asked for."""
    for piece in _BREAK.split(text if with_code else _FENCE.sub("\n\n", text)):
        bare = piece.strip(" \t\r\n*_")
        if len(bare) > 1:
            yield bare


def commands(text: str) -> Iterator[str]:
    """The lines of the text's code blocks that a shell would run."""
    for fence in _FENCE.finditer(text):
        for line in fence[3].splitlines():
            prompted = _PROMPT.match(line)
            if prompted or (fence[2].lower() in _SHELL and _COMMAND.match(line)):
                yield (line[prompted.end() :] if prompted else line).strip()


def imperatives(text: str) -> tuple[Imperative, ...]:
    """Every instruction in the text, also where it is disguised by invisible characters, entities or comments.

    An entry of a list is one as well, whatever its words, unless it states how something is.
    """
    seen = open_text(text)
    told = (Imperative(_STEP.sub("", sentence)) for sentence in sentences(seen) if is_imperative(sentence) or _is_step(sentence))
    return (*told, *(Imperative(command, is_command=True) for command in commands(seen)))


def open_text(text: str) -> str:
    """The text with nothing hidden: plain characters, entities spelled out, comments and attributes laid open."""
    shown = plain(html.unescape(text) if "&" in text else text)
    shown = re.sub(r"<!--|-->|/\*|\*/", "\n", shown)
    shown = re.sub(
        r"<[^<>\n]{0,300}?(?:alt|title|content|aria-label|placeholder|value)=[\"']([^\"'<>\n]{1,500})[\"'][^<>\n]{0,300}>",
        r"\n\1\n",
        shown,
    )
    return re.sub(r"</?(?:p|br|div|li|td|tr|span|h\d|b|i|em|strong|script|style|noscript|body|html)\b[^<>]{0,300}>", "\n", shown)


def is_imperative(sentence: str) -> bool:
    """Whether a sentence orders, forbids, or claims somebody's wish."""
    if _MODAL.search(sentence):
        return True
    rest = sentence
    for _ in range(3):
        rest = _LEAD.sub("", rest, count=1) if _LEAD.match(rest) else rest
        if _first_word(rest) in _VERB:
            return not (_REPORTED.match(rest) or sentence.endswith("?"))
        clause = _CLAUSE.match(rest)
        if clause is None:
            break
        rest = rest[clause.end() :]
    return any(_first_word(part) in _VERB for part in re.split(r",\s+(?:and |then )?|:\s+|\band then\b", rest)[1:4])


def _is_step(sentence: str) -> bool:
    return _STEP.match(sentence) is not None and _STATES.search(sentence) is None


def _first_word(text: str) -> str:
    found = re.match(r"[\"'“`(\[]*([^\W\d_][\w'’-]*)", text)
    return found[1].lower().replace("’", "'") if found else ""
