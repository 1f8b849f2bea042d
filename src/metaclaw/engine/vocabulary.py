"""The tokenizer of a model folder: its chat template, and decoding that never shows half a
character.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import jinja2
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from metaclaw.domain.chat import Json, Role
from metaclaw.engine.frames import OfferedTool, WrittenTurn
from metaclaw.engine.prompt import write_turns
from metaclaw.errors import EngineError, WireError

_UNDECIDED: Final = "\ufffd"
_FIRST_PRIVATE: Final = 0xF0000
"""Private code points that replace, while a prompt is rendered, special tokens that a message
spells out as text.
"""


class Vocabulary:
    """A model folder's tokenizer and chat template."""

    def __init__(self, folder: Path) -> None:
        config = {
            key: value["content"] if isinstance(value, dict) and "content" in value else value
            for key, value in read_json(folder / "tokenizer_config.json").items()
        }
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            # A second tokenizer that reads special tokens in a text as letters.
            self._literal = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises nothing more precise
            raise EngineError(f"cannot read {folder / 'tokenizer.json'}: {error}") from error
        self._literal.encode_special_tokens = True
        added = self._tokenizer.get_added_tokens_decoder().values()
        self._special = sorted(
            (token.content for token in added if token.special), key=len, reverse=True
        )
        self._hidden = re.compile(
            f"([{chr(_FIRST_PRIVATE)}-{chr(_FIRST_PRIVATE + len(self._special) - 1)}])"
            if self._special
            else "(?!)()"
        )
        end = config.get("eos_token")
        self._end_id = self._tokenizer.token_to_id(end) if isinstance(end, str) else None
        self.end_ids = read_end_ids(folder) | (
            {self._end_id} if self._end_id is not None else set()
        )
        """The tokens that end an answer, if the folder names any."""
        self._named = {
            key: value
            for key, value in config.items()
            if key.endswith("_token") and isinstance(value, str)
        }
        source = _find_template(config, folder)
        self._template, self._knows_tools = _compile(source)

    def render(
        self,
        turns: Sequence[WrittenTurn | tuple[str, str]],
        beginning: str,
        tools: Sequence[OfferedTool] = (),
    ) -> list[int]:
        """The tokens of the prompt, which ends with `beginning`, the required beginning of the
        answer.

        Special tokens are special only where the template puts them: in a message they stay text.
        """
        whole = [WrittenTurn(*turn) for turn in turns]
        has_tools = bool(tools) or any(turn.calls or turn.role == Role.TOOL for turn in whole)
        if has_tools and self._knows_tools:
            # A template may refuse what it does not expect, such as a result without its call.
            with suppress(jinja2.TemplateError, TypeError):
                return self._encode(
                    self._fill(list(map(_as_message, whole)), map(_as_schema, tools)) + beginning
                )
        try:
            written: list[Json] = [
                {"role": role, "content": text} for role, text in write_turns(whole, tools)
            ]
            rendered = self._fill(written)
        except jinja2.TemplateError as error:
            raise WireError(
                f"the model's chat template refuses this conversation: {error}", param="messages"
            ) from error
        return self._encode(rendered + beginning)

    def _fill(self, messages: Sequence[Json], tools: Iterable[Json] = ()) -> str:
        offered = [self._hide(tool) for tool in tools]
        return self._template.render(
            messages=[self._hide(message) for message in messages],
            add_generation_prompt=True,
            **({"tools": offered} if offered else {}),
            **self._named,
        )

    @property
    def end_id(self) -> int:
        """The token that ends an answer in the chat template. Raises EngineError if the folder
        names none.
        """
        if not self.end_ids:
            raise EngineError("the model's folder does not say which token ends an answer")
        return min(self.end_ids) if self._end_id is None else self._end_id

    def encode(self, text: str) -> list[int]:
        """The tokens of a text without special tokens."""
        return self._literal.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens, without special tokens."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)

    def _hide(self, value: Json) -> Json:
        """The value with the special tokens in its strings replaced."""
        if isinstance(value, dict):
            return {key: self._hide(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._hide(inner) for inner in value]
        if isinstance(value, str):
            for number, special in enumerate(self._special):
                value = value.replace(special, chr(_FIRST_PRIVATE + number))
        return value

    def _encode(self, rendered: str) -> list[int]:
        ids: list[int] = []
        for number, part in enumerate(self._hidden.split(rendered)):
            if number % 2:
                ids += self._literal.encode(
                    self._special[ord(part) - _FIRST_PRIVATE], add_special_tokens=False
                ).ids
            elif part:
                ids += self._tokenizer.encode(part, add_special_tokens=False).ids
        return ids


class Detokenizer:
    """Decodes a growing list of tokens; a character is returned once its last byte is known."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        """The characters this token completes."""
        self._pending.append(token)
        fresh = self._fresh()
        if fresh.endswith(_UNDECIDED):
            return ""
        self._settle()
        return fresh

    def flush(self) -> str:
        """The rest at the end, with incomplete characters as replacement characters."""
        fresh = self._fresh() if self._pending else ""
        self._settle()
        return fresh

    def _fresh(self) -> str:
        # Some tokenizers drop a leading space, so new tokens are decoded together with those
        # before.
        before = self._vocabulary.decode(self._context)
        return self._vocabulary.decode(self._context + self._pending)[len(before) :]

    def _settle(self) -> None:
        if self._pending:
            self._context, self._pending = self._pending, []


def read_json(path: Path) -> dict[str, Json]:
    """The JSON object in a file. Raises EngineError."""
    try:
        value: Json = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise EngineError(f"{path} does not hold a JSON object")
    return value


def read_end_ids(folder: Path) -> frozenset[int]:
    """The tokens that end an answer, from the configurations of a model folder."""
    ends: set[int] = set()
    for path in (folder / "generation_config.json", folder / "config.json"):
        value = read_json(path).get("eos_token_id") if path.is_file() else None
        ends |= {
            token
            for token in (value if isinstance(value, list) else [value])
            if isinstance(token, int)
        }
    return frozenset(ends)


def _find_template(config: dict[str, Json], folder: Path) -> str:
    path = folder / "chat_template.jinja"
    template = path.read_text(encoding="utf-8") if path.is_file() else config.get("chat_template")
    if not isinstance(template, str):
        raise EngineError(f"{folder} has no chat template, so it cannot hold a conversation")
    return template


def _compile(source: str) -> tuple[jinja2.Template, bool]:
    """The template, and whether it knows tools."""
    environment = _environment()
    try:
        names = find_undeclared_variables(environment.parse(source))
        return environment.from_string(source), "tools" in names
    except jinja2.TemplateError as error:
        raise EngineError(f"the model's chat template is broken: {error}") from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise_template_error
    # The filter of jinja2 is made for HTML and escapes letters.
    environment.filters["tojson"] = _to_json
    return environment


def _to_json(value: Json, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _as_schema(tool: OfferedTool) -> Json:
    function: dict[str, Json] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": _parse(tool.parameters),
    }
    return {"type": "function", "function": function}


def _as_message(turn: WrittenTurn) -> Json:
    message: dict[str, Json] = {"role": str(turn.role), "content": turn.content}
    if turn.call_id:
        message["tool_call_id"] = _short_id(turn.call_id)
    if turn.calls:
        message["tool_calls"] = [
            {
                "type": "function",
                "id": _short_id(call.id),
                "function": {"name": call.name, "arguments": _parse(call.arguments or "{}")},
            }
            for call in turn.calls
        ]
    return message


def _short_id(id: str) -> str:
    # Templates of Mistral take only nine letters and digits.
    return hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()[:9]


def _parse(text: str) -> Json:
    try:
        value: Json = json.loads(text)
    except ValueError:
        return text
    return value


def _raise_template_error(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
