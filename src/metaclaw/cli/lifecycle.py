"""`metaclaw start|stop|restart|logs|page`: start the proxy in this terminal or in the background,
stop it, show its log and its page."""

import gc
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit

import click

from metaclaw import __version__
from metaclaw.cli.agents import provider_kinds
from metaclaw.cli.client import ApiClient, connect, own_key
from metaclaw.cli.home import prepared
from metaclaw.cli.output import (
    CommandOutput,
    answers,
    counted,
    duration,
    echo,
    json_option,
    own_command,
    print_output,
    show_progress,
    timeout_option,
)
from metaclaw.cli.service import active_service, restart_service
from metaclaw.durable_files import replace_file
from metaclaw.errors import ConfigError, MetaClawError
from metaclaw.handover import taken
from metaclaw.instance import find

if TYPE_CHECKING:
    from metaclaw.app import ReadyProxy
    from metaclaw.config import Config

_MODES = ("skills_only", "rl", "auto")


@click.command()
@click.option(
    "--mode",
    type=click.Choice(_MODES),
    help=(
        "When it trains weights: skills_only never, rl as soon as there are enough turns, auto"
        " while you are away [policy.mode; without [policy]: skills_only]."
    ),
)
@click.option(
    "--model",
    metavar="NAME|FOLDER|FILE",
    help=(
        "Serve, and with --mode train, this model: a folder, a GGUF file, or a hub's OWNER/NAME"
        " [policy.base_model]. vLLM serves it, if it is installed."
    ),
)
@click.option("--host", help="Address to listen on [proxy.host].")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 takes any free one [proxy.port].",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    help="Processes that serve on this port; one of them learns [proxy.workers].",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override a setting for this run; may be repeated.",
)
@click.option("--detach", is_flag=True, help="Run in the background; return once it can serve.")
@timeout_option(600.0, "With --detach: seconds to wait.")
@click.option(
    "--detached",
    is_flag=True,
    hidden=True,
    help="This is the background process itself: print nothing.",
)
@json_option
@click.pass_obj
def start(
    home: Path,
    mode: str | None,
    model: str | None,
    host: str | None,
    port: int | None,
    workers: int | None,
    sets: tuple[str, ...],
    detach: bool,
    timeout_s: float,
    detached: bool,
    as_json: bool,
) -> int:
    """Start the proxy and show how to point an agent at it. Only on a terminal, and with --json, it
    prints the key and a link to the page.
    """
    follows: Follows | None = None
    if detached:
        overrides, follows = orders_from_parent()
    else:
        given = {"proxy.host": host, "proxy.port": port, "proxy.workers": workers}
        overrides = [
            *sets,
            *(f"{key}={value}" for key, value in given.items() if value is not None),
        ]
        overrides += settings_of_model(home, model, mode, overrides)
        overrides += settings_of_mode(home, mode, overrides)
    config = prepared(home, overrides)
    refuse_own_key(config)
    if detach:
        announce(config, launch(home, config, overrides, timeout_s)[1], as_json=as_json)
        return 0
    # Objects made during the start stay alive; collecting garbage meanwhile takes a tenth of the
    # time. `run` enables it again.
    gc.disable()
    from metaclaw.app import Predecessor, run

    def ready(serving: "ReadyProxy") -> None:
        _remember(home, overrides, is_detached=detached)
        if not detached:
            announce(config, serving, as_json=as_json)
            if serving.model_state is not None and not as_json:
                watch_model(serving.model_state)

    predecessor = None
    if follows is not None:
        predecessor = Predecessor(socket.socket(fileno=follows.listening), follows.pid)
    return run(config, home=home, ready=ready, predecessor=predecessor)


def watch_model(state: Callable[[], str]) -> None:
    """Say that the embedded model comes later, and show its progress until it answers."""
    from metaclaw.engine import can_install, lacks_packages

    if lacks_packages(with_weights=False) and not can_install():
        echo(
            "The embedded model is not here, and there is no pip to bring it: metaclaw model add"
            " embedded says how. To use a provider instead: metaclaw setup"
        )
        return
    if lacks_packages(with_weights=False):
        echo(
            "The embedded model is being downloaded (torch and weights, once) and answers when it"
            " is here; everything else works now. To use a provider instead: metaclaw setup"
        )
    else:
        echo("The embedded model is being loaded; at the first start this takes about a minute.")
    Thread(target=_show_model, args=(state,), daemon=True).start()


def _show_model(state: Callable[[], str]) -> None:
    while (now := state()) != "ready":
        if now == "stopped":
            return
        show_progress(f"embedded model: {now}")
        time.sleep(_LOOK_S)
    show_progress("")
    echo("The embedded model answers now.")


