"""Goes through everything a conversation is made of and has each text rewritten; what is not text stays as it is."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from metaclaw.domain.chat import Image, Json, Message, Opaque, Part, Reasoning, Text, Tool, ToolCall, ToolResult
from metaclaw.domain.step import Step

_MAX_DEPTH = 64
_MAX_STEPS_BACK = 1_000


class Walker:
    """Rewrites conversations. `rewrite` gets texts that follow one another and gives back as many."""

    def __init__(self, rewrite: Callable[[Sequence[str]], list[str]]) -> None:
        self._rewrite = rewrite
        self._done: dict[Message, Message] = {}

    def text(self, text: str) -> str:
        """One text on its own."""
        return self._rewrite((text,))[0] if text else text

    def step(self, step: Step) -> Step:
        """A step and those before it, oldest first, so that numbers rise as a reader reads."""
        chain = [step]
        while chain[-1].previous is not None and len(chain) < _MAX_STEPS_BACK:
            chain.append(chain[-1].previous)
        done: Step | None = None
        for one in reversed(chain):
            done = self._one_step(one, done)
        assert done is not None
        return done

    def _one_step(self, step: Step, previous: Step | None) -> Step:
        return replace(
            step,
            task=self.text(step.task),
            history=self.messages(step.history),
            tools=tuple(map(self.tool, step.tools)),
            answer=self.parts(step.answer),
            after=self.messages(step.after),
            said_after=None if step.said_after is None else self.text(step.said_after),
            previous=previous,
        )

    def messages(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """A conversation; a secret cut in two by the end of a message is found as well."""
        parts = self.parts([part for message in messages for part in message.parts])
        at, done = 0, []
        for message in messages:
            own = parts[at : at + len(message.parts)]
            at += len(message.parts)
            name = None if message.name is None else self.text(message.name)
            done.append(replace(message, parts=own, name=name, extra=self.mapping(message.extra)))
        return tuple(done)

    def parts(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """Parts that follow one another; their plain texts are looked at together."""
        spoken = [at for at, part in enumerate(parts) if isinstance(part, Text | Reasoning)]
        texts = dict(zip(spoken, self._rewrite([_words(parts[at]) for at in spoken]) if spoken else (), strict=True))
        return tuple(self._part(part, texts.get(at, "")) for at, part in enumerate(parts))

    def _part(self, part: Part, words: str) -> Part:
        match part:
            case Text():
                return replace(part, text=words, extra=self.mapping(part.extra))
            case Reasoning():
                # The provider's proof of its reasoning is sealed: what cannot be looked into does not travel.
                return replace(part, text=words, signature=None, extra=self.mapping(part.extra))
            case Image():
                return replace(part, url=self._url(part.url), extra=self.mapping(part.extra))
            case ToolCall():
                return replace(
                    part, name=self.text(part.name), arguments=self.arguments(part.arguments), extra=self.mapping(part.extra)
                )
            case ToolResult():
                inner = tuple(one for one in self.parts(part.parts) if isinstance(one, Text | Image | Opaque))
                return replace(part, parts=inner, extra=self.mapping(part.extra))
            case Opaque():
                return replace(part, value=self.value(part.value))
        assert_never(part)

    def _url(self, url: str) -> str:
        """A picture's bytes are not words; the address of one is, and so is text in a data URL."""
        return url if url.startswith("data:") and ";base64," in url[:100] and not url.startswith("data:text") else self.text(url)

    def tool(self, tool: Tool) -> Tool:
        """A tool's description and schema."""
        description = None if tool.description is None else self.text(tool.description)
        return replace(tool, description=description, parameters=self.mapping(tool.parameters), extra=self.mapping(tool.extra))

    def arguments(self, arguments: str) -> str:
        """A call's arguments: as written where nothing was found, else written anew; what is no JSON is text."""
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            return self.text(arguments)
        done = self.value(value)
        return arguments if done == value else json.dumps(done, ensure_ascii=False)

    def mapping(self, mapping: Mapping[str, Json]) -> Mapping[str, Json]:
        """Fields that a wire has and we have not."""
        done = self.value(dict(mapping)) if mapping else mapping
        return done if isinstance(done, Mapping) else mapping

    def value(self, value: Json, depth: int = 0) -> Json:
        """Any JSON value. A field is looked at together with its name; what is nested deeper than anyone writes is left out."""
        if depth > _MAX_DEPTH:
            return None
        match value:
            case str():
                return self.text(value)
            case list():
                return [self._item(value, at, depth) for at in range(len(value))]
            case dict():
                return {self.text(key): self._field(key, inner, depth) for key, inner in value.items()}
            case _:
                return value

    def _field(self, key: str, value: Json, depth: int) -> Json:
        """A value behind its name. A number behind the name of a password is one as well."""
        if isinstance(value, bool) or not isinstance(value, str | int):
            return self.value(value, depth + 1)
        return self._behind(f"{json.dumps(key)}: ", value, depth, json.dumps(str(value), ensure_ascii=False))

    def _item(self, values: list[Json], at: int, depth: int) -> Json:
        """An entry behind the one before it: `["--password", "hunter2"]` is a command line."""
        value, before = values[at], values[at - 1] if at else None
        if not isinstance(value, str) or not isinstance(before, str) or not before.startswith("-"):
            return self.value(value, depth + 1)
        return self._behind(f"{before} ", value, depth, json.dumps(value, ensure_ascii=False))

    def _behind(self, head: str, value: Json, depth: int, written: str) -> Json:
        """The value as it is on its own, or, where that shows nothing, as it is behind `head`."""
        alone = self.value(value, depth + 1)
        if alone != value:
            return alone
        together = self.text(head + written)
        if together == head + written or not together.startswith(head):
            return value
        try:
            inner = json.loads(together[len(head) :])
        except ValueError:
            return value
        return inner if isinstance(inner, str) else value


def _words(part: Part) -> str:
    return part.text if isinstance(part, Text | Reasoning) else ""
