"""The parts that commands play in a script: which print scripts that others run, which start others, and which write files."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from metaclaw.skills.checks.code import code_scripts
from metaclaw.skills.checks.programs import DATABASES, INTERPRETERS, SHELLS, program_name, shortened
from metaclaw.skills.checks.shell import KEYWORDS, Command, Script
from metaclaw.skills.checks.shell_words import Word, printed_text

_SCRIPT_OPTION: Final = re.compile(r"-[A-Za-z]*c|/c|-command", re.IGNORECASE)
_SHORT_SCRIPT_OPTION: Final = re.compile(r"-[a-z]*c")
_CODE_OPTION: Final = re.compile(r"-[A-Za-z]*[cerpEn]|--eval|--print|--command|eval")
_GLUED_MESSAGE: Final = re.compile(r"(-[a-ln-zA-LN-Z]*m)(\S[\s\S]*)")
_SOURCING: Final = frozenset(("source", ".", "eval"))
_SCRIPT_WORDS: Final = frozenset(
    [
        "ssh",
        "watch",
        "parallel",
        "tmux",
        "concurrently",
        "hyperfine",
        "nodemon",
        "onchange",
        "chokidar",
        "watchexec",
        "entr",
        "trap",
        "vagrant",
        "nix-shell",
        "npx",
    ]
)
"""Programs that run their words as scripts."""
_RUNNING_IN_TMUX: Final = frozenset(
    [
        "send-keys",
        "send",
        "new",
        "new-session",
        "neww",
        "new-window",
        "split-window",
        "splitw",
        "respawn-pane",
        "respawn-window",
        "run-shell",
        "run",
        "pipe-pane",
    ]
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
_ALIAS: Final = re.compile(r"alias\.[\w-]+=!(.+)", re.DOTALL)


@dataclass(slots=True)
class Roles:
    """`scripts` print what a shell runs, `code` what an interpreter or a database runs, `readers` run what they read themselves.
    `arguments` print the words of other commands. `fed` are the texts that commands get by pipes, where they are known."""

    scripts: set[Command] = field(default_factory=set)
    code: set[Command] = field(default_factory=set)
    readers: set[Command] = field(default_factory=set)
    arguments: dict[Command, list[list[str]]] = field(default_factory=dict)
    fed: dict[Command, str] = field(default_factory=dict)


def plain_words(command: Command) -> list[Word]:
    """The words of a command without the words of the language before it; a message that sticks to its option is a word."""
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
    """Which commands of a script run what others print."""
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
    for pipeline in script.pipelines:
        *feeders, last = pipeline.commands
        _feed(roles, feeders, last, texts_of, printed_of, files)
    run = {name.removeprefix("./") for name in files}
    for pipeline in script.pipelines:
        *feeders, last = pipeline.commands
        if any(name.removeprefix("./") in run for name in _targets(last, texts_of.get(last, []))):
            roles.scripts |= set(feeders)
    for command, texts in texts_of.items():
        if any(name.removeprefix("./") in run for name in _targets(command, texts)):
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
    printed = [text for feeder in feeders if (text := printed_of.get(feeder)) is not None]
    if printed:
        roles.fed[last] = "\n".join(printed)


def bare_words(texts: list[str]) -> list[str]:
    """A command without what only starts it."""
    for _ in range(8):
        shorter = shortened(texts)
        if shorter is None:
            break
        texts = shorter
    return texts


def _run_files(texts: Sequence[str]) -> set[str]:
    """The files that a command may run as scripts."""
    found = {texts[0]} | {text for text in texts[1:] if text.startswith("./")}
    for at, text in enumerate(texts):
        if program_name(text) in SHELLS or text in _SOURCING:
            found.update([one for one in texts[at + 1 :] if not one.startswith("-")][:1])
    return found


def printed_by(texts: Sequence[str]) -> str | None:
    """What a command prints, where that is just its words."""
    return printed_text(program_name(texts[0]), list(texts[1:])) if texts else None


def _targets(command: Command, texts: Sequence[str]) -> list[str]:
    """The files that the output of a command goes to."""
    files = list(command.writes)
    if "tee" in texts[:3]:
        files += [text for text in texts[list(texts).index("tee") + 1 :] if not text.startswith("-")]
    return files


def written_files(command: Command, texts: Sequence[str], roles: Roles) -> Iterator[tuple[str, str]]:
    """The files that a command writes or changes in place, each with its text where that is known."""
    bare = bare_words(list(texts))
    text = "\n".join(one.text for one in command.given) or printed_by(bare) or roles.fed.get(command, "")
    for path in _targets(command, bare):
        if not path.startswith(_DEVICES) and not path.isdecimal() and path != "-":
            yield path, text
    name = program_name(bare[0]) if bare else ""
    operands = [one for one in bare[1:] if not one.startswith("-")]
    if name in ("sed", "perl", "gsed") and any(re.match(r"-[a-zA-Z]*i|--in-place", one) for one in bare[1:]):
        yield from ((path, "") for path in (operands if "-e" in bare else operands[1:]))
    elif name in ("cp", "mv", "install") and len(operands) > 1:
        yield operands[-1], ""
    elif name == "dd":
        yield from ((one[3:], "") for one in operands if one.startswith("of="))
    elif name == "truncate":
        yield from ((path, "") for path in operands)


def reads_script(texts: Sequence[str]) -> bool:
    """Whether a command runs what it reads from its input."""
    for at, text in enumerate(texts):
        name = program_name(text)
        if name in ("ssh", "su", "at", "batch") and at == 0:
            return True
        if text in _SOURCING and at == 0:
            return "/dev/stdin" in texts
        if name in SHELLS:
            rest = texts[at + 1 :]
            return not any(_SCRIPT_OPTION.fullmatch(one) for one in rest) and (
                "-s" in rest or all(one[:1] == "-" or one == "/dev/stdin" for one in rest)
            )
        if name == "xargs":
            return any(program_name(one) in SHELLS for one in texts[at + 1 :])
        if name == "parallel" and at == 0 and len(texts) == 1:
            return True
    return False


def scripts_in(texts: Sequence[str]) -> Iterator[str]:
    """The scripts that a command is given as words."""
    name = program_name(texts[0]) if texts else ""
    if name == "eval":
        yield " ".join(texts[1:])
    if name in _SCRIPT_WORDS and (name != "tmux" or not _RUNNING_IN_TMUX.isdisjoint(texts)):
        yield from (text for text in texts[1:] if " " in text and not text.startswith("-"))
    options = _SCRIPT_OPTIONS.get(name, ())
    for at, text in enumerate(texts):
        if (text in options or ("-c" in options and _SHORT_SCRIPT_OPTION.fullmatch(text))) and at + 1 < len(texts):
            yield texts[at + 1]
        elif name == "git" and (alias := _ALIAS.fullmatch(text)):
            yield alias[1]
        elif program_name(text) in SHELLS:
            option = next((i for i in range(at + 1, min(at + 8, len(texts))) if _SCRIPT_OPTION.fullmatch(texts[i])), None)
            if option is not None and option + 1 < len(texts):
                yield texts[option + 1]
    if name == "git" and texts[1:3] == ["submodule", "foreach"]:
        yield " ".join(one for one in texts[3:] if not one.startswith("-"))
    if name == "trap" and len(texts) > 2:
        yield texts[1]
    if name in INTERPRETERS:
        is_code = name in ("awk", "gawk", "mawk") or any(_CODE_OPTION.fullmatch(text) for text in texts[1:])
        yield from (script for text in texts[1:] if is_code for script in code_scripts(text))


def commands_in(texts: Sequence[str]) -> Iterator[list[str]]:
    """The commands that a command is given as words."""
    name = program_name(texts[0]) if texts else ""
    if name == "find":
        for at, text in enumerate(texts):
            if text in ("-exec", "-execdir", "-ok", "-okdir"):
                rest = texts[at + 1 :]
                end = next((i for i, one in enumerate(rest) if one in (";", "+")), len(rest))
                yield [one for one in rest[:end] if one != "{}"]
    if name in ("fd", "fdfind"):
        begin = next((at for at, text in enumerate(texts, 1) if text in ("-x", "-X", "--exec", "--exec-batch")), len(texts))
        yield [one for one in texts[begin:] if one not in (";", "{}")]
    if name in ("nix", "guix") and any(text in ("-c", "--command") for text in texts):
        yield list(texts[1 + next(at for at, text in enumerate(texts) if text in ("-c", "--command")) :])
