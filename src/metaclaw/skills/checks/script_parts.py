"""The roles of commands in a script: which print scripts that others run, which start others, which write files, and which change
the branch or the aliases of git."""

import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Final

from metaclaw.skills.checks.code import code_files, code_scripts
from metaclaw.skills.checks.shell import KEYWORDS, Command, Script
from metaclaw.skills.checks.shell_programs import (
    DATABASES,
    INTERPRETERS,
    SHELLS,
    ed_texts,
    patched_files,
    program_name,
    sed_texts,
    shortened,
)
from metaclaw.skills.checks.shell_programs import words as words_of
from metaclaw.skills.checks.shell_words import Word, decoded_text, printed_text

_SCRIPT_OPTION: Final = re.compile(r"-[A-Za-z]*c|/c|-command", re.IGNORECASE)
_SHORT_SCRIPT_OPTION: Final = re.compile(r"-[a-z]*c")
_CODE_OPTION: Final = re.compile(r"-[A-Za-z]*[cerpEn]|--eval|--print|--command|eval")
_GLUED_MESSAGE: Final = re.compile(r"(-[a-ln-zA-LN-Z]*m)(\S[\s\S]*)")
_SOURCING: Final = words_of("source . eval")
_EVALUATING: Final = words_of("iex invoke-expression")
"""Commands of PowerShell that run their argument as a script."""
DOWNLOADING: Final = words_of("curl wget aria2c http https xh iwr irm invoke-webrequest invoke-restmethod fetch")
_POWERSHELL_WRITERS: Final = words_of("set-content add-content out-file clear-content")
_IMAGE_PROGRAMS: Final = words_of("git curl kubectl terraform helm")
_ED: Final = words_of("ed ex red")
_VIM: Final = words_of("vi vim nvim ex")
_SCRIPT_WORDS: Final = words_of(
    "ssh watch parallel tmux concurrently hyperfine nodemon onchange chokidar watchexec entr trap vagrant nix-shell npx"
)
"""Programs that run their arguments as scripts."""
_RUNNING_IN_TMUX: Final = words_of(
    "send-keys send new new-session neww new-window split-window splitw respawn-pane respawn-window run-shell run pipe-pane"
)
_SCRIPT_OPTIONS: Final = {
    "su": ("-c", "--command"),
    "script": ("-c",),
    "runuser": ("-c",),
    "sg": ("-c",),
    "flock": ("-c",),
    "env": ("-S",),
    "nix-shell": ("--run", "--command"),
    "vagrant": ("-c",),
    "git": ("--exec", "-x", "--tree-filter", "--index-filter", "--msg-filter", "--env-filter"),
}
_DEVICES: Final = ("/dev/", "&")
_ENCODED_OPTION: Final = re.compile(r"-e(?:nc|ncodedcommand|c)?", re.IGNORECASE)
_OUTPUT_OPTION: Final = re.compile(r"-[a-zA-Z]*o|--output|--out|-OutFile|--download", re.IGNORECASE)


@dataclass(slots=True)
class Roles:
    """The roles of a script's commands. `scripts` are commands whose output a shell runs, `code` those whose output an interpreter
    or a database runs; `readers` run their input. `arguments` are commands whose output becomes words of others. `fed` is known
    input by pipes, `decoded` the output of e.g. `base64 -d` for it; `from_files` get only files or here documents as input;
    `feeders` are the commands whose output a command reads."""

    scripts: set[Command] = field(default_factory=set)
    code: set[Command] = field(default_factory=set)
    readers: set[Command] = field(default_factory=set)
    arguments: dict[Command, list[list[str]]] = field(default_factory=dict)
    fed: dict[Command, str] = field(default_factory=dict)
    decoded: dict[Command, str] = field(default_factory=dict)
    from_files: set[Command] = field(default_factory=set)
    feeders: dict[Command, list[Command]] = field(default_factory=dict)


