"""Find secrets that are certain: the user's own, from the environment and dotfiles, kept only as salted hashes; and keys, private
keys and password hashes in a documented format.

An anchor is a literal that every match of a format contains; text without an anchor is skipped.
"""

import base64
import binascii
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from metaclaw.config import Config, Secret, flatten
from metaclaw.errors import ConfigError
from metaclaw.privacy.secret_tokens import Certainty, LongTokens, SecretMatch, is_mixed, is_random, wordiness

_RUN = re.compile(r"[A-Za-z0-9]+")
_PATH = re.compile(r"(?:https?:/|[~.])?(?:/[\w.@-]+){1,30}/?")
_MIN_CHARS = 8
_FAIR_CHARS = 10
_LONG_CHARS = 16
_PREFIX = 4


@dataclass(frozen=True, slots=True)
class _Mark:
    """Position and length of a secret relative to its longest run of letters and digits, and its hash."""

    before: int
    length: int
    digest: bytes


class KnownSecrets:
    """A set of secrets that can be found in a text but not read from this object.

    For each secret it keeps salted hashes of the whole, of its longest run of letters and digits, and of that run's first
    characters, which rule out most text quickly. Each process draws a new salt and never stores it.
    """

    __slots__ = ("_count", "_lengths", "_prefixes", "_runs", "_salt")

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._salt = os.urandom(16)
        self._runs: dict[bytes, list[_Mark]] = {}
        self._prefixes: dict[int, set[int]] = {}
        """Lengths of runs by the hash of their first characters."""
        self._count = 0
        for secret in {secret.strip() for secret in secrets}:
            if is_worth_knowing(secret):
                self._learn(secret)
        self._lengths = tuple(sorted({length for lengths in self._prefixes.values() for length in lengths}))

    @classmethod
    def collect(cls, environ: Mapping[str, str], home: Path, config: Config | None = None) -> "KnownSecrets":
        """The secrets in the environment, in the dotfiles of a home folder and in our own configuration."""
        return cls(secrets_of(environ, home, config))

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"KnownSecrets({self._count})"

    @property
    def min_chars(self) -> int | None:
        """Length of the shortest run, or None. Shorter words cannot contain a secret."""
        return self._lengths[0] if self._lengths else None

    def find(self, text: str, words: list[str]) -> list[SecretMatch]:
        """Find the secrets in a text, also inside longer words. `words` are the distinct words of the text."""
        if not self._count:
            return []
        runs = re.compile(rf"[A-Za-z0-9]{{{self._lengths[0]},}}")
        present = {word: marks for word in set(runs.findall("\n".join(words))) if (marks := tuple(self._runs_in(word)))}
        if not present:
            return []
        return [
            hit
            for run in runs.finditer(text)
            for offset, digest in present.get(run[0], ())
            for hit in self._whole(text, run.start() + offset, digest)
        ]

    def _learn(self, secret: str) -> None:
        run = max(_RUN.finditer(secret), key=lambda run: run.end() - run.start())
        mark = _Mark(run.start(), len(secret), self._hash(secret))
        self._runs.setdefault(self._hash(run[0]), []).append(mark)
        self._prefixes.setdefault(hash((self._salt, run[0][:_PREFIX])), set()).add(len(run[0]))
        self._count += 1

    def _runs_in(self, word: str) -> Iterator[tuple[int, bytes]]:
        salt, prefixes = self._salt, self._prefixes
        for offset in range(len(word) - self._lengths[0] + 1):
            for length in prefixes.get(hash((salt, word[offset : offset + _PREFIX])), ()):
                digest = self._hash(word[offset : offset + length])
                if digest in self._runs:
                    yield offset, digest

    def _whole(self, text: str, start: int, digest: bytes) -> Iterator[SecretMatch]:
        for mark in self._runs[digest]:
            begin = start - mark.before
            if begin >= 0 and self._hash(text[begin : begin + mark.length]) == mark.digest:
                yield SecretMatch(begin, begin + mark.length, "SECRET:known", Certainty.KNOWN)

    def _hash(self, text: str) -> bytes:
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, salt=self._salt).digest()


