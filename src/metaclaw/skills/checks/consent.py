"""Whether a person agrees that something is deleted: by asking for it, or by saying yes to an agent that asked.

The words are those of English, German, French, Spanish, Portuguese, Italian, Dutch, Russian, Chinese and Japanese. Sentences are
read in clauses; one that negates, asks, or speaks of deleting as a thing ("the delete button") agrees to nothing.
"""

import re
from typing import Final, NamedTuple

_MOST_CHARS: Final = 4_000
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
    clauses = [one.strip() for one in _CLAUSE_END.split(said[-_MOST_CHARS:]) if one.strip()]
    refused = tuple(one for one in clauses if _NEGATION.search(one))
    if any(map(_asks_for_deleting, clauses)):
        return DeletionConsent(True, refused)
    if not clauses or not _is_agreement(clauses[0]) or any(_ABOUT.search(one) for one in refused):
        return DeletionConsent(False, refused)
    is_answer = asked is None or _asked_to_delete(asked[-_MOST_CHARS:])
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