def refuse_own_key(config: "Config") -> None:
    """Raise ConfigError if the key of a provider is MetaClaw's own: the provider would get it and
    refuse it.
    """
    own = config.proxy.api_key
    ours = None if own is None else own.resolve()
    for provider in config.providers:
        key = provider.api_key
        try:
            if key is None or key.is_passthrough or key.resolve() != ours:
                continue
        except ConfigError:
            continue  # a missing key is reported where it is needed
        variable = key.masked.removeprefix("env:") if key.masked.startswith("env:") else None
        remedy = (
            f'{variable} holds it in this shell, as after eval "$(metaclaw agents connect env)": '
            f"start from another shell, or first: export {variable}=<the key of {provider.name}>"
            if variable is not None
            else (
                f"write the provider's: metaclaw config set providers.{provider.name}.api_key"
                " env:NAME"
            )
        )
        raise ConfigError(
            f"the api_key of provider {provider.name} is MetaClaw's own key, not the"
            f" provider's; {remedy}"
        )


def announce(config: "Config", serving: "ReadyProxy", *, as_json: bool) -> None:
    """Print the proxy's URL and key, and how to point an agent at it. Where the output is kept, as
    in a journal, commands stand for the key and the link."""
    from metaclaw.agents import Endpoint, find_agent

    url, key = serving.url, serving.api_key
    providers = config.fallback_order
    listed = (name for provider in providers for name in provider.models)
    model = serving.model or next(listed, None)
    is_terminal = sys.stdout.isatty()
    prints_key = f"{own_command()} key"
    sent = key if is_terminal else f"$({prints_key})"
    page = serving.new_link() if is_terminal or as_json else f"{own_command()} page prints a link"
    kinds, passthrough = provider_kinds(config)
    steps = find_agent("env").steps(Endpoint(url, sent, model, kinds, passthrough))
    facts = {
        "url": url,
        "api_key": key,
        "openai_base_url": f"{url}/v1",
        "anthropic_base_url": url,
        "model": model,
        "rules": serving.rules,
        "facts": serving.facts,
        "skills": serving.skills,
        "page": page,
    }
    names = ", ".join(provider.name for provider in providers) or model
    lines = [
        f"MetaClaw serves {names} with {counted(serving.rules, 'rule')},"
        f" {counted(serving.facts, 'fact')} and {counted(serving.skills, 'skill')}.",
        f"  URL  {url}",
        f"  key  {key if is_terminal else f'{prints_key} prints it'}",
        "Point an agent at it:",
        *(f"  {step}" for step in steps),
        *([] if passthrough else [f"Or by hand: {_curl(url, sent, model)}"]),
        f"Connect the agents you have, one real request through each: {own_command()} setup",
        f"Watch it learn, in a browser: {page}",
    ]
    print_output(CommandOutput(facts, lines), as_json=as_json)


def _curl(url: str, key: str, model: str | None) -> str:
    """A curl command to try. A command in the place of the key is run."""
    body = {
        "model": model or "<a model of your provider>",
        "messages": [{"role": "user", "content": "Hello"}],
    }
    headers = f"-H \"Authorization: Bearer {key}\" -H 'Content-Type: application/json'"
    return f"curl {url}/v1/chat/completions {headers} -d {shlex.quote(json.dumps(body))}"


def settings_of_model(
    home: Path, model: str | None, mode: str | None, overrides: Sequence[str]
) -> list[str]:
    """The settings that serve this model, which a hub's name brings into the home folder first."""
    if model is None:
        return []
    from metaclaw.app import find_server
    from metaclaw.config import load
    from metaclaw.engine import import_model

    def show(name: str, done: int, size: int) -> None:
        show_progress(f"{name}, {done // 1_000_000} of {size // 1_000_000} MB")

    policy = load(home, sets=overrides).policy
    if policy is not None and policy.backend != "embedded":
        return [f"policy.base_model={model}"]
    own = home / "models" / model
    path = own if own.exists() else import_model(home / "models", model, None, show)
    settings = [f"policy.base_model={path}"]
    if policy is None and mode is None:
        settings.append("policy.mode=skills_only")
    is_folder = path.is_dir()
    if (policy is None or policy.serve == "backend") and is_folder and find_server() is not None:
        settings.append("policy.serve=vllm")
    return settings


