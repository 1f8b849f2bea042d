"""Episodes: a tool call that failed, and the call of the same purpose that worked afterwards.

Failures with one signature are the same failure, whatever the task was called. A signature names
the tool, the head of its command and the class of error; names, paths and numbers are masked."""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final

from metaclaw.domain.chat import Json, Message, ToolCall, ToolResult, text_of
from metaclaw.domain.episode import Episode, Signature
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Lesson
from metaclaw.outcome.phrases import HARMLESS_REFUSALS, REFUSING, programs_of, spoken
from metaclaw.outcome.reading import (
    LOOKING,
    CommandUse,
    ToolKind,
    ToolRun,
    answers_by_exit,
    command_of,
    command_uses,
    exchanges,
    have_tests_failed,
    have_tests_passed,
    is_edit,
    looks_failed,
    outage,
    outside_fault,
    read_result,
    split_commands,
    was_stopped,
)
from metaclaw.text import VERY_COMMON_WORDS

_LINE_CHARS: Final = 160
_FIRST_LINES: Final = 4
_RESULT_CHARS: Final = 20_000
_ERROR_CODE = re.compile(
    r"\b(?:ERR_[A-Z_]{3,40}|E(?!RROR|XCEPT|XIT|XPECT|XTRA|NABLE|VENT|NGINE)[A-Z]{4,24}|[A-Z]{1,8}-?\d{3,5}|[A-Z]+(?:_[A-Z]+){2,8})\b"
)
_ERROR_NAME = re.compile(r"\b(?:[A-Za-z_]\w*\.)*([A-Z]\w{2,60}(?:Error|Exception))\b")
_TELLING = re.compile(
    r"error|fatal|reject|fail|cannot|can't|could not|unable|not found|no such|unknown|invalid"
    r"|unsupported|not supported|recognized|denied|missing|does not|undefined|unexpected|refus|panic|abort",
    re.IGNORECASE,
)
_ADVICE = re.compile(
    r"\b(?:re-?run|for more|see|hint|help|note|try|visit|read the|usage|full log|debug log)\b", re.I
)
# What the shell itself says of a command, before or instead of running it.
_OF_SHELL = re.compile(
    r"(?:/\S*/)?-?(?:ba|z|da|k|c|tc|a)?sh: (?!warning|no job|cannot set terminal)|fish: [A-Z]|Error: nu::"
)
_OF_SCRIPT = re.compile(r"[\w.-]{1,30}: (?:line )?\d{1,5}: ")  # as `sed: 1: …`
_STATUS = re.compile(
    r'\s*(?:HTTP(?:/[\d.]+)? |\{\s*"status(?:_?code)?"\s*:\s*"?)[45]\d\d\b', re.IGNORECASE
)
_PROSE = re.compile(r"(?<!\S)[^\W\d_][^\W\d_A-Z]*[.,:;!]?(?!\S)")
_MOST_PROSE: Final = 6  # a longer line tells no more, and may be an order to its reader
_LEAST_PROSE: Final = 3
_FRAME: Final = " \t\u2502\u2503\u2575\u2577\u256d\u2570\u2500"
_FAILED_LINE = re.compile(
    r"(?:\S{1,40}: line \d+: )?(?:[\w./@-]{1,40}:? ){0,2}(?:\[?error|err!|fatal\b|failed\b|failure\b|panic|exception\b|traceback"
    r"|\*\*\* |no such|cannot |could not|not found|unknown |invalid |command not found|[A-Z]\w{2,40}(?:Error|Exception)\b"
    r"|permission denied|unable to)",
    re.IGNORECASE,
)
_EXIT_LINE = re.compile(
    r"^\W{0,8}(?:exit(?:ed)?(?: with)?[ -](?:code|status)|process exited|command (?:failed|exited))"
    r"[^\n]{0,40}$",
    re.IGNORECASE,
)
_MASKS: Final = tuple(
    (re.compile(pattern), put)
    for pattern, put in (
        (r"https?://\S+", "URL"),
        (r"\b[\w-]+[:@][*^~<>=]+[\w.*-]*", "NAME"),  # as `workspace:*`
        (r"(?<!\w)[\"'`‘“][^\"'`’”\n]{1,120}[\"'`’”](?!\w)", "NAME"),
        (
            r"(?<![\w.])(?:~|\.{1,2})?(?:/[\w.@+-]+)+/?|\b[\w.-]+(?:/[\w.@+-]+)+|\b[A-Z]:\\\S+",
            "PATH",
        ),
        (r"\b\w[\w-]*\.(?:[a-z]{1,4}|json|toml|yaml|lock)\b(?:[:(]\d+[\d,:)]*)?", "FILE"),
        (r"\b(?:0x)?[0-9a-f]{7,64}\b|\b\d[\d.,:]*", "N"),
    )
)
_WORD = re.compile(r"[\w+@:=./-]+")
_ORDINARY = re.compile(r"\W*[^\W\d_]?[^\W\d_A-Z]*\W*")
_QUOTED_TEXT = re.compile(r"\"[^\"]*\"|'[^']*'")
_SCRIPT = re.compile(r"[\w-]+(\.(?:py|js|mjs|cjs|ts|sh|bash|rb|pl|php|ps1|lua|R|jl))")
_GOOD_NEWS = re.compile(
    r"\b(?:no|0|zero|without(?: any)?) (?:\w+ )?(?:error|fail|warning|problem|issue|conflict)\w*"
    r"|\b(?:errors|failures|failed|warnings):\s*0\b",
    re.IGNORECASE,
)
_DOUBTFUL_CHARS: Final = 1_500
_DOUBTFUL_LINES: Final = 12
_NAME_OF_ARGUMENT = re.compile(r'"\w+"\s*:')
_SUBCOMMAND = re.compile(r"[a-z][a-z0-9:_-]{0,30}$")
_OPENS_A_SCRIPT: Final = frozenset(("run", "exec", "compose"))
_HAVE_COMMANDS: Final = frozenset(programs_of("have_commands"))
_LOOKING_COMMANDS: Final = frozenset(programs_of("looking_commands"))
_TAKE_NAMES: Final = frozenset(programs_of("take_names"))
_ASKING_OPTIONS: Final = frozenset(("-V", "-v", "-h", "version", "help"))  # alone
_ASKING_WORDS: Final = frozenset(("--version", "-version", "--help", "-help"))  # anywhere
_PROGRAM_AND_OPTION: Final = 2
_HAVE_SCRIPTS: Final = frozenset(("npm", "pnpm", "yarn", "bun"))  # `run` is for the project's own
_HAVE_TASKS: Final = frozenset(programs_of("have_tasks"))
_OF_YARN: Final = frozenset(programs_of("yarn_commands"))
_OF_GIT: Final = frozenset(("origin", "HEAD"))  # what git itself calls them
_ALIASES: Final = dict(one.split(" = ") for one in programs_of("aliases"))
_NO_PROGRAM = re.compile(
    r"(?:^|[:\s])([\w.+-]+): (?:command )?not found\s*$|command not found: ([\w.+-]+)"
    r"|'([\w.+-]+)' is not recognized as|unknown command:? '?([\w.+-]+)'?\s*$",
    re.IGNORECASE | re.MULTILINE,
)
_NOT_FOUND: Final = "command not found"
_NO_ERROR = re.compile(r"^(?:error|stderr|signal|exit signal)\W{1,4}\(?(?:none|null)\)?\W*$", re.I)
_JSON_ERROR = re.compile(
    r'"(?:error|code|error_code|type|reason|message|detail)"\s*:\s*"([A-Za-z](?:[^"\\\n]|\\.){2,80})"'
)


