"""What a text is about, as words: for the trigger of a skill that retrieval is to find, and for telling kinds of task apart."""

import re
from collections.abc import Iterable

from metaclaw.skills.terms import list_terms

_WORD = re.compile(r"[^\W\d_][\w+#.-]*[\w+#]|[^\W\d_]", re.UNICODE)
_MAX_WORD_CHARS = 24
# Letters, and at most a version behind them: what else has digits in it is somebody's number, identifier or worse.
_PLAIN_WORD = re.compile(r"[^\W\d_]+(?:[-._+#][^\W\d_]+)*[+#]*\d{0,4}")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")

# How people say that something holds for ever; not what it is about.
_FRAME = (
    "always never ever from now on going forward moving henceforth future next time remember whenever every each any before"
    " after again anymore stop quit"
    " avoid please make sure must should rule convention policy project repo repository codebase team company circumstances no"
    " instead only rather forget"
    " mind keep want need like would prefer use using used put do go wrong correct right mistake say said tell told mean meant"
    " habit starting today further"
    " notice ab jetzt sofort von nun an immer nie niemals wieder mehr künftig zukünftig zukunft bitte merk dir projekt"
    " verwenden wir verwende nutze benutze keine"
    " siempre nunca jamás partir ahora adelante vuelvas recuerda proyecto usamos usa uses favor más deja toujours jamais"
    " désormais dorénavant maintenant avenir"
    " dans projet utilise utilisez plus faut souviens toi arrête"
)
# Rules about these hold for whatever is asked: they are about answering as such.
_MANNER = (
    "answer reply respond response repl message speak talk language german english french spanish italian portuguese chinese"
    " japanese korean russian dutch polish"
    " deutsch englisch französisch spanisch antworte antworten antwort español inglés francés responde respuesta français"
    " anglais réponds réponse vouvoiement"
    " emoji emojis tone polite formal informal friendly concise brief short shorter long word words sentence sentences bullet"
    " bullets point points markdown plain"
    " text summary first explain reasoning apologise apologize apologising apologizing apology sorry entschuldigen disculparte"
    " excuser sir captain buddy call address"
    " name source sources cite greeting sign question great start end under max character characters honest ask permission approval"
)
_FRAME_CJK = re.compile(
    r"从现在(?:起|开始)|從現在(?:起|開始)|在?(?:这个|這個|本)(?:项目|專案|仓库|倉庫)(?:中|里|裡)?|以后|以後|今后|今後|下次|永远"
    r"|永遠|绝对|絕對|千万|千萬|总是|總是|始终|始終"
    r"|一律|每次|记住|記住|不要再?|别再?|別再?|请|請|我们|我們|使用|直接|都要?|先|用|これからは?|次からは?|常に|いつも|毎回"
    r"|絶対に?|二度と|この|では|てください|ないで(?:ください)?"
    r"|して|しない|します|を|は|に|で|の"
)
_MANNER_CJK = re.compile(r"回答|回复|回覆|中文|英文|日文|表情|道歉|字以内|日本語|英語|答え|絵文字|謝ら|行以内|敬語|出典")

_FAMILIES = tuple(
    tuple(words.split())
    for words in (
        "git commit push branch merge rebase pull-request main master squash trunk tag release",
        "test tests pytest unittest jest mock mocks fixture coverage assertion",
        "install package packages dependency dependencies pip npm uv poetry pnpm yarn conda requirements lockfile",
        "date dates datetime timestamp timezone utc iso calendar deadline schedule meeting",
        "sql query database table migration schema column postgres mysql sqlite",
        "delete remove overwrite file files folder directory",
        "email e-mail mail letter newsletter",
        "python function class module variable indentation refactor javascript typescript tabs spaces indent tab semicolons"
        " snake_case camelcase hints",
        "price money currency amount decimal total invoice euro dollar",
        "readme docs documentation docstring comment comments manual",
        "deploy production staging terraform kubernetes helm docker server",
        "password secret credential token logging logs",
        "chart plot graph axis axes figure",
    )
)


def topic_words(text: str, most: int = 12) -> list[str]:
    """The words of a text that say what it is about, as they were written, each once; those of rules as such are left out."""
    found: dict[tuple[str, ...], str] = {}
    for match in _WORD.finditer(_FRAME_CJK.sub(" ", text)):
        word = match[0].strip(".-")
        terms = tuple(term for term in list_terms(word) if term not in _FRAME_TERMS)
        if terms and len(word) <= _MAX_WORD_CHARS and _PLAIN_WORD.fullmatch(word):
            found.setdefault(terms, word)
    return list(found.values())[:most]


def topic_terms(text: str) -> frozenset[str]:
    """The same as index terms."""
    return frozenset(term for term in list_terms(text) if term not in _FRAME_TERMS)


def is_manner(words: Iterable[str], text: str) -> bool:
    """Whether a rule with these topic words is about how to answer as such: then it holds for every task."""
    words = list(words)
    if _CJK.search(text):
        return _MANNER_CJK.search(text) is not None
    return all(term in _MANNER_TERMS for word in words for term in list_terms(word))


def related_words(words: Iterable[str], most: int = 10) -> list[str]:
    """Words that tasks about the same matter use: who says "never push to main" means commits and branches too."""
    known = {word.casefold() for word in words}
    related = dict.fromkeys(word for family in _FAMILIES if known.intersection(family) for word in family if word not in known)
    return list(related)[:most]


_FRAME_TERMS = frozenset(list_terms(_FRAME))
_MANNER_TERMS = frozenset(list_terms(_MANNER))