def plain_words(command: Command) -> list[Word]:
    """The words of a command without the keywords before it. For git, a message is split from its option (`-mtext`)."""
    words = command.words
    at = 0
    while at < len(words):
        text = words[at].text
        if text in KEYWORDS or (text == "-p" and at and words[at - 1].text == "time"):
            at += 1
        elif text == "function" and at + 1 < len(words):
            at += 2
        else:
            break
    found = words[at:]
    if found and program_name(found[0].text) == "git":
        return [part for word in found for part in _apart(word)]
    return found


def _apart(word: Word) -> list[Word]:
    glued = _GLUED_MESSAGE.fullmatch(word.text)
    if glued is None or word.text.startswith("--"):
        return [word]
    middle = min(word.begin + len(glued[1]), word.end)
    return [Word(glued[1], word.begin, middle), Word(glued[2], middle, word.end)]


def find_roles(script: Script, places: Sequence[tuple[Command, list[Word]]]) -> Roles:
    """The roles of the commands of a script."""
    roles = Roles()
    texts_of = {command: [word.text for word in words] for command, words in places}
    roles.readers = {command for command, texts in texts_of.items() if reads_script(texts)}
    files: set[str] = set()
    for command, words in places:
        if not words:
            continue
        texts = texts_of[command]
        files |= _run_files(texts)
        if command in roles.readers:
            files |= {word.text for word in command.reads}
        if program_name(texts[0]) in SHELLS | _SOURCING | INTERPRETERS or command in roles.readers:
            role = roles.code if program_name(texts[0]) in INTERPRETERS else roles.scripts
            for word in (*words[1:], *command.reads):
                role |= set(script.commands[word.inner[0] : word.inner[1]])
    printed_of = {command: printed_by(texts) for command, texts in texts_of.items()} if script.pipelines else {}
    for *feeders, last in script.pipelines:
        _feed(roles, feeders, last, texts_of, printed_of, files)
    run = {name.removeprefix("./") for name in files}
    for *feeders, last in script.pipelines:
        if any(name.removeprefix("./") in run for name in output_files(last, texts_of.get(last, []))):
            roles.scripts |= set(feeders)
    for command, texts in texts_of.items():
        if any(name.removeprefix("./") in run for name in output_files(command, texts)):
            roles.scripts.add(command)
    return roles


def _feed(
    roles: Roles,
    feeders: list[Command],
    last: Command,
    texts_of: dict[Command, list[str]],
    printed_of: dict[Command, str | None],
    files: set[str],
) -> None:
    roles.feeders.setdefault(last, []).extend(feeders)
    texts = bare_words(texts_of.get(last, []))
    name = program_name(texts[0]) if texts else ""
    if last in roles.readers:
        roles.scripts |= set(feeders)
        for feeder in feeders:
            if texts_of.get(feeder, [])[:1] == ["cat"]:
                files |= set(texts_of[feeder][1:])
    elif name in DATABASES | INTERPRETERS:
        roles.code |= set(feeders)
    if "xargs" in (texts_of.get(last) or [""])[:4]:
        for feeder in feeders:
            roles.arguments.setdefault(feeder, []).append(texts_of[last])
    if all(texts_of.get(feeder, [])[:1] == ["cat"] or feeder.inputs for feeder in feeders):
        roles.from_files.add(last)
    printed = [text for feeder in feeders if (text := printed_of.get(feeder)) is not None]
    if printed:
        roles.fed[last] = "\n".join(printed)
        decoded = decoded_text(texts, roles.fed[last]) if texts else None
        if decoded is not None:
            printed_of[last] = decoded
            roles.decoded[last] = decoded


def bare_words(texts: Sequence[str]) -> list[str]:
    """A command without its starters."""
    return list(_bare_words(tuple(texts)))


@lru_cache(1024)  # called several times for each command
def _bare_words(texts: tuple[str, ...]) -> tuple[str, ...]:
    for _ in range(8):
        shorter = shortened(texts)
        if shorter is None:
            break
        texts = tuple(shorter)
    return texts


def _run_files(texts: Sequence[str]) -> set[str]:
    """The files that a command may run as scripts."""
    found = {texts[0]} | {text for text in texts[1:] if text.startswith("./")}
    for at, text in enumerate(texts):
        if program_name(text) in SHELLS or text in _SOURCING:
            found.update([word for word in texts[at + 1 :] if not word.startswith("-")][:1])
    return found