_COMPOUND = re.compile(r"\b[A-Za-z\d]+(?:[-_][A-Za-z\d]+)+\b")
"""Mostly a name, as that of a branch."""
_WORKED: Final = "ok"
_MOST_BETWEEN: Final = 2
_LOOK_ON: Final = 50  # calls after the first that may be the fix
_COMPARED_CHARS: Final = 400
_LEAST_KEPT: Final = 2 / 3
_PIECE = re.compile(r"[;&|\n]+")
_PAUSES: Final = frozenset(("sleep", "wait"))
_ADDRESS = re.compile(r"://|[a-z]:\d{2,5}\b", re.IGNORECASE)
_REMOTE_SHELLS: Final = frozenset(("exec", "run", "ssh"))
_SETTING: Final = frozenset(("export", "unset", "set", "echo", "true", "mkdir"))
_LISTINGS: Final = frozenset(programs_of("use_list"))


@dataclass(frozen=True)
class _Ran:
    """A call with its result, as episodes read it. `is_outside` says that it blames the network, a
    service or the machine, `is_outage` that this passes, `is_doubtful` that only words in free form
    tell that the call failed."""

    call: ToolCall
    run: ToolRun
    output: str
    signature: Signature | None
    is_outside: bool
    is_outage: bool
    is_doubtful: bool

    @cached_property
    def proposed(self) -> frozenset[str]:
        """The words that its output may propose; a plain listing of files proposes nothing."""
        lines = [] if _lists(self) else _own_lines(self.output)
        return _bare(_WORD.findall("\n".join(lines)))

    @cached_property
    def words(self) -> frozenset[str]:
        """The words of the call, of paths only the last part."""
        return frozenset(word.rsplit("/", 1)[-1] for word in words_of(self.call))

    @cached_property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """Each two characters of the call that stand together."""
        return frozenset(pairwise((self.run.command or self.call.arguments)[:_COMPARED_CHARS]))

    @cached_property
    def head_words(self) -> set[str]:
        return {word for head in _heads(self.run.command) for word in head.split()}

    @cached_property
    def only_looks(self) -> bool:
        return self.run.kind is ToolKind.READ or _looks(self.run.command)


