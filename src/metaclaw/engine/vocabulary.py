"""The tokenizer of a model folder: its chat template, and decoding that never shows half a
character.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from metaclaw.domain.chat import Json
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
        self._template = _compile(_find_template(config, folder))

    def render(self, turns: Sequence[tuple[str, str]], beginning: str) -> list[int]:
        """The tokens of the prompt, which ends with `beginning`, the required beginning of the
        answer.

        Special tokens are special only where the template puts them: in a message they stay text.
        """
        hidden = [(role, self._hide(text)) for role, text in turns]
        try:
            rendered = self._template.render(
                messages=[{"role": role, "content": text} for role, text in hidden],
                add_generation_prompt=True,
                **self._named,
            )
        except jinja2.TemplateError as error:
            raise WireError(
                f"the model's chat template refuses this conversation: {error}", param="messages"
            ) from error
        return self._encode(rendered + beginning)

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

    def _hide(self, text: str) -> str:
        for number, special in enumerate(self._special):
            text = text.replace(special, chr(_FIRST_PRIVATE + number))
        return text

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


def _compile(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise_template_error
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise EngineError(f"the model's chat template is broken: {error}") from error


def _raise_template_error(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
