"""What a script changes in the state of git that later commands of it depend on: the branch that is checked out, and aliases."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

_ALIAS_SETTING: Final = re.compile(r"alias\.([\w-]+)=(.+)", re.DOTALL)
_NAMING_OPTIONS: Final = frozenset(("-b", "-B", "-c", "-C", "--create", "--force-create", "--orphan", "-m", "-M", "--move"))
_CURRENT_BRANCH: Final = re.compile(
    r"\$\(git (?:branch --show-current|rev-parse --abbrev-ref (?:HEAD|@)|symbolic-ref --short (?:-q )?HEAD)[^)]*\)"
    r"|`git (?:branch --show-current|rev-parse --abbrev-ref HEAD)`"
)
_VALUE_OPTIONS: Final = frozenset(("-o", "--push-option", "--receive-pack", "--exec", "--repo"))
_MOST_ALIASES: Final = 32


class GitState:
    """Follows `git` commands in their order."""

    def __init__(self) -> None:
        self._branch = ""
        self._aliases: dict[str, str] = {}

    def configure(self, variables: Sequence[str]) -> None:
        """Keep the aliases that variables of git set for a command."""
        values = dict(text.split("=", 1) for text in variables if "=" in text)
        for name, key in values.items():
            if name.startswith("GIT_CONFIG_KEY_") and key.startswith("alias."):
                self._keep(key[6:], values.get(name.replace("_KEY_", "_VALUE_"), ""))

    def follow(self, texts: Sequence[str]) -> Iterator[list[str] | str]:
        """The commands, or scripts, that a command comes to by what earlier ones did; then what it changes itself is kept."""
        if texts[:1] != ["git"] or len(texts) < 2:
            return
        for before, text in pairwise(texts):
            if before in ("-c", "--config-env") and (setting := _ALIAS_SETTING.fullmatch(text)):
                self._keep(setting[1], setting[2])
        if texts[1] == "config":
            yield from self._configured(texts)
        elif texts[1] in self._aliases:
            yield self._called(self._aliases[texts[1]], texts[2:])
        elif texts[1] in ("switch", "checkout", "branch"):
            self._switched(texts)
        elif texts[1] == "push" and self._branch:
            yield from self._pushed(texts)

    def _keep(self, name: str, value: str) -> None:
        if len(self._aliases) < _MOST_ALIASES:
            self._aliases[name] = value

    def _configured(self, texts: Sequence[str]) -> Iterator[list[str] | str]:
        """An alias outlives the script, so that it counts as what it stands for."""
        for name, value in pairwise(texts[2:]):
            if name.startswith("alias.") and not value.startswith("-"):
                self._keep(name[6:], value)
                yield self._called(value, [])

    @staticmethod
    def _called(value: str, arguments: Sequence[str]) -> list[str] | str:
        return " ".join((value[1:], *arguments)) if value.startswith("!") else ["git", *value.split(), *arguments]

    def _switched(self, texts: Sequence[str]) -> None:
        named = next((after for one, after in pairwise(texts) if one in _NAMING_OPTIONS), None)
        operands = [one for one in texts[2:] if not one.startswith("-")]
        if texts[1] == "branch":
            moved = any(one in ("-m", "-M", "--move") for one in texts)
            self._branch = operands[-1] if moved and operands else self._branch
        elif named is not None:
            self._branch = named
        elif len(operands) == 1 and "--" not in texts and "--detach" not in texts:
            self._branch = operands[0]

    def _pushed(self, texts: Sequence[str]) -> Iterator[list[str]]:
        """A push of the branch that is checked out, by its name."""
        known = _CURRENT_BRANCH.sub(self._branch, " ".join(texts)).split()
        known = [
            self._branch if text in ("HEAD", "@") else f"+{self._branch}" if text in ("+HEAD", "+@") else text for text in known
        ]
        operands = [text for before, text in pairwise(known[1:]) if not text.startswith("-") and before not in _VALUE_OPTIONS]
        names_others = any(text in ("--all", "--tags", "--mirror", "--branches") for text in known)
        if len(operands) < 2 and not names_others:
            known += [*([] if operands else ["origin"]), self._branch]
        if known != list(texts):
            yield known