def episodes_of(messages: Sequence[Message], *, is_ended: bool = True) -> list[Episode]:
    """The episodes of a conversation, in their order. A message of the person ends a task. Where
    the last task may go on, only a call of the same purpose that has most words of the failed one
    completes one of its episodes.
    """
    found: list[Episode] = []
    done: list[_Ran] = []
    begin, said = 0, ""
    for one in _runs(messages):
        if isinstance(one, str):
            found.extend(_in_task(done, begin, said))
            begin, said = len(done), one
        else:
            done.append(one)
    found.extend(_in_task(done, begin, said, is_ended=is_ended))
    return found


def followed(messages: Sequence[Message], lessons: Iterable[Lesson]) -> set[SkillName]:
    """The names of those lessons that a call followed: one of their programs worked, with the words
    of their remedy."""
    worked = [one for one in _runs(messages) if isinstance(one, _Ran) and one.signature is None]
    return {lesson.name for lesson in lessons if any(_follows(one, lesson) for one in worked)}


def _follows(one: _Ran, lesson: Lesson) -> bool:
    uses = {use for signature in lesson.signatures for use in Signature.uses_of(signature)}
    tool, heads = _tool(one.call, one.run), _heads(one.run.command) or [_head(one.call, one.run)]
    mine = {str(Signature(tool, _class_of(head), "")) for head in heads}
    mine |= {str(Signature(tool, name, _NOT_FOUND)) for name in _programs(one.run)}
    return not uses.isdisjoint(mine) and _parts(words_of(one.call)).issuperset(lesson.remedy)


def remedy_words(line: str, episodes: Iterable[Episode]) -> tuple[str, ...]:
    """The words of a line that all calls that worked have, and the failed calls have not; if no word
    is in all, those of the first. A very common word counts only where there is no other."""
    mine = _parts(_WORD.findall(line))

    def of(episode: Episode) -> frozenset[str]:
        words = mine & (_parts(words_of(episode.fix)) - _parts(words_of(episode.failed)))
        return words - {*VERY_COMMON_WORDS} or words

    named = [next(filter(None, map(of, (one, *one.between))), frozenset()) for one in episodes]
    named = list(filter(None, named))
    return tuple(sorted(frozenset.intersection(*named) or named[0])) if named else ()


def _parts(words: Iterable[str]) -> frozenset[str]:
    """The words, and the parts of those with a sign of equality."""
    return _bare(part for word in words for part in (word, *word.split("=")) if part)


def failures(messages: Sequence[Message]) -> set[Signature]:
    """The signatures of all calls that failed, whatever came of it."""
    runs = (one for one in _runs(messages) if isinstance(one, _Ran))
    return {one.signature for one in runs if one.signature is not None}