def printed_by(texts: Sequence[str]) -> str | None:
    """The output of a command, if its words tell it; else None."""
    return printed_text(program_name(texts[0]), list(texts[1:])) if texts else None


def output_files(command: Command, texts: Sequence[str]) -> list[str]:
    """The files to which a command's output is written."""
    files = list(command.writes)
    if "tee" in texts[:3]:
        files += [text for text in texts[list(texts).index("tee") + 1 :] if not text.startswith("-")]
    return files


def written_files(command: Command, texts: Sequence[str], roles: Roles) -> Iterator[tuple[str, str]]:
    """The files that a command writes or changes in place, each with its text if that is known."""
    bare = bare_words(texts)
    text = "\n".join(document.text for document in command.inputs) or printed_by(bare) or roles.fed.get(command, "")
    for path in output_files(command, bare):
        if not path.startswith(_DEVICES) and not path.isdecimal() and path != "-":
            yield path, text
    name = program_name(bare[0]) if bare else ""
    operands = [word for word in bare[1:] if not word.startswith("-")]
    is_in_place = any(re.match(r"-[a-zA-Z0]*i|--in-?place", word) for word in bare[1:])
    if name in ("sed", "perl", "gsed", "ruby") and is_in_place:
        files, added = sed_texts(["perl" if name == "ruby" else name, *bare[1:]])
        yield from ((path, "\n".join(added)) for path in files)
    elif name in ("awk", "gawk") and "inplace" in bare:
        programs = [word for word in operands if word != "inplace"]
        yield from ((path, "\n".join(re.findall(r'"([^"]*)"', programs[0]))) for path in programs[1:])
    elif name in _ED | _VIM:
        scripts = [after for word, after in pairwise(bare) if re.fullmatch(r"-\w*c|\+", word)]
        scripts += [word[1:] for word in bare[1:] if word.startswith("+") and len(word) > 1]
        if text or scripts or name in _ED:
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
    elif name.lower() in _POWERSHELL_WRITERS:
        named = [after for word, after in pairwise(bare) if word.lower() in ("-path", "-filepath", "-literalpath")]
        yield from ((path, " ".join(bare[1:])) for path in named or operands[:1])
    elif name in INTERPRETERS:
        yield from (file for word in (*bare[1:], text) if "(" in word for file in code_files(word))
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
    found += [word.partition("=")[2] for word in texts if word.startswith(("--output=", "--output-document=", "--out="))]
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
    options = {"wget": ("-P", "--directory-prefix"), "aria2c": ("-d", "--dir"), "curl": ("--output-dir",)}.get(name, ())
    folder = next((after.rstrip("/") + "/" for word, after in pairwise(texts) if word in options), "")
    return [folder + word for word in found if word and word != "-" and not word.startswith("/dev/")]


def run_files(texts: Sequence[str]) -> set[str]:
    """The files that a command runs, by a shell, an interpreter or directly."""
    bare = bare_words(texts)
    found = _run_files(texts) | _run_files(bare) if bare else set()
    if bare and program_name(bare[0]) in INTERPRETERS and not any(_CODE_OPTION.fullmatch(text) for text in bare[1:]):
        found.update([word for word in bare[1:] if not word.startswith("-")][:1])
    return found


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
    name = program_name(texts[0]) if texts else ""
    if name == "eval":
        yield " ".join(texts[1:])
    if name in _SCRIPT_WORDS and (name != "tmux" or not _RUNNING_IN_TMUX.isdisjoint(texts)):
        yield from (text for text in texts[1:] if " " in text and not text.startswith("-"))
    options = _SCRIPT_OPTIONS.get(name, ())
    for at, text in enumerate(texts):
        if (text in options or ("-c" in options and _SHORT_SCRIPT_OPTION.fullmatch(text))) and at + 1 < len(texts):
            yield texts[at + 1]
        elif text.startswith("--") and "=" in text and text.partition("=")[0] in options:
            yield text.partition("=")[2]
        elif program_name(text) in SHELLS:
            option = next((i for i in range(at + 1, min(at + 8, len(texts))) if _SCRIPT_OPTION.fullmatch(texts[i])), None)
            if option is not None and option + 1 < len(texts):
                yield texts[option + 1]
            yield from _decoded_scripts(texts[at + 1 :])
    if name.lower() in _EVALUATING:
        yield " ".join(texts[1:])
    if name == "git" and texts[1:3] == ["submodule", "foreach"]:
        yield " ".join(word for word in texts[3:] if not word.startswith("-"))
    if name == "trap" and len(texts) > 2:
        yield texts[1]
    if name in INTERPRETERS:
        is_code = name in ("awk", "gawk", "mawk") or any(_CODE_OPTION.fullmatch(text) for text in texts[1:])
        yield from (script for text in texts[1:] if is_code for script in code_scripts(text))


