"""The review of a lesson: a line that a model wrote about failed calls and the call that worked.

The model may word what it was shown, and bring in nothing: programs, flags, hosts and paths must
stand in the calls or in the person's own words. What an output proposed, or what concerns other
hosts, installing from elsewhere, force, permissions or credentials, is for the person to decide."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from metaclaw.domain.candidate import Objection
from metaclaw.domain.chat import ToolCall
from metaclaw.domain.episode import Episode
from metaclaw.privacy.capabilities import capabilities
from metaclaw.privacy.provenance import command_in
from metaclaw.text import VERY_COMMON_WORDS, list_terms

MOST_CHARS: Final = 240
_LEAST_SAID: Final = 2  # terms of what the person said
_MOST_COPIED: Final = 2  # words in a row from an output
_MOST_OF_SYMPTOM: Final = 4  # the same, of how the failed call failed
_JOINS: Final = frozenset(("and", "or", "not", "is", "the", "a", "to", "of", "in", "for", "with"))
_QUOTED = re.compile(r"`([^`\n]+)`")
_TECHNICAL = re.compile(
    r"(?<![\w/.+-])(?:-{1,2}[A-Za-z][\w-]*|\+[a-z][\w.-]*|[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+"
    r"|[\w.~-]*/[\w./~-]+|\w[\w-]*(?:\.[A-Za-z]\w*)+)"
)
# A file that is read, not run: naming it tells the agent to do nothing.
_PLAIN_FILE = re.compile(
    r"[\w-]+\.(?:json|toml|ya?ml|mod|lock|xml|txt|md|cfg|ini|properties|sln|csproj|cabal|gradle)",
    re.I,
)
# A word in the place of one that differs between tasks.
_PLACEHOLDER = re.compile(r"<[\w -]{1,30}>|(?<![\w-])[A-Z][A-Z_]+(?![\w(])(?:[= ]value\b)?")
_CLAUSE = re.compile(r"[;:,.](?:\s|$)|\b(?:since|because|as)\b")
_MOST_PLACEHOLDERS: Final = 3
_SIGNS: Final = {
    "ampersand": "&", "asterisk": "*", "backslash": "\\", "backtick": "`", "brace": "{}",
    "bracket": "[]", "colon": ":", "comma": ",", "dash": "-", "dollar": "$", "dot": ".",
    "equals": "=", "hash": "#", "hyphen": "-", "newline": "\n", "parentheses": "()", "pipe": "|",
    "point": ".", "quotation": "\"'", "quote": "\"'", "semicolon": ";", "slash": "/", "space": " ",
    "star": "*", "tab": "\t", "underscore": "_",
}  # fmt: skip
_WORD = re.compile(r"[\w+./=:-]{2,}")
_PLAIN_WORD = re.compile(r"[^\W_]+")
# What turns something off, overrides it, or raises rights, in the words of flags and settings.
_RISKY = re.compile(
    r"(?<![a-z])(?:force\w*|hard|sudo|doas|chmod|chown|root|admin\w*|superuser|privileged|owner"
    r"|public|no|not?|non|skip\w*|dis(?:able|abled|allow)|ignore\w*|bypass\w*|without|unsafe"
    r"|insecure|allow\w*|trust\w*|verify|ssl\w*|tls|cert\w*|sign|auth\w*|hooks?\w*|lock|sum\w*db"
    r"|drop|destroy|purge|prune|reset|wipe|delete|yes|yolo|password|passwd|token|secret"
    r"|credential\w*|api[_-]?key|off|false|none|null|disabled)(?![a-z0-9])"
    r"|=0$|^--profile\b|_PROFILE=|(?-i:^-[kyu]$)",
    re.IGNORECASE,
)
# What needs the person's own words, even if the failed call did it, too.
_GRAVE: Final = frozenset(
    (
        "run as root",
        "turn protection off",
        "skip tests or checks",
        "delete many files or data",
        "confirm what destroys",
    )
)
# A dotted name that is set as a module, such as `DJANGO_SETTINGS_MODULE=shop.settings.dev`.
_MODULE = re.compile(
    r"(?:(?<![a-z])(?:module|settings|package|class)[= ]|(?<=\s)-m )[\"']?((?:[a-z_]\w*\.)+\w+)(?![\w.:/@-])",
    re.IGNORECASE,
)
_ROOT = re.compile(r"(?<![\w-])(?:sudo|doas|pkexec)\b", re.IGNORECASE)
# Who or what has authority over an agent, and what such an authority does. Only both together claim
# a permission: `users`, `rules` and `system` alone are names of things, too.
_AUTHORITY = re.compile(
    r"\b(?:users?|persons?|humans?|owner|system|assistant|instructions?|rules?|prompt)\b",
    re.IGNORECASE,
)
_GRANTS = re.compile(
    r"\b(?:permission\w*|permit\w*|allow\w*|approv\w*|ignor\w*|without asking)\b", re.IGNORECASE
)


def review_lesson(line: str, episodes: Sequence[Episode]) -> Objection | None:
    """Why a lesson may not come into force by itself; None if it may."""
    between = [other for one in episodes for other in one.between]
    episodes = [*episodes, *(one for one in between if _names_its_fix(line, [one], ""))]
    if "\n" in line.strip() or len(line) > MOST_CHARS:
        return Objection(f"it is not one line of at most {MOST_CHARS} characters")
    made = [call for episode in episodes for call in (episode.failed, episode.fix)]
    calls = "\n".join(map(call_text, made))
    tools = "\n".join(" ".join((call.name, *call.fields)) for call in made)
    said = "\n".join(episode.said for episode in episodes)
    known = f"{calls}\n{said}"
    if all(
        any(not _stands_in(word, known) for word in pattern.findall(line))
        for pattern in (_AUTHORITY, _GRANTS)
    ):
        return Objection("it says what somebody permits, not what a call needs")
    outputs = "\n".join(episode.output for episode in episodes)
    rest = _QUOTED.sub(
        lambda quoted: " " if any(_is_like(quoted[1], one) for one in episodes) else quoted[0], line
    )
    for name in (*_QUOTED.findall(rest), *_TECHNICAL.findall(rest)):
        if _stands_in(name, f"{known}\n{tools}") or any(_is_like(name, one) for one in episodes):
            continue
        if not _stands_in(name, outputs):
            return Objection(f"{name} stands in no call and in nothing the person said")
        if not _PLAIN_FILE.fullmatch(name):
            return Objection(f"only an output of a tool named {name}", waits=True)
    if not _names_its_fix(line, episodes, said):
        return Objection("it names nothing of the call that worked")
    proposed = {word for one in episodes for word in one.borrowed}
    if borrowed := sorted(word for word in proposed if _stands_in(word, line)):
        return Objection(f"an output of a tool had named {borrowed[0]} before", waits=True)
    remedy = line
    for clause in _symptoms(line, episodes):
        if not _copied(clause, outputs, known, _MOST_OF_SYMPTOM):
            remedy = remedy.replace(clause, " ")
    if copied := _copied(remedy, outputs, known, _MOST_COPIED):
        return Objection(f"an output of a tool had said “{copied}” before", waits=True)
    if grave := _grave("\n".join(call_text(one.fix) for one in episodes), said):
        return Objection(f"it concerns commands: {', '.join(grave)}", waits=True)
    added = sorted({word for episode in episodes for word in _added(episode)})
    failed = "\n".join(call_text(episode.failed) for episode in episodes)
    risk = _risk(line, calls, added, f"{said}\n{failed}", said)
    return Objection(f"it concerns {risk}", waits=True) if risk else None


def _is_like(name: str, episode: Episode) -> bool:
    """Whether one of the calls has these words, with others in the place of the placeholders."""
    parts = [r"\s+".join(map(re.escape, part.split(" "))) for part in _PLACEHOLDER.split(name)]
    if len(parts) - 1 > _MOST_PLACEHOLDERS or not any(map(_PLAIN_WORD.search, parts)):
        return False
    pattern = r"[^\s;&|]{1,80}".join(parts)
    made = (episode.fix, episode.failed)
    return any(re.search(pattern, call_text(call)) is not None for call in made)


def _symptoms(line: str, episodes: Sequence[Episode]) -> Iterator[str]:
    """The clauses that say how the failed call failed, as its output does: they begin with what only
    that call has, and go on like a statement, not like an order."""
    gone = {word for one in episodes for word in _removed(one) if not word.isalpha()}
    for clause in _CLAUSE.split(line):
        words = _plain(clause).split()
        if gone.intersection(words[:1]) and not list_terms(" ".join(words[1:2])):
            yield clause


def _copied(line: str, outputs: str, known: str, most: int) -> str:
    """More words in a row than this that the line has from an output, and neither from a call nor the
    person: an order in plain words would come in like this."""
    said, brought = _in_a_row(known), _in_a_row(outputs)
    words = _in_a_row(line).split()
    for at in range(len(words) - most):
        run = f" {' '.join(words[at : at + most + 1])} "
        is_new = any(f" {word} " not in said for word in run.split() if word not in _JOINS)
        if is_new and run in brought and run not in said:
            return run.strip()
    return ""


def _in_a_row(text: str) -> str:
    return " ".join(("", *_PLAIN_WORD.findall(text.lower()), ""))


def _risk(line: str, calls: str, added: Sequence[str], known: str, said: str) -> str:
    """What the person must decide about. `added` are the words that the working call has and the
    failed one has not, `known` is what brings in nothing new.
    """
    text = f"{line}\n{calls}"
    found = capabilities(text) - capabilities(known)
    # A dotted name of words that were there, such as a module, is no host, nor is what the calls
    # name as a module only.
    elsewhere = capabilities(_MODULE.sub(" ", calls)).hosts
    modules = {one.lower() for one in _MODULE.findall(calls)} - elsewhere
    hosts = frozenset(
        host
        for host in found.hosts
        if host not in modules and not _stands_in(host.replace(".", " "), known)
    )
    found = found._replace(hosts=hosts)
    if any(found._replace(paths=frozenset())):
        return found.words()
    risky = (word for word in added if _RISKY.search(word) or _is_risky_for_git(word, text))
    return next((word for word in risky if word.lower() not in said.lower().split()), "")


def _grave(fixes: str, said: str) -> list[str]:
    """What the working calls do that the person has to want, and did not speak of."""
    found, wanted = (
        capabilities(text).commands | ({"run as root"} if _ROOT.search(text) else set())
        for text in (fixes, said)
    )
    return sorted(_GRAVE & (found - wanted))


def _is_risky_for_git(word: str, text: str) -> bool:
    """Whether a word is git's short form of a commit without its hooks, or of a forced push."""
    skips_hooks = re.fullmatch(r"-[a-z]*n[a-z]*", word) is not None
    return (skips_hooks and "git commit" in text) or (word.startswith("+") and "git push" in text)