def failure_signature(
    call: ToolCall, result: ToolResult, uses: Container[str] | None = None
) -> str:
    """The signature of a failed call as lessons name it; empty if the call did not fail, or in a
    way that only shows the state of the work, such as a failing test. With `uses` (see
    `Signature.uses_of`), also if the call is none of these: then its output is not read.
    """
    run = read_result(result, call)
    mine = (
        str(Signature(_tool(call, run), one, "")) for one in (_head(call, run), *_programs(run))
    )
    if uses is not None and not any(one in uses for one in mine):
        return ""
    return str(_ran(call, result, run).signature or "")


def words_of(call: ToolCall) -> frozenset[str]:
    """The words of a call: its command, or the values of its arguments."""
    text = command_of(call) or _NAME_OF_ARGUMENT.sub("", call.arguments)
    return frozenset(_WORD.findall(text))


def masked(line: str) -> str:
    """A line of output with its names, paths and numbers masked."""
    for pattern, put in _MASKS:
        line = pattern.sub(put, line)
    return " ".join(line.split())[:_LINE_CHARS]


def _runs(messages: Sequence[Message]) -> Iterator["_Ran | str"]:
    """The calls with their results, and what the person said, in their order."""
    for one in exchanges(messages):
        yield one if isinstance(one, str) else _ran(*one, read_result(one[1], one[0]))


def _ran(call: ToolCall, result: ToolResult, run: ToolRun) -> _Ran:
    output = text_of(result.parts)[:_RESULT_CHARS]
    is_doubtful = not _has_failed(run)
    if is_doubtful and not _may_have_failed(call, run):
        return _Ran(call, run, output, None, False, False, False)
    if missing := _missing_program(run):
        signature = Signature(_tool(call, run), missing, _NOT_FOUND)
    else:
        line = _error_line(run.text, is_shell=run.kind is ToolKind.SHELL)
        error = _error_class(run.text, line, _names_in(call, run))
        signature = Signature(_tool(call, run), _head(call, run), error)
    is_outside, is_outage = outside_fault(run) is not None, outage(run) is not None
    return _Ran(call, run, output, signature, is_outside, is_outage, is_doubtful)


def _head(call: ToolCall, run: ToolRun) -> str:
    """The program of a call: for a script, the class of its file, because a script with another
    name fails for the same reason."""
    heads = _heads(run.command)
    return _class_of(heads[-1]) if heads else _file_read(call, run)


def _programs(run: ToolRun) -> set[str]:
    """The programs of a command, without their subcommands."""
    return {_class_of(head.split()[0]) for head in _heads(run.command)}


def _missing_program(run: ToolRun) -> str:
    """The program of the command that the shell did not find: whatever it was to do, this is the
    same failure."""
    named = ("".join(groups) for groups in _NO_PROGRAM.findall(run.text))
    return next((one for one in map(_class_of, named) if one in _programs(run)), "")


def _class_of(head: str) -> str:
    script = _SCRIPT.fullmatch(head)
    if script is not None:
        return f"*{script[1]}"
    program, _, command = head.partition(" ")
    is_script = program in _HAVE_SCRIPTS and command.startswith("run ")
    if is_script or (program == "yarn" and command not in _OF_YARN):
        return f"{program} run"  # the project's scripts fail for one reason
    return program if program in _HAVE_TASKS else head


def _names_in(call: ToolCall, run: ToolRun) -> set[str]:
    """The words of a call that an error repeats: its operands. Of a text among its arguments, such
    as a file's content, only what is no ordinary word."""
    values = [_QUOTED_TEXT.sub(_names_of_text, run.command)] if run.command else _values(call)
    heads = {word for head in _heads(run.command) for word in head.split()}
    names: set[str] = set()
    for value in values:
        is_text = not run.command and " " in value.strip()
        names.update(_WORD.findall(_names_of(value) if is_text else value))
    return names - heads


def _names_of_text(quoted: re.Match[str]) -> str:
    return _names_of(quoted[0]) if " " in quoted[0] else quoted[0]


def _names_of(text: str) -> str:
    """The words of a text that have a digit, a sign or a capital inside."""
    return " ".join(word for word in _WORD.findall(text) if not _ORDINARY.fullmatch(word))


def _values(call: ToolCall) -> list[str]:
    return list(_strings_in(call.fields)) if call.fields else [call.arguments]


def _strings_in(value: Json) -> Iterator[str]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings_in(inner)
    elif value is not None:
        yield str(value)


