"""Command-line programs: which start others, which have subcommands behind options, and which words are only text to them."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final


def words(text: str) -> frozenset[str]:
    """A set of words."""
    return frozenset(text.split())


SHELLS: Final = words("bash sh zsh dash ksh ash mksh fish pwsh powershell cmd")
DATABASES: Final = words(
    "psql mysql mariadb sqlite3 sqlite sqlcmd duckdb clickhouse clickhouse-client mongosh mongo redis-cli"
    " cqlsh bq snowsql usql cockroach"
)
INTERPRETERS: Final = words(
    "python pypy py ipython node nodejs deno bun perl ruby php lua Rscript tsx ts-node osascript awk gawk mawk"
)
_NAMED_VERSION: Final = re.compile(r"(pip|python|pypy|easy_install|node|ruby|perl|php|lua)[\d.]+")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
_VERSION: Final = re.compile(r"v?\d[\w.]*|lts(?:/\S+)?|node|stable|latest|default|current|system")

_Starter = tuple[frozenset[str], int]
_OPTIONAL: Final = -1


def _starter(options: str = "", operands: int = 0) -> _Starter:
    return words(options), operands


_RUN_OPTIONS: Final = (
    "-e -v -p -w -u -l -h -m -c -a --env --volume --publish --workdir --user --name --network --entrypoint"
    " --env-file --label --mount"
    " --platform --hostname --add-host --memory --cpus --gpus --device --cap-add --cap-drop --restart"
    " --shm-size --ulimit --pull --ipc"
    " --pid --userns --security-opt --tmpfs --index --detach-keys"
)
_STARTERS: Final[dict[str, _Starter]] = {
    "sudo": _starter("-u -g -h -p -C -D -R -T -U -r -t --user --group --host --prompt --chdir"),
    "doas": _starter("-u -C"),
    "pkexec": _starter("--user"),
    "env": _starter("-u -C --unset --chdir"),
    "exec": _starter("-a"),
    "nice": _starter("-n --adjustment"),
    "ionice": _starter("-c -n -p --class --classdata"),
    "stdbuf": _starter("-i -o -e"),
    "timeout": _starter("-s -k --signal --kill-after", 1),
    "gtimeout": _starter("-s -k", 1),
    "chroot": _starter("", 1),
    "flock": _starter("-w -E --timeout", 1),
    "caffeinate": _starter("-t -w"),
    "xargs": _starter("-I -n -P -L -d -a -E -s --max-args --max-procs --delimiter --arg-file --replace"),
    "parallel": _starter("-j --jobs -a -S"),
    "watch": _starter("-n --interval"),
    "strace": _starter("-e -o -p -E -s"),
    "ltrace": _starter("-e -o -p"),
    "time": _starter("-f -o"),
    "ssh": _starter("-p -i -l -o -F -J -L -R -D -W -b -c -m", 1),
    "sshpass": _starter("-p -f -d"),
    "taskset": _starter("", 1),
    "chrt": _starter("", 1),
    "numactl": _starter("-m -C -N -i"),
    "cpulimit": _starter("-l -p"),
    "prlimit": _starter(),
    "systemd-run": _starter("-p -u --unit --property --slice"),
    "gosu": _starter("", 1),
    "su-exec": _starter("", 1),
    "runuser": _starter("-u"),
    "setpriv": _starter("--reuid --regid"),
    "nsenter": _starter("-t -S -G"),
    "faketime": _starter("-f", 1),
    "envdir": _starter("", 1),
    "xvfb-run": _starter("-n -s -e -f -p -w --server-num --server-args"),
    "cross-env": _starter(),
    "dotenv": _starter("-e -f -p -c"),
    "env-cmd": _starter("-f -e -r"),
    "npx": _starter("-p --package -w --workspace"),
    "bunx": _starter("-p --package"),
    "uvx": _starter("--from --with -p --python --index --with-requirements"),
    "corepack": _starter(),
    "valgrind": _starter(),
    "entr": _starter(),
    "wsl": _starter("-d -u --distribution --user --cd"),
    "screen": _starter("-S -c -h -s -t"),
    "direnv exec": _starter("", 1),
    "nvm exec": _starter("", _OPTIONAL),
    "nvm run": _starter("", _OPTIONAL),
    "fnm exec": _starter("--using"),
    "volta run": _starter("--node --npm --yarn"),
    "asdf exec": _starter(),
    "mise exec": _starter(),
    "mise x": _starter(),
    "git bisect run": _starter(),
    "perf stat": _starter("-e -r"),
    "heroku run": _starter("-a --app"),
    "railway run": _starter("-s -e"),
    "conda run": _starter("-n -p --name --prefix"),
    "mamba run": _starter("-n -p --name --prefix"),
    "micromamba run": _starter("-n -p --name --prefix"),
    "aws-vault exec": _starter("-d", 1),
    "chamber exec": _starter("", 1),
    **{
        name: _starter()
        for name in words(
            "command builtin nohup setsid unbuffer busybox toybox noglob nocorrect catchsegv proxychains"
            " proxychains4 torsocks fakeroot"
            " eatmydata dbus-run-session systemd-inhibit firejail setarch linux64 linux32 rlwrap chronic tini"
            " dumb-init retry winpty"
        )
    },
    **{f"{name} exec": _starter() for name in words("rbenv pyenv bundle nodenv goenv jenv")},
    **{f"{name} exec": _starter("-p --package -w --workspace --filter -F -C") for name in words("npm pnpm yarn")},
    **{f"{name} dlx": _starter("-p --package") for name in words("pnpm yarn")},
    "npm x": _starter("-p --package"),
    "bun x": _starter(),
    "pipx run": _starter("--spec --python"),
    "uv tool run": _starter("--from --with -p --python"),
    **{
        f"{name} run": _starter("-n -p --name --with --extra --group --python --env-file --project --directory")
        for name in words("uv poetry pipenv pdm hatch rye pixi")
    },
    **{f"{name} exec": _starter(_RUN_OPTIONS, 1) for name in words("docker podman nerdctl docker-compose lxc")},
    **{f"{name} run": _starter(_RUN_OPTIONS, 1) for name in words("docker podman nerdctl docker-compose")},
}
"""What starts another command, by its name, or its first words: the options that take a value, and how many words come before the
command; `_OPTIONAL` is one that looks like a version."""
_GLOBAL_OPTIONS: Final[dict[str, frozenset[str]]] = {
    "git": words("-c -C --git-dir --work-tree --namespace --exec-path --config-env --super-prefix --attr-source"),
    "pip": words("--python --log --proxy --timeout --retries --cache-dir --trusted-host --cert"),
    "npm": words("--prefix -C -w --workspace --registry --userconfig --loglevel"),
    "pnpm": words("-C --dir --filter -F"),
    "yarn": frozenset(("--cwd",)),
    "docker": words("-H --host --context -l --log-level --config -c"),
    "docker-compose": words("-f -p --file --project-name --profile --env-file --project-directory --ansi --progress"),
    "kubectl": words("-n --namespace --context --cluster --kubeconfig --user -s --server"),
    "cargo": words("--config -C --color -Z"),
    "uv": words("--directory --project --color --config-file --cache-dir --python -p"),
    "gh": frozenset(("-R", "--repo")),
    "terraform": frozenset(),
    "helm": words("-n --namespace --kube-context --kubeconfig"),
    "aws": words("--profile --region --endpoint-url --output"),
    "go": frozenset(("-C",)),
    "make": words("-C -f -j --directory --file"),
    "metaclaw": frozenset(("--home",)),
}
"""Programs with subcommands, and those of their options before the subcommand that take a value."""
QUOTING: Final = words(
    "echo printf print grep egrep fgrep zgrep rg ag ack sed jq yq cat tee : true false test [ [[ export declare local readonly"
    " typeset logger say notify-send man tldr whatis apropos which type whereis hash fold column less more wc sort head tail"
    " pkill pgrep killall for case select alias unalias complete bind figlet cowsay wall write mail sendmail"
)
"""Programs to which all of their words and what they read are only text."""
RECORDING: Final = words("git gh glab hub hg svn jj tea bd")
_NOTABLE: Final = words(
    "git pip npm npx yarn pnpm sudo doas rm chmod curl wget bash sh zsh docker kubectl terraform psql mysql"
    " sqlite3 tsc mkdir metaclaw"
)
_PLAIN_PROGRAMS: Final = (
    RECORDING
    | DATABASES
    | INTERPRETERS
    | SHELLS
    | words(
        "cd ls cp mv mkdir rmdir rm ln touch cat tee chmod chown stat file find fd tar zip unzip gzip apt"
        " apt-get brew dnf yum pacman apk snap"
        " port nix-env cargo go make cmake ninja npm pnpm yarn pip pipx uv poetry conda gem composer docker"
        " podman kubectl helm terraform aws"
        " gcloud az curl wget man tldr help type hash ps pkill pgrep killall kill systemctl service"
        " journalctl useradd usermod groupadd gpasswd"
        " adduser id groups chsh which whereis dpkg rpm choco winget scoop asdf mise volta nvm code vim nano"
        " emacs diff cmp patch rsync scp"
        " open xdg-open set unset source . pytest jest vitest tox nox ruff mypy black eslint prettier tsc"
    )
)
"""Programs that start no others, so that the names of programs among their words mean nothing."""


def shortened(texts: Sequence[str]) -> list[str] | None:
    """A command without what only starts it, one step further; None where nothing is left to take away."""
    if not texts or not texts[0]:
        return None
    first = texts[0]
    if _ASSIGNMENT.match(first) and len(texts) > 1:
        return list(texts[1:])
    if first[0] in "!%" and first[1:2].isalpha():  # as a notebook has it
        return [first[1:], *texts[1:]]
    name = program_name(first)
    if name != first:
        return [name, *texts[1:]]
    if name in QUOTING:
        return None
    if name == "docker" and texts[1:2] == ["compose"]:
        return ["docker-compose", *texts[2:]]
    if name == "command" and texts[1:2] in (["-v"], ["-V"]):
        return None
    for begin in (3, 2, 1):
        starter = _STARTERS.get(" ".join(texts[:begin])) if len(texts) > begin else None
        if starter is not None:
            rest = _behind(texts, begin, *starter)
            return rest if rest and len(rest) < len(texts) else None
    if name in ("python", "pypy", "py"):
        return _module(texts)
    if name in _GLOBAL_OPTIONS:
        rest = _behind(texts, 1, _GLOBAL_OPTIONS[name], 0)
        if rest and len(rest) + 1 < len(texts):
            return [name, *rest]
    if "--" in texts[1:-1] and name not in RECORDING | SHELLS | INTERPRETERS:
        rest = list(texts[texts.index("--", 1) + 1 :])
        return None if rest[0].startswith("-") else rest
    return _behind_unknown(texts) if name not in _PLAIN_PROGRAMS else None


def _behind_unknown(texts: Sequence[str]) -> list[str] | None:
    """What an unknown program seems to start: a notable program among its words, with words behind it."""
    at = next((at for at, text in enumerate(texts[1:-1], 1) if program_name(text) in _NOTABLE), None)
    return None if at is None else list(texts[at:])


def _behind(texts: Sequence[str], at: int, options: frozenset[str], operands: int) -> list[str]:
    """What follows the options, settings and operands of a command that starts another."""
    while at < len(texts):
        text = texts[at]
        if text == "--":
            return list(texts[at + 1 + max(operands, 0) :])
        if text.startswith("-") and len(text) > 1:
            at += 2 if text in options else 1
        elif _ASSIGNMENT.match(text):
            at += 1
        elif operands > 0:
            operands -= 1
            at += 1
        elif operands == _OPTIONAL and _VERSION.fullmatch(text):
            operands = 0
            at += 1
        else:
            break
    return list(texts[at:])


def _module(texts: Sequence[str]) -> list[str] | None:
    """`python -m pip install` as `pip install`."""
    at = 1
    while at < len(texts) and texts[at].startswith("-"):
        module = re.fullmatch(r"-[A-Za-z]*m(.*)", texts[at])
        if module is not None:
            rest = [module[1], *texts[at + 1 :]] if module[1] else list(texts[at + 1 :])
            return rest or None
        at += 2 if texts[at] in ("-X", "-W") else 1
    return None


def is_starter(texts: Sequence[str]) -> bool:
    """Whether a command starts another."""
    return any(" ".join(texts[:count]) in _STARTERS for count in (1, 2, 3))


@lru_cache(4096)
def program_name(text: str) -> str:
    """The name of a program, without its folder, `.exe` and version."""
    name = re.split(r"[/\\]", text)[-1] if "/" in text or "\\" in text else text
    name = name.removesuffix(".exe")
    version = _NAMED_VERSION.fullmatch(name)
    return version[1] if version else name or text


_MOST_STEPS: Final = 8
_TESTING: Final = words(
    "pytest py.test jest vitest mocha go cargo rspec ctest playwright cypress phpunit dotnet swift tox nox unittest ava tap"
)
_TEST_OPTIONS: Final = words("-k -t -g -run --run -e -R -m --grep --testNamePattern --test-name-pattern --filter -bench -skip")
_TEXT_OPTIONS: Final = words(
    "--message --title --body --description --subject --notes --comment --summary --commit-message --grep --author --trailer"
)
_HELP: Final = words("--help --version -help -version")
_MESSAGE_OPTION: Final = re.compile(r"-[a-zA-Z]*m")
_GIT_SEARCH_OPTIONS: Final = words("-S -G -L")
_OTHER_TEXT_OPTIONS: Final = words("-b -t -n -c")
_BLANK: Final = re.compile(r"\S\s+\S")


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
    if shows_help(texts):
        return [(0, last)]
    if name in QUOTING or (name == "command" and plain[1:2] in (["-v"], ["-V"])):
        return [(offset + 1, last)] if last > offset else []
    if name in ("awk", "gawk") and not any("system" in text or "|" in text for text in plain):
        return [(offset + 1, last)] if last > offset else []
    if plain[:2] == ["git", "grep"] and last > offset + 1:
        return [(offset + 2, last)]
    found = dict.fromkeys(_text_options(texts, offset + 1, name))
    if name not in INTERPRETERS and name not in DATABASES:
        found |= {(at, at): None for at, text in enumerate(texts) if at and _BLANK.search(text)}
    return sorted(found)


def shows_help(texts: Sequence[str]) -> bool:
    """Whether a command only tells of itself."""
    if not texts or is_starter(texts) or program_name(texts[0]) in SHELLS | INTERPRETERS:
        return texts[1:2] != [] and texts[1] in _HELP
    for at, text in enumerate(texts[1:], 1):
        if text == "--":
            return False
        if text in _HELP and not _MESSAGE_OPTION.fullmatch(texts[at - 1]):
            return True
    return program_name(texts[0]) == "git" and texts[-1] == "-h" and len(texts) == 3


def _text_options(texts: Sequence[str], begin: int, name: str) -> Iterator[tuple[int, int]]:
    short = frozenset[str]()
    if name in RECORDING:
        short = _GIT_SEARCH_OPTIONS if name == "git" else _OTHER_TEXT_OPTIONS
    elif name in _TESTING:
        short = _TEST_OPTIONS
    value = -1
    for at, text in enumerate(texts[begin:], begin):
        if at == value:
            yield at, at
            continue
        option, sign, _ = text.partition("=")
        takes_text = text in _TEXT_OPTIONS or text in short or (name in RECORDING and _MESSAGE_OPTION.fullmatch(text))
        if sign and (option in _TEXT_OPTIONS or option in short):
            yield at, at
        elif takes_text:
            value = at + 1
        elif name in RECORDING and re.match(r"-[aqsve]*m(?=\S)|-[SGL](?=\S)", text):
            yield at, at
