"""Programs of the command line, as far as a reader of commands must know them: which start others, which have subcommands behind
options, and which only print, search or record the words they are given."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

_MOST_STEPS: Final = 8


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHELLS: Final = _words("bash sh zsh dash ksh ash mksh fish pwsh powershell cmd")
_NAMED_VERSION: Final = re.compile(r"(pip|python|pypy|easy_install|node|ruby|perl)[\d.]+")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")

_Starter = tuple[frozenset[str], int]


def _starter(options: str = "", operands: int = 0) -> _Starter:
    return _words(options), operands


_STARTERS: Final[dict[str, _Starter]] = {
    "sudo": _starter("-u -g -h -p -C -D -R -T -U -r -t --user --group --host --prompt --chdir"),
    "doas": _starter("-u -C"),
    "pkexec": _starter("--user"),
    "env": _starter("-u -C --unset --chdir"),
    "exec": _starter("-a"),
    "nice": _starter("-n"),
    "ionice": _starter("-c -n"),
    "stdbuf": _starter("-i -o -e"),
    "timeout": _starter("-s -k --signal --kill-after", 1),
    "gtimeout": _starter("-s -k", 1),
    "chroot": _starter("", 1),
    "flock": _starter("-w -E", 1),
    "caffeinate": _starter("-t -w"),
    "xargs": _starter("-I -n -P -L -d -a -E -s --max-args --max-procs --delimiter"),
    "parallel": _starter("-j --jobs"),
    "watch": _starter("-n --interval"),
    "strace": _starter("-e -o -p"),
    "time": _starter("-f -o"),
    "ssh": _starter("-p -i -l -o -F -J -L -R -D -W -b -c -m", 1),
    **{name: _starter() for name in _words("command builtin nohup setsid unbuffer busybox noglob catchsegv proxychains torsocks")},
    **{
        f"{name} run": _starter("-n -p --name --with --extra --group")
        for name in _words("uv poetry pipenv pdm hatch conda mamba rye")
    },
    **{f"{name} exec": _starter("-e -u -w --env --user --workdir --index", 1) for name in ("docker", "podman", "docker-compose")},
}
"""What starts another command, by its name, or its name and first word: the options that take a value, and how many words come
before the command."""
_GLOBAL_OPTIONS: Final[dict[str, frozenset[str]]] = {
    "git": _words("-c -C --git-dir --work-tree --namespace --exec-path --config-env --super-prefix"),
    "pip": _words("--python --log --proxy --timeout --retries --cache-dir --trusted-host --cert"),
    "npm": _words("--prefix -C -w --workspace --registry --userconfig --loglevel"),
    "pnpm": _words("-C --dir --filter -F"),
    "yarn": frozenset(("--cwd",)),
    "docker": _words("-H --host --context -l --log-level --config"),
    "kubectl": _words("-n --namespace --context --cluster --kubeconfig --user -s --server"),
    "cargo": _words("--config -C --color -Z"),
    "uv": _words("--directory --project --color --config-file --cache-dir --python -p"),
    "gh": frozenset(("-R", "--repo")),
    "terraform": frozenset(),
    "helm": _words("-n --namespace --kube-context --kubeconfig"),
    "aws": _words("--profile --region --endpoint-url --output"),
    "go": frozenset(("-C",)),
    "make": _words("-C -f -j --directory --file"),
}
"""Programs with subcommands, and those of their options before the subcommand that take a value."""
QUOTING: Final = _words(
    "echo printf print grep egrep fgrep zgrep rg ag ack sed jq yq cat tee : true false test [ [[ export declare local readonly"
    " typeset logger say notify-send man tldr whatis apropos which type whereis fold column less more wc sort head tail"
)
"""Programs to which all of their words and what they read are only text."""
RECORDING: Final = _words("git gh glab hub hg svn jj tea bd")
_TEXT_OPTIONS: Final = _words(
    "--message --title --body --description --subject --notes --comment --summary --commit-message --grep"
)
_MESSAGE_OPTION: Final = re.compile(r"-[a-zA-Z]*m")
_GIT_SEARCH_OPTIONS: Final = _words("-S -G")
_OTHER_TEXT_OPTIONS: Final = _words("-b -t -n -c")


def shortened(texts: Sequence[str]) -> list[str] | None:
    """A command without what only starts it, one step further; None where nothing is left to take away."""
    if not texts:
        return None
    first = texts[0]
    if _ASSIGNMENT.match(first) and len(texts) > 1:
        return list(texts[1:])
    name = program_name(first)
    if name != first:
        return [name, *texts[1:]]
    starter = _STARTERS.get(name)
    begin = 1
    if starter is None and len(texts) > 1:
        starter, begin = _STARTERS.get(f"{name} {texts[1]}"), 2
    if starter is not None:
        rest = _behind(texts, begin, *starter)
        return rest if rest and len(rest) < len(texts) else None
    if name in ("python", "pypy", "py"):
        return _module(texts)
    if name in _GLOBAL_OPTIONS:
        rest = _behind(texts, 1, _GLOBAL_OPTIONS[name], 0)
        if rest and len(rest) + 1 < len(texts):
            return [name, *rest]
    if "--" in texts[1:-1] and name not in RECORDING:
        return list(texts[texts.index("--", 1) + 1 :])
    return None


def _behind(texts: Sequence[str], at: int, options: frozenset[str], operands: int) -> list[str]:
    """What follows the options, settings and operands of a command that starts another."""
    while at < len(texts):
        text = texts[at]
        if text == "--":
            at += 1
            break
        if text.startswith("-") and len(text) > 1:
            at += 2 if text in options else 1
        elif _ASSIGNMENT.match(text):
            at += 1
        elif operands:
            operands -= 1
            at += 1
        else:
            break
    return list(texts[at:])


def _module(texts: Sequence[str]) -> list[str] | None:
    """`python -m pip install` as `pip install`."""
    for at, text in enumerate(texts[1:], 1):
        if not text.startswith("-"):
            return None
        module = re.fullmatch(r"-[A-Za-z]*m(.*)", text)
        if module is not None:
            rest = [module[1], *texts[at + 1 :]] if module[1] else list(texts[at + 1 :])
            return rest or None
    return None


def program_name(text: str) -> str:
    """The name of a program, without its folder, `.exe` and version."""
    name = re.split(r"[/\\]", text)[-1] if "/" in text or "\\" in text else text
    name = name.removesuffix(".exe")
    version = _NAMED_VERSION.fullmatch(name)
    return version[1] if version else name or text


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
    if name in QUOTING:
        return [(offset + 1, last)] if last > offset else []
    if name in ("awk", "gawk") and not any("system" in text or "|" in text for text in plain):
        return [(offset + 1, last)] if last > offset else []
    if plain[:2] == ["git", "grep"] and last > offset + 1:
        return [(offset + 2, last)]
    return list(_text_options(texts, offset + 1, name))


def _text_options(texts: Sequence[str], begin: int, name: str) -> Iterator[tuple[int, int]]:
    short = frozenset[str]() if name not in RECORDING else _GIT_SEARCH_OPTIONS if name == "git" else _OTHER_TEXT_OPTIONS
    for at, text in enumerate(texts[begin:], begin):
        option, sign, _ = text.partition("=")
        takes_text = text in _TEXT_OPTIONS or text in short or (name in RECORDING and _MESSAGE_OPTION.fullmatch(text))
        if sign and option in _TEXT_OPTIONS:
            yield at, at
        elif takes_text and at + 1 < len(texts) and not texts[at + 1].startswith("-"):
            yield at + 1, at + 1
        elif name in RECORDING and re.match(r"-m(?=\S)", text):
            yield at, at