def _file_read(call: ToolCall, run: ToolRun) -> str:
    """The name of the file that was to be read: only the same file is the same failure."""
    if run.kind is not ToolKind.READ:
        return ""
    return next((word.rsplit("/", 1)[-1] for word in sorted(words_of(call)) if "/" in word), "")


def _has_failed(run: ToolRun) -> bool:
    failed = _sounds_failed(run) if run.says_failed is None else run.says_failed
    if not failed or run.is_harmless or was_stopped(run) or have_tests_failed(run):
        return False
    return run.exit_code is None or not _is_answer(run, run.exit_code)


def _is_answer(run: ToolRun, exit_code: int) -> bool:
    """Whether the exit code is a negative answer, and the output speaks of no error."""
    if not answers_by_exit(run.command, exit_code):
        return False
    lines = _own_lines(run.text)
    is_searching = command_uses(run.command)[-1:] == (CommandUse.SEARCH,)
    telling = _TELLING.search if is_searching else _FAILED_LINE.match
    return not any(telling(line) or _OF_SHELL.match(line) for line in lines[:_FIRST_LINES])


def _sounds_failed(run: ToolRun) -> bool:
    """For clients without a flag or an exit code. Looser than what decides a verdict: a lesson
    needs several such failures, and a call that worked instead."""
    if looks_failed(run) or (_STATUS.match(run.text) and not _looks(run.command)):
        return True
    if run.kind is ToolKind.READ:
        return False
    lines = _own_lines(run.text)
    if run.kind is ToolKind.SHELL and any(map(_OF_SHELL.match, lines[:1])):
        return True
    if _shows_content(run):  # what it shows may be about errors; its own messages bear its name
        is_own = _named_by(run.command)
        own = lines[:1] if len(lines) <= _FIRST_LINES else lines[:_FIRST_LINES]
        return bool(lines) and all(map(is_own, own))
    return any(_FAILED_LINE.match(line) for line in (*lines[:_FIRST_LINES], *lines[-1:]))


def _named_by(command: str) -> Callable[[str], bool]:
    """Whether a line begins with the name of a program of the command, as its messages do."""
    begins = tuple(f"{head.split()[0]}: " for head in _heads(command))
    return lambda line: line.startswith(begins)


def _named_by_script(command: str) -> Callable[[str], bool]:
    """Whether a line begins with the name of a script that the command runs."""
    files = (word.rsplit("/", 1)[-1] for word in command.split())
    begins = tuple(f"{file.rpartition('.')[0]}: " for file in files if _SCRIPT.fullmatch(file))
    return lambda line: line.startswith(begins)


def _may_have_failed(call: ToolCall, run: ToolRun) -> bool:
    """Whether a short output has words of a failure or a refusal, in any form. Such a call counts
    as failed only if the agent made it again with something changed, and that worked."""
    if run.says_failed is not None or run.is_harmless or was_stopped(run):
        return False
    text = _GOOD_NEWS.sub("", run.text[: _DOUBTFUL_CHARS + 1])
    for asked in filter(_TELLING.search, words_of(call)):  # such as what was searched for
        text = text.replace(asked, "")
    lines = _own_lines(text)
    is_short = len(run.text) <= _DOUBTFUL_CHARS and len(lines) <= _DOUBTFUL_LINES
    if not is_short or have_tests_passed(run) or have_tests_failed(run):
        return False
    if _shows_content(run) and len(lines) > 1:
        return False
    if _looks(run.command):
        return any(map(_FAILED_LINE.match, lines[:1]))
    if run.kind is ToolKind.READ:
        return any(map(_refuses, lines))
    if any(map(_named_by(run.command), filter(_OF_SCRIPT.match, lines[:1]))):
        return True
    if any(map(_named_by_script(run.command), (*lines[:1], *lines[-1:]))):
        return True
    return any(
        _TELLING.search(line) or _refuses(line) for line in (*lines[:_FIRST_LINES], *lines[-1:])
    )


def _refuses(line: str) -> bool:
    """Whether a line has words of refusal, in one of a dozen languages."""
    text = spoken(line)
    return bool(REFUSING.find(text)) and not HARMLESS_REFUSALS.find(text)


def _tool(call: ToolCall, run: ToolRun) -> str:
    return call.name.lower() if run.kind is ToolKind.OTHER else str(run.kind)


