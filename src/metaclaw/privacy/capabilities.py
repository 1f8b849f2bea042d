"""Capabilities of a skill: the hosts, paths, credentials, shell pipes and risky commands in its
text.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import lru_cache

from metaclaw.domain.skill import Skill
from metaclaw.text import visible_text

_REMEMBERED_SKILLS = 512
_TLDS = (
    "com|org|net|io|dev|ai|app|co|sh|me|xyz|info|biz|cloud|tech|site|online|top|ru|cn|uk|de|fr|eu|us|in|jp|br|it|nl|es|se|ch"
    "|at|pl|ca|au|kr|tw"
    "|example|test|local|internal|onion|onrender|link|zip|mov|ly|gg|tv|cc|tk|ml|ga|cf|gq|pw|club|live|run|page|space|store|fun"
    "|click|be|no|fi|dk"
)
_URL = re.compile(
    r"\b(?:https?|hxxps?|ftp|sftp|wss?|ssh|git|rsync|tcp|udp|ldap|smb|file)://(?:[^\s/@\"'`<>]{1,200}@)?(\[[0-9a-f:.]{2,45}\]"
    r"|[^\s/:\"'`<>()\[\]{}?#,;|&]{1,253})",
    re.IGNORECASE,
)
_DOMAIN = re.compile(
    rf"(?<![\w./@-])((?:[a-z0-9](?:[a-z0-9-]{{0,61}}[a-z0-9])?\.){{1,6}}(?:{_TLDS}))(?![\w-]|\.\w|\()",
    re.IGNORECASE,
)
_DEFANGED = re.compile(
    r"\b([a-z0-9-]{1,63}(?:\s?(?:\[\.\]|\(\.\)|\[dot\]|\(dot\)| dot )\s?[a-z0-9-]{1,63}){1,4})",
    re.IGNORECASE,
)
_AT = re.compile(
    r"[\w.+-]{1,64}@((?:[a-z0-9-]{1,63}\.){1,6}[a-z]{2,24}|\d{1,3}(?:\.\d{1,3}){3})", re.IGNORECASE
)
_ADDRESS = re.compile(
    r"(?<![\w.])(\d{1,3}(?:\.\d{1,3}){3})(?![\w.])|(?<=//)(0x[0-9a-f]{8}|\d{8,10})(?=[/:\s])"
)
_SOCKET = re.compile(r"/dev/(?:tcp|udp)/([^\s/]{1,253})", re.IGNORECASE)
_PATH = re.compile(
    r"(?<![\w./:<\\-])(~\w{0,32}(?:/[\w.@+%*-]{1,100}){0,20}/?|\$\{?HOME\}?(?:/[\w.@+%*-]{1,100}){0,20}"
    r"|(?:\.\./){1,20}[\w.@/-]{0,200}"
    r"|/(?:etc|usr|var|home|root|tmp|opt|bin|sbin|dev|proc|sys|mnt|srv|boot|lib|run|private|Users|Library|Applications|Volumes"
    r"|System|data|app|workspace|work|code|repo)(?:/[\w.@+%*-]{1,100}){0,20}/?"
    r"|[A-Za-z]:\\[^\s\"'`<>|]{1,200}|%(?:APPDATA|USERPROFILE|LOCALAPPDATA|TEMP|HOMEPATH)%[^\s\"'`<>|]{0,200})"
)
_CREDENTIAL = re.compile(
    r"\$\{?(?:env:)?([A-Z][A-Z0-9_]{0,60}(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|PAT|AUTH|COOKIE|DSN)[A-Z0-9_]{0,20})\}?"
    r"|\b([A-Z][A-Z0-9]{0,30}_(?:[A-Z0-9]{1,30}_){0,4}(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|PAT|COOKIE|DSN))\b"
    r"|((?:~|\$HOME|[\w./-]{0,60})/?\.(?:ssh|aws|gnupg|kube|docker|netrc|npmrc|pypirc|pgpass|git-credentials|config/gh|azure"
    r"|env)(?:\b|/)[\w./-]{0,60})"
    r"|\b(id_(?:rsa|ed25519|ecdsa|dsa)|authorized_keys|known_hosts|\.env(?:\.\w{1,20})?|credentials\.json"
    r"|service-account\.json|/etc/(?:passwd|shadow|sudoers)|keychain|1password|lastpass|wallet\.dat|seed"
    r" phrase)\b"
    r"|\b((?i:(?:private|ssh|api|access|secret|signing|encryption|deploy)"
    r" keys?|passwords?|passphrases?|access tokens?|(?:api|auth"
    r"|bearer|session|bot|refresh) tokens?|session"
    r" cookies?|cookies|credentials?|secrets?|environment variables|env vars?"
    r"|2fa codes?|one-time codes?))\b",
)
_PIPE = re.compile(
    r"((?:curl|wget|fetch|iwr|irm|invoke-webrequest|invoke-restmethod"
    r"|http)\b[^\n|]{0,300}\|\s*(?:sudo\s+)?(?:-\w+\s+)?(?:env\s+)?(?:ba|z|da|k|fi)?sh\b|(?:curl|wget|fetch|iwr"
    r"|irm)\b[^\n|]{0,300}\|\s*(?:sudo\s+)?(?:python3?|perl|ruby|node|php|iex|invoke-expression|tar|bash|source|tee)\b"
    r"|\|\s*(?:sudo\s+)?(?:ba|z|da)?sh\b(?!\w)|\|\s*(?:python3?|perl|ruby|node|php)\s*(?:-|$)|\|\s*(?:iex|invoke-expression"
    r"|xargs|nc|ncat|curl|wget|mail|sendmail|ssh|openssl)\b[^\n|`]{0,80}"
    r"|base64\s+(?:-d|--decode|-D)[^\n|]{0,80}\|[^\n`]{0,60}|xxd\s+-r[^\n`]{0,80}\|[^\n`]{0,60}"
    r"|\beval\b\s*[\"'(`$][^\n]{0,100}|\bexec\s*\([^\n]{0,100}|(?:ba|z)?sh\s+-c\s+[\"'$][^\n]{0,120}|(?:ba"
    r"|z)?sh\s+<\(\s*\w[^\n]{0,100}|source\s+<\(\s*\w[^\n]{0,100}"
    r"|\$\(\s*(?:curl|wget|base64|printf|echo)[^\n)]{0,120}\)|python3?\s+-c\s+[\"'][^\n]{0,160}|powershell\s+-(?:e|enc"
    r"|encodedcommand)\b[^\n]{0,60}|>\s*/dev/(?:tcp|udp)/\S{1,80}|__import__\s*\([^\n]{0,80}|os\.system\s*\([^\n]{0,100}"
    r"|subprocess\.\w{1,12}\([^\n]{0,120})",
    re.IGNORECASE | re.MULTILINE,
)
_COMMANDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("make a file executable", r"\bchmod\s+(?:-\w+\s+)?(?:[ugoa]*\+[rws]*x|[0-7]*[1357][0-7]{0,2}\b)"),
        ("run as root", r"(?<![\w-])(?:sudo|doas|pkexec|runas)\s+(?!apt)\S|(?<!\w)su\s+-"),
        ("change scheduled or startup programs", r"\bcrontab\b|\bcron\.d\b|\bsystemctl\s+(?:enable|start|daemon-reload|edit)"
                                       r"|\blaunchctl\b|\bschtasks\b|\brc\.local\b|(?:\.|/)(?:bashrc|zshrc|profile"
                                       r"|bash_profile|zshenv)\b|LaunchAgents|\bat\s+now\b|@reboot"),
        ("install from an address", r"\b(?:pip3?|pipx|uv(?:\s+pip)?|npm|npx|pnpm|yarn|bunx?|go|cargo|gem|brew|apt(?:-get)?|dnf"
                                    r"|yum|snap|conda)\s+(?:\w+\s+)?(?:-\S+\s+){0,5}?\S*(?:https?://|git\+|git@|ssh://|file:"
                                    r"|\.tgz\b|\.whl\b|\.deb\b|github:)\S*|--(?:extra-)?index-url|--registry[= ]|--find-links"
                                    r"|--trusted-host|\badd-apt-repository\b|\bbrew\s+tap\b"),
        ("change git remotes, hooks or settings", r"\bgit\s+(?:remote\s+(?:add|set-url)|config\s+(?:--\w+\s+)?(?:core\.(?:hookspath"
                                           r"|sshcommand|pager|fsmonitor)|credential|url\.|alias\.|filter\.|diff\.)\S*"
                                           r"|push\s+\S*(?:https?://|git@)\S*|submodule\s+add|clone\s+\S*(?:https?://|git@))"
                                           r"|\.git/hooks|\bgit\s+push\s+(?:--mirror|-f\b|--force)"),
        ("read or change keys", r"\bssh-(?:keygen|copy-id|add)\b|authorized_keys|\bgpg\s+--(?:import|export-secret)"
                        r"|\bsecurity\s+(?:find|dump|add)-|\bkeyring\b|\bvault\s+(?:read|kv)\b|\bgh\s+auth\s+token\b"
                        r"|\bgcloud\s+auth\s+print|\baws\s+(?:configure|iam|sts)\b|\bkubectl\s+(?:get|describe)\s+secrets?\b"
                        r"|\bop\s+(?:read|item)\b"),
        ("turn protection off", r"--no-verify\b|--insecure\b|(?<!\w)-k\s+https?:|verify\s*=\s*False"
                                  r"|StrictHostKeyChecking[ =]no|NODE_TLS_REJECT_UNAUTHORIZED|--no-check-certificate"
                                  r"|--disable-(?:web-)?security|--allow-unauthenticated|--dangerously\S*|--privileged\b"
                                  r"|setenforce\s+0|ufw\s+disable|iptables\s+-F|Set-ExecutionPolicy|--yolo\b|GIT_SSL_NO_VERIFY"
                                  r"|--no-sandbox|permissions?\.(?:allow|defaultMode)|bypassPermissions|auto-?approve"),
        ("delete many files or data", r"\brm\s+-(?:\w*r\w*f|\w*f\w*r)\w*\s|\bmkfs\b|\bdd\s+if=|\bshred\b|\bgit\s+(?:reset\s+--hard"
                            r"|clean\s+-\w*f)|\bdrop\s+(?:table|database)\b|\bformat\s+c:|history\s+-c\b|\btruncate\s+table\b"),
        ("open or send over the network", r"\b(?:nc|ncat|netcat|socat)\s+-?\S|\bngrok\b|\bcloudflared\b|\bssh\s+-[RLD]\b"
                                          r"|\bscp\s+\S|\brsync\s+\S+\s+\S+@|\bsendmail\b|\bmail\s+-s\b"
                                          r"|\bcurl\b[^\n`]{0,200}(?:\s-(?:d|F|T)\b|--data|--upload-file|--form|-X\s*(?:POST"
                                          r"|PUT))|\bwebhook\b|\brequests\.post\b|\bfetch\s*\([^)\n]{0,100}post|\bdns(?:lookup"
                                          r"|-exfil)|\bnslookup\s+\$|\bdig\s+\$"),
        ("download", r"\b(?:curl|wget|iwr|invoke-webrequest)\b[^\n`|]{0,200}(?:\s-[oO]\b|\s--output|\s-OutFile|https?://)"),
        ("start a container with host access", r"\bdocker\s+run\b[^\n]{0,200}(?:-v\s*/|--privileged|--pid[= ]host"
                                      r"|--net(?:work)?[= ]host)|\bkubectl\s+(?:apply|exec|run)\b[^\n]{0,100}https?://"),
        ("change an agent's own settings", r"\.claude/|\bclaude\s+mcp\b|mcpServers|\bmcp\s+add\b|settings\.json|\.cursor/"
                                           r"|AGENTS\.md|CLAUDE\.md|\.codex/|config\.toml|SKILL\.md"),
    )
)  # fmt: skip
FORBIDS = re.compile(
    r"\b(?:don'?t|do not|never|stop|no more|not allowed|must"
    r" not|mustn'?t|avoid|quit|nicht|nie|niemals|kein\w*|jamais|nunca|не"
    r"|никогда|ne pas)\b|不要|禁止|しないで",
    re.IGNORECASE,
)
"""Words that forbid something."""
EXCEPTS = re.compile(r"\b(?:without|unless|until|except|forget|before|hesitate)\b", re.IGNORECASE)
"""Words that turn a prohibition into a condition or an order."""
_DOCUMENTATION = frozenset(
    ("example.com", "example.org", "example.net", "localhost", "127.0.0.1", "0.0.0.0", "::1")
)
_CODE_NAMES = re.compile(
    r"\.(?:py|js|ts|tsx|jsx|md|json|toml|yaml|yml|txt|sh|rs|go|java|rb|html|css|cfg|ini|lock|log|csv|sql|xml)$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an agent that follows a text would use. Empty for most skills."""

    hosts: frozenset[str] = field(default_factory=frozenset)
    paths: frozenset[str] = field(default_factory=frozenset)
    credentials: frozenset[str] = field(default_factory=frozenset)
    pipes: frozenset[str] = field(default_factory=frozenset)
    commands: frozenset[str] = field(default_factory=frozenset)

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))

    def __or__(self, other: "Capabilities") -> "Capabilities":
        return Capabilities(
            *(getattr(self, field.name) | getattr(other, field.name) for field in fields(self))
        )

    def __sub__(self, other: "Capabilities") -> "Capabilities":
        return Capabilities(
            *(getattr(self, field.name) - getattr(other, field.name) for field in fields(self))
        )

    def words(self) -> str:
        """For people: `hosts: evil.example; pipes: curl … | sh`."""
        named = ((field.name, sorted(getattr(self, field.name))) for field in fields(self))
        return "; ".join(f"{name}: {', '.join(values)}" for name, values in named if values)


