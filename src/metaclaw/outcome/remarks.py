"""What a person says against an answer: corrections, complaints, reproaches, sarcasm, and the polite ways of saying the same."""

import re

from metaclaw.outcome import phrases
from metaclaw.outcome.forms import Form, form_of, is_about_it, shares_words
from metaclaw.outcome.reading import Reading

Remark = tuple[str, str]
"""A kind and the words that show it."""

_BREAK = r"(?:^|[,.;!:(–—-]|\s-)\s*"
_SPANISH_NO = r"no(?=\s+(?:en|el|la|los|las|un|una|al|del|de|dos|tres|cuatro|\d|para|con)\b)"
_CONTRAST = re.compile(
    rf"{_BREAK}(?:not|nicht|pas|niet|{_SPANISH_NO})\s+(?!bad|now|yet|sure|really|only|just|quite|exactly|that|problem|worries|need|thanks"
    r"|hay|merci|danke|schlecht|mal|more|questions|rush|doubt|wonder|harm|complaints?|sé|if|to mention)[\w'/@.]{2,}"
    r"|\bnot\s+(?!bad|now|yet|sure|really|only|just|quite|exactly|at all)[\w'/@.-]{1,60}\s{0,4}[.!]{0,4}$"
    r"|\bnicht\b.{1,40}\bsondern\b|,\s*no\s+(?!problem|worries|thanks|need|rush|doubt|issues?)\w{1,40}[.!]{0,4}\Z"
    r"|不是.{1,16}[,，]?\s?是|而是|[，,]不要",
    re.IGNORECASE | re.MULTILINE,
)
_MOCK_THANKS = re.compile(
    r" (?:thanks|thank you|thx|danke|gracias|merci)(?: so much| a lot| very much)? (?:for|dafür|por|pour) "
    r"(?:delet|remov|break|mix|ruin|destroy|kill|los|wreck|overwrit|wip|mess|eras|nuk|corrupt|spam|forget|ignor|tell)"
    r"| oh (?:perfect|great|brilliant|wonderful|fantastic) (?:just|another|now|so|because) | love (?:it )?(?:when|how) "
)
_NO_CHANGE = re.compile(
    r"^ (?:but |it |this |that |it's |is |and ){0,4}still (?!works|good|great|fine|love|like|nice)\w"
    r"| (?:not|isn't) any \w{1,20}er | nothing \w{1,20} (?:anymore|any more|now) | no longer "
    r"| (?:is|are) (?:all )?(?:gone|blank|broken|empty|dead) "
)
_SENTENCE_END = re.compile(r"[.!?。！？]\s+\S")
_SHOUT = re.compile(r"\b[A-ZÄÖÜÉÈÑ]{3,}\b")
_ABBREVIATION = re.compile(
    r"API|ASCII|AWS|CLI|CPU|CSS|CSV|DNS|EOF|FAQ|GPU|HTML|HTTPS?|IDE|ISO|JPG|JSON|JWT|LLM|PDF|PNG|POST|RAM|README|REST|SDK|SQL|SSH|SSL"
    r"|SVG|TCP|TLS|TODO|TSV|TXT|UDP|URL|USB|UTC|UTF|UUID|VPN|XML|YAML|ZIP"
)
"""Written in capitals by whoever writes them with care."""
_SAD = ("👎", "😡", "🤦", "😠", "🙄", "😤", "❌")
_MAX_CHARS = 600


def remarks_against(reading: Reading, said: str, glad: Remark | None, *, begins_new: bool, has_changed: bool) -> tuple[Remark, ...]:
    """All remarks against the answer, each kind once.

    `said` is what the person says about the answer, `glad` what sounds content in it; `begins_new` tells that they turn to
    something new at once, `has_changed` that they want something else than they did.
    """
    if phrases.HARMLESS_DENIALS.find(said) and not phrases.BUTS.find(said):
        return ()
    outright = _outright(reading, said)
    if has_changed and not outright:
        return ()
    found = [*outright, *_rules(said), *_mockery(said)]
    if not begins_new:
        found += _statements(reading, said, glad)
        found += [] if reading.asked_back else _denials(reading, said)
    return tuple({kind: (kind, quote) for kind, quote in reversed(found)}.values())