def is_worth_knowing(secret: str) -> bool:
    """Whether to search texts for this value: with `postgres` as a password, every mention of the database would be redacted."""
    if len(secret) < _MIN_CHARS or not _RUN.search(secret) or ("\n" in secret and len(secret) > 20_000):
        return False
    if _PATH.fullmatch(secret) and not is_random(secret):
        return False
    if is_mixed(secret) and (len(secret) >= _LONG_CHARS or (len(secret) >= _FAIR_CHARS and any(map(str.isdigit, secret)))):
        return True
    oddly_written = not (secret.islower() or secret.isupper() or secret.istitle())
    return wordiness(secret) < 0.7 or (len(secret) >= _FAIR_CHARS and oddly_written)


_SECRET_NAME = re.compile(
    r"pass(?:word|wd|phrase|code)?(?:_|$)|pwd$|secret|token|api_?key|access_?key|private_?key|_key$|auth|credential|session"
    r"|cookie|jwt|dsn$|webhook|connection_?string",
    re.IGNORECASE,
)
_INNOCENT_NAME = re.compile(
    r"^(?:PWD|OLDPWD|SSH_AUTH_SOCK|XAUTHORITY|SESSION_MANAGER|DBUS_SESSION\w*|XDG_SESSION\w*|DESKTOP_SESSION|GDMSESSION"
    r"|TERM_SESSION_ID|\w*_(?:FILE|PATH|DIR|SOCK|URL|ENDPOINT|ID_FILE))$"
)
_URL_PASSWORD = re.compile(r"://[^\s/:@]{0,100}:([^\s@/]{1,300})@")
_ASSIGNMENT = re.compile(
    r"^[ \t]*(?:export[ \t]+|set[ \t]+)?([\w.:/-]{1,200})[ \t]*[=:][ \t]*(?:[\"'](.*)[\"']|(\S.*?))[ \t\r]*$", re.MULTILINE
)
_NETRC = re.compile(r"\b(?:password|account)\s+(\S+)")
_MAX_BYTES = 1_000_000
_ASSIGNING = (
    ".env", ".envrc", ".npmrc", ".yarnrc", ".yarnrc.yml", ".pypirc", ".my.cnf", ".s3cfg", ".boto", ".wakatime.cfg",
        ".aws/credentials",
    ".config/gh/hosts.yml", ".config/hub", ".config/glab-cli/config.yml", ".config/pip/pip.conf", ".cargo/credentials.toml",
    ".cargo/credentials", ".gem/credentials", ".bundle/config", ".kaggle/kaggle.json", ".config/stripe/config.toml", ".terraformrc",
    ".databrickscfg", ".config/doctl/config.yaml", ".config/openai/config", ".bashrc", ".zshrc", ".profile", ".bash_profile",
        ".zshenv",
)  # fmt: skip
_WHOLE = (
    ".cache/huggingface/token",
    ".huggingface/token",
    ".vault-token",
    ".config/openai.token",
    ".anthropic/api_key",
    ".tinker/api_key",
)
_JSON = (
    ".docker/config.json",
    ".config/gcloud/application_default_credentials.json",
    ".claude/.credentials.json",
    ".codex/auth.json",
)


def secrets_of(environ: Mapping[str, str], home: Path, config: Config | None) -> Iterator[str]:
    """Secrets in the environment, a home folder's dotfiles and our own configuration. Callers must keep only hashes of them."""
    yield from _from_environment(environ)
    for name in _ASSIGNING:
        yield from _from_assignments(_read(home / name))
    for name in _WHOLE:
        yield _read(home / name)
    for name in _JSON:
        yield from _from_json(_read(home / name))
    for name in (".netrc", "_netrc"):
        yield from _NETRC.findall(_read(home / name))
    for line in _read(home / ".pgpass").splitlines():
        yield line.rpartition(":")[2]
    for line in _read(home / ".git-credentials").splitlines():
        yield from _URL_PASSWORD.findall(line)
    if config is not None:
        yield from _from_config(config, environ)


