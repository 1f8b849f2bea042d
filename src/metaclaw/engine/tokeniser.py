"""A model folder's tokeniser for the program itself (ports.Tokeniser): token for token the prompt of a request that is served."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from metaclaw.domain.chat import ChatRequest
from metaclaw.engine.prompt import build_prompt

if TYPE_CHECKING:
    from metaclaw.engine.vocabulary import Vocabulary


class FolderTokeniser:
    """Reads the folder when it is first needed: until then it need not be there, and nothing heavy is loaded."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prompt(self, request: ChatRequest) -> tuple[int, ...]:
        """The tokens a request becomes. Raises WireError for what cannot be said in text, EngineError for a folder without one."""
        prompt = build_prompt(request)
        return tuple(self._vocabulary.render(prompt.turns, prompt.beginning))

    def encode(self, text: str) -> tuple[int, ...]:
        """The tokens of an answer, up to and without its end."""
        return tuple(self._vocabulary.encode(text))

    @property
    def end(self) -> int:
        """The token that ends an answer. Raises EngineError where the folder names none."""
        return self._vocabulary.end_id

    def word(self, token: int) -> str:
        """What one token says."""
        return self._vocabulary.decode([token])

    @cached_property
    def _vocabulary(self) -> "Vocabulary":
        from metaclaw.engine.vocabulary import Vocabulary

        return Vocabulary(self._folder)
