"""What a command does beside what it is: the scripts and commands that it starts, the files that it
runs and writes, and the branch of git that it switches to."""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Final

from metaclaw.checks.code import scan
from metaclaw.checks.shell import Command, unescaped
from metaclaw.checks.shell_programs import (
    INTERPRETERS,
    SHELLS,
    TABLES,
    patched_files,
    program_name,
    words,
)

_SCRIPT_OPTION: Final = re.compile(r"-[A-Za-z]*c|/c|-command", re.IGNORECASE)
_ENCODED: Final = re.compile(r"-e(?:nc|ncodedcommand|c)?", re.IGNORECASE)
_CODE_OPTION: Final = re.compile(r"-[A-Za-z]*[cerpEn]|--eval|--print|--command|eval")
_SOURCING: Final = words("source . eval")
DOWNLOADING, _SCRIPT_WORDS, _RUNNING_IN_TMUX = (
    words(TABLES[name]) for name in ("downloading", "script_words", "running_in_tmux")
)
_SCRIPT_OPTIONS, _COMMAND_OPTIONS = (
    {name: options.split() for name, options in TABLES[key].items()}
    for key in ("script_options", "command_options")
)
_EDITORS: Final = words("ed ex vi vim nvim")
_STREAM_EDITORS: Final = words("sed gsed perl ruby")
_IN_PLACE: Final = re.compile(r"-[a-zA-Z0]*i|--in-?place")
_EDIT_OPTION: Final = re.compile(r"-\w*[eEc]|--expression|\+")
# What `s/old/new/` and `a text` of these editors put in.
_ADDED: Final = re.compile(
    r"(?<![A-Za-z_\\])(?:s([^\w\s\\;])(?:\\.|(?!\1).)*\1((?:\\.|(?!\1).)*)"
    r"|[aic](?:\\\s*|\s+)(.*))",
    re.DOTALL,
)
_MOST_EDITS: Final = 100
_COPYING: Final = words("cp mv install ln")
_OUTPUT_OPTION: Final = re.compile(r"-[a-zA-Z]*[oO]|--output|--output-document")
_PATCHING: Final = words("patch apply_patch applypatch")


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
    name, operands = program_name(bare[0]) if bare else "", _operands(bare)
    if name in _EDITORS or (name in _STREAM_EDITORS and any(map(_IN_PLACE.match, bare[1:]))):
        yield from _edited_files(name, bare, text)
    elif name in _PATCHING or bare[:2] == ["git", "apply"]:
        found = [
            (path, "\n".join(lines))
            for patch in (text, *bare[1:])
            for path, lines in patched_files(patch)
            if path
        ]
        yield from found or (((operands[0], ""),) if name == "patch" and operands else ())
    elif name in _COPYING and len(operands) > 1:
        yield operands[-1], ""
    elif name in ("truncate", "sponge"):
        yield from ((path, "") for path in operands)
    elif name in INTERPRETERS:
        yield from (file for word in (*bare[1:], text) if "(" in word for file in scan(word).files)
    elif name in DOWNLOADING:
        options = pairwise(bare)
        yield from ((path, "") for option, path in options if _OUTPUT_OPTION.fullmatch(option))


def _edited_files(name: str, bare: Sequence[str], text: str) -> Iterator[tuple[str, str]]:
    """The files that an editor changes by a script, each with the texts that it puts in."""
    scripts = [after for word, after in pairwise(bare) if _EDIT_OPTION.fullmatch(word)]
    files = [word for word in bare[1:] if word and word[0] not in "-+" and word not in scripts]
    if name in _EDITORS:
        scripts.append(text)
    elif not scripts:
        scripts, files = files[:1], files[1:]
    added = [
        unescaped(match[2] or match[3] or "")
        for script in scripts
        for match in islice(_ADDED.finditer(script), _MOST_EDITS)
    ]
    yield from ((path, "\n".join(added)) for path in files)


