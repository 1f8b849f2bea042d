"""Shell scripts for checks: the simple commands of a script in plain spelling, the parts it only
quotes, and the files it writes.

Each command is given with its words without quotes; then again without its starter (`sudo`,
`xargs`, `env A=1`, `timeout 5`), without the folder of its program, and without options before its
subcommand (`git -c k=v push` is `git push`, `python -m pip` is `pip`). Scripts within it (`bash
-c`, `$(…)`, a here document for a shell, functions and aliases that it calls, a file that it wrote
before) are read the same way. What is known only when the script runs (a program named by an
unknown variable, what `base64 -d` prints for a shell) is not guessed: the script then counts as
unread.

Text that a command only prints, searches, records or writes is marked as quoted: a match that is
completely within it and reads like a command does not count."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from metaclaw.checks.code import hides_code, scan
from metaclaw.checks.script_parts import (
    DOWNLOADING,
    GitState,
    code_in,
    commands_in,
    file_names,
    output_files,
    reads_script,
    run_files,
    scripts_in,
    written_files,
)
from metaclaw.checks.shell import (
    NOTHING,
    Command,
    Output,
    Script,
    ShellReader,
    ShellSyntaxError,
    Word,
)
from metaclaw.checks.shell_programs import (
    DATABASES,
    INTERPRETERS,
    QUOTING,
    RECORDING,
    SHELLS,
    TABLES,
    bare_words,
    program_name,
    quoted_places,
    shortened,
    shows_help,
    words,
)

MOST_SCRIPT_CHARS: Final = 200_000
_MOST_SCRIPTS: Final = 128
_MOST_STEPS: Final = 8
_PIECES: Final = re.compile(r"[;&|\n()`]+")
_NEGATED_SET: Final = re.compile(r"\[\^(?:\\.|[^\]\\])+\]")
_OPERATOR: Final = re.compile(r"[;&'\"]|\\n")
_IN_WORD: Final = re.compile(r"[;&|\n]")
_LIKE_A_COMMAND: Final = re.compile(
    r"[\s;&|(\"'`$!]*(?:--?[A-Za-z][A-Za-z-]*|(?:[\w.~-]*/)*[a-z][a-z.+-]{0,15}\d{0,2})(?=\s|\Z|[;&|)=])"
)
_LAST_OPTION: Final = re.compile(r"(?:(?:^|[\s\"'])--?[A-Za-z][\w-]*|[;&|]\s*[\w./-]+)[\s\"']*\Z")
_MOST_OPTION_CHARS: Final = 80
_LEFT_OUT: Final = "…"
_UNKNOWN_PROGRAM: Final = re.compile(r"\$[\w{(@*]|`")
_SUBSTITUTION: Final = re.compile(
    r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`|\$\{[^{}]*\}"
)
_PLAIN_STARTERS: Final = words(
    "sudo doas exec nohup time timeout command builtin nice setsid xargs"
)
_OWN_VARIABLES: Final = re.compile(
    rf"\$\{{?(?:{'|'.join(TABLES['own_variables'].split())}|env:\w+)\b"
)
_SETTING_UP: Final = re.compile(
    rf"(?:\$\(|`|<\()\s*(?:\S*/)?(?:{'|'.join(TABLES['setting_up'].split())}"
    r"|\S+ (?:\S+ )?(?:completion|completions|shellenv|shell-init|init|hook|activate|env))\b"
)
_GLUED_MESSAGE: Final = re.compile(r"(-[a-z]{0,3}m)(\S*\s[\s\S]*)")
# Reasons are logged, so they must not contain words of the command.
_HIDDEN_CODE: Final = "code runs what it decodes or loads first"
_PRINTED_SCRIPT: Final = "it runs what another command prints"
_RUNNERS: Final = SHELLS | INTERPRETERS


class SeenText(NamedTuple):
    """A text that a pattern searches. `quoted` are the ranges of it that are only quoted; `is_bare`
    says that something was left out before the program."""

    text: str
    quoted: tuple[tuple[int, int], ...] = ()
    is_bare: bool = False

    def counts(self, begin: int, end: int) -> bool:
        """Whether a match at this place counts. A match that looks like a command does not count
        within a quoted part, or if it ends in a quoted part with an option (`commit .*--no-verify`
        in a commit message) or with a command after an operator."""
        for first, last in self.quoted:
            if first <= begin and end <= last:
                return _LIKE_A_COMMAND.match(self.text, begin, end) is None
            if first < end <= last and begin < first:
                return (
                    _LAST_OPTION.search(
                        self.text, max(first - 1, begin, end - _MOST_OPTION_CHARS), end
                    )
                    is None
                )
        return True


@dataclass(frozen=True, slots=True)
class Commands:
    """The parts of a script: `wholes` are the script and those within it as written, without
    comments; `lines` are its commands without quoted parts; `texts` the same with and without them;
    `files` are the paths and texts that it writes; `unread` says why a part could not be read, or
    is empty."""

    wholes: tuple[SeenText, ...]
    texts: tuple[SeenText, ...]
    lines: tuple[str, ...]
    files: tuple[tuple[str, str], ...] = ()
    unread: str = ""


@lru_cache(128)  # every rule reads the same commands
def commands_of(source: str) -> Commands:
    """The commands of a script. Never raises: if it cannot be read, the commands are the pieces
    between operators.
    """
    if len(source) <= MOST_SCRIPT_CHARS:
        try:
            return _Walk().walk(source)
        except (ShellSyntaxError, RecursionError) as error:
            reason = str(error)
    else:
        reason = f"more than {MOST_SCRIPT_CHARS} characters"
    pieces = tuple(dict.fromkeys(piece.strip() for piece in _PIECES.split(source) if piece.strip()))
    whole = SeenText(source)
    return Commands((whole,), tuple(map(SeenText, (source, *pieces))), pieces, (), reason)


@lru_cache(128)
def code_texts(code: str) -> tuple[SeenText, ...]:
    """The texts of a program in another language: its source, and the commands that it starts."""
    inner = [commands_of(script) for script in scan(code).scripts]
    return (SeenText(code), *dict.fromkeys(text for script in inner for text in script.texts))


@lru_cache(128)
def code_edits(code: str) -> tuple[tuple[str, str], ...]:
    """The files that a program in another language writes, directly or by the commands that it
    starts.
    """
    found = scan(code)
    return (
        *found.files,
        *(file for script in map(commands_of, found.scripts) for file in script.files),
    )


@lru_cache(1024)
def reads_whole(pattern: str) -> bool:
    """Whether a pattern contains `;`, `&`, a new line or a quotation mark, so that it may match
    several commands, or a script as written."""
    return _OPERATOR.search(_NEGATED_SET.sub("", pattern)) is not None


class _Walk(ShellReader):
    """Reads a script and all scripts within it."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[SeenText, None] = {}
        self._wholes: dict[SeenText, None] = {}
        self._lines: dict[str, None] = {}
        self._files: dict[str, str] = {}
        self._aliases: dict[str, str] = {}
        self._git = GitState()
        self._downloads: dict[str, str] = {}
        self._unread: list[str] = []
        self._quoted: list[tuple[int, int]] = []
        self._folder = ""
        self._guesses = self._scripts = self._nested = 0

    def walk(self, source: str) -> Commands:
        self.read(source)
        whole = _whole(self.script, self._quoted)
        return Commands(
            (whole, *self._wholes),
            tuple(self._texts) or (whole,),
            tuple(self._lines),
            tuple(self._files.items()),
            "; ".join(self._unread[:1]),
        )

    def _add_source(self, source: str) -> Output:
        """Read a script within the script."""
        self._scripts += 1
        self._nested += 1
        if self._nested > _MOST_STEPS or self._scripts > _MOST_SCRIPTS:
            raise ShellSyntaxError("too many scripts within scripts")
        outer = self.script, self._quoted
        self._quoted = []
        try:
            printed = self.read(source)
            self._wholes[_whole(self.script, self._quoted)] = None
        except ShellSyntaxError as error:
            if "too" in str(error):
                raise
            self._texts[SeenText(source)] = None
            self._note(str(error))
            printed = NOTHING
        self.script, self._quoted = outer
        self._nested -= 1
        return printed

    def _add_code(self, code: str) -> None:
        """Read the scripts in a program of another language. Texts that cannot be read are ignored:
        they may be no scripts.
        """
        if hides_code(code):
            self._note(_HIDDEN_CODE)
        self._guesses += 1
        for source in scan(code).scripts:
            self._add_source(source)
        self._guesses -= 1

    def _note(self, reason: str) -> None:
        if not self._guesses and not self.is_defining:
            self._unread.append(reason)

    def run(self, command: Command, fed: Output) -> Output:
        command.words = [part for word in command.words for part in _with_message_apart(word)]
        texts = command.texts
        bare = list(bare_words(tuple(texts)))
        if command.inputs:
            fed = Output("\n".join(word.text for word in command.inputs))
        elif command.reads:
            fed = self.printed.get(command.reads[0].text) or Output(
                self._files.get(self._place(command.reads[0].text)), (), True
            )
        spans = quoted_places(texts)
        line = _IN_WORD.sub(
            " ", _without(bare, spans if len(bare) == len(texts) else quoted_places(bare))
        )
        if fed.lines and line:
            self._texts[SeenText(" | ".join((*fed.lines, line)))] = None
        if texts:
            self._add_command(command, texts, spans)
            self._note_unread(texts, bare, fed)
            self._add_input(command, texts, bare, fed)
            if bare[:2] == ["git", "commit"] and fed.text:  # its message, as in `git commit -F -`
                self._add_line(["git", "commit", "-m", fed.text], [(3, 3)])
        elif command.assignments:
            self._quoted += [(word.begin, word.end) for word in command.assignments]
            self._add_line(
                [word.text for word in command.assignments], [(0, len(command.assignments) - 1)]
            )
        printed = self._printed(bare, fed)
        self._follow_files(command, texts, bare, fed, line, printed.text)
        text = printed.text if printed.text is not None else fed.text
        for path, content in written_files(command, bare, text or ""):
            place = self._place(path)
            self._files[place] = (
                f"{self._files[place]}\n{content}" if self._files.get(place) else content
            )
        if texts[:1] == ["cd"] and len(texts) == 2 and "$" not in texts[1]:
            self._folder = f"{self._place(texts[1]).rstrip('/')}/"
        return Output(printed.text, (line,) if line else (), printed.is_file)

    def _place(self, path: str) -> str:
        """A path relative to the folder in which the script began."""
        return path if path.startswith(("/", "~")) else self._folder + path.removeprefix("./")

    def _printed(self, bare: Sequence[str], fed: Output) -> Output:
        """What a command prints, if its words tell it."""
        match bare:
            case ["echo" | "print", *rest]:
                return Output(
                    " ".join(rest[1:] if rest and re.fullmatch("-[neE]+", rest[0]) else rest)
                )
            case ["printf", form, *rest]:
                form = form.replace("\\n", "\n")
                if "%" not in form:
                    return Output(form.rstrip("\n"))
                return (
                    Output(("\n" if "\n" in form else " ").join(rest))
                    if form.strip() in ("%s", "%b")
                    else NOTHING
                )
            case ["cat"] | ["cat", "-"] | ["tee", *_]:
                return fed
            case ["cat", *paths]:
                known = [text for path in paths if (text := self._files.get(self._place(path)))]
                return Output("\n".join(known) if known else None, (), True)
            case ["git", "branch" | "rev-parse" | "symbolic-ref", *_]:
                return Output(self._git.branch) if self._git.branch else NOTHING
            case [":" | "true"]:
                return Output("")
            case _:
                return NOTHING

    def _add_input(
        self, command: Command, texts: list[str], bare: Sequence[str], fed: Output
    ) -> None:
        """Read a command's standard input: a script, code or text."""
        name = program_name(bare[0])
        is_text = name in QUOTING | RECORDING | {"patch", "apply_patch", "applypatch"}
        for argument in bare[1:] if name in _RUNNERS or name in ("source", ".") else ():
            if argument.startswith("<(") and argument in self.printed:
                self._add_program(name, self.printed[argument].text)
        if fed.text is None:
            return
        if reads_script(texts) or reads_script(bare):
            self._add_source(fed.text)
        elif "xargs" in texts[:4]:
            self._add_words([*texts, *fed.text.split()])
        elif name == "make":
            self._add_program(name, fed.text)
        elif name in INTERPRETERS and (len(bare) == 1 or "-" in bare):
            self._add_code(fed.text)
        if command.inputs or name in INTERPRETERS | DATABASES:
            self._texts[SeenText(fed.text, ((0, len(fed.text)),) if is_text else ())] = None
        if is_text:
            self._quoted += [(word.begin, word.end) for word in command.inputs]

    def _add_program(self, name: str, text: str | None) -> None:
        """Read a file that a shell, an interpreter or `make` runs."""
        if text is None:
            return
        if name == "make":
            recipes = [line[1:].lstrip("@-") for line in text.splitlines() if line[:1] == "\t"]
            text = "\n".join(recipes)
        self._add_code(text) if name in INTERPRETERS else self._add_source(text)

    def _note_unread(self, texts: list[str], bare: Sequence[str], fed: Output) -> None:
        """Note a command whose program, script or code is known only when it runs."""
        name = program_name(bare[0])
        is_unknown = fed.text is None and not fed.is_file and bool(fed.lines)
        if any(
            _is_unknown_program(words)
            for words in (texts, bare if texts[0] in _PLAIN_STARTERS else texts)
        ):
            self._note("its program is known only when it runs")
        elif is_unknown and name in _RUNNERS:
            if reads_script(bare) if name in SHELLS else len(bare) == 1 or bare[1:] == ["-"]:
                self._note(_PRINTED_SCRIPT)
        elif name in SHELLS or name in ("source", "."):
            for text in bare[1:]:  # as in `source <(…)`
                printed = self.printed.get(text, NOTHING)
                if (
                    text.startswith("<(")
                    and not _SETTING_UP.match(text)
                    and printed.text is None
                    and not printed.is_file
                ):
                    self._note(_PRINTED_SCRIPT)

    def _follow_files(
        self,
        command: Command,
        texts: list[str],
        bare: Sequence[str],
        fed: Output,
        line: str,
        printed: str | None,
    ) -> None:
        """Read files of the script that it runs; add the run of a downloaded file as a pipe into
        its runner, and a redirection that empties a file as `truncate`."""
        if (
            command.empties
            and not command.inputs
            and (not bare or bare == ["cat", "/dev/null"] or printed == "")
        ):
            for path in command.empties:
                self._add_line(["truncate", "-s", "0", path], [])
        name = program_name(bare[0]) if bare else ""
        for path in run_files(texts, bare) if self._files or self._downloads else ():
            (file,) = file_names([path])
            if file in self._downloads:
                runner = name if name in _RUNNERS else "sh"
                self._texts[SeenText(f"{self._downloads[file]} | {runner}")] = None
            if self._files.get(self._place(path)):
                self._add_program(name, self._files[self._place(path)])
        loading = line
        if name not in DOWNLOADING:
            loading = next((one for one in fed.lines if one.split()[0] in DOWNLOADING), "")
        if loading:
            names = file_names((*bare[1:], *output_files(command, bare))) - {""}
            self._downloads |= dict.fromkeys(names, loading)
        elif name in ("mv", "cp") and len(bare) > 2:
            (old,), (new,) = file_names(bare[-2:-1]), file_names(bare[-1:])
            if old in self._downloads:
                self._downloads[new] = self._downloads[old]
            if self._place(bare[-2]) in self._files:
                self._files[self._place(bare[-1])] = self._files[self._place(bare[-2])]

    def _add_command(
        self,
        command: Command,
        texts: list[str],
        spans: Sequence[tuple[int, int]],
    ) -> None:
        words, set_before = command.words, [word.text for word in command.assignments]
        self._quoted += [(words[first].begin, words[last].end) for first, last in spans]
        self._add_line([*set_before, *texts], spans, len(set_before))
        name = program_name(texts[0])
        if name == "alias":
            self._aliases |= {
                key: value
                for key, sign, value in (text.partition("=") for text in texts[1:])
                if sign
            }
        if (spans and name in QUOTING) or shows_help(texts):
            return
        if set_before:
            self._add_line(texts, spans)
        for word in command.reads:
            if word.text.startswith("<("):
                self._add_line([*texts, "<", word.text], [])
        self._add_steps(texts)

    def _add_words(self, texts: list[str]) -> None:
        """Add a command that another command starts."""
        self._scripts += 1
        if texts and self._nested < _MOST_STEPS and self._scripts <= _MOST_SCRIPTS:
            self._nested += 1
            spans = quoted_places(texts)
            self._add_line(texts, spans)
            if not (spans and program_name(texts[0]) in QUOTING):
                self._add_steps(texts)
            self._nested -= 1

    def _add_steps(self, texts: list[str]) -> None:
        """Add a command without its starters, one step after the other, and the scripts in its
        words.
        """
        for _ in range(_MOST_STEPS):
            for source in (*scripts_in(texts), *self._git.follow(texts)):
                self._add_source(source)
            for code in code_in(texts):
                self._add_code(code)
            for inner in commands_in(texts):
                self._add_words(inner)
            self._add_called(texts)
            shorter = shortened(texts)
            if shorter is None:
                return
            texts = shorter
            self._add_line(texts, quoted_places(texts), is_bare=True)
            if program_name(texts[0]) in QUOTING:
                return

    def _add_called(self, texts: Sequence[str]) -> None:
        """Add what a function or alias of the script does."""
        if not texts or self._nested >= _MOST_STEPS - 1:
            return
        for known, arguments in ((self.functions, []), (self._aliases, texts[1:])):
            if texts[0] in known:
                body = known.pop(texts[0])  # so that a function that calls itself is read once
                if known is self.functions:
                    self.set_arguments(texts[1:])
                self._add_source(" ".join((body, *arguments)))
                known[texts[0]] = body

    def _add_line(
        self,
        texts: Sequence[str],
        spans: Sequence[tuple[int, int]],
        skipped: int = 0,
        *,
        is_bare: bool = False,
    ) -> None:
        line = " ".join(texts)
        if not line.strip():
            return
        ends, at = [], 0
        for text in texts:
            ends.append((at, at + len(text)))
            at += len(text) + 1
        quoted = tuple((ends[first + skipped][0], ends[last + skipped][1]) for first, last in spans)
        self._texts[SeenText(line, quoted, is_bare)] = None
        if quoted and not (len(quoted) == 1 and quoted[0] == (0, len(line))):
            line = _without(texts, [(first + skipped, last + skipped) for first, last in spans])
            self._texts[SeenText(line, (), is_bare)] = None
        if line not in self._lines and not shows_help(texts):
            self._lines[line] = None


