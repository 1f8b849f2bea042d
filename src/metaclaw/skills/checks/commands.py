"""Shell scripts for checks: the simple commands of a script in plain spelling, the parts it only quotes, and the files it writes.

Each command is given with its words without quotes; then again without its starter (`sudo`, `xargs`, `env A=1`, `timeout 5`),
without the folder of its program, and without options before its subcommand (`git -c k=v push` is `git push`, `python -m pip` is
`pip`). Scripts within it (`bash -c`, `$(…)`, a here document for a shell, functions and aliases that it calls) are read the same
way.

Text that a command only prints, searches, records or writes is marked as quoted: a match that is completely within it and reads
like a command does not count.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from metaclaw.skills.checks.code import code_files, code_scripts, hides_code
from metaclaw.skills.checks.script_parts import (
    DOWNLOADING,
    GitState,
    Roles,
    bare_words,
    commands_in,
    downloaded_files,
    find_roles,
    output_files,
    plain_words,
    printed_by,
    reads_script,
    run_files,
    scripts_in,
    written_files,
)
from metaclaw.skills.checks.shell import Command, Script, read_script
from metaclaw.skills.checks.shell_programs import (
    INTERPRETERS,
    QUOTING,
    RECORDING,
    SHELLS,
    program_name,
    quoted_places,
    shortened,
    shows_help,
)
from metaclaw.skills.checks.shell_programs import words as words_of
from metaclaw.skills.checks.shell_words import MOST_VALUE_CHARS, ShellSyntaxError, Word

MOST_SCRIPT_CHARS: Final = 200_000
_MOST_SCRIPTS: Final = 128
_MOST_STEPS: Final = 8
_PIECES: Final = re.compile(r"[;&|\n()`]+")
_NEGATED_SET: Final = re.compile(r"\[\^(?:\\.|[^\]\\])+\]")
_OPERATOR: Final = re.compile(r"[;&]|\\n")
_IN_WORD: Final = re.compile(r"[;&|\n]")
_EXPANDED: Final = ("$(", "`", "<(", ">(")
_LIKE_A_COMMAND: Final = re.compile(
    r"[\s;&|(\"'`$!]*(?:--?[A-Za-z][A-Za-z-]*|(?:[\w.~-]*/)*[a-z][a-z.+-]{0,15}\d{0,2})(?=\s|\Z|[;&|)=])"
)

_LAST_OPTION: Final = re.compile(r"(?:(?:^|[\s\"'])--?[A-Za-z][\w-]*|[;&|]\s*[\w./-]+)[\s\"']*\Z")
_MOST_OPTION_CHARS: Final = 80
_LEFT_OUT: Final = "…"
_UNKNOWN_PROGRAM: Final = re.compile(r"\$[\w{(@*]|`")
_SUBSTITUTION: Final = re.compile(r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`|\$\{[^{}]*\}")
_COMPARISON: Final = re.compile(r"=~|[=!]=|[-+]?=|-[a-z]{2}|[<>]=?|[-+*/%|?.]")
_PLAIN_STARTERS: Final = words_of("sudo doas exec nohup time timeout command builtin nice setsid xargs")
_OWN_VARIABLES: Final = re.compile(r"\$\{?(?:PYTHON|NODE|EDITOR|VISUAL|PAGER|SHELL|CC|CXX|MAKE|CARGO|GO|env:\w+)\b")
"""Variables that by convention name a program of one kind."""
_SETTING_UP: Final = re.compile(
    r"(?:\$\(|`|<\()\s*(?:\S*/)?(?:ssh-agent|direnv|pyenv|rbenv|nodenv|goenv|jenv|brew|conda|mamba|micromamba|starship|fnm|zoxide|mise|rtx|opam|dircolors"
    r"|minikube|docker-machine|keychain|gpg-agent|thefuck|mcfly|atuin|register-python-argcomplete|pipenv|poetry|luarocks|guix|vault"
    r"|\S+ (?:\S+ )?(?:completion|completions|shellenv|shell-init|init|hook|activate|env))\b"
)
"""Programs that print settings for a shell, as in `eval "$(ssh-agent -s)"`."""
# Reasons are logged, so they must not contain words of the command.
_HIDDEN_CODE: Final = "code runs what it decodes or loads first"
_PRINTED_SCRIPT: Final = "it runs what another command prints"
_RUNNERS: Final = SHELLS | INTERPRETERS


class SeenText(NamedTuple):
    """A text that a pattern searches. `quoted` are the ranges of it that are only quoted."""

    text: str
    quoted: tuple[tuple[int, int], ...] = ()

    def counts(self, begin: int, end: int) -> bool:
        """Whether a match at this place counts. A match that looks like a command does not count within a quoted part, or if it
        ends in a quoted part with an option (`commit .*--no-verify` in a commit message) or with a command after an operator."""
        for first, last in self.quoted:
            if first <= begin and end <= last:
                return _LIKE_A_COMMAND.match(self.text, begin, end) is None
            if first < end <= last and begin < first:
                return _LAST_OPTION.search(self.text, max(first - 1, begin, end - _MOST_OPTION_CHARS), end) is None
        return True


@dataclass(frozen=True, slots=True)
class Commands:
    """The parts of a script: `written` is the source without comments; `wholes` are the script and those within it, with words in
    plain spelling and operators; `lines` are its commands without quoted parts; `texts` the same with and without them; `files` are
    the paths and texts that it writes; `unread` says why a part could not be read, or is empty."""

    written: SeenText
    wholes: tuple[SeenText, ...]
    texts: tuple[SeenText, ...]
    lines: tuple[str, ...]
    files: tuple[tuple[str, str], ...] = ()
    unread: str = ""


@lru_cache(128)  # every rule reads the same commands
def commands_of(source: str) -> Commands:
    """The commands of a script. Never raises: if it cannot be read, the commands are the pieces between operators."""
    if len(source) <= MOST_SCRIPT_CHARS:
        try:
            return _Walk().walk(source)
        except (ShellSyntaxError, RecursionError) as error:
            reason = str(error)
    else:
        reason = f"more than {MOST_SCRIPT_CHARS} characters"
    pieces = tuple(dict.fromkeys(piece.strip() for piece in _PIECES.split(source) if piece.strip()))
    whole = SeenText(source)
    return Commands(whole, (whole,), tuple(map(SeenText, (source, *pieces))), pieces, (), reason)


@lru_cache(128)
def code_texts(code: str) -> tuple[SeenText, ...]:
    """The texts of a program in another language: its source, and the commands that it starts."""
    inner = [commands_of(script) for script in code_scripts(code)]
    return (SeenText(code), *dict.fromkeys(text for script in inner for text in script.texts))


@lru_cache(128)
def code_edits(code: str) -> tuple[tuple[str, str], ...]:
    """The files that a program in another language writes, directly or by the commands that it starts."""
    inner = [commands_of(script) for script in code_scripts(code)]
    return (*code_files(code), *(file for script in inner for file in script.files))


@lru_cache(1024)
def names_operator(pattern: str) -> bool:
    """Whether a pattern contains `;`, `&` or a new line, so that it may match several commands."""
    return _OPERATOR.search(_NEGATED_SET.sub("", pattern)) is not None


class _Walk:
    """Reads a script and all scripts within it."""

    def __init__(self) -> None:
        self._texts: dict[SeenText, None] = {}
        self._wholes: dict[SeenText, None] = {}
        self._lines: dict[str, None] = {}
        self._files: dict[str, str] = {}
        self._variables: dict[str, str] = {"IFS": " "}
        self._functions: dict[str, str] = {}
        self._aliases: dict[str, str] = {}
        self._git = GitState()
        self._downloads: dict[str, str] = {}
        self._unread: list[str] = []
        self._guesses = 0
        self._scripts = 0

    def walk(self, source: str) -> Commands:
        script = read_script(source, self._variables)
        quoted = self._add_script(script, 0)
        written = SeenText(_without_comments(script), quoted)
        texts = tuple(self._texts) or (written,)
        return Commands(
            written, tuple(self._wholes), texts, tuple(self._lines), tuple(self._files.items()), "; ".join(self._unread[:1])
        )

    def _add_script(self, script: Script, depth: int) -> tuple[tuple[int, int], ...]:
        """Add the commands of a script; return the parts of it that are only quoted."""
        quoted: list[tuple[int, int]] = []
        self._functions |= script.functions
        places = [(command, plain_words(command)) for command in script.commands]
        roles = find_roles(script, places)
        folder = ""
        for command, words in places:
            texts = [word.text for word in words]
            if texts[:1] == ["cd"] and len(texts) == 2 and "$" not in texts[1]:
                folder += f"{texts[1].rstrip('/')}/"
            if not words and not command.inputs:
                quoted += [(word.begin, word.end) for word in command.assignments if command.end]
                self._add_line([word.text for word in command.assignments], [(0, len(command.assignments) - 1)])
                self._follow_files(command, texts, roles)
                self._add_files(command, texts, roles, folder)
                continue
            spans = quoted_places(texts)
            if command.end:
                quoted += [(words[first].begin, words[last].end) for first, last in spans]
            self._add_command(command, words, spans, depth)
            self._note_unread(command, texts, roles)
            self._follow_files(command, texts, roles)
            quoted += self._add_given(command, texts, roles, depth)
            self._add_printed(command, texts, roles, depth)
            self._add_message(command, texts, roles)
            self._add_files(command, texts, roles, folder)
        quoted.sort()
        self._add_pipelines(script)
        self._wholes[_whole(script, quoted)] = None
        return tuple(quoted)

    def _add_files(self, command: Command, texts: Sequence[str], roles: Roles, folder: str) -> None:
        """Add the files that a command writes, with paths relative to the folder in which the script began."""
        for path, text in written_files(command, texts, roles):
            place = path if path.startswith(("/", "~")) else folder + path
            self._files[place] = f"{self._files[place]}\n{text}" if self._files.get(place) else text

    def _add_pipelines(self, script: Script) -> None:
        """Add commands with pipes between them in plain spelling."""
        known: dict[Command, str] = {}
        for pipeline in script.pipelines:
            for command in pipeline:
                if command not in known:
                    known[command] = _IN_WORD.sub(" ", _shortest(command))
            texts = [known[command] for command in pipeline if known[command]]
            if len(texts) > 1:
                self._texts[SeenText(" | ".join(texts))] = None

    def _add_given(self, command: Command, texts: Sequence[str], roles: Roles, depth: int) -> list[tuple[int, int]]:
        """Add a command's standard input: a script, code or text."""
        if not command.inputs:
            return []
        name = program_name(texts[0]) if texts else ""
        is_text = not texts or name in QUOTING | RECORDING | {"patch", "apply_patch", "applypatch"}
        for document in command.inputs:
            if command in roles.scripts or command in roles.readers:
                self._add_source(document.text, depth)
            elif name == "xargs":
                self._add_words([*texts, *document.text.split()], depth)
            elif name == "make":
                self._add_source("\n".join(line[1:] for line in document.text.splitlines() if line.startswith("\t")), depth)
            elif name in INTERPRETERS or command in roles.code:
                self._add_code(document.text, depth)
            is_quoted = is_text and command not in roles.code
            self._texts[SeenText(document.text, ((0, len(document.text)),) if is_quoted else ())] = None
        return [(document.begin, document.end) for document in command.inputs] if is_text and command.end else []

    def _add_printed(self, command: Command, texts: Sequence[str], roles: Roles, depth: int) -> None:
        """Add the output of a command if another command reads it as a script, a program, or its words."""
        printed = roles.decoded.get(command) or printed_by(texts)
        if printed is None:
            return
        if command in roles.scripts:
            self._add_source(printed, depth)
        if command in roles.code:
            self._texts[SeenText(printed)] = None
            self._add_code(printed, depth)
        for starter in roles.arguments.get(command, ()):
            self._add_words([*starter, *printed.split()], depth)

    def _add_message(self, command: Command, texts: list[str], roles: Roles) -> None:
        """Add a commit whose message comes from its input or from a file of the script as if it were given by `-m`."""
        bare = bare_words(texts)
        if bare[:2] != ["git", "commit"]:
            return
        name = next((word.partition("=")[2] if "=" in word else word[2:] for word in bare if re.match(r"--file=|-F\S", word)), "")
        name = name or next((after for word, after in pairwise(bare) if word in ("-F", "--file")), "")
        given = "\n".join(document.text for document in command.inputs) or roles.fed.get(command, "")
        text = given if name in ("-", "/dev/stdin") else self._files.get(name, "")
        if text:
            self._add_line(["git", "commit", "-m", text], [(3, 3)])

    def _add_source(self, source: str, depth: int, arguments: Sequence[str] = ()) -> None:
        self._scripts += 1
        if depth >= _MOST_STEPS or self._scripts > _MOST_SCRIPTS:
            raise ShellSyntaxError("too many scripts within scripts")
        if arguments:
            self._variables |= {str(place): text for place, text in enumerate(arguments[:9], 1)}
            self._variables["@"] = " ".join(arguments)[:MOST_VALUE_CHARS]
        try:
            script = read_script(source, self._variables)
        except ShellSyntaxError as error:
            self._texts[SeenText(source)] = None
            self._note(str(error))
            return
        self._add_script(script, depth + 1)

    def _add_code(self, code: str, depth: int) -> None:
        """Add the scripts in a program of another language. Texts that cannot be read are ignored: they may be no scripts."""
        if hides_code(code):
            self._note(_HIDDEN_CODE)
        self._guesses += 1
        for source in code_scripts(code):
            self._add_source(source, depth)
        self._guesses -= 1

    def _note(self, reason: str) -> None:
        if not self._guesses:
            self._unread.append(reason)

    def _note_unread(self, command: Command, texts: list[str], roles: Roles) -> None:
        """Note a command whose program, script or code is known only when it runs."""
        bare = bare_words(texts)
        if not bare:
            return
        name = program_name(bare[0])
        if any(_is_unknown_program(words) for words in (texts, bare if texts[0] in _PLAIN_STARTERS else texts)):
            self._note("its program is known only when it runs")
        elif name in _RUNNERS and command.is_fed and not command.inputs and command not in roles.fed:
            if (reads_script(bare) if name in SHELLS else len(bare) == 1 or bare[1:] == ["-"]) and command not in roles.from_files:
                self._note(_PRINTED_SCRIPT)
        elif name in SHELLS or name in ("source", "."):
            for text in bare[1:]:  # as in `source <(…)`
                if text.startswith("<(") and not _SETTING_UP.match(text) and not re.match(r"<\(\s*(?:echo|printf|cat)\b", text):
                    self._note(_PRINTED_SCRIPT)

    def _follow_files(self, command: Command, texts: list[str], roles: Roles) -> None:
        """Add the run of a downloaded file as a pipe into its runner, and a redirection that empties a file as `truncate`."""
        bare = bare_words(texts)
        if command.empties and not command.inputs and _prints_nothing(bare):
            for path in command.empties:
                self._add_line(["truncate", "-s", "0", path], [])
        run = {path.removeprefix("./") for path in run_files(texts)} if self._downloads else set[str]()
        for path in run & self._downloads.keys():
            runner = program_name(bare[0]) if bare and program_name(bare[0]) in _RUNNERS else "sh"
            self._texts[SeenText(f"{self._downloads[path]} | {runner}")] = None
        loading = next(filter(_is_download, (command, *roles.feeders.get(command, ()))), None)
        if loading is not None:
            line = _IN_WORD.sub(" ", _shortest(loading))
            paths = (*downloaded_files(bare), *output_files(command, bare))
            self._downloads |= {path.removeprefix("./"): line for path in paths}
        elif bare[:1] in (["mv"], ["cp"]) and len(bare) > 2 and bare[-2].removeprefix("./") in self._downloads:
            self._downloads[bare[-1].removeprefix("./")] = self._downloads[bare[-2].removeprefix("./")]

    def _add_command(self, command: Command, words: list[Word], spans: Sequence[tuple[int, int]], depth: int) -> None:
        texts = [word.text for word in words]
        self._add_line([*(word.text for word in command.assignments), *texts], spans, len(command.assignments))
        name = program_name(texts[0]) if texts else ""
        if name == "alias":
            self._aliases |= {key: value for key, sign, value in (text.partition("=") for text in texts[1:]) if sign}
        if (spans and name in QUOTING) or (texts and shows_help(texts)):
            return
        if command.assignments:
            self._add_line(texts, spans)
        if command.assignments or name in ("env", "export"):
            self._git.configure([*(word.text for word in command.assignments), *texts])
        for word in command.reads:
            if word.inner[0] < word.inner[1]:
                self._add_line([*texts, "<", word.text], [])
        self._add_steps(texts, depth)

    def _add_words(self, texts: list[str], depth: int) -> None:
        """Add a command that another command starts."""
        self._scripts += 1
        if texts and depth < _MOST_STEPS and self._scripts <= _MOST_SCRIPTS:
            spans = quoted_places(texts)
            self._add_line(texts, spans)
            if not (spans and program_name(texts[0]) in QUOTING):
                self._add_steps(texts, depth)

    def _add_steps(self, texts: list[str], depth: int) -> None:
        """Add a command without its starters, one step after the other, and the scripts in its words."""
        for _ in range(_MOST_STEPS):
            is_code = bool(texts) and program_name(texts[0]) in INTERPRETERS
            self._guesses += is_code
            for source in scripts_in(texts):
                self._add_source(source, depth)
            self._guesses -= is_code
            if is_code and any(hides_code(text) for text in texts[1:]):
                self._note(_HIDDEN_CODE)
            for found in self._git.follow(texts):
                if isinstance(found, str):
                    self._add_source(found, depth)
                else:
                    self._add_words(found, depth + 1)
            for inner in commands_in(texts):
                self._add_words(inner, depth + 1)
            self._add_called(texts, depth)
            shorter = shortened(texts)
            if shorter is None:
                return
            texts = shorter
            self._add_line(texts, quoted_places(texts))
            if program_name(texts[0]) in QUOTING:
                return

    def _add_called(self, texts: Sequence[str], depth: int) -> None:
        """Add what a function or alias of the script does."""
        if not texts or depth >= _MOST_STEPS - 1:
            return
        if texts[0] in self._functions:
            body = self._functions.pop(texts[0])  # so that a function that calls itself is read once
            self._add_source(body, depth, texts[1:])
            self._functions[texts[0]] = body
        elif texts[0] in self._aliases:
            value = self._aliases.pop(texts[0])
            self._add_source(" ".join((value, *texts[1:])), depth)
            self._aliases[texts[0]] = value

    def _add_line(self, texts: Sequence[str], spans: Sequence[tuple[int, int]], skipped: int = 0) -> None:
        line = " ".join(texts)
        if not line.strip():
            return
        ends, at = [], 0
        for text in texts:
            ends.append((at, at + len(text)))
            at += len(text) + 1
        quoted = tuple((ends[first + skipped][0], ends[last + skipped][1]) for first, last in spans)
        self._texts[SeenText(line, quoted)] = None
        if quoted and not (len(quoted) == 1 and quoted[0] == (0, len(line))):
            line = _without(texts, [(first + skipped, last + skipped) for first, last in spans])
            self._texts[SeenText(line)] = None
        if line not in self._lines and not (texts and shows_help(texts)):
            self._lines[line] = None