def _heads(command: str) -> list[str]:
    found = []
    for words in split_commands(command):
        head = [words[0].rsplit("/", 1)[-1]]
        for word in words[1:] if head[0] in _HAVE_COMMANDS else ():
            if _SUBCOMMAND.match(word):
                head.append(word)
                if word not in _OPENS_A_SCRIPT:
                    break
        name = " ".join(head[:3])
        found.append(_ALIASES.get(name, name))
    return found


def _own_lines(text: str) -> list[str]:
    """The lines of an output that the client did not add, without the frame around a message."""
    lines = (line.strip(_FRAME) for line in text.splitlines())
    return [
        line for line in lines if line and not _EXIT_LINE.match(line) and not _NO_ERROR.match(line)
    ]


def _error_line(text: str, *, is_shell: bool) -> str:
    """The line that says what went wrong: the last one that sounds like it and is no advice, else
    the last. Other tools say it first, and then repeat what they were given.
    """
    if stated := _JSON_ERROR.search(text):
        return stated[1].replace("\\", "")
    own = _own_lines(text)
    ordered = own[::-1] if is_shell else own
    telling = ""
    for line in ordered:  # the first that tells: outputs are long, and requests wait for this
        if _TELLING.search(line):
            if not _ADVICE.search(line):
                return line
            telling = telling or line
    return telling or (ordered or [""])[0]


def _shown_line(run: ToolRun) -> str:
    """The line that tells most of a failure, for a reader: one with the name of an error, else one
    that says in a sentence what was not possible; of several, the last of a command's output and the
    first of another tool's.
    """
    best, rank = _error_line(run.text, is_shell=run.kind is ToolKind.SHELL), (False, 0)
    lines = _own_lines(run.text) if _JSON_ERROR.search(run.text) is None else []
    for line in reversed(lines) if run.kind is ToolKind.SHELL else lines:
        if (_TELLING.search(line) or _refuses(line)) and not _ADVICE.search(line):
            prose = min(len(_PROSE.findall(line)), _MOST_PROSE)
            is_named = prose >= _LEAST_PROSE and _ERROR_NAME.search(line) is not None
            best, rank = max((best, rank), (line, (is_named, prose)), key=lambda one: one[1])
    return masked(best)


def _error_class(text: str, line: str, operands: Iterable[str]) -> str:
    """The name or code of an error, else its line, without the operands of the call."""
    names = _ERROR_NAME.findall(text)
    if names:
        return str(names[-1])
    code = _ERROR_CODE.search(line) or _ERROR_CODE.search(text)
    if code:
        return code[0]
    for word in operands:
        if len(word) > 2:
            line = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", "ARG", line)
    return _COMPOUND.sub("ARG", masked(line)).lower()


def _in_task(
    done: Sequence[_Ran], begin: int, said: str, *, is_ended: bool = True
) -> Iterable[Episode]:
    """The episodes of one task: the calls from `begin` on, asked for by the words in `said`."""
    at = begin
    while at < len(done):
        if done[at].signature is None:
            at += 1
            continue
        found = _fixes(done, at, is_ended=is_ended)
        remedy = _remedy(done, at, found[-1]) if found else None
        if remedy is not None:
            whole = _episode(done, at, found[-1], remedy, said)
            earlier = [one for one in found[:-1] if one != remedy][-_MOST_BETWEEN:]
            between = (replace(_episode(done, at, one, one, said), later=()) for one in earlier)
            yield replace(whole, between=tuple(between))
        at = found[0] if found else at + 1


def _episode(done: Sequence[_Ran], at: int, fixed: int, remedy: int, said: str) -> Episode:
    """The failure at `at`, with the call at `fixed` that worked and the one that made the
    difference.
    """
    first = done[at]
    assert first.signature is not None
    later = [one for one in done[at + 1 : fixed] if _is_same_purpose(first, one)]
    fix = done[remedy].call
    known = _bare(words_of(first.call)) | _bare(_WORD.findall(said))
    known |= _subcommands(first, done[remedy])
    return Episode(
        first.signature,
        tuple(one.signature for one in later if one.signature),
        first.call,
        _shown_line(first.run),
        fix,
        said,
        _borrowed(_bare(words_of(fix)) - known, done[:remedy]),
        "\n".join(one.run.text for one in (first, *later) if one.signature),
        _other_program(first, done[fixed]),
    )


