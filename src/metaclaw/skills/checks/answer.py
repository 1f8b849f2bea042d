"""An answer as checks see it: its text, the JSON in it, its tool calls, and whether the person agreed that something is deleted.

Agreement is read in English, German, French, Spanish, Portuguese, Italian, Dutch, Russian, Chinese and Japanese, clause by clause.
A clause that negates, asks, or speaks of deleting as a thing ("the delete button") agrees to nothing.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from metaclaw.domain.chat import Json, Message, Part, Role, Text, ToolCall, ToolResult
from metaclaw.domain.check import Conversation, PatternCheck, Place, ToolClass, Where
from metaclaw.skills.checks.calls import SeenCall, seen_calls, strings_in
from metaclaw.skills.checks.commands import SeenText, code_texts, commands_of, names_operator
from metaclaw.text import json_documents

MAX_ANSWER_CHARS = 200_000
MAX_CALL_CHARS = 4_000_000
_FENCED = re.compile(r"^[ \t]*(```|~~~)[^\n`]*\n(.*?)^[ \t]*\1[ \t]*$", re.DOTALL | re.MULTILINE)
_MOST_OPENINGS = 200
_MOST_DOCUMENTS = 20
_MOST_CONVERSATION_CHARS = 200_000
_MOST_ACTIONS = 400


def answer_text(answer: Sequence[Part]) -> str:
    """The words of an answer."""
    return "\n".join(part.text for part in answer if isinstance(part, Text))


def size_of(answer: Sequence[Part]) -> int:
    """How many characters a check has to look at, at most."""
    return sum(
        len(part.text) if isinstance(part, Text) else len(part.arguments) for part in answer if isinstance(part, Text | ToolCall)
    )


def program_input(answer: Sequence[Part], conversation: Conversation) -> dict[str, Json]:
    """What a program reads: the answer and what came before it; of a very long conversation the end."""
    messages: list[Json] = []
    room = _MOST_CONVERSATION_CHARS
    for entry in reversed([entry for message in conversation.messages for entry in _entries(message)]):
        room -= len(json.dumps(entry, ensure_ascii=False))
        if room < 0:
            break
        messages.insert(0, entry)
    tools: list[Json] = [
        {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)} for tool in conversation.tools
    ]
    earlier = [action for message in conversation.messages for action in _actions(message.parts, is_new=False)]
    return {
        "messages": messages,
        "task": conversation.task,
        "consent": _consent(conversation),
        "text": answer_text(answer),
        "calls": _calls_json(answer),
        "tools": tools,
        "actions": [*earlier[-_MOST_ACTIONS:], *_actions(answer, is_new=True)],
    }


def _consent(conversation: Conversation) -> dict[str, Json]:
    """What the person's last words say about deleting, as an answer to what the agent said before them."""
    places = [at for at, message in enumerate(conversation.messages) if message.role is Role.USER and answer_text(message.parts)]
    before = conversation.messages[: places[-1]] if places else ()
    asked = next((text for one in reversed(before) if one.role is Role.ASSISTANT and (text := answer_text(one.parts))), None)
    is_given, refused = deletion_consent(conversation.task, asked)
    return {"to_delete": is_given, "refused": list[Json](refused)}


def _entries(message: Message) -> Iterator[dict[str, Json]]:
    """A message as a program reads it; each tool result is a message of its own."""
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    for result in results:
        words = "\n".join(part.text for part in result.parts if isinstance(part, Text))
        yield {"role": Role.TOOL.value, "content": words, "is_error": result.is_error}
    words, calls = answer_text(message.parts), _calls_json(message.parts)
    if words or calls or not results:
        yield {"role": str(message.role), "content": words, **({"calls": calls} if calls else {})}


def _calls_json(answer: Sequence[Part]) -> list[Json]:
    return [{"name": call.name, "arguments": call.arguments} for call in _seen(answer, ())]


def _actions(answer: Sequence[Part], *, is_new: bool) -> Iterator[Json]:
    for part in answer:
        # Files that a script writes come first, so that the commands behind them are later actions.
        for call in sorted(seen_calls(part), key=lambda one: bool(one.name)) if isinstance(part, ToolCall) else ():
            for text in call.texts:
                action: dict[str, Json] = {"class": None if call.kind is None else call.kind.value, "text": text, "is_new": is_new}
                if call.takes_script:
                    commands = commands_of(text)
                    action |= {"commands": list[Json](commands.lines), **({"unread": commands.unread} if commands.unread else {})}
                yield action


