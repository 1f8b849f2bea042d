"""An attempt at an answer, as its provider has to be told of it again: the exact messages, and the tool calls in them."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from metaclaw.domain.chat import Json
from metaclaw.domain.enforcement import ShownCall, TrueAnswer
from metaclaw.wires.fields import Object, decode, object_of
from metaclaw.wires.sse import EventParser

MARK = "t_"
"""How the mark begins that is a turn's id; any other is all of a message's text."""
_UNIQUE_CHARS = 16
"""Ids of this length are not given twice by chance."""


@dataclass(frozen=True, slots=True)
class HeldCall:
    """A tool call. `kind` is the wire's own word for this kind of call."""

    id: str
    name: str
    arguments: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a provider said once. `messages` are what a later request says of it; `is_exact` is False where that cannot be said
    exactly, or its calls cannot be answered: then the provider is not asked again."""

    id: str
    messages: tuple[Json, ...]
    calls: tuple[HeldCall, ...]
    is_exact: bool = True


def events_of(said: bytes) -> Iterator[Object]:
    """The bodies of a stream's events; what is no JSON object is left out."""
    parser = EventParser()
    for event in (*parser.feed(said), *parser.close()):
        try:
            body = decode(event.data) if event.data.startswith("{") else None
        except (ValueError, RecursionError):
            continue
        if isinstance(body, dict):
            yield body


def read_json(text: str) -> Json:
    """A call's arguments as JSON; as they were written where they are none."""
    try:
        found: Json = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
    return found


def plain_id(identity: str) -> str:
    """An id without punctuation: some clients take it out."""
    return "".join(character for character in identity if character.isalnum())


def is_shown(shown: Sequence[ShownCall], found: Sequence[tuple[str, Json]]) -> bool:
    """Whether the calls of a message, as ids and arguments, are those that a client was shown."""
    if not shown or len(shown) != len(found):
        return False
    known = {plain_id(call.id): call for call in shown}
    for identity, arguments in found:
        call = known.get(plain_id(identity))
        if call is None:
            return False
        given = read_json(arguments) if isinstance(arguments, str) else arguments
        if given != read_json(call.arguments) and len(plain_id(identity)) < _UNIQUE_CHARS:
            return False
    return True


def ids_of(answer: TrueAnswer) -> Mapping[str, str]:
    """The provider's ids of the shown calls, by their form without punctuation."""
    return {plain_id(call.id): call.id for call in answer.calls}


def texts_in(value: Json) -> Iterator[str]:
    """The texts of a message's content: a string, or parts."""
    if isinstance(value, str):
        yield value
    for part in value if isinstance(value, list) else ():
        text = object_of(part).get("text")
        if isinstance(text, str):
            yield text


def has_mark(answer: TrueAnswer, *contents: Json) -> bool:
    """Whether a message that has no calls is the one that this answer stands for: it has the turn's id in it, or just its text."""
    if answer.calls or not answer.mark:
        return False
    said = plain_text("".join(text for content in contents for text in texts_in(content)))
    return said == answer.mark or (answer.mark.startswith(MARK) and answer.mark in said)


def plain_text(text: str) -> str:
    """A text without white space, to be compared by: clients join texts in their own ways."""
    return "".join(text.split())


def told(value: Object, keys: Iterable[str] = ()) -> Object:
    """An object without what says nothing: nulls and empty lists, which some servers send and do not take back."""
    return {key: inner for key, inner in value.items() if inner not in (None, []) or key in keys}
