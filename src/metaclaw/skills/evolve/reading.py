"""An evolver's answer: read leniently, whatever stands around the JSON; what comes of it is checked elsewhere."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

_THINKING = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_OPENING = re.compile(r"[{\[]")
_MAX_CHARS = 200_000
_MOST_OPENINGS = 500
_OTHER_NAMES = {"trigger": ("description", "when"), "body": ("content", "markdown"), "replaces": ("edits",)}


@dataclass(frozen=True, slots=True)
class Written:
    """One skill as an evolver wrote it. Empty text and None where it gave none, or something else."""

    name: str
    trigger: str
    body: str
    category: str | None
    check: str | None
    replaces: str | None
    examples: tuple[str, ...] = ()


def read_skills(text: str) -> list[Written] | str:
    """The skills in an answer, or why there are none to be read."""
    text = _THINKING.sub(" ", text[:_MAX_CHARS])
    if not text.strip():
        return "the answer is empty"
    entries = next((found for document in _documents(text) if (found := _entries(document)) is not None), None)
    if entries is None:
        return "there is no JSON object with a list of skills in the answer"
    return [_written(entry) for entry in entries]


def _documents(text: str) -> Iterator[object]:
    """The JSON documents in a text, the last first: models think aloud before they answer."""
    decoder, at, found = json.JSONDecoder(), 0, list[object]()
    for _ in range(_MOST_OPENINGS):
        opening = _OPENING.search(text, at)
        if opening is None:
            break
        try:
            document, at = decoder.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            at = opening.end()
        else:
            found.append(document)
    yield from reversed(found)


def _entries(document: object) -> list[dict[str, object]] | None:
    match document:
        case {"skills": list(listed)}:
            entries: list[object] = listed
        case {"skills": dict(only)}:
            entries = [only]
        case {"name": str(), **rest} if "body" in rest or "content" in rest:
            entries = [document]
        case list(listed) if listed and all(isinstance(one, dict) and "name" in one for one in listed):
            entries = listed
        case _:
            return None
    return [entry for entry in entries if isinstance(entry, dict)]


def _written(entry: dict[str, object]) -> Written:
    def text(key: str) -> str | None:
        values = (entry.get(name) for name in (key, *_OTHER_NAMES.get(key, ())))
        return next((value.strip() for value in values if isinstance(value, str) and value.strip()), None)

    return Written(
        name=text("name") or "",
        trigger=" ".join((text("trigger") or "").split()),
        body=text("body") or "",
        category=text("category"),
        check=text("check"),
        replaces=text("replaces"),
        examples=_examples(entry.get("examples")),
    )


def _examples(listed: object) -> tuple[str, ...]:
    """Requests on one line each; what is no text is left out."""
    texts = (" ".join(one.split()) for one in listed if isinstance(one, str)) if isinstance(listed, list) else ()
    return tuple(dict.fromkeys(text for text in texts if text))