def _decoded_scripts(texts: Sequence[str]) -> Iterator[str]:
    """The script after PowerShell's `-EncodedCommand`."""
    for option, after in pairwise(texts):
        if _ENCODED_OPTION.fullmatch(option) and len(after) > 7:
            try:
                yield base64.b64decode(after, validate=True).decode("utf-16-le")
            except ValueError:
                yield "$EncodedCommand"


def commands_in(texts: Sequence[str]) -> Iterator[list[str]]:
    """The commands among the words of a command."""
    name = program_name(texts[0]) if texts else ""
    if name == "find":
        for at, text in enumerate(texts):
            if text in ("-exec", "-execdir", "-ok", "-okdir"):
                rest = texts[at + 1 :]
                end = next((i for i, word in enumerate(rest) if word in (";", "+")), len(rest))
                yield [word for word in rest[:end] if word != "{}"]
    if name in ("docker", "podman") and "run" in texts[:4]:
        # Some images start the program of their name: alpine/git, curlimages/curl.
        images = [at for at, text in enumerate(texts) if "/" in text and program_name(text.partition(":")[0]) in _IMAGE_PROGRAMS]
        yield from ([program_name(texts[at].partition(":")[0]), *texts[at + 1 :]] for at in images[:1])
    if name in ("fd", "fdfind"):
        begin = next((at for at, text in enumerate(texts, 1) if text in ("-x", "-X", "--exec", "--exec-batch")), len(texts))
        yield [word for word in texts[begin:] if word not in (";", "{}")]
    if name in ("nix", "guix") and any(text in ("-c", "--command") for text in texts):
        yield list(texts[1 + next(at for at, text in enumerate(texts) if text in ("-c", "--command")) :])


_ALIAS_SETTING: Final = re.compile(r"alias\.([\w-]+)=(.+)", re.DOTALL)
_NAMING_OPTIONS: Final = frozenset(("-b", "-B", "-c", "-C", "--create", "--force-create", "--orphan", "-m", "-M", "--move"))
_CURRENT_BRANCH: Final = re.compile(
    r"\$\(git (?:branch --show-current|rev-parse --abbrev-ref (?:HEAD|@)|symbolic-ref --short (?:-q )?HEAD)[^)]*\)"
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
        """The commands or scripts that a command stands for after the earlier commands; also remembers what it changes."""
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
        """Remember an alias, and yield what it stands for, because the alias remains after the script."""
        for name, value in pairwise(texts[2:]):
            if name.startswith("alias.") and not value.startswith("-"):
                self._keep(name[6:], value)
                yield self._called(value, [])

    @staticmethod
    def _called(value: str, arguments: Sequence[str]) -> list[str] | str:
        return " ".join((value[1:], *arguments)) if value.startswith("!") else ["git", *value.split(), *arguments]

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
            self._branch if text in ("HEAD", "@") else f"+{self._branch}" if text in ("+HEAD", "+@") else text for text in known
        ]
        operands = [text for before, text in pairwise(known[1:]) if not text.startswith("-") and before not in _VALUE_OPTIONS]
        names_others = any(text in ("--all", "--tags", "--mirror", "--branches") for text in known)
        if len(operands) < 2 and not names_others:
            known += [*([] if operands else ["origin"]), self._branch]
        if known != list(texts):
            yield known