def unread_part(answer: Sequence[Part], where: Where) -> str:
    """Why a command that a check looks at could not be read, or empty. Such a command may also change files."""
    if where.place is Place.ANSWER:
        return ""
    tools = where.tools if ToolClass.EDIT not in where.tools else (*where.tools, ToolClass.SHELL.value)
    calls = [call for call in _seen(answer, tools) if call.takes_script]
    return next((reason for call in calls for text in call.texts if (reason := commands_of(text).unread)), "")


def texts_at(answer: Sequence[Part], where: Where) -> list[str]:
    """All texts that a pattern may look at: the answer's text, or the contents of its calls."""
    if where.place is Place.ANSWER:
        text = answer_text(answer)
        return [text] if text.strip() else []
    return [one.text for call in _seen(answer, where.tools) for one in _texts_of(call, where.tools, is_whole=True, is_written=True)]


def pattern_texts(answer: Sequence[Part], check: PatternCheck) -> list[SeenText]:
    """The texts that a pattern looks at. Of a shell script these are its commands; the whole script only if the pattern must be
    found or names an operator, and as written only if it must be found or names a quotation mark."""
    if check.where.place is Place.ANSWER:
        return [SeenText(text) for text in texts_at(answer, check.where)]
    is_whole = check.must_match or names_operator(check.pattern)
    is_written = check.must_match or '"' in check.pattern or "'" in check.pattern
    tools = check.where.tools
    return [one for call in _seen(answer, tools) for one in _texts_of(call, tools, is_whole=is_whole, is_written=is_written)]


def documents_at(answer: Sequence[Part], where: Where) -> list[Json] | None:
    """The JSON a schema looks at; None if the answer has no such part. A call with broken JSON gives a string."""
    if where.place is Place.ANSWER:
        text = answer_text(answer)
        return find_json(text) if text.strip() else None
    return [call.arguments for call in _seen(answer, where.tools)] or None


def find_json(text: str) -> list[Json]:
    """The JSON documents in a text: the whole text, code blocks, or objects and arrays between words."""
    whole = _whole(text)
    if whole is not None:
        return [whole]
    fenced: list[Json] = [document for match in _FENCED.finditer(text) if (document := _whole(match[2])) is not None]
    return fenced[:_MOST_DOCUMENTS] or list(json_documents(text, _MOST_OPENINGS))[:_MOST_DOCUMENTS]


def _whole(text: str) -> dict[str, Json] | list[Json] | None:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict | list) else None


def _seen(answer: Sequence[Part], tools: Sequence[str]) -> list[SeenCall]:
    """The calls of these tools or classes, also wrapped in other calls; without any, the answer's own calls."""
    calls = [seen_calls(part) for part in answer if isinstance(part, ToolCall)]
    return [one for seen in calls for one in seen if one.is_of(tools)] if tools else [seen[0] for seen in calls]


def _texts_of(call: SeenCall, tools: Sequence[str], *, is_whole: bool, is_written: bool) -> list[SeenText]:
    """What a pattern looks at in a call: of a class, the commands or the files; else the arguments as written and as they read."""
    is_by_class = call.is_of_class(tools)
    if not call.takes_script:
        if call.kind is ToolClass.SHELL:
            return [one for text in (call.texts if is_by_class else [_as_it_reads(call)]) for one in code_texts(text)]
        return [SeenText(text) for text in (call.texts if is_by_class else [_as_it_reads(call)])]
    is_json = '"' in call.written and is_written
    found = [] if is_by_class else [SeenText(call.written if is_json else call.other_arguments())]
    for text in call.texts:
        commands = commands_of(text)
        found += [*([commands.written] if is_written else []), *(commands.wholes if is_whole else []), *commands.texts]
    return found


def _as_it_reads(call: SeenCall) -> str:
    return "\n".join((call.written, *strings_in(call.arguments), *call.texts))


_MOST_CONSENT_CHARS: Final = 4_000
_MOST_QUESTION_CHARS: Final = 300
_QUESTION_MARK: Final = re.compile(r"[?？か]")

