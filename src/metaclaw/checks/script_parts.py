"""What a command does beside what it is: the scripts and commands that it starts, the files that it
runs and writes, and the branch and the aliases of git that it changes."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

from metaclaw.checks.code import scan
from metaclaw.checks.shell import Command
from metaclaw.checks.shell_programs import (
    INTERPRETERS,
    SHELLS,
    TABLES,
    ed_texts,
    patched_files,
    program_name,
    sed_texts,
    shortened,
    words,
)

_SCRIPT_OPTION: Final = re.compile(r"-[A-Za-z]*c|/c|-command", re.IGNORECASE)
_CODE_OPTION: Final = re.compile(r"-[A-Za-z]*[cerpEn]|--eval|--print|--command|eval")
_SOURCING: Final = words("source . eval")
DOWNLOADING, _SCRIPT_WORDS, _RUNNING_IN_TMUX, _IMAGE_PROGRAMS = (
    words(TABLES[name])
    for name in ("downloading", "script_words", "running_in_tmux", "image_programs")
)
_SCRIPT_OPTIONS: Final = {
    name: options.split() for name, options in TABLES["script_options"].items()
}
_EDITORS: Final = words("ed ex red vi vim nvim")
_OUTPUT_OPTION: Final = re.compile(r"-[a-zA-Z]*o|--output|--out|-OutFile|--download", re.IGNORECASE)


@lru_cache(1024)  # called several times for each command
def bare_words(texts: tuple[str, ...]) -> tuple[str, ...]:
    """A command without its starters."""
    for _ in range(8):
        shorter = shortened(texts)
        if shorter is None:
            break
        texts = tuple(shorter)
    return texts


def _operands(texts: Sequence[str]) -> list[str]:
    return [word for word in texts[1:] if not word.startswith("-")]


def output_files(command: Command, texts: Sequence[str]) -> list[str]:
    """The files to which a command's output is written."""
    files = list(command.writes)
    if "tee" in texts[:3]:
        files += [
            text for text in texts[list(texts).index("tee") + 1 :] if not text.startswith("-")
        ]
    return files


def written_files(command: Command, bare: Sequence[str], text: str) -> Iterator[tuple[str, str]]:
    """The files that a command writes or changes in place, each with its text if that is known."""
    for path in output_files(command, bare):
        if not path.startswith(("/dev/", "&")) and not path.isdecimal() and path != "-":
            yield path, text
    name = program_name(bare[0]) if bare else ""
    operands = _operands(bare)
    is_in_place = any(re.match(r"-[a-zA-Z0]*i|--in-?place", word) for word in bare[1:])
    if name in ("sed", "perl", "gsed", "ruby") and is_in_place:
        files, added = sed_texts(["perl" if name == "ruby" else name, *bare[1:]])
        yield from ((path, "\n".join(added)) for path in files)
    elif name in ("awk", "gawk") and "inplace" in bare:
        programs = [word for word in operands if word != "inplace"]
        yield from (
            (path, "\n".join(re.findall(r'"([^"]*)"', programs[0]))) for path in programs[1:]
        )
    elif name in _EDITORS:
        scripts = [after for word, after in pairwise(bare) if re.fullmatch(r"-\w*c|\+", word)]
        scripts += [word[1:] for word in bare[1:] if word.startswith("+") and len(word) > 1]
        if text or scripts or name in ("ed", "ex", "red"):
            added = list(ed_texts("\n".join((text, *scripts))))
            yield from ((path, "\n".join(added)) for path in operands if path not in scripts)
    elif name == "patch" or bare[:2] == ["git", "apply"]:
        found = [(path, "\n".join(lines)) for path, lines in patched_files(text) if path]
        yield from found or (((operands[0], ""),) if name == "patch" and operands else ())
    elif name in ("cp", "mv", "install", "ln") and len(operands) > 1:
        yield operands[-1], ""
    elif name == "dd":
        yield from ((word[3:], "") for word in operands if word.startswith("of="))
    elif name in ("truncate", "sponge"):
        yield from ((path, "") for path in operands)
    elif name.lower() in ("set-content", "add-content", "out-file", "clear-content"):
        named = [
            after
            for word, after in pairwise(bare)
            if word.lower() in ("-path", "-filepath", "-literalpath")
        ]
        yield from ((path, " ".join(bare[1:])) for path in named or operands[:1])
    elif name in INTERPRETERS:
        yield from (file for word in (*bare[1:], text) if "(" in word for file in scan(word).files)
    else:
        yield from ((path, "") for path in downloaded_files(bare))