def file_names(texts: Iterable[str]) -> set[str]:
    """The words of a command as names of files, without their folders."""
    return {re.split(r"[?#]", text)[0].rstrip("/").rpartition("/")[2] for text in texts}


def run_files(texts: Sequence[str], bare: Sequence[str]) -> set[str]:
    """The files that a command runs, by a shell, an interpreter or directly."""
    found = {text for text in texts[:1] if "/" in text}  # a bare name is no file of the script
    found |= {text for text in texts[1:] if text.startswith("./")}
    for at, text in enumerate(texts):
        if program_name(text) in SHELLS or text in _SOURCING:
            found.update(_operands(texts[at:])[:1])
    if bare and program_name(bare[0]) in INTERPRETERS and not runs_option(bare):
        found.update(_operands(bare)[:1])
    if bare and bare[0] in ("make", "gmake"):
        found.update(after for word, after in pairwise(texts) if word in ("-f", "--file"))
        found |= {"Makefile", "makefile"}
    # A word with blanks is a script, as in `bash -c "curl …"`.
    return {name.removeprefix("./") for name in found if " " not in name}


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
    for word, after in pairwise(texts):
        if word in options or ("-c" in options and re.fullmatch("-[a-z]*c", word)):
            yield after
    for at, text in enumerate(texts):
        option, _, value = text.partition("=")
        if option.startswith("--") and option in options and value:
            yield value
        elif program_name(text) in SHELLS:
            behind = list(pairwise(texts[at + 1 :]))
            scripts = (after for word, after in behind[:7] if _SCRIPT_OPTION.fullmatch(word))
            yield from islice(scripts, 1)
            if any(_ENCODED.fullmatch(word) and len(after) > 7 for word, after in behind):
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
    starting = _COMMAND_OPTIONS.get(name, ())
    for at, text in enumerate(texts):
        if text in starting:
            rest = texts[at + 1 :]
            end = next((i for i, word in enumerate(rest) if word in (";", "+")), len(rest))
            yield [word for word in rest[:end] if word != "{}"]


_ALIAS: Final = re.compile(r"\balias\.[\w-]+[= ](?!-)(.+)", re.DOTALL)
_NAMING_OPTIONS: Final = words("-b -B -c -C --create --force-create --orphan")
_PUSHING_ALL: Final = words("--all --tags --mirror --branches")


class GitState:
    """Tracks the current branch over the commands of a script."""

    def __init__(self) -> None:
        self.branch = ""

    def follow(self, texts: Sequence[str]) -> Iterator[str]:
        """The scripts that a command of git stands for after the earlier commands; also remembers
        the branch that it switches to."""
        match texts:
            case ["git", "config" | "-c", *rest] if alias := _ALIAS.search(" ".join(rest)):
                value = alias[1]
                yield value[1:] if value.startswith("!") else f"git {value}"
            case ["git", "switch" | "checkout", *rest]:
                operands = [word for word in rest if not word.startswith("-")]
                is_named = len(operands) == 1 or not _NAMING_OPTIONS.isdisjoint(rest)
                if operands and is_named and "--" not in rest and "--detach" not in rest:
                    self.branch = operands[0]
            case ["git", "branch", "-m" | "-M" | "--move", *rest] if rest:
                self.branch = rest[-1]
            case ["git", "push", *rest] if self.branch and (known := self._pushed(rest)) != rest:
                yield shlex.join(("git", "push", *known))

    def _pushed(self, texts: Sequence[str]) -> list[str]:
        """The words of a push with the name of the current branch."""
        names = {"HEAD": self.branch, "@": self.branch, "+HEAD": f"+{self.branch}"}
        known = [names.get(text, text) for text in texts]
        operands = [text for text in known if not text.startswith("-")]
        if len(operands) < 2 and _PUSHING_ALL.isdisjoint(known):
            known += [*([] if operands else ["origin"]), self.branch]
        return known
