"""BERT's uncased WordPiece tokeniser: from text to the numbers of a vocabulary."""

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_LONGEST_WORD: Final = 100
_HAN: Final = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"
_WORD: Final = re.compile(rf"[{_HAN}]|[!-/:-@\[-`{{-~]|[^\s!-/:-@\[-`{{-~{_HAN}]+")


class WordPiece:
    """Tokenises as the model was trained: lower case, no accents, words cut greedily into the longest known pieces."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._numbers = {piece: number for number, piece in enumerate(vocabulary)}
        self._begin, self._end = self._numbers["[CLS]"], self._numbers["[SEP]"]
        self._unknown = self._numbers["[UNK]"]

    @classmethod
    def load(cls, path: Path) -> "WordPiece":
        """Read a `vocab.txt`."""
        return cls(path.read_text(encoding="utf-8").splitlines())

    def encode(self, text: str, most: int) -> list[int]:
        """The tokens of a text; of one with more than `most`, two thirds from its beginning and one third from its end."""
        tokens = [number for word in _words(text) for number in self._pieces(word)]
        if len(tokens) > most - 2:
            tail = (most - 2) // 3
            tokens = tokens[: most - 2 - tail] + tokens[-tail:]
        return [self._begin, *tokens, self._end]

    def _pieces(self, word: str) -> list[int]:
        if len(word) > _LONGEST_WORD:
            return [self._unknown]
        found: list[int] = []
        start = 0
        while start < len(word):
            for end in range(len(word), start, -1):
                number = self._numbers.get(word[start:end] if start == 0 else f"##{word[start:end]}")
                if number is not None:
                    break
            else:
                return [self._unknown]
            found.append(number)
            start = end
        return found


def _words(text: str) -> list[str]:
    if not text.isascii():
        plain = unicodedata.normalize("NFD", "".join(char for char in text if not _is_control(char)).lower())
        marked = (f" {char} " if unicodedata.category(char)[0] == "P" else char for char in plain)
        text = "".join(char for char in marked if len(char) > 1 or unicodedata.category(char) != "Mn")
    return _WORD.findall(text.lower().replace("\0", ""))


def _is_control(char: str) -> bool:
    return char == "\ufffd" or (char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf"))