def _outright(reading: Reading, said: str) -> list[Remark]:
    """Reproaches and resignation: they need no context."""
    raw = reading.raw
    found: list[Remark] = []
    if quote := phrases.REPROACHES.find(said):
        found.append(("reproach", quote))
    if quote := phrases.GIVES_UP.find(said):
        found.append(("gives_up", quote))
    if quote := _shouted(raw, reading.step.task) or next((one for one in _SAD if one in raw), None):
        found.append(("shout", quote))
    return found


def _rules(said: str) -> list[Remark]:
    quote = phrases.RULES.find(said)
    return [("rule", quote)] if quote else []


def _mockery(said: str) -> list[Remark]:
    quote = _match(_MOCK_THANKS, said)
    return [("sarcasm", quote)] if quote else []


def _statements(reading: Reading, said: str, glad: Remark | None) -> list[Remark]:
    """What they say is wrong with it. In a question, or about something else, the same words weigh little."""
    asks = _asks(reading, said)
    quote = phrases.CORRECTIONS.find(said)
    complaint = phrases.COMPLAINTS.find(said) or _match(_NO_CHANGE, said)
    found: list[Remark] = []
    if asks and (leading := phrases.LEADING_QUESTIONS.find(said)):
        found.append(("leading", leading))
    elif either := quote or complaint:
        if asks or not is_about_it(reading, said):
            found.append(("asked", either))
        else:
            found += [("plain", quote)] if quote else []
            found += [("complaint", complaint)] if complaint else []
            found += [("sarcasm", either)] if glad and glad[0] != "thanks" else []
    if not asks:
        found += _reservations(reading, said, glad)
    is_answer = reading.asked_back and phrases.DENIALS.opens(said) is not None
    return found or ([] if is_answer else _contradictions(reading, said, glad))


def _contradictions(reading: Reading, said: str, glad: Remark | None) -> list[Remark]:
    """A statement that denies something, in words of the answer or the task."""
    if glad or form_of(reading, said) is not Form.STATEMENT or not shares_words(reading, said):
        return []
    quote = phrases.NEGATIONS.find(said)
    return [("denies", quote)] if quote else []


def _reservations(reading: Reading, said: str, glad: Remark | None) -> list[Remark]:
    if glad and (quote := phrases.BUTS.find(said)):
        return [("but", quote)]
    if quote := phrases.NEARLY.find(said):
        return [("nearly", quote)]
    quote = None if glad and glad[0] == "praise" else phrases.MISGIVINGS.find(said) or _requirement(reading, said)
    return [("mild", quote)] if quote else []


def _requirement(reading: Reading, said: str) -> str | None:
    """What a thing of the answer must be. In a request, or of something else, it is what they want next."""
    is_about = form_of(reading, said) is Form.STATEMENT and shares_words(reading, said)
    return phrases.REQUIREMENTS.find(said) if is_about else None


def _denials(reading: Reading, said: str) -> list[Remark]:
    """A no, or one thing set against another; not where the agent had asked."""
    found: list[Remark] = []
    if quote := phrases.DENIALS.opens(said):
        found.append(("no", quote))
    is_whole = len(said) + 4 > len(reading.said)
    if is_whole and (quote := _match(_CONTRAST, reading.raw[:_MAX_CHARS])):
        found.append(("contrast", quote))
    return found


def _asks(reading: Reading, said: str) -> bool:
    """Whether it is one question."""
    raw = reading.raw
    if not raw.endswith(("?", "？")) or _SENTENCE_END.search(raw[:-1][:_MAX_CHARS]):
        return False
    return phrases.QUESTIONS.find(said) is not None or phrases.LEADING_QUESTIONS.find(said) is not None


def _match(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found[0].strip(" ,.;:!-") if found else None


def _shouted(raw: str, task: str) -> str | None:
    """A word of the task in capitals that the task did not use, or everything in capitals."""
    if raw.isupper():
        return raw[:60] if len(raw) > 12 and not task.isupper() else None
    low = task.lower()
    loud = (word for word in _SHOUT.findall(raw[:200]) if not _ABBREVIATION.fullmatch(word))
    return next((word for word in loud if word.lower() in low and word not in task), None)
