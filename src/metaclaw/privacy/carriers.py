"""Secrets recognised by their place: URLs, HTTP headers, cookies, commands, password files, Kubernetes secrets."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from metaclaw.privacy.matches import Certainty, SecretMatch, ValueCheck
from metaclaw.privacy.secret_values import is_digest, is_mixed, is_name, is_token, is_typed, is_word_about


def _literal(value: str) -> bool:
    return not is_word_about(value, quoted=False)


def _opaque(value: str) -> bool:
    return len(value) >= 6 and _literal(value) and not is_name(value) and (is_mixed(value) or len(value) >= 16)


def _user_token(value: str) -> bool:
    return len(value) >= 16 and is_token(value)


@dataclass(frozen=True, slots=True)
class Carrier:
    """A pattern with a secret in group 1. It starts at one of the anchors; each anchor comes with its longest word."""

    label: str
    anchors: tuple[tuple[str, str], ...]
    pattern: re.Pattern[str]
    is_secret: Callable[[str], bool]


def _carrier(label: str, anchors: tuple[str, ...], pattern: str, is_secret: Callable[[str], bool] = _literal) -> Carrier:
    words = (max(anchor.split(), key=len) for anchor in anchors)
    return Carrier(label, tuple(zip(anchors, words, strict=True)), re.compile(pattern), is_secret)


_Q = r"(?:\\{0,3}[\"'`])"
_VALUE = r"([^\s\"'`]{3,200})"
_QUERY = re.compile(
    r"[?&;#](?:[a-z0-9_.-]{0,20}[-_.])?(?:(?:access|id|refresh|auth|session|bot|csrf|private|api|sas|security)?[-_]?token"
    r"|api[-_]?key|apikey"
    r"|access[-_]?key(?:id)?|key|sig|signature|hmac|password|passwd|pwd|pass|secret|client[-_]?secret|code|auth|jwt|sid"
    r"|session(?:id)?|hash"
    r"|ticket|assertion|credential|awsaccesskeyid|otp)=([^&\s\"'`<>#;\\]{6,2000})"
)
_LOGINS = ("redis-cli", "mongo", "docker login", "podman login", "helm registry login", "az login", "sqlcmd", "ldap", "mosquitto_")
CARRIERS: tuple[Carrier, ...] = (
    _carrier(
        "PASSWORD:url",
        ("://",),
        r"://[^\s/:@\"'`<>]{0,100}:(?!//)([^\s\"'`<>/@]{1,200}(?:[/@][^\s\"'`<>/@]{1,100}){0,3}?)@(?=\[?[a-z0-9_$.{-])",
    ),
    _carrier("TOKEN:url", ("://",), r"://([^\s/:@\"'`<>]{16,300})(?::x-oauth-basic)?@(?=[a-z0-9.-])", _user_token),
    _carrier(
        "TOKEN:bearer",
        ("bearer", "authorization"),
        rf"(?:bearer|authorization{_Q}?[ \t]{{0,4}}[:=,][ \t]{{0,4}}{_Q}?(?:bearer|token|apikey|api-key|basic|key|sso-key"
        rf"|negotiate|digest)?)[ \t]{{0,4}}{_Q}?([a-z0-9+/_.=~:%|-]{{12,4000}})",
        is_token,
    ),
    _carrier(
        "PASSWORD:basic",
        ("basic ",),
        r"basic[ \t]{1,4}([a-z0-9+/]{8,1000}={0,2})(?![a-z0-9+/])",
        lambda value: _is_user_and_password(value),
    ),
    _carrier(
        "TOKEN:header",
        ("x-",),
        rf"x-[a-z-]{{0,40}}(?:key|token|secret|signature|auth"
        rf"|password){_Q}?[ \t]{{0,4}}[:=,][ \t]{{0,4}}{_Q}?([^\s\"'`,;<>\\]{{6,4000}})",
        _opaque,
    ),
    _carrier("COOKIE", ("sid=", "sess"), r"[a-z_.-]{3,30}=([a-z0-9%+/_.=~:|-]{10,4000})", _opaque),
    _carrier("PASSWORD:command", ("htpasswd",), r"htpasswd[ \t]+-\w{0,6}b\w{0,6} (?:-\w ){0,4}\S{1,200} \S{1,100} (\S{3,200})"),
    _carrier("PASSWORD:command", ("pass:",), rf"(?:(?<=-pass )|(?<=-passin )|(?<=-passout )|(?<=-k ))pass:{_VALUE}"),
    _carrier("PASSWORD:command", ("identified ",), rf"identified (?:with \S{{1,40}} )?by (?:password )?{_Q}([^\"'\n\\]{{3,200}})"),
    _carrier("PASSWORD:command", ("password ",), rf"password {_Q}([^\s\"'`\\]{{3,200}}){_Q}"),
    _carrier(
        "PASSWORD:command",
        ("convertto-securestring",),
        rf"convertto-securestring[ \t]{{1,4}}(?:-\w{{1,20}}[ \t]{{1,4}}){{0,3}}{_Q}?{_VALUE}",
    ),
    _carrier(
        "PASSWORD",
        ("variable ",),
        rf"variable {_Q}[\w-]{{0,60}}(?:pass|secret|token|key"
        rf"|pwd)[\w-]{{0,20}}{_Q}\s{{0,4}}\{{[^{{}}]{{0,200}}?default\s{{0,20}}=\s{{0,4}}{_Q}([^\"'\n]{{3,200}})",
    ),
    _carrier(
        "PASSWORD",
        ("creds", "login"),
        r"(?:creds?|login|credentials)(?:[ \t]{1,3}(?:are|is"
        r"|for \S{1,40}))?[ \t:=]{1,4}[\w.@-]{1,40}[ \t]{0,3}[:/|,][ \t]{0,3}([^\s\"'`,<>]{6,100})",
        is_typed,
    ),
    _carrier("PASSWORD:command", ('send "', "send -- "), r"send (?:-- )?\"([^\"\\\s]{6,100})\\[rn]", is_typed),
    _carrier("PASSWORD:command", ("net use ",), r"net use [^\n]{0,100}?/user:\S{1,60} ([^\s/*][^\s]{5,100})", is_typed),
    _carrier(
        "PASSWORD:file",
        (":5432:", ":*:"),
        r":(?:\d{2,5}|\*):[a-z0-9_*-]{1,60}:[a-z0-9_*.-]{1,60}:([^\s:\"']{4,200})(?=\s|\Z|\\n|[\"'])",
    ),
    _carrier(
        "PASSWORD:command",
        ("echo ", "printf "),
        rf"(?:echo|printf) (?:-\w{{1,4}} )?{_Q}?(?:[\w.-]{{1,32}}:)?([^\s\"'|\\]{{3,200}})(?:\\n)?{_Q}?[ \t]{{0,4}}\|[ \t]{{0,"
        rf"4}}(?:sudo -\w{{0,2}}s\b|sudo -k -s|(?:sudo )?(?:chpasswd|passwd)|[\w /-]{{0,20}}--?password-stdin|cryptsetup|kinit"
        rf"|(?:docker|podman|helm)[^\n]{{0,40}}login)",
    ),
    _carrier("PASSWORD:command", ("sshpass",), rf"sshpass[ \t]{{1,4}}-p[ \t]{{0,4}}{_Q}?{_VALUE}"),
    _carrier(
        "PASSWORD:command",
        ("mysql", "mariadb"),
        rf"(?:mysql(?:dump|admin|import)?|mariadb(?:-dump)?)(?: [^\n|;]{{0,200}}?)? -p{_Q}?([^\s\"'-][^\s\"']{{2,200}})",
    ),
    _carrier(
        "PASSWORD:command",
        ("curl ", "wget ", "http ", "https "),
        rf"(?:curl|https?|wget) [^\n|;]{{0,300}}?(?:-u|--user|-a|--auth|--proxy-user)[ =]{{0,4}}{_Q}?[^\s:\"'/]{{1,100}}:{_VALUE}",
    ),
    _carrier(
        "PASSWORD:command",
        ("smbclient", "rpcclient", "net use", "net rpc"),
        rf"(?:smbclient|rpcclient|net use|net rpc)[^\n|;]{{0,200}}?-u[ \t]{{1,4}}{_Q}?[^\s%\"']{{1,60}}%{_VALUE}",
    ),
    _carrier(
        "PASSWORD:command",
        _LOGINS,
        rf"(?:{'|'.join(_LOGINS)})[^\n|;]{{0,200}}? -{{1,2}}(?:a|p|pass|w)[ \t=]{{1,4}}{_Q}?([^\s\"'-][^\s\"']{{2,200}})",
    ),
)
_COOKIE_LINE = re.compile(r"(?:set-)?cookie\\?[\"']?[ \t]*[:=,][ \t]*(?:\\?[\"'])?([^\n\r]{1,8000})")
_COOKIE = re.compile(r"([^\s=;,\"'\\]{1,100})=([^;\s\"'\\,]{6,4000})")
_COOKIE_WORDS = re.compile(
    r"path|domain|expires|max-age|samesite|version|priority|theme|lang|locale|tz|currency|_ga|_gid|utm", re.IGNORECASE
)
_KUBERNETES = re.compile(r"kind[\"']?:[ \t]*[\"']?secret\b", re.IGNORECASE)
_KUBERNETES_VALUE = re.compile(
    r"[\"']?[\w.-]{1,100}[\"']?:[ \t]*[\"']?([A-Za-z0-9+/]{4,8000}={0,2})[\"']?[ \t]*,?[ \t]*(?:\r?\n|\\n|$|(?=\}))"
)


def find_carried(check: ValueCheck, low: str, words: str) -> Iterator[SecretMatch]:
    """Find secrets by their place. `words` are the distinct words of `low`; patterns without a word there are skipped."""
    for carrier in CARRIERS:
        for anchor, word in carrier.anchors:
            if word in words:
                yield from _at(carrier, anchor, check, low)
    if _QUERY.search(words):
        for match in _QUERY.finditer(low):
            if check.holds(*match.span(1), _opaque):
                yield SecretMatch(match.start(1), match.end(1), "TOKEN:url", Certainty.NAMED)
    if "cookie" in words:
        yield from _cookies(check, low)
    if "secret" in words and "kind" in words:
        yield from _kubernetes(check.text)


def _at(carrier: Carrier, anchor: str, check: ValueCheck, low: str) -> Iterator[SecretMatch]:
    at = low.find(anchor)
    while at >= 0:
        end = at + len(anchor)
        match = carrier.pattern.match(low, at)
        if match is not None and check.holds(*match.span(1), carrier.is_secret):
            yield SecretMatch(*match.span(1), carrier.label, Certainty.NAMED)
            end = match.end(1)
        at = low.find(anchor, end)


def _cookies(check: ValueCheck, low: str) -> Iterator[SecretMatch]:
    """Values of cookie headers that may be sessions; themes and languages are left alone."""
    for line in _COOKIE_LINE.finditer(low):
        for pair in _COOKIE.finditer(check.text, line.start(1), line.end(1)):
            if not _COOKIE_WORDS.match(pair[1]) and check.holds(*pair.span(2), _opaque):
                yield SecretMatch(pair.start(2), pair.end(2), "COOKIE", Certainty.NAMED)


def _kubernetes(text: str) -> Iterator[SecretMatch]:
    """Base64 values in the `data` of a Kubernetes Secret."""
    done = 0
    for kind in _KUBERNETES.finditer(text):
        if kind.start() < done:
            continue
        begin, end = text.rfind("\n---", 0, kind.start()), text.find("\n---", kind.end())
        floor, ceiling = max(begin, kind.start() - 20_000, done), min(end if end >= 0 else len(text), kind.end() + 20_000)
        done = ceiling
        data = re.compile(r"(?:string)?data[\"']?:", re.IGNORECASE).search(text, floor, ceiling)
        if data is None:
            continue
        for value in _KUBERNETES_VALUE.finditer(text, data.end(), ceiling):
            if len(value[1]) % 4 == 0 and not is_digest(value[1]) and value[1].lower() not in ("secret", "opaque"):
                yield SecretMatch(value.start(1), value.end(1), "SECRET:kubernetes", Certainty.NAMED)


def _is_user_and_password(value: str) -> bool:
    return len(value) >= 8 and (any(map(str.isdigit, value)) or value.endswith("=") or not value.islower())