def _read(path: Path) -> str:
    """The file's text; empty if it is missing or unreadable."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None and not _INNOCENT_NAME.match(name)


def _from_environment(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        if is_secret_name(name):
            yield value
        yield from _URL_PASSWORD.findall(value)


def _from_assignments(text: str) -> Iterator[str]:
    for name, quoted, bare in _ASSIGNMENT.findall(text):
        if is_secret_name(name.rpartition(":")[2]) or name.endswith(":_password"):
            yield quoted or bare
    yield from _URL_PASSWORD.findall(text)


def _from_json(text: str) -> Iterator[str]:
    try:
        yield from _strings(json.loads(text), is_secret=False)
    except (ValueError, RecursionError):
        return


def _strings(value: object, *, is_secret: bool) -> Iterator[str]:
    match value:
        case dict():
            for key, inner in value.items():
                yield from _strings(inner, is_secret=is_secret_name(str(key)) or (is_secret and isinstance(inner, dict | list)))
        case list():
            for inner in value:
                yield from _strings(inner, is_secret=is_secret)
        case str() if is_secret:
            yield value
            yield from _basic(value)


def _basic(value: str) -> Iterator[str]:
    """The password in `user:password` in base64, as Docker keeps it."""
    try:
        user, separator, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return
    if separator and user.isprintable():
        yield password


def _from_config(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    for _, value in flatten(config):
        if isinstance(value, Secret) and not value.is_passthrough:
            try:
                text = value.resolve(environ)
            except ConfigError:
                continue  # an unset secret cannot leak
            yield from _URL_PASSWORD.findall(text) if "://" in text else (text,)


@dataclass(frozen=True, slots=True)
class KeyFormat:
    """One kind of secret. With `varied`, a match must also look random, since words could have the same format."""

    label: str
    anchors: tuple[str, ...]
    pattern: re.Pattern[str]
    varied: bool = False


def _format(label: str, anchors: str, pattern: str, *, varied: bool = False) -> KeyFormat:
    return KeyFormat(label, tuple(anchors.split()), re.compile(rf"(?<![A-Za-z0-9]){pattern}"), varied)


_HEX_DIGIT = "[0-9a-f]"
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_W = "[A-Za-z0-9_-]"
_KEY_LINES = r"[A-Za-z0-9+/=]{10,4000}(?:\s{1,4}[A-Za-z0-9+/=]{16,4000}){0,200}(?:\s{1,4}[A-Za-z0-9+/]{1,80}={1,2})?"

_MODELS = (
    _format("API_KEY:anthropic", "sk-ant-", rf"sk-ant-{_W}{{20,300}}"),
    _format("API_KEY:openrouter", "sk-or-", rf"sk-or-(?:v\d-)?{_W}{{20,200}}"),
    _format("API_KEY:openai", "sk-proj- sk-svcacct- sk-admin-", rf"sk-(?:proj|svcacct|admin)-{_W}{{20,300}}"),
    _format("API_KEY:openai", "sk- sess-", rf"(?:sk|sess)-{_W}{{20,300}}", varied=True),
    _format("API_KEY:google", "AIza", rf"AIza{_W}{{33,39}}"),
    _format("API_KEY:huggingface", "hf_ api_org_", r"(?:hf|api_org)_[A-Za-z0-9]{30,60}"),
    _format("API_KEY:groq", "gsk_", r"gsk_[A-Za-z0-9]{40,80}"),
    _format("API_KEY:xai", "xai-", r"xai-[A-Za-z0-9]{60,120}"),
    _format("API_KEY:perplexity", "pplx-", r"pplx-[A-Za-z0-9]{40,80}"),
    _format("API_KEY:replicate", "r8_", r"r8_[A-Za-z0-9]{30,60}"),
    _format("API_KEY:together", "tgp_v1_", rf"tgp_v1_{_W}{{30,80}}"),
    _format("API_KEY:nvidia", "nvapi-", rf"nvapi-{_W}{{40,120}}"),
    _format("API_KEY:fireworks", "fw_", r"fw_[A-Za-z0-9]{20,40}", varied=True),
    _format("API_KEY:tinker", "tml-", r"tml-[A-Za-z0-9_]{24,200}"),
    _format("API_KEY:wandb", "wandb_v1_", rf"wandb_v1_{_W}{{30,200}}"),
    _format("API_KEY:langsmith", "lsv2_", rf"lsv2_(?:pt|sk)_{_HEX_DIGIT}{{32}}_{_HEX_DIGIT}{{10}}"),
    _format("API_KEY:pinecone", "pcsk_", rf"pcsk_{_W}{{40,100}}"),
    _format("API_KEY:elevenlabs", "sk_", rf"sk_{_HEX_DIGIT}{{48}}"),
)
_CLOUDS = (
    _format("KEY_ID:aws", "AKIA ASIA ABIA ACCA", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}"),
    _format(
        "TOKEN:aws", "IQoJb3JpZ2lu FwoGZXIvYXdz FQoGZXIvYXdz ABSK", r"(?:IQoJb3JpZ2lu|F[wQ]oGZXIvYXdz|ABSK)[A-Za-z0-9+/=]{50,4000}"
    ),
    _format("TOKEN:google", "ya29.", r"ya29\.[A-Za-z0-9._-]{20,2000}"),
    _format("SECRET:google", "GOCSPX-", rf"GOCSPX-{_W}{{20,40}}"),
    _format("TOKEN:google", "1//0", rf"1//0{_W}{{30,200}}"),
    _format("SECRET:azure", "Q~", r"[A-Za-z0-9_~.-]{3}\dQ~[A-Za-z0-9_~.-]{30,36}"),
    _format("API_KEY:digitalocean", "doo_v1_ dop_v1_ dor_v1_", rf"do[opr]_v1_{_HEX_DIGIT}{{64}}"),
    _format("API_KEY:heroku", "HRKU-", rf"HRKU-{_W}{{30,100}}"),
    _format(
        "API_KEY:cloudflare",
        "v1.0- cfut_ cfat_ cfk_",
        rf"(?:v1\.0-{_HEX_DIGIT}{{20,24}}-{_HEX_DIGIT}{{140,150}}|cf(?:ut|at|k)_[A-Za-z0-9]{{30,80}})",
    ),
    _format("KEY_ID:alibaba", "LTAI", r"LTAI[A-Za-z0-9]{12,24}", varied=True),
    _format("KEY_ID:tencent", "AKID", r"AKID[A-Za-z0-9]{32}"),
    _format("API_KEY:fly", "fo1_ fm1 fm2_", rf"(?:fo1_{_W}{{40,60}}|fm[12][ra]?_[A-Za-z0-9+/=]{{60,1000}})"),
    _format("API_KEY:tailscale", "tskey-", rf"tskey-[a-z]{{2,12}}-{_W}{{12,80}}"),
    _format("TOKEN:vault", "hvs. hvb. hvr.", rf"hv[sbr]\.{_W}{{24,300}}"),
    _format("TOKEN:terraform", ".atlasv1.", rf"[A-Za-z0-9]{{14}}\.atlasv1\.{_W}{{60,80}}"),
    _format("API_KEY:pulumi", "pul-", rf"pul-{_HEX_DIGIT}{{40}}"),
    _format("API_KEY:databricks", "dapi", rf"dapi{_HEX_DIGIT}{{32}}(?:-\d)?"),
    _format("API_KEY:supabase", "sbp_ sb_secret_", rf"(?:sbp_{_HEX_DIGIT}{{40}}|sb_secret_{_W}{{20,60}})"),
    _format("API_KEY:planetscale", "pscale_", r"pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_.=-]{32,64}"),
    _format("API_KEY:netlify", "nfp_", r"nfp_[A-Za-z0-9]{36,60}"),
)
_CODE = (
    _format("TOKEN:github", "ghp_ gho_ ghu_ ghs_ ghr_", r"gh[pousr]_[A-Za-z0-9]{30,255}"),
    _format("TOKEN:github", "github_pat_", r"github_pat_[A-Za-z0-9_]{40,255}"),
    _format(
        "TOKEN:gitlab",
        "glpat- gldt- glrt- glcbt- glptt- glft- glsoat- gloas- glimt- glagent-",
        r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|oas|imt|agent)-[A-Za-z0-9_.-]{20,200}",
    ),
    _format("TOKEN:bitbucket", "ATBB ATCTT3", r"(?:ATBB[A-Za-z0-9_=]{24,60}|ATCTT3[A-Za-z0-9_=-]{40,300})"),
    _format("TOKEN:atlassian", "ATATT3", r"ATATT3[A-Za-z0-9_=-]{40,300}"),
    _format("TOKEN:npm", "npm_", r"npm_[A-Za-z0-9]{30,60}"),
    _format("TOKEN:pypi", "pypi-Ag", rf"pypi-Ag{_W}{{40,500}}"),
    _format("TOKEN:rubygems", "rubygems_", rf"rubygems_{_HEX_DIGIT}{{48}}"),
    _format("TOKEN:docker", "dckr_", rf"dckr_[po]at_{_W}{{20,60}}"),
    _format("TOKEN:sonar", "squ_ sqp_ sqa_", rf"sq[upa]_{_HEX_DIGIT}{{40}}"),
    _format("TOKEN:circleci", "CCIPAT_ CCIPRJ_", r"CCI(?:PAT|PRJ)_[A-Za-z0-9]{10,40}_[0-9a-f]{40}"),
    _format("TOKEN:artifactory", "AKCp", r"AKCp[A-Za-z0-9]{60,80}"),
    _format("API_KEY:postman", "PMAK-", rf"PMAK-{_HEX_DIGIT}{{24}}-{_HEX_DIGIT}{{34}}"),
)
_SERVICES = (
    _format("TOKEN:slack", "xox", r"xox[abeoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,300}"),
    _format("TOKEN:slack", "xapp-", r"xapp-\d-[A-Za-z0-9-]{20,300}"),
    _format("TOKEN:slack", "hooks.slack.com/", r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9_/+-]{20,200}"),
    _format("TOKEN:discord", "/api/webhooks/", rf"discord(?:app)?\.com/api/webhooks/\d{{10,25}}/{_W}{{40,100}}"),
    _format(
        "TOKEN:discord",
        ".",
        r"[A-Za-z0-9_-]{23,28}\.[A-Za-z0-9_-]{6,7}\.[A-Za-z0-9_-]{27,45}(?![A-Za-z0-9_.-])",
        varied=True,
    ),
    _format("TOKEN:teams", "webhook.office.com/", r"[a-z0-9-]{1,60}\.webhook\.office\.com/[A-Za-z0-9@/-]{60,300}"),
    _format("TOKEN:telegram", ":AA", r"\d{8,10}:AA[A-Za-z0-9_-]{30,36}"),
    _format("API_KEY:stripe", "sk_live_ sk_test_ rk_live_ rk_test_", r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,250}"),
    _format("SECRET:stripe", "whsec_", r"whsec_[A-Za-z0-9+/=]{24,80}"),
    _format("API_KEY:twilio", "SK", rf"SK{_HEX_DIGIT}{{32}}"),
    _format("API_KEY:sendgrid", "SG.", rf"SG\.{_W}{{16,32}}\.{_W}{{32,64}}"),
    _format("API_KEY:mailgun", "key-", rf"key-{_HEX_DIGIT}{{32}}"),
    _format("API_KEY:mailgun", "-", rf"{_HEX_DIGIT}{{32}}-{_HEX_DIGIT}{{8}}-{_HEX_DIGIT}{{8}}"),
    _format("API_KEY:mailchimp", "-us", rf"{_HEX_DIGIT}{{32}}-us\d{{1,2}}"),
    _format("API_KEY:brevo", "xkeysib-", rf"xkeysib-{_HEX_DIGIT}{{64}}-[A-Za-z0-9]{{16}}"),
    _format("TOKEN:shopify", "shpat_ shpca_ shppa_ shpss_ shptka_", r"shp(?:at|ca|pa|ss|tka)_[0-9a-fA-F]{32,64}"),
    _format("TOKEN:square", "EAAA sq0atp- sq0csp-", rf"(?:EAAA{_W}{{56,64}}|sq0(?:atp|csp)-{_W}{{22,50}})"),
    _format("TOKEN:facebook", "EAA", r"EAA[A-Za-z0-9]{90,300}"),
    _format("TOKEN:twitter", "AAAAAAAAAAAAAAAAAAAA", r"AAAAAAAAAAAAAAAAAAAA[A-Za-z0-9%]{60,200}"),
    _format("API_KEY:linear", "lin_api_ lin_oauth_", r"lin_(?:api|oauth)_[A-Za-z0-9]{32,80}"),
    _format("TOKEN:notion", "ntn_ secret_", r"(?:ntn_[A-Za-z0-9]{40,60}|secret_[A-Za-z0-9]{43})"),
    _format("TOKEN:airtable", ".", rf"pat[A-Za-z0-9]{{14}}\.{_HEX_DIGIT}{{64}}"),
    _format("TOKEN:figma", "figd_ figu_", rf"fig[du]_{_W}{{36,60}}"),
    _format("TOKEN:grafana", "glsa_ glc_", rf"(?:glsa_[A-Za-z0-9]{{32}}_{_HEX_DIGIT}{{8}}|glc_[A-Za-z0-9+/=]{{32,400}})"),
    _format("API_KEY:newrelic", "NRAK- NRJS- NRII-", rf"NR(?:AK|JS|II)-{_W}{{19,40}}"),
    _format("TOKEN:sentry", "sntrys_ sntryu_", r"sntry[su]_[A-Za-z0-9+/=_-]{40,400}"),
    _format("TOKEN:hubspot", "pat-na1- pat-eu1-", rf"pat-(?:na|eu)\d-{_UUID}"),
    _format("TOKEN:doppler", "dp.", r"dp\.(?:pt|st|ct|sa|scim|audit)\.(?:[a-z0-9_-]{2,35}\.)?[A-Za-z0-9]{40,44}"),
    _format("TOKEN:dropbox", ".", r"sl\.(?:u\.)?[A-Za-z0-9_-]{100,1500}"),
    _format("TOKEN:dynatrace", "dt0", r"dt0[a-z]\d\d\.[A-Z0-9]{24}\.[A-Z0-9]{64}"),
    _format("TOKEN:onepassword", "ops_eyJ", rf"ops_eyJ{_W}{{100,2000}}"),
    _format("TOKEN:mapbox", "sk.eyJ", rf"(?<![_-])sk\.eyJ{_W}{{40,200}}\.{_W}{{16,40}}"),
    _format("PRIVATE_KEY:age", "AGE-SECRET-KEY-", r"AGE-SECRET-KEY-1[A-Z0-9]{50,70}"),
)
_GENERAL = (
    _format(
        "TOKEN:jwt",
        "eyJ",
        rf"(?<![_-])eyJ{_W}{{8,4000}}\.(?:eyJ{_W}{{8,8000}}\.{_W}{{10,2000}}|{_W}{{0,1000}}(?:\.{_W}{{10,8000}}){{1,3}})",
    ),
    _format("TOKEN:jwt", "eyJ", rf"(?<![_-])eyJ(?:hbGciOi|0eXAiOi|raWQiOi|lbmMiOi){_W}{{8,4000}}(?:\.{_W}{{4,8000}}){{0,4}}"),
    _format(
        "PASSWORD_HASH",
        "$",
        r"\$(?:2[abxy]\$\d\d|apr1|1|5|6|y|7|gy|argon2(?:id|i|d)|scrypt|pbkdf2(?:-\w{1,10})?)\$[A-Za-z0-9./+=,$_-]{20,300}",
    ),
    _format(
        "PASSWORD_HASH",
        "pbkdf2_ scrypt: argon2",
        r"(?:pbkdf2_sha(?:256|512)\$\d{1,9}\$[\w./+=-]{8,64}\$[\w./+=-]{20,200}|scrypt:\d{1,9}:\d:\d\$\w{8,64}\$[0-9a-f]{64,128})",
    ),
    _format(
        "PRIVATE_KEY",
        "MHcCAQEEI MIGHAgEAMBMG MC4CAQAwBQYDK2Vw",
        r"(?:MHcCAQEEI|MIGHAgEAMBMG|MC4CAQAwBQYDK2Vw)[A-Za-z0-9+/=]{40,300}",
    ),
    _format("PRIVATE_KEY", "xprv zprv yprv", r"[xyz]prv[A-Za-z0-9]{100,112}"),
)
SPREAD = (
    _format("PRIVATE_KEY", "IBADANBgkqhkiG9w0BAQEFAASC", rf"MII[A-Za-z0-9+/]{{2,6}}IBADANBgkqhkiG9w0BAQEFAASC{_KEY_LINES}"),
    _format("PRIVATE_KEY", "IBAAKC", rf"MII[A-Za-z0-9+/]{{2,6}}IBAAKC{_KEY_LINES}"),
    _format("PRIVATE_KEY", "b3BlbnNzaC1rZXktdjE", rf"b3BlbnNzaC1rZXktdjE{_KEY_LINES}"),
)
"""Formats that may span several lines."""

KEY_FORMATS: tuple[KeyFormat, ...] = (*_MODELS, *_CLOUDS, *_CODE, *_SERVICES, *_GENERAL)

_EDGE = re.compile(
    r"-{4,5} ?(BEGIN|END) (?:[A-Z0-9]{1,12} ){0,4}PRIVATE KEY(?: BLOCK)? ?-{4,5}|Private-Lines: \d+|Private-MAC: [0-9a-f]{40,64}"
)
_MAX_KEY_CHARS = 20_000
_MIN_PIECE = 16
_BREAK = re.compile(r"\\r\\n|\\n|\r?\n")
_KEY_LINE = re.compile(r"[ \t>+|#*-]{0,12}(?:[A-Za-z0-9+/=]{1,100}|[A-Za-z-]{3,20}: [^\n]{0,100}|)[ \t\"',]{0,3}")
_KEY_TAIL_LINE = re.compile(r"[ \t>+|#*-]{0,12}[A-Za-z0-9+/=]{16,100}[ \t]{0,3}")


def find_key_formats(text: str, tokens: LongTokens) -> list[SecretMatch]:
    """Find secrets by their format."""
    matches = list(_armoured(text))
    joined = tokens.joined
    for shape in KEY_FORMATS:
        if any(anchor in joined for anchor in shape.anchors):
            # A format with a very short anchor is tried only on tokens with digits, of which there are few.
            for match in shape.pattern.finditer(joined, 0 if len(shape.anchors[0]) > 2 else tokens.digits_from):
                if not shape.varied or is_random(match[0].replace(".", "")):
                    matches += (_hit(shape, start, end) for start, end in tokens.places(match.start(), match.end()))
    for shape in SPREAD:
        if any(anchor in joined for anchor in shape.anchors):
            matches += (_hit(shape, match.start(), match.end()) for match in shape.pattern.finditer(text))
    return matches


def _hit(shape: KeyFormat, start: int, end: int) -> SecretMatch:
    return SecretMatch(start, end, shape.label, Certainty.SHAPED)


def _armoured(text: str) -> Iterator[SecretMatch]:
    """Private keys between BEGIN and END; if BEGIN or END is missing, as far as the key's lines go."""
    if "PRIVATE KEY" not in text and "Private-" not in text:
        return
    begun: re.Match[str] | None = None
    done = 0
    for edge in _EDGE.finditer(text):
        opens = edge[1] == "BEGIN" or edge[0].startswith("Private-L")
        if begun is not None and (opens or edge.start() - begun.end() > _MAX_KEY_CHARS):
            yield _key(begun.start(), _end_of_lines(text, begun.end(), edge.start()))
            begun = None
        if opens:
            begun = edge
        else:
            yield _key(_start_of_lines(text, done, edge.start()) if begun is None else begun.start(), edge.end())
            begun = None
        done = edge.end()
    if begun is not None:
        yield _key(begun.start(), _end_of_lines(text, begun.end(), len(text)))


def _key(start: int, end: int) -> SecretMatch:
    return SecretMatch(start, end, "PRIVATE_KEY", Certainty.SHAPED)


def _end_of_lines(text: str, start: int, ceiling: int) -> int:
    """Where a key without END ends, at most `ceiling`."""
    end = at = start
    ceiling = min(ceiling, start + _MAX_KEY_CHARS)
    while at < ceiling:
        line_end = _BREAK.search(text, at, ceiling)
        stop = line_end.start() if line_end else ceiling
        line = _KEY_LINE.match(text, at, stop)
        if line is None or (line.end() < stop and at > start):
            # A long last piece belongs to the key; a short one is the next word.
            return line.end() if line is not None and line.end() - at >= _MIN_PIECE else end
        end = stop
        if line_end is None:
            return end
        at = line_end.end()
    return end


def _start_of_lines(text: str, floor: int, end: int) -> int:
    """Where a key without BEGIN begins, at least `floor`."""
    floor, start = max(floor, end - _MAX_KEY_CHARS), end
    while start > floor:
        stop = text.rfind("\n", floor, start)
        line = text[max(stop + 1, floor) : start]
        if line.strip() and not _KEY_TAIL_LINE.fullmatch(line):
            break
        start = max(stop, floor)
    return start