def settings_of_mode(home: Path, mode: str | None, overrides: list[str]) -> list[str]:
    """The settings for a mode; none for skills_only without a policy, which is the default."""
    from metaclaw.config import load

    if mode is None:
        return []
    config = load(home, sets=overrides)
    if mode == "skills_only" and config.policy is None:
        return []
    if config.untrainable is not None:
        hosted = ", ".join(provider.name for provider in config.providers)
        raise ConfigError(
            f"--mode {mode} trains weights, and the weights behind {hosted} are not ours to"
            f" train.\n  What works with {hosted}: rules, facts and skills. Leave out --mode:"
            " metaclaw start\n  What can be trained: the embedded model, beside your provider:"
            " metaclaw config set providers.embedded.kind=embedded\n  or a model of a training"
            " service: [policy] with backend and base_model in config.toml (docs/training.md)"
        )
    return [f"policy.mode={mode}"]


_START_S = 600.0
_PAUSE_S = 0.05
_PARENT_S = 0.5
_LOOK_S = 0.5
_LOG_LINES = 20


def launch(
    home: Path,
    config: "Config",
    overrides: Sequence[str],
    timeout_s: float,
    *,
    ends_with_parent: bool = False,
    follows: "Follows | None" = None,
) -> "tuple[ApiClient, ReadyProxy]":
    """Start the proxy and return once it can serve. Raises MetaClawError with the end of its log if
    it ends instead. With `ends_with_parent` the proxy stops when this process ends, even if it is
    killed."""
    from metaclaw.app import ReadyProxy

    running = find(home)
    if running is not None and (follows is None or follows.pid != running.pid):
        raise MetaClawError(
            f"a proxy of {home} runs already at {running.url} (pid {running.pid}); stop it with:"
            " metaclaw stop"
        )
    refuse_own_key(config)
    key = config.proxy.api_key
    assert key is not None
    log = home / "logs" / "metaclaw.log"
    began_at = log.stat().st_size if log.exists() else 0
    command = [
        sys.executable,
        "-P",
        "-m",
        "metaclaw.cli",
        "--home",
        str(home),
        "start",
        "--detached",
    ]
    message = {
        "overrides": list(overrides),
        "ends_with_parent": ends_with_parent,
        "follows": None if follows is None else asdict(follows),
    }
    passed = () if follows is None else (follows.listening,)
    with _log_for(log) as file:
        child = _spawn(command, home, file, message, passed)

    def doing() -> str:
        lines = _lines_since(log, began_at)
        if child.poll() is not None:
            tail = "\n".join(lines[-_LOG_LINES:])
            raise MetaClawError(
                f"the proxy ended at once with exit code {child.returncode}; the end of its log"
                f" ({log}):\n{tail}"
            )
        state = re.search(r"state='(?:starting: )?([^']+)'", "".join(lines[-1:]))
        return f": embedded model, {state[1]}" if state else ""

    api = _await_ready(home, key.resolve(), lambda pid: pid == child.pid, timeout_s, doing)
    if api is None:
        raise MetaClawError(
            f"the proxy (pid {child.pid}) cannot serve after {timeout_s:g} s, but still tries;"
            f" its log is {log}"
        )
    status = api.call("GET", "/api/status")
    if status["degraded"]:
        reason = status["store"]["reason"]
        echo(f"metaclaw: it serves, but turns are not being recorded: {reason}", err=True)
    models = [model for provider in status["providers"] for model in provider["models"]]
    counts = status["counts"]
    return api, ReadyProxy(
        api.url,
        api.key,
        next(iter(models), None),
        counts["rules"],
        counts["facts"],
        sum(counts["skills"].values()),
        lambda: sign_in_link(api),
    )


def _log_for(path: Path) -> BinaryIO:
    """The log, to append to. If it cannot be created, as on a full disk, the proxy starts without
    one.
    """
    try:
        return open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))
    except OSError:
        return Path(os.devnull).open("ab")


def _lines_since(path: Path, began_at: int) -> list[str]:
    """The lines that were logged since the log had this length."""
    try:
        with path.open("rb") as file:
            file.seek(began_at)
            return file.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []


@dataclass(frozen=True, slots=True)
class Follows:
    """The proxy before the one that is started: the handle of its listening socket, and its process
    if that serves until the new one does."""

    listening: int
    pid: int | None


def orders_from_parent() -> tuple[list[str], Follows | None]:
    """In the background process: read from the parent the overrides and the proxy to follow, and
    start a thread that watches the parent if asked to.
    """
    message = json.load(sys.stdin)
    if message["ends_with_parent"]:
        Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    follows = message["follows"]
    return message["overrides"], None if follows is None else Follows(**follows)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_S)
    os.kill(os.getpid(), signal.SIGTERM)