_VERBS: Final = (
    r"delete|remove|erase|wipe|purge|prune|destroy|trash|drop|rm|get rid of|clean (?:up|out)|clear (?:out|away)"
    r"|throw (?:out|away)|nuke"
    r"|lösche?|loesche?|entferne?|wirf|schmei(?:ß|ss)e?|räume?"
    r"|supprime[rz]?|efface[rz]?|enl[èe]ve[rz]?|jette[rz]?"
    r"|b[oó]rra(?:r|l[oa]s?)?|borre|elim[ií]na(?:r|l[oa]s?)?|elimine|quita(?:r|l[oa]s?)?|suprime"
    r"|apag(?:ar?|ue)(?:-[oa]s?)?|exclu(?:a|ir)(?:-[oa]s?)?|remov(?:a|er)(?:-[oa]s?)?"
    r"|cancella(?:re|l[oiae])?|rimuov(?:i|ere)|verwijder|gooi|wis"
)
_FINAL_VERBS: Final = r"löschen|loeschen|entfernen|wegwerfen|wegschmei(?:ß|ss)en|aufräumen|verwijderen|weggooien|wissen|opruimen"
_UNSPACED_VERBS: Final = (
    r"удал(?:и|ить|яй|яйте|ите|ять)\b|сотри|стереть|убери|снеси"
    r"|删除|刪除|删掉|刪掉|删了|清空|清除|移除|削除|消して|消去|消す|消しといて"
)
_ABOUT: Final = re.compile(
    r"(?i)\b(?:delet|remov|eras|wip(?:e|ing)|purg|prun|destroy|trash|drop|rm\b|get(?:ting)? rid"
    r"|clean(?:ing)? up|clear(?:ing)? out|lösch|loesch|gelöscht|entfern"
    r"|supprim|suppress|effac|borr|elimin|quit[ao]|apag|exclu|cancell|rimuov|verwijder|weggooi|opruim)"
    rf"|{_UNSPACED_VERBS}|удал|стере|消し|消さ"
)
_BEFORE_VERBS: Final = (
    r"please|then|and|also|now|just|first|finally|so|ok(?:ay)?|yes|sure|yep|yeah|well|right|go ahead and|go ahead"
    r"|feel free to|let'?s"
    r"|you (?:can|may|should|could|must)|you'?re (?:free|allowed) to|i (?:want|would like|need|ask) you to"
    r"|i'd like you to|i want to"
    r"|(?:can|could|would|will) you(?: please)?|it'?s (?:ok|okay|fine) to"
    r"|bitte|dann|und|auch|jetzt|ja|gut|nun|ruhig|du (?:kannst|darfst|sollst)|kannst du|könntest du"
    r"|tu peux|vous pouvez|peux-tu|pouvez-vous|oui|et|alors|puis|s'il te plaît|s'il vous plaît|veuillez"
    r"|puedes|podrías|s[ií]|y|luego|por favor|pode|podes|você pode|sim|e|depois"
    r"|puoi|per favore|poi|je (?:kan|mag)|kun je|en|daarna|alsjeblieft"
)
_THING_BEHIND: Final = (
    r"\s*(?:\(|button|method|endpoint|function|handler|route|icon|dialog|feature|request|operation|action|option|flag|test)"
)
_ASKED_FOR: Final = re.compile(
    rf"(?i)\W*(?:(?:{_BEFORE_VERBS})\W+)*(?:{_VERBS})\b(?!{_THING_BEHIND})"
    rf"|.*\b(?:and|then|und|dann|et|puis|y|e|poi|en|please|bitte|you can|you may|du kannst|du darfst) (?:also "
    rf"|auch )?(?:{_VERBS})\b(?!{_THING_BEHIND})"
    rf"|.*\b(?:{_FINAL_VERBS})\W*$|.*(?:{_UNSPACED_VERBS})"
)
_NEGATION: Final = re.compile(
    r"(?i)\b(?:don['’]?t|do not|doesn['’]?t|didn['’]?t|never|not|no|nothing|without|avoid|keep|leave|stop|instead of"
    r"|cannot|can['’]?t"
    r"|nicht|nichts|keine?[nmrs]?|nie|niemals|ohne|behalte|lass|ne|pas|jamais|sans|garde[rz]?|laisse[rz]?|nunca|sin"
    r"|jamás|conserva|deja"
    r"|não|nao|sem|mantenha|deixe|non|mai|senza|tieni|lascia|niet|niets|geen|nooit|houd|laat|не|ничего|никогда|нельзя"
    r"|оставь|запрещено|interdit|prohibido|proibido|vietato|verboten|verboden|forbidden)\b"
    r"|不要|不用|无需|無需|やめて|别|別|不能|勿|不许|保留|先不|ないで|するな|禁止|しない|残して|だめ"
)
_WANTING: Final = re.compile(
    r"(?i)\W*(?:please|can|could|would|will|kannst|könntest|peux|pouvez|puedes|podr|pode|puoi|kun|можешь|можете|能|可以|请|請)"
)
_AGREEMENT: Final = re.compile(
    r"(?i)\W*(?:yes|yep|yeah|yup|sure|ok(?:ay)?|go ahead|go for it|do it|do that|please do|fine|alright|all right"
    r"|sounds good|agreed|approved"
    r"|confirmed|proceed|lgtm|correct|right|of course|absolutely"
    r"|ja|jawohl|jap|jo|klar|gern(?:e)?|mach(?:e)?(?: das| es)?(?: ruhig| mal)?|tu (?:das|es)|nur zu|passt"
    r"|einverstanden|in ordnung|genau|los"
    r"|oui|ouais|d['’]accord|vas-y|allez-y|fais-le|faites-le|bien sûr|s[ií]|claro|vale|adelante|hazlo|de acuerdo|dale"
    r"|sim|pode(?: fazer| ser| sim)?|vai em frente|vá em frente|faça(?: isso)?|beleza|certo|sì|va bene|procedi|fallo|prego"
    r"|doe maar|graag|prima|goed|да|давай(?:те)?|хорошо|конечно|ладно|ок|можно|согласен"
    r"|好的?|可以|行|是的?|嗯|同意|没问题|请便|はい|いいよ|いいです|どうぞ|お願い(?:します)?|了解|うん|オーケー)(?![^\W_]{1})"
)
_UNSPACED_AGREEMENT: Final = re.compile(
    r"\W*(?:好|可以|行吧|是的|嗯|同意|没问题|はい|いいよ|いいです|どうぞ|お願い|了解|うん|オーケー)"
)
_CODE_THINGS: Final = re.compile(
    r"(?i)\b(?:code|style|formatting|imports?|lines?|comments?|whitespace|warnings?|functions?|class(?:es)?|methods?|variables?|parameters?"
    r"|arguments?|duplicat\w+"
    r"|calls?|logic|todos?|type hints?|semicolons?|spaces?|buttons?|prefix|suffix|zeilen?|kommentare?|lignes?|líneas?"
    r"|linhas?)\b"
)
_STORED_THINGS: Final = re.compile(
    r"(?i)\b(?:files?|folders?|director(?:y|ies)|branch(?:es)?|tables?|databases?|data|modules?|scripts?|dateien?"
    r"|ordner|zweige?|fichiers?"
    r"|dossiers?|archivos?|carpetas?|arquivos?|pastas?|everything|all|it|them|those|these)\b|[\w-]+/|\w\.\w|\brm\b"
)
_CLAUSE_END: Final = re.compile(
    r"(?<=[.!?;:])\s+|(?<=[。！？])|[\n,;、，]|\s[-–—]\s|\b(?:but|aber|sondern|mais|pero|mas|(?<!doe )maar|но)\b|但"
)