def _fixes(done: Sequence[_Ran], at: int, *, is_ended: bool) -> list[int]:
    """The positions of the later calls that worked and may be the fix; the last is the one that is
    taken: of those that share words with the failed one the most like it, or, once the task has
    ended, of those of the same tool that do more than look. None after files were edited: then the
    edit was the repair."""
    first = done[at]
    same: list[int] = []
    others: list[int] = []
    is_editing = first.run.kind is ToolKind.EDIT
    for later in range(at + 1, len(done)):
        if same and later > same[0] + _LOOK_ON:
            break
        one = done[later]
        is_repair = one.signature is None and is_edit(one.call) and not is_editing
        if is_repair and not _is_same_purpose(first, one):
            break
        if not _is_same_tool(first, one) or not _may_be_fix(first, one):
            continue
        if one.only_looks and not first.only_looks:
            continue
        (same if is_editing or _is_same_purpose(first, one) else others).append(later)
    found = same or others
    if not found or (not same and (first.is_outside or not is_ended)):
        return []
    if first.is_outage or first.run.kind in (ToolKind.EDIT, ToolKind.READ):
        return found[:1]
    taken = 0
    for place in range(1, len(found)):
        if _is_more_like(first, done[found[place]], done[found[taken]]):
            taken = place
    kept = first.words & done[found[taken]].words
    if not is_ended and len(kept) < _LEAST_KEPT * len(first.words):
        return []  # perhaps a look round; the call that does it may follow
    return found[: taken + 1]


def _keeps_operand(first: _Ran, one: _Ran) -> bool:
    """Whether a call has more of the failed one than its program."""
    return not first.words & one.words <= first.head_words


def _is_more_like(first: _Ran, one: _Ran, other: _Ran) -> bool:
    """Whether one call does more of what the failed call was to do than another: it has more of its
    words, or as many, where those are only its program's, and is spelled more like it."""
    mine, theirs = first.words & one.words, first.words & other.words
    if len(mine) != len(theirs) or not mine or _keeps_operand(first, other):
        return len(mine) > len(theirs)
    return _likeness(first, one) > _likeness(first, other)


def _likeness(one: _Ran, other: _Ran) -> float:
    """The share of their pairs of characters that two calls have in common."""
    return len(one.pairs & other.pairs) / (len(one.pairs | other.pairs) or 1)


def _may_be_fix(first: _Ran, one: _Ran) -> bool:
    """Whether a call worked; of a call that may not have failed, whether it is a variation of it
    that certainly worked."""
    if first.is_doubtful:
        is_variation = not words_of(first.call).isdisjoint(words_of(one.call))
        return one.signature is None and is_variation and _is_same_purpose(first, one)
    refused = map(_refuses, _own_lines(one.run.text)[:1])
    return one.signature is None or (one.is_doubtful and not any(refused))


def _remedy(done: Sequence[_Ran], at: int, fixed: int) -> int | None:
    """The position of the call that made the difference: the one that worked, or, where that is the
    failed call again, the last one in between that did something. None if nothing did. An outage
    passes by itself: then only another way round it is a remedy."""
    first, last = done[at], done[fixed]
    if first.is_outage and not _goes_elsewhere(first, last):
        return None
    if not _same_call(last.call, first.call):
        return None if first.is_outside and _only_waits(first, last) else fixed
    between = range(fixed - 1, at, -1)
    is_editing = first.run.kind is ToolKind.EDIT
    return next(
        (
            position
            for position in between
            if done[position].signature is None and (is_editing or not done[position].only_looks)
        ),
        None,
    )


def _other_program(first: _Ran, last: _Ran) -> Signature | None:
    """The signature of the call that worked, if it is of another program than the failed one."""
    mine, theirs = (_head(one.call, one.run) for one in (first, last))
    return None if mine == theirs else Signature(_tool(last.call, last.run), theirs, _WORKED)


def _goes_elsewhere(first: _Ran, last: _Ran) -> bool:
    """Whether a call is of another program or subcommand than the failed one, or names another
    address."""
    heads = {*_heads(last.run.command)} - {*_heads(first.run.command)} - _PAUSES - _SETTING
    new = words_of(last.call) - words_of(first.call)
    return not all(map(_looks, heads)) or any(map(_ADDRESS.search, new))