def _spawn(
    command: Sequence[str],
    home: Path,
    log: BinaryIO,
    message: dict[str, object],
    passed: Sequence[int],
) -> "subprocess.Popen[bytes]":
    """Start the process. `message` goes through a pipe, because overrides may contain secrets and
    arguments are public.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        cwd=home,
        start_new_session=True,
        pass_fds=passed,
    )
    assert child.stdin is not None
    with (
        suppress(BrokenPipeError),
        child.stdin as pipe,
    ):  # a child that died at once is reported with its log
        pipe.write(json.dumps(message).encode())
    return child


def _await_ready(
    home: Path,
    key: str,
    is_ours: Callable[[int], bool],
    timeout_s: float,
    doing: Callable[[], str] = str,
) -> ApiClient | None:
    """The client of the proxy whose process id `is_ours`, once it can serve; None if it takes too
    long. `doing` adds to the progress line, and may raise MetaClawError.
    """
    began = time.monotonic()
    try:
        while (waited := time.monotonic() - began) < timeout_s:
            show_progress(f"starting, {duration(waited)}{doing()}")
            running = find(home)
            if running is not None and running.url is not None and is_ours(running.pid):
                api = ApiClient(running.url, key, running.certificate)
                if _is_ready(api):
                    return api
            time.sleep(_PAUSE_S)
        return None
    finally:
        show_progress("")


def _is_ready(api: ApiClient) -> bool:
    """Whether the proxy answers requests. A proxy with a broken store does, although `/readyz` says
    no to load balancers.
    """
    try:
        if api.send("GET", "/readyz")[0] == 200:
            return True
        facts = api.call("GET", "/api/status")
    except MetaClawError:
        return False
    return facts["degraded"] and (facts["engine"] is None or facts["engine"]["state"] == "ready")


@click.command()
@timeout_option(60.0, "Seconds to wait for it to end.")
@answers
def stop(home: Path, timeout_s: float) -> CommandOutput:
    """Stop the running proxy; running answers are finished first."""
    began = time.monotonic()
    pid = stop_proxy(home, timeout_s)
    took_s = round(time.monotonic() - began, 3)
    return CommandOutput({"stopped": True, "pid": pid, "took_s": took_s}, f"Stopped (pid {pid}).")


def stop_proxy(home: Path, timeout_s: float) -> int:
    """Stop this home's proxy and wait until it has ended; return its process id. Raises
    MetaClawError.
    """
    running = find(home)
    if running is None:
        raise MetaClawError(f"no proxy runs for {home}; there is nothing to stop")
    try:
        os.kill(running.pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it has just ended
    except PermissionError as error:
        raise MetaClawError(
            f"the proxy (pid {running.pid}) belongs to another user; stop it as that user"
        ) from error
    _wait(home, running.pid, timeout_s)
    return running.pid


def _wait(home: Path, pid: int, timeout_s: float) -> None:
    began = time.monotonic()
    while (running := find(home)) is not None and running.pid == pid:
        waited = time.monotonic() - began
        if waited > timeout_s:
            raise MetaClawError(
                f"the proxy (pid {pid}) still finishes its answers after {timeout_s:g} s; wait, or"
                f" end it with: kill -9 {pid}"
            )
        show_progress(f"finishing running answers, {waited:.0f} s")
        time.sleep(_PAUSE_S)
    show_progress("")


@click.command()
@timeout_option(60.0, "Seconds to wait for it to end.")
@answers
def restart(home: Path, timeout_s: float) -> CommandOutput:
    """Stop the proxy, after its running answers, and start it again with the options that it had,
    by its service or in the background. No connection is refused meanwhile.
    """
    running = find(home)
    launched = _remembered(home, running.pid) if running is not None else None
    overrides, is_detached = launched or ([], True)
    if running is not None and active_service(home, is_running=True) is None:
        _require_keys(prepared(home, overrides))
    api, unit = restart_proxy(home, overrides, timeout_s, _START_S)
    found = find(home)
    pid = None if found is None else found.pid
    how = f"by {unit}" if unit else "in the background"
    moved = "" if is_detached or unit else " It ran in a terminal before."
    begun = "Started" if running is None else "Restarted"
    return CommandOutput(
        {"restarted": running is not None, "pid": pid, "url": api.url, "unit": unit},
        f"{begun}: MetaClaw serves at {api.url} (pid {pid}), {how}.{moved}",
    )


def _require_keys(config: "Config") -> None:
    """Raise ConfigError if a key has no value in this shell: the proxy that runs may have it, and
    the new one would not.
    """
    from metaclaw.config import missing_secrets

    missing = missing_secrets(config)
    if missing:
        lines = "\n".join(str(problem) for problem in missing)
        raise ConfigError(
            f"{lines}\nThe proxy was not stopped: the new one would have only the variables of this"
            " shell."
        )


def restart_proxy(
    home: Path, overrides: Sequence[str], stop_s: float, start_s: float
) -> tuple[ApiClient, str | None]:
    """Start the proxy in place of the one that runs, whose listening socket it gets; return once it
    can serve, with the service that runs it, if any. Raises before anything is stopped if the
    configuration is wrong."""
    running = find(home)
    config = prepared(home, list(overrides))
    if config.proxy.port == 0 and running is not None and running.url is not None:
        # Agents know the port that it has.
        overrides = [*overrides, f"proxy.port={urlsplit(running.url).port}"]
        config = prepared(home, overrides)
    refuse_own_key(config)
    service = active_service(home, is_running=running is not None)
    if service is not None:
        restart_service(home, service, stop_s)
        former = None if running is None else running.pid
        api = _await_ready(home, own_key(home), lambda pid: pid != former, start_s)
        if api is None:
            raise MetaClawError(
                f"no proxy of {home} can serve after {start_s:g} s; see the log of {service.name}"
            )
        return api, service.name
    with ExitStack() as kept:
        follows = None
        if running is not None:
            # Workers each bind the port anew.
            is_one = config.proxy.workers == 1
            listening = taken(home, config.proxy.host, config.proxy.port) if is_one else None
            # Two processes may serve at once unless they would share a model or differ in the store.
            is_alone = listening is None or not _is_light(config) or not _is_of_this_version(home)
            if is_alone:
                stop_proxy(home, stop_s)
            if listening is not None:
                kept.enter_context(listening)
                follows = Follows(listening.fileno(), None if is_alone else running.pid)
        return launch(home, config, overrides, start_s, follows=follows)[0], None


def _is_light(config: "Config") -> bool:
    """Whether all its models are behind providers."""
    kinds = {provider.kind for provider in config.providers}
    return bool(kinds) and "embedded" not in kinds and config.policy is None


def _is_of_this_version(home: Path) -> bool:
    """Whether the proxy that runs is of the version that would follow it."""
    try:
        return connect(home)[1].version() == __version__
    except MetaClawError:
        return False


def _remember(home: Path, overrides: Sequence[str], *, is_detached: bool) -> None:
    """Write down how this proxy was started, for `restart`; readable only by its owner, because
    overrides may contain secrets.
    """
    facts = {"pid": os.getpid(), "overrides": list(overrides), "is_detached": is_detached}
    with suppress(OSError):  # a full disk does not keep it from serving
        replace_file(home / "run" / "launch.json", json.dumps(facts).encode(), flush=False)


def _remembered(home: Path, pid: int) -> tuple[list[str], bool] | None:
    """The overrides of the running proxy, and whether it runs in the background; None if that is
    not known.
    """
    try:
        facts = json.loads((home / "run" / "launch.json").read_bytes())
        known = [str(one) for one in facts["overrides"]], bool(facts["is_detached"])
        return known if facts["pid"] == pid else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


_FOLLOW_S = 0.2


@click.command()
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0, 1_000_000),
    default=50,
    show_default=True,
    help="Lines of the end to print.",
)
@click.option(
    "-f/-F",
    "--follow/--no-follow",
    default=None,
    help="Go on as lines are written [on a terminal, follow]. Ctrl-C ends it.",
)
@click.pass_obj
def logs(home: Path, lines: int, follow: bool | None) -> None:
    """Print the end of the proxy's log, and follow it. A proxy that was started in a terminal logs
    there instead.
    """
    path = home / "logs" / "metaclaw.log"
    if not path.exists():
        raise MetaClawError(
            f"there is no log at {path}; a proxy writes one when it is started with: metaclaw start"
            " --detach"
        )
    is_followed = sys.stdout.isatty() if follow is None else follow
    with path.open("rb") as file:
        for line in deque(file, maxlen=lines):
            _print_line(line)
        try:
            while is_followed:
                line = file.readline()
                if line:
                    _print_line(line)
                elif path.exists() and path.stat().st_size < file.tell():
                    file.seek(0)  # the log was truncated
                else:
                    time.sleep(_FOLLOW_S)
        except KeyboardInterrupt:
            return


def _print_line(line: bytes) -> None:
    echo(line.decode("utf-8", "replace").rstrip("\r\n").replace("\t", "    "))


@click.command()
@answers
def page(home: Path) -> CommandOutput:
    """Print a link to the page. It signs a browser in, once, within ten minutes."""
    link = sign_in_link(connect(home)[1])
    return CommandOutput({"url": link}, link)


def sign_in_link(api: ApiClient) -> str:
    return str(api.call("POST", "/api/sign-in")["url"])
