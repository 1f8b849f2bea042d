"""The tokeniser of a model folder for training: whole requests and answers as tokens."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from metaclaw.domain.chat import ChatRequest
from metaclaw.engine.prompt import build_prompt

if TYPE_CHECKING:
    from metaclaw.engine.vocabulary import Vocabulary


class FolderTokeniser:
    """The tokeniser of a model folder (ports.Tokeniser), which gives the same tokens as serving.

    The folder is read at the first use; until then it need not exist, and nothing heavy is loaded.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prompt(self, request: ChatRequest) -> tuple[int, ...]:
        """The tokens of a request. Raises WireError for content that is not text, EngineError for
        an unusable folder.
        """
        prompt = build_prompt(request)
        return tuple(self._vocabulary.render(prompt.turns, prompt.beginning, prompt.tools))

    def encode(self, text: str) -> tuple[int, ...]:
        """The tokens of an answer, without its end."""
        return tuple(self._vocabulary.encode(text))

    @property
    def end(self) -> int:
        """The token that ends an answer. Raises EngineError if the folder names none."""
        return self._vocabulary.end_id

    @cached_property
    def _vocabulary(self) -> "Vocabulary":
        from metaclaw.engine.vocabulary import Vocabulary

        return Vocabulary(self._folder)
