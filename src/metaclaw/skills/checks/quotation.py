"""Which words of a command are only text to it: what it prints, searches, records, or shows help about."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from metaclaw.skills.checks.programs import (
    DATABASES,
    INTERPRETERS,
    QUOTING,
    RECORDING,
    SHELLS,
    is_starter,
    program_name,
    shortened,
    words,
)

_MOST_STEPS: Final = 8
_TESTING: Final = words(
    "pytest py.test jest vitest mocha go cargo rspec ctest playwright cypress phpunit dotnet swift tox nox unittest ava tap"
)
_TEST_OPTIONS: Final = words("-k -t -g -run --run -e -R -m --grep --testNamePattern --test-name-pattern --filter -bench -skip")
_TEXT_OPTIONS: Final = words(
    "--message --title --body --description --subject --notes --comment --summary --commit-message --grep --author --trailer"
)
_HELP: Final = words("--help --version -help -version")
_MESSAGE_OPTION: Final = re.compile(r"-[a-zA-Z]*m")
_GIT_SEARCH_OPTIONS: Final = words("-S -G -L")
_OTHER_TEXT_OPTIONS: Final = words("-b -t -n -c")
_BLANK: Final = re.compile(r"\S\s+\S")


def quoted_places(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Which words of a command are only text to it, as first and last."""
    plain = list(texts)
    for _ in range(_MOST_STEPS):
        if plain and program_name(plain[0]) in QUOTING:
            break
        shorter = shortened(plain)
        if shorter is None:
            break
        plain = shorter
    if not plain:
        return []
    name, last = program_name(plain[0]), len(texts) - 1
    offset = len(texts) - len(plain)
    if shows_help(texts):
        return [(0, last)]
    if name in QUOTING or (name == "command" and plain[1:2] in (["-v"], ["-V"])):
        return [(offset + 1, last)] if last > offset else []
    if name in ("awk", "gawk") and not any("system" in text or "|" in text for text in plain):
        return [(offset + 1, last)] if last > offset else []
    if plain[:2] == ["git", "grep"] and last > offset + 1:
        return [(offset + 2, last)]
    found = dict.fromkeys(_text_options(texts, offset + 1, name))
    if name not in INTERPRETERS and name not in DATABASES:
        found |= {(at, at): None for at, text in enumerate(texts) if at and _BLANK.search(text)}
    return sorted(found)


def shows_help(texts: Sequence[str]) -> bool:
    """Whether a command only tells of itself."""
    if not texts or is_starter(texts) or program_name(texts[0]) in SHELLS | INTERPRETERS:
        return texts[1:2] != [] and texts[1] in _HELP
    for at, text in enumerate(texts[1:], 1):
        if text == "--":
            return False
        if text in _HELP and not _MESSAGE_OPTION.fullmatch(texts[at - 1]):
            return True
    return program_name(texts[0]) == "git" and texts[-1] == "-h" and len(texts) == 3


def _text_options(texts: Sequence[str], begin: int, name: str) -> Iterator[tuple[int, int]]:
    short = frozenset[str]()
    if name in RECORDING:
        short = _GIT_SEARCH_OPTIONS if name == "git" else _OTHER_TEXT_OPTIONS
    elif name in _TESTING:
        short = _TEST_OPTIONS
    value = -1
    for at, text in enumerate(texts[begin:], begin):
        if at == value:
            yield at, at
            continue
        option, sign, _ = text.partition("=")
        takes_text = text in _TEXT_OPTIONS or text in short or (name in RECORDING and _MESSAGE_OPTION.fullmatch(text))
        if sign and (option in _TEXT_OPTIONS or option in short):
            yield at, at
        elif takes_text:
            value = at + 1
        elif name in RECORDING and re.match(r"-[aqsve]*m(?=\S)|-[SGL](?=\S)", text):
            yield at, at