def _stands_in(name: str, text: str) -> bool:
    """Whether each word of a name stands in the text."""
    low = text.lower()
    return all((word.strip("./;,") or word).lower() in low for word in name.split())


def _names_its_fix(line: str, episodes: Sequence[Episode], said: str) -> bool:
    """Whether the line has a word that the working call has and the failed one has not, or a word
    of what the person said.
    """
    if any(_names_sign(line, one) for one in episodes):
        return True
    mine = _words(line)
    if not any(_added(one) for one in episodes):  # they differ in spaces or in the order of words
        return any(mine & _words(_arguments(one)) for one in episodes)
    flags = {word for one in episodes for word in _added(one) if not word.isalnum()}
    if any(flag in line.replace(".", " ").split() for flag in flags):
        return True
    programs = {word for one in episodes for word in _added(one) & _programs(one)}
    if programs & {word.strip(".,;:`") for word in line.split()}:
        return True
    if len(set(list_terms(line)) & set(list_terms(said))) >= _LEAST_SAID:
        return True
    if any(mine & _words(" ".join(_added(one))) for one in episodes):
        return True
    return any(_names_common_word(line, one) for one in episodes)


def _names_common_word(line: str, episode: Episode) -> bool:
    """Whether the line has a common word of the fix as the fix has it: beside the same word, as the
    value of the same program's flag, or together with what it replaced."""
    plain, mine = f" {_plain(line)} ", _parts(line)
    words, added = call_text(episode.fix).split(), _added(episode)
    for before, word in pairwise(words):
        if word not in added:
            continue
        is_value = before in added and before.startswith("-") and _plain(word) in mine
        if f" {_plain(before)} {_plain(word)} " in plain or (is_value and _plain(words[0]) in mine):
            return True
    failed, fixed = (_parts(call_text(call)) for call in (episode.failed, episode.fix))
    put, replaced = mine & _parts(" ".join(added)), mine & (failed - fixed)
    return bool(put) and bool(replaced - put)