def _without_comments(script: Script) -> str:
    """The source of a script with blanks in place of its comments."""
    pieces, at = [], 0
    for begin, end in script.comments:
        pieces += [script.source[at:begin], " " * (end - begin)]
        at = end
    return "".join((*pieces, script.source[at:]))


def _whole(script: Script, quoted: Sequence[tuple[int, int]]) -> SeenText:
    """A script in plain spelling: operators within words are blanks, and here documents are left out."""
    written = _without_comments(script)
    places: dict[tuple[int, int], list[str]] = {}
    for command in script.commands:
        if command.end:
            for word in (*command.assignments, *command.words):
                places.setdefault((word.begin, word.end), []).append(word.text)
            places |= {(document.begin, document.end): [_LEFT_OUT] for document in command.inputs}
    marks = iter(quoted)
    mark = next(marks, None)
    pieces: list[str] = []
    parts: list[tuple[int, int]] = []
    at = size = 0
    for (begin, end), texts in sorted(places.items(), key=lambda item: (item[0][0], -item[0][1])):
        if begin < at:
            continue  # within a word
        raw = written[begin:end]
        plain = raw if any(sign in raw for sign in _EXPANDED) else _IN_WORD.sub(" ", " ".join(texts))
        pieces += [written[at:begin], plain]
        size += begin - at
        while mark is not None and mark[1] < end:
            mark = next(marks, None)
        if mark is not None and mark[0] <= begin:
            parts.append((size, size + len(plain)))
        size += len(plain)
        at = end
    text = "".join((*pieces, written[at:])).rstrip("\n")
    cut = len(text) - len(text.lstrip("\n"))
    return SeenText(text[cut:], tuple((begin - cut, end - cut) for begin, end in parts if begin >= cut and end <= len(text)))