def capabilities(text: str) -> Capabilities:
    """The capabilities in a text, including disguised ones."""
    shown = visible_text(text)
    return Capabilities(
        frozenset(_hosts(shown)),
        frozenset(match[1].rstrip("/.,") for match in _PATH.finditer(shown)),
        frozenset(
            next(group for group in match.groups() if group).strip("/").lower()
            for match in _CREDENTIAL.finditer(shown)
        ),
        frozenset(" ".join(match[1].split())[:120] for match in _PIPE.finditer(shown)),
        frozenset(name for name, pattern in _COMMANDS if pattern.search(shown)),
    )


@lru_cache(_REMEMBERED_SKILLS)
def skill_capabilities(text: str) -> Capabilities:
    """`capabilities` with a cache, for skills, which are compared with every proposal. People's
    words must not be cached.
    """
    return capabilities(text)


def skill_text(skill: Skill) -> str:
    """The text of a skill as it is placed in a prompt."""
    return f"{skill.name}\n{skill.trigger}\n{skill.body}"


def _hosts(text: str) -> Iterable[str]:
    for pattern in (_URL, _AT, _SOCKET):
        yield from (host for match in pattern.finditer(text) if (host := _host(match[1])))
    for match in _DOMAIN.finditer(text):
        if not _CODE_NAMES.search(match[1]) and (host := _host(match[1])):
            yield host
    for match in _ADDRESS.finditer(text):
        if (match[2] or _is_address(match[1])) and (host := _host(match[1] or match[2])):
            yield host
    for match in _DEFANGED.finditer(text):
        name = re.sub(
            r"\s?(?:\[\.\]|\(\.\)|\[dot\]|\(dot\)| dot )\s?", ".", match[1], flags=re.IGNORECASE
        )
        if _DOMAIN.fullmatch(name):
            yield name.lower()


def _host(name: str) -> str:
    host = name.lower().strip("[].").removeprefix("www.")
    return "" if host in _DOCUMENTATION else host


def _is_address(text: str) -> bool:
    try:
        return not ipaddress.ip_address(text).is_unspecified
    except ValueError:
        return False