class DeletionConsent(NamedTuple):
    """`is_given`: the person wants something deleted, or agrees to it. `refused` are the clauses that speak against something."""

    is_given: bool
    refused: tuple[str, ...]


def deletion_consent(said: str, asked: str | None) -> DeletionConsent:
    """What the last message of a person says about deleting. `asked` is what the agent said before it, None where it is unknown."""
    clauses = [one.strip() for one in _CLAUSE_END.split(said[-_MOST_CONSENT_CHARS:]) if one.strip()]
    refused = tuple(one for one in clauses if _NEGATION.search(one))
    if any(map(_asks_for_deleting, clauses)):
        return DeletionConsent(True, refused)
    if not clauses or not _is_agreement(clauses[0]) or any(_ABOUT.search(one) for one in refused):
        return DeletionConsent(False, refused)
    is_answer = asked is None or _asked_to_delete(asked[-_MOST_CONSENT_CHARS:])
    if asked is None or not _QUESTION_MARK.search(asked):
        is_answer = is_answer and all(map(_is_agreement, clauses))
    return DeletionConsent(is_answer, refused)


def _asks_for_deleting(clause: str) -> bool:
    if _NEGATION.search(clause) or (clause.endswith(("?", "？")) and not _WANTING.match(clause)):
        return False
    if _CODE_THINGS.search(clause) and not _STORED_THINGS.search(clause):
        return False
    return _ASKED_FOR.match(clause) is not None


def _is_agreement(clause: str) -> bool:
    is_question = clause.endswith(("?", "？"))
    return not is_question and not _NEGATION.search(clause) and bool(_AGREEMENT.match(clause) or _UNSPACED_AGREEMENT.match(clause))


def _asked_to_delete(text: str) -> bool:
    """Whether a question is about deleting, with the words just before it; the end of a text without questions."""
    ends = [match.end() for match in _QUESTION_MARK.finditer(text)] or [len(text)]
    return any(_ABOUT.search(text, max(0, end - _MOST_QUESTION_CHARS), end) for end in ends)