def _only_waits(first: _Ran, last: _Ran) -> bool:
    """Whether a command is the failed one after a pause, which is no remedy of an outage."""
    command, again = first.run.command, last.run.command
    rest = again.replace(command, "", 1) if command else again
    return rest != again and not any(
        piece and piece.split()[0] not in _PAUSES for piece in map(str.strip, _PIECE.split(rest))
    )


def _borrowed(words: frozenset[str], earlier: Sequence[_Ran]) -> frozenset[str]:
    """The words that outputs of tools had named before."""
    return frozenset(
        word for word in words if len(word) > 2 and any(word in one.proposed for one in earlier)
    )


def _subcommands(first: _Ran, fix: _Ran) -> frozenset[str]:
    """The words of a remedy that only say how the program of the failed call is called: its
    subcommand, or another program that runs it, as in `bundle exec rake`. No output has to propose
    these; what they are given, such as a package, it may."""
    mine = first.head_words
    words = _QUOTED_TEXT.sub(" ", fix.run.command).split()
    found = {part for word in mine for part in word.split("-")}  # docker-compose, docker compose
    if "git" in mine:
        found |= _OF_GIT
    for at, (program, word) in enumerate(pairwise(words)):
        if program not in _HAVE_COMMANDS or not _SUBCOMMAND.match(word):
            continue
        runs_mine = word in _OPENS_A_SCRIPT and words[at + 2 : at + 3] and words[at + 2] in mine
        if program in mine or runs_mine:
            found |= {program, word}
        if program in mine and program in _HAVE_SCRIPTS and word == "run":
            found.update(words[at + 2 : at + 3])
    return _bare(found)


def _bare(words: Iterable[str]) -> frozenset[str]:
    return frozenset(word.strip(".:/") for word in words)


def _lists(one: _Ran) -> bool:
    """Whether a call only lists files."""
    heads = _heads(one.run.command) or [one.call.name.lower()]
    return one.signature is None and _LISTINGS.issuperset(heads)


def _same_call(one: ToolCall, other: ToolCall) -> bool:
    return one.name == other.name and one.arguments == other.arguments


def _is_same_tool(one: _Ran, other: _Ran) -> bool:
    """Whether two calls are of one tool, or a command names the file that was to be read."""
    if one.run.kind is ToolKind.READ and other.run.kind is ToolKind.SHELL:
        return any("/" in word for word in words_of(one.call) & words_of(other.call))
    if one.run.kind is ToolKind.OTHER:
        return one.call.name == other.call.name
    return one.run.kind is other.run.kind


def _is_same_purpose(one: _Ran, other: _Ran) -> bool:
    if not _is_same_tool(one, other):
        return False
    if one.run.kind is not ToolKind.SHELL:
        return True
    mine, theirs = one.head_words, other.head_words
    operands = other.words
    is_operand = any("." in word and word in operands for word in mine)  # bash run.sh, ./run.sh
    is_inside = not _REMOTE_SHELLS.isdisjoint(theirs) and not operands.isdisjoint(
        head.split()[0] for head in _heads(one.run.command)
    )  # docker compose exec db psql
    return is_operand or is_inside or not mine.isdisjoint(theirs)


def _shows_content(run: ToolRun) -> bool:
    """Whether an output may be the content of a file, which may be about errors."""
    is_comparison = CommandUse.COMPARE in command_uses(run.command)
    return run.kind is ToolKind.READ or (_looks(run.command) and not is_comparison)


def _looks(command: str) -> bool:
    """Whether each program of a command line only shows or compares something."""
    uses = command_uses(command)
    return bool(uses) and all(
        use in LOOKING or _only_asks(words)
        for use, words in zip(uses, split_commands(command), strict=True)
    )


def _only_asks(words: Sequence[str]) -> bool:
    """Whether a command only asks its program something, as `pip config list`, `node --version`."""
    first, *rest = words[1:3] or [""]
    if words[0].rsplit("/", 1)[-1] in _HAVE_COMMANDS and (
        first in _LOOKING_COMMANDS
        or (first not in _TAKE_NAMES and not _LOOKING_COMMANDS.isdisjoint(rest))
    ):
        return True
    is_short = len(words) == _PROGRAM_AND_OPTION and first in _ASKING_OPTIONS
    return is_short or not _ASKING_WORDS.isdisjoint(words)