def downloaded_files(texts: Sequence[str]) -> list[str]:
    """The files that a download command writes by its options."""
    name = program_name(texts[0]).lower() if texts else ""
    if name not in DOWNLOADING:
        return []
    found = [
        after
        for word, after in pairwise(texts)
        if _OUTPUT_OPTION.fullmatch(word) and (name != "wget" or word == "--output-document")
    ]
    found += [
        word.partition("=")[2]
        for word in texts
        if word.startswith(("--output=", "--output-document=", "--out="))
    ]
    if name == "wget":
        found += [after for word, after in pairwise(texts) if re.fullmatch(r"-[a-zA-Z]*O", word)]
        found += [word[2:] for word in texts if re.match(r"-O[^-\s]", word)]
    is_named_by_url = (
        any(re.fullmatch(r"-[a-zA-Z]*O|--remote-name(?:-all)?", word) for word in texts)
        if name == "curl"
        else name in ("wget", "aria2c")
    )
    if is_named_by_url and not (name == "wget" and found):
        addresses = [word for word in texts[1:] if "/" in word and not word.startswith("-")]
        found += [re.split(r"[?#]", word)[0].rstrip("/").rpartition("/")[2] for word in addresses]
    options = {
        "wget": ("-P", "--directory-prefix"),
        "aria2c": ("-d", "--dir"),
        "curl": ("--output-dir",),
    }.get(name, ())
    folder = next(
        (after.rstrip("/") + "/" for word, after in pairwise(texts) if word in options), ""
    )
    return [
        folder + word for word in found if word and word != "-" and not word.startswith("/dev/")
    ]


def run_files(texts: Sequence[str], bare: Sequence[str]) -> set[str]:
    """The files that a command runs, by a shell, an interpreter or directly."""
    found = {*texts[:1], *bare[:1], *(text for text in texts[1:] if text.startswith("./"))}
    for at, text in enumerate(texts):
        if program_name(text) in SHELLS or text in _SOURCING:
            found.update(_operands(texts[at:])[:1])
    if bare and program_name(bare[0]) in INTERPRETERS and not runs_option(bare):
        found.update(_operands(bare)[:1])
    if bare and bare[0] in ("make", "gmake"):
        found.update(after for word, after in pairwise(texts) if word in ("-f", "--file"))
        found |= {"Makefile", "makefile"}
    return {name.removeprefix("./") for name in found}


def runs_option(texts: Sequence[str]) -> bool:
    """Whether an interpreter gets its program by an option."""
    return any(_CODE_OPTION.fullmatch(text) for text in texts[1:])


def reads_script(texts: Sequence[str]) -> bool:
    """Whether a command runs its input as a script."""
    for at, text in enumerate(texts):
        name = program_name(text)
        if name in ("ssh", "su", "at", "batch") and at == 0:
            return True
        if text in _SOURCING and at == 0:
            return "/dev/stdin" in texts
        if name in SHELLS:
            rest = texts[at + 1 :]
            return not any(_SCRIPT_OPTION.fullmatch(word) for word in rest) and (
                "-s" in rest or all(word[:1] == "-" or word == "/dev/stdin" for word in rest)
            )
        if name == "xargs":
            return any(program_name(word) in SHELLS for word in texts[at + 1 :])
        if name == "parallel" and at == 0 and len(texts) == 1:
            return True
    return False


def scripts_in(texts: Sequence[str]) -> Iterator[str]:
    """The scripts among the words of a command."""
    name = program_name(texts[0]).lower() if texts else ""
    if name in ("eval", "iex", "invoke-expression"):
        yield " ".join(texts[1:])
    if name in _SCRIPT_WORDS and (name != "tmux" or not _RUNNING_IN_TMUX.isdisjoint(texts)):
        yield from (text for text in texts[1:] if " " in text and not text.startswith("-"))
    options = _SCRIPT_OPTIONS.get(name, ())
    for at, text in enumerate(texts):
        if (
            text in options or ("-c" in options and re.fullmatch("-[a-z]*c", text))
        ) and at + 1 < len(texts):
            yield texts[at + 1]
        elif text.startswith("--") and "=" in text and text.partition("=")[0] in options:
            yield text.partition("=")[2]
        elif program_name(text) in SHELLS:
            option = next(
                (
                    i
                    for i in range(at + 1, min(at + 8, len(texts)))
                    if _SCRIPT_OPTION.fullmatch(texts[i])
                ),
                None,
            )
            if option is not None and option + 1 < len(texts):
                yield texts[option + 1]
            if any(
                re.fullmatch(r"-e(?:nc|ncodedcommand|c)?", word, re.IGNORECASE) and len(after) > 7
                for word, after in pairwise(texts)
            ):
                yield "$EncodedCommand"
    if name == "git" and texts[1:3] == ["submodule", "foreach"]:
        yield " ".join(word for word in texts[3:] if not word.startswith("-"))
    if name == "trap" and len(texts) > 2:
        yield texts[1]