def _with_message_apart(word: Word) -> list[Word]:
    """A word, or the two of an option with its message behind it (`-m"two words"`)."""
    glued = _GLUED_MESSAGE.fullmatch(word.text)
    if glued is None:
        return [word]
    middle = min(word.begin + len(glued[1]), word.end)
    return [Word(glued[1], word.begin, middle), Word(glued[2], middle, word.end)]


def _whole(script: Script, quoted: Sequence[tuple[int, int]]) -> SeenText:
    """A script as written, with blanks in place of its comments."""
    pieces, at = [], 0
    for begin, end in script.comments:
        pieces += [script.source[at:begin], " " * (end - begin)]
        at = end
    return SeenText("".join((*pieces, script.source[at:])), tuple(sorted(quoted)))


def _without(texts: Sequence[str], spans: Sequence[tuple[int, int]]) -> str:
    """A command without the words that are only text to it."""
    left_out = {place for first, last in spans for place in range(first, last + 1)}
    return " ".join(_LEFT_OUT if place in left_out else text for place, text in enumerate(texts))


def _is_unknown_program(texts: Sequence[str]) -> bool:
    """Whether the program of a command, apart from its folder, is known only when it runs."""
    program = _SUBSTITUTION.sub("$x", texts[0][-2_000:]).rpartition("/")[2]
    return _UNKNOWN_PROGRAM.search(program) is not None and not (
        _SETTING_UP.match(texts[0]) or _OWN_VARIABLES.match(texts[0])
    )