def _without(texts: Sequence[str], spans: Sequence[tuple[int, int]]) -> str:
    """A command without the words that are only text to it."""
    left_out = {place for first, last in spans for place in range(first, last + 1)}
    return " ".join(_LEFT_OUT if place in left_out else text for place, text in enumerate(texts))


def _is_unknown_program(texts: Sequence[str]) -> bool:
    """Whether the program of a command, apart from its folder, is known only when it runs."""
    if texts[1:2] and _COMPARISON.fullmatch(texts[1]):
        return False  # a value of PowerShell, or a part of `[[ … ]]`
    program = _SUBSTITUTION.sub("$x", texts[0][-MOST_VALUE_CHARS:]).rpartition("/")[2]
    return _UNKNOWN_PROGRAM.search(program) is not None and not (_SETTING_UP.match(texts[0]) or _OWN_VARIABLES.match(texts[0]))


def _prints_nothing(texts: list[str]) -> bool:
    printed = printed_by(texts)
    return not texts or texts in ([":"], ["true"], ["cat", "/dev/null"]) or (printed is not None and not printed.strip())


def _is_download(command: Command) -> bool:
    texts = bare_words([word.text for word in plain_words(command)])
    return bool(texts) and program_name(texts[0]).lower() in DOWNLOADING


def _shortest(command: Command) -> str:
    """A command without its starters and without quoted words."""
    texts = bare_words([word.text for word in plain_words(command)])
    return _without(texts, quoted_places(texts))