def _names_sign(line: str, episode: Episode) -> bool:
    """Whether the line has signs that the working call has and the failed one has not: in
    backticks, alone, or by their name."""
    failed, fix = call_text(episode.failed), call_text(episode.fix)
    words = set(_PLAIN_WORD.findall(line.lower()))
    signs = [*_QUOTED.findall(line), *(word for word in line.split() if not _WORD.search(word))]
    for name, named in _SIGNS.items():
        signs += named if words & {name, f"{name}s", f"{name}es"} else ""
    return any(sign in fix and sign not in failed for sign in signs)


def _plain(text: str) -> str:
    return " ".join(text.replace("`", " ").replace(".", " ").replace(",", " ").lower().split())


def _programs(episode: Episode) -> set[str]:
    """The first words of the commands of the fix, which may be very common words."""
    pieces = re.split(r"[;&|\n]+", call_text(episode.fix))
    return {piece.split()[0] for piece in pieces if piece.strip()}


def _added(episode: Episode) -> set[str]:
    return set(call_text(episode.fix).split()) - set(call_text(episode.failed).split())


def _removed(episode: Episode) -> set[str]:
    """The words, and values of arguments, that only the failed call has."""
    failed, fix = (
        {part for word in text.lower().split() for part in (word, word.rpartition("=")[2])}
        for text in (call_text(episode.failed), call_text(episode.fix))
    )
    return failed - fix


def _arguments(episode: Episode) -> str:
    return f"{episode.failed.arguments} {call_text(episode.failed)}"


def _words(text: str) -> set[str]:
    """The words and parts of words in a text that are not common."""
    rare = _parts(text) - set(VERY_COMMON_WORDS)
    return {word for word in rare if not word.isalpha() or list_terms(word)}


def _parts(text: str) -> set[str]:
    found = {word.strip("./-").lower() for word in _WORD.findall(text)}
    parts = {part for word in found for part in re.split(r"[/=:]", word)}
    return {word for word in found | parts if len(word) > 1}


def call_text(call: ToolCall) -> str:
    """What a call does: its command, or the values of its arguments."""
    arguments = call.fields
    command = command_in(arguments)
    if command is not None or not arguments:
        return command or call.arguments
    return " ".join(
        # The key of a text would be taken for a part of its first word.
        value if isinstance(value, str) and " " in value.strip() else f"{key}={value}"
        for key, value in arguments.items()
    )