def code_in(texts: Sequence[str]) -> Iterator[str]:
    """The programs in other languages among the words of a command."""
    name = program_name(texts[0]) if texts else ""
    if name in ("awk", "gawk", "mawk") or (name in INTERPRETERS and runs_option(texts)):
        yield from texts[1:]


def commands_in(texts: Sequence[str]) -> Iterator[list[str]]:
    """The commands among the words of a command."""
    name = program_name(texts[0]) if texts else ""
    options = {
        "fd": "-x -X --exec --exec-batch",
        "fdfind": "-x -X --exec --exec-batch",
        "nix": "-c --command",
        "guix": "-c --command",
    }
    starting = options.get(name, "-exec -execdir -ok -okdir" if name == "find" else "").split()
    for at, text in enumerate(texts):
        if text in starting:
            rest = texts[at + 1 :]
            end = next((i for i, word in enumerate(rest) if word in (";", "+")), len(rest))
            yield [word for word in rest[:end] if word != "{}"]
    if name in ("docker", "podman") and "run" in texts[:4]:
        images = [
            (program_name(text.partition(":")[0]), at)
            for at, text in enumerate(texts)
            if "/" in text
        ]
        yield from [[image, *texts[at + 1 :]] for image, at in images if image in _IMAGE_PROGRAMS][
            :1
        ]


_ALIAS_SETTING: Final = re.compile(r"alias\.([\w-]+)=(.+)", re.DOTALL)
_NAMING_OPTIONS: Final = frozenset(
    ("-b", "-B", "-c", "-C", "--create", "--force-create", "--orphan", "-m", "-M", "--move")
)
_CURRENT_BRANCH: Final = re.compile(
    r"\$\(git (?:branch --show-current|rev-parse --abbrev-ref (?:HEAD|@)|symbolic-ref --short (?:-q"
    r" )?HEAD)[^)]*\)"
    r"|`git (?:branch --show-current|rev-parse --abbrev-ref HEAD)`"
)
_VALUE_OPTIONS: Final = frozenset(("-o", "--push-option", "--receive-pack", "--exec", "--repo"))
_MOST_ALIASES: Final = 32


class GitState:
    """Tracks the current branch and the aliases of git over the commands of a script."""

    def __init__(self) -> None:
        self._branch = ""
        self._aliases: dict[str, str] = {}

    def configure(self, variables: Sequence[str]) -> None:
        """Remember the aliases that environment variables of git set."""
        values = dict(text.split("=", 1) for text in variables if "=" in text)
        for name, key in values.items():
            if name.startswith("GIT_CONFIG_KEY_") and key.startswith("alias."):
                self._keep(key[6:], values.get(name.replace("_KEY_", "_VALUE_"), ""))

    def follow(self, texts: Sequence[str]) -> Iterator[list[str] | str]:
        """The commands or scripts that a command stands for after the earlier commands; also
        remembers what it changes.
        """
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
        """Remember an alias, and yield what it stands for, because the alias remains after the
        script.
        """
        for name, value in pairwise(texts[2:]):
            if name.startswith("alias.") and not value.startswith("-"):
                self._keep(name[6:], value)
                yield self._called(value, [])

    @staticmethod
    def _called(value: str, arguments: Sequence[str]) -> list[str] | str:
        return (
            " ".join((value[1:], *arguments))
            if value.startswith("!")
            else ["git", *value.split(), *arguments]
        )

    def _switched(self, texts: Sequence[str]) -> None:
        named = next((after for word, after in pairwise(texts) if word in _NAMING_OPTIONS), None)
        operands = [word for word in texts[2:] if not word.startswith("-")]
        if texts[1] == "branch":
            moved = any(word in ("-m", "-M", "--move") for word in texts)
            self._branch = operands[-1] if moved and operands else self._branch
        elif named is not None:
            self._branch = named
        elif len(operands) == 1 and "--" not in texts and "--detach" not in texts:
            self._branch = operands[0]

    def _pushed(self, texts: Sequence[str]) -> Iterator[list[str]]:
        """A push of the current branch, with its name."""
        known = _CURRENT_BRANCH.sub(self._branch, " ".join(texts)).split()
        known = [
            (
                self._branch
                if text in ("HEAD", "@")
                else f"+{self._branch}"
                if text in ("+HEAD", "+@")
                else text
            )
            for text in known
        ]
        operands = [
            text
            for before, text in pairwise(known[1:])
            if not text.startswith("-") and before not in _VALUE_OPTIONS
        ]
        names_others = any(text in ("--all", "--tags", "--mirror", "--branches") for text in known)
        if len(operands) < 2 and not names_others:
            known += [*([] if operands else ["origin"]), self._branch]
        if known != list(texts):
            yield known
