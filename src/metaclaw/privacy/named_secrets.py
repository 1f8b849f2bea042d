"""Secrets recognised by the name before them: settings, command-line flags, logins, table columns, and sentences.

All patterns search the text in lower case, in which every character keeps its position. One quick pattern finds words that could
name a secret. The slower patterns read only a bounded stretch after such a word, so that hostile text takes linear time.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from metaclaw.privacy.secret_tokens import (
    PLACEHOLDER,
    Certainty,
    SecretMatch,
    ValueCheck,
    is_digest,
    is_meant,
    is_mixed,
    is_name,
    is_password,
    is_token,
    is_typed,
    is_word_about,
)

# This pattern searches the whole text, so alternatives with the same first letters are grouped.
_HINTS = (
    r"key|token|se(?:cret|ssion(?:[-_ ]?id)?)|p(?:ass(?:word|wd|phrase|code|wort)?|wd?|sk)|auth(?:orization)?|signature|jwt|dsn"
    r"|c(?:redentials?|ookie|onn(?:ection)?[-_ ]?str(?:ing)?)|webhook(?:[-_ ]?url)?"
)
_LATIN = ("kennwort", "contrasena", "senha", "mot de passe", "wachtwoord")
_FOREIGN = (*_LATIN, "contraseña", "lösenord", "hasło", "пароль", "密码", "密碼", "口令", "パスワード", "비밀번호")
_HINT = re.compile(_HINTS)
_ANY_HINT = re.compile("|".join((_HINTS, *_FOREIGN)))
_WEAK = ("token", "auth", "session", "cookie", "jwt", "signature", "dsn", "conn", "webhook")
_SHORT = frozenset(("pass", "pw", "pwd", "psk"))
_STRONG_KEY = re.compile(r"(?:secret|private|encryption|signing|master|crypto)[-_ ]?\Z")
_KEY = re.compile(
    r"(?:api|access|account|storage|app|application|auth|service|license|shared|client|admin|session|consumer|subscription"
    r"|write|ingest|deploy|server|root|webhook|host|function|[a-z0-9]_)[-_ ]?\Z"
)
_DETERMINER = re.compile(r"\b(?:this|that|my|our|your|the|new) \Z")
_INNOCENT = re.compile(
    r"(?<![a-z])(?:public|primary|foreign|sort|partition|cache|group|max|min|num|eos|bos|pad|sep|cls|unk|mask|next|page"
    r"|special|object|row|map|hot|short|arrow|press|continuation|idempotency|publishable)[-_ ]?(?:key|token)?[-_ ]?\Z"
)

_QUOTE = r"(?:\\{0,3}[\"'`])"
_TAIL = r"(?:[-_. ]?(?:base64|b64|value|val|prod(?:uction)?|dev|staging|live|old|new|primary|secondary|id|v?\d{1,2})){0,2}"
_ASSIGNED = re.compile(
    rf"{_TAIL}(?:{_QUOTE}|\*\*)?\]?[ \t]{{0,20}}(?:=>|->|→|:=|==?|\?="
    rf"|[:：|])[ \t]{{0,20}}(?:\*\*)?(?:[brfu]{{0,2}}(?P<quote>{_QUOTE}))?"
)
# Forms (an element, a call, a pair) in which a value counts only if it also looks like a secret.
_BESIDE = re.compile(
    rf"{_TAIL}(?:>(?=[^<\s])|\((?:\"|')|{_QUOTE}[ \t]{{0,4}},[ \t]{{0,4}}{_QUOTE}"
    rf"|{_QUOTE}?[ \t]{{0,4}}[=:][ \t]{{0,4}}[a-z-]{{4,40}}[ \t]\"|[ \t]{{1,20}}(?![ \t]))"
)
_FLAG = re.compile(rf"[ \t]{{1,4}}(?P<quote>{_QUOTE})?(?![\s-])")
_FLAG_BEFORE = re.compile(r"(?<![\w-])--?(?:[a-z0-9]{1,20}[-_]){0,3}(?:api|access|secret|auth|private)?[-_]?\Z")
_SPOKEN = re.compile(
    r"(?:[ \t][^\n.:;=\"'`]{0,40}?)?[ \t]?(?:\b(?:is|was|are|ist|lautet|es|est|è|é|to|jest|это)\b|是|は|为"
    r"|為)[ \t:：]{0,3}(?P<quote>[\"'`“«「])?"
)
_LOGIN_BEFORE = re.compile(r"\b(?:login|user|account)[ \t]+\S{1,100}\s{1,20}\Z")
_LINE_START = re.compile(
    r"(?:^|[\n;]|\\n)[ \t>+|#*-]{0,12}(?:export |set |setx |env |declare -x |- |arg |\$env:|const "
    r"|\d{1,4}[:|] ?)?[\"']?[\w.\-\[\]]{0,80}\Z",
    re.IGNORECASE,
)
_AFTER = frozenset(" \t\"'`\\*]=:-?|_.>(→：0123456789是は为為")
_MAX_VALUE = 2000
_BARE = re.compile(r"[^\s\"'`<>]{1,2000}")
_CODE_BARE = re.compile(r"[^\s\"'`<>,;(){}\[\]|\\]{1,2000}")
_FIELD_END = re.compile(r"&(?=[\w.%-]{1,60}=)|\\[nrt]|;(?=[A-Za-z][A-Za-z ]{1,30}=)|;\Z")
_CLOSING = {"“": "”", "«": "»", "「": "」"}


def find_named(check: ValueCheck, low: str) -> Iterator[SecretMatch]:
    """Find secrets after a name: `password = "…"`, `API_KEY=…`, `--token …`, `the password is …`, `login me password …`."""
    text = check.text
    foreign = any(word in low for word in (_LATIN if text.isascii() else _FOREIGN))
    for hint in (_ANY_HINT if foreign else _HINT).finditer(low):
        start, end = hint.span()
        if text[start - 1 : start] == "<" and PLACEHOLDER.match(text, start - 1):
            continue
        if low[end : end + 1] not in _AFTER:
            continue
        if check.is_exhausted(end):
            yield SecretMatch(end, min(end + _MAX_VALUE, len(text)), "SECRET", Certainty.NAMED)
        else:
            yield from _behind(check, low, hint)


def _behind(check: ValueCheck, low: str, hint: re.Match[str]) -> Iterator[SecretMatch]:
    """Secrets after a word that may name one."""
    text = check.text
    start, end = hint.span()
    assigned, weak = _ASSIGNED.match(low, end), _is_weak(hint[0], low, start)
    if assigned is not None and weak is not None and _may_be_assigned(hint[0], text, low, start):
        yield from _value(check, assigned, start, hint[0], weak=weak)
    elif assigned is not None and (
        text[start:end] == "pass" or (hint[0] == "key" and _DETERMINER.search(low, max(0, start - 8), start))
    ):
        yield from _plain(check, assigned.end(), "PASSWORD" if hint[0] == "pass" else "SECRET", is_typed)
    elif low[end : end + 1] in " \t" or not low[end : end + 1].isascii():
        yield from _said(check, low, hint, weak=weak)
    beside = _BESIDE.match(low, end) if weak is not None else None
    if beside is not None and not (weak and hint[0].startswith("session")):
        quoted = beside[0][-1:] in ("'", '"')
        typed = _is_typed_token if weak else is_meant if quoted else is_typed
        yield from _plain(check, beside.end(), "SECRET" if weak else "PASSWORD", typed)


def _is_weak(word: str, low: str, start: int) -> bool | None:
    """Whether the value must also look like a secret; None if the word names no secret."""
    if word == "key":
        before = low[max(0, start - 16) : start]
        return False if _STRONG_KEY.search(before) else True if _KEY.search(before) else None
    return word.startswith(_WEAK)


def _may_be_assigned(word: str, text: str, low: str, start: int) -> bool:
    if _INNOCENT.search(low, max(0, start - 20), start):
        return False
    joined = _begins_a_word(text, start)
    if word == "pass":
        return joined and text[start - 1 : start] not in (" ", "\n", "") and start > 0
    return joined or not (word in _SHORT or word.startswith(("auth", "session", "dsn")))


def _begins_a_word(text: str, start: int) -> bool:
    """Whether a word starts here: at a boundary, after an underscore, or at a capital in camel case."""
    before = text[start - 1 : start] if start else ""
    return not before.isalpha() or (text[start].isupper() and before.islower())


def _value(check: ValueCheck, match: re.Match[str], name_start: int, word: str, *, weak: bool) -> Iterator[SecretMatch]:
    text, start, quote = check.text, match.end(), match["quote"]
    if quote:
        end = _closing(text, quote, start)
        is_secret = is_token if weak else _is_set_password
    else:
        in_line = _LINE_START.search(text, max(0, name_start - 90), name_start) is not None
        bare = (_BARE if in_line else _CODE_BARE).match(text, start)
        value = _without_rest(bare[0]) if bare else ""
        end = start + len(value)
        config = in_line and _ends_line(text, end)
        is_secret = partial(is_token, quoted=False) if weak else partial(is_password, quoted=False, config=config)
    if check.holds(start, end, is_secret):
        label = "PASSWORD" if not weak and "secret" not in word and "cred" not in word and word != "key" else "SECRET"
        yield SecretMatch(start, end, label, Certainty.NAMED)


def _closing(text: str, quote: str, start: int) -> int:
    """Where the quoted value ends: at the same quote, else at the end of the line."""
    line = text.find("\n", start, start + _MAX_VALUE)
    limit = line if line >= 0 else min(len(text), start + _MAX_VALUE)
    end = start
    while True:
        end = text.find(quote, end, limit)
        if end < 0:
            return limit
        if len(quote) > 1 or text[end - 1] != "\\" or text[end - 2 : end] == "\\\\":
            return end
        end += 1


def _without_rest(value: str) -> str:
    """The value without the fields that follow it in a form's body or a connection string, and without punctuation."""
    end = _FIELD_END.search(value)
    return (value[: end.start()] if end else value).rstrip(",;").removesuffix(")")


def _ends_line(text: str, end: int) -> bool:
    rest = text[end : end + 40].split("\n", 1)[0].strip()
    return not rest or rest[0] in "#;,\"'&|\\})" or rest.startswith("//")


def _said(check: ValueCheck, low: str, hint: re.Match[str], *, weak: bool | None) -> Iterator[SecretMatch]:
    """After a space: a flag's value, a login's password, or a secret in a sentence."""
    text = check.text
    start, end = hint.span()
    if text[start - 1 : start] in ("-", "_", "y", "i", "s", "h", "e") and _FLAG_BEFORE.search(low, max(0, start - 60), start):
        flag = _FLAG.match(low, end)
        if flag is not None:
            yield from _quoted_or_plain(check, flag, _is_set_password, weak=weak is not False)
        return
    if hint[0].startswith("pass") and _LOGIN_BEFORE.search(low, max(0, start - 130), start):
        after = end + len(low[end : end + 20]) - len(low[end : end + 20].lstrip())
        yield from _plain(check, after, "PASSWORD", _is_login_password)
    if _begins_a_word(text, start) or weak is False:
        spoken = _SPOKEN.match(low, end)
        if spoken is not None:
            yield from _quoted_or_plain(check, spoken, _is_spoken_password, weak=weak is not False)


def _quoted_or_plain(
    check: ValueCheck, match: re.Match[str], is_secret: Callable[[str], bool], *, weak: bool
) -> Iterator[SecretMatch]:
    quote, start = match["quote"], match.end()
    label = "SECRET" if weak else "PASSWORD"
    if not quote:
        yield from _plain(check, start, label, is_token if weak else is_secret)
        return
    end = _closing(check.text, _CLOSING.get(quote, quote), start)
    if check.holds(start, end, is_token if weak else _is_one_word_password):
        yield SecretMatch(start, end, label, Certainty.NAMED)


def _is_set_password(value: str) -> bool:
    return is_password(value, quoted=True, config=True)


def _is_one_word_password(value: str) -> bool:
    return " " not in value and _is_set_password(value)


def _is_login_password(value: str) -> bool:
    return not is_word_about(value) and (is_mixed(value) or len(value) >= 8)


def _is_spoken_password(value: str) -> bool:
    """Whether a word after "the password is" is a password: it has several kinds of characters and is not like `up-to-date`."""
    if is_typed(value):
        return True
    if len(value) < 4 or sum(map(str.isascii, value)) < len(value) / 2 or not is_mixed(value):
        return False
    return not is_word_about(value, quoted=False) and not re.fullmatch(r"[^\W\d]+(?:[-'’/.][^\W\d]+)+", value)


def _is_typed_token(value: str) -> bool:
    return len(value) >= 16 and is_typed(value)


def _plain(check: ValueCheck, start: int, label: str, is_secret: Callable[[str], bool]) -> Iterator[SecretMatch]:
    match = _BARE.match(check.text, start)
    if match is not None:
        end = start + len(match[0].rstrip(".,;:?)。，、"))
        if check.holds(start, end, is_secret):
            yield SecretMatch(start, end, label, Certainty.NAMED)


_TABLE = re.compile(r"^([ \t]*\|[^\n]{1,500})\n[ \t]*\|[ \t:|+-]{3,500}\n((?:[ \t]*\|[^\n]{1,2000}(?:\n|\Z)){1,500})", re.MULTILINE)
_SECRET_HEADING = re.compile(r"pass|secret|token|api.?key|[a-z]_key|credential|pwd|пароль|密码")


def find_in_tables(text: str, low: str) -> Iterator[SecretMatch]:
    """Find secrets in Markdown tables: cells under headings such as `Password`."""
    if "|" not in low or ("|--" not in low and "| --" not in low and "|:-" not in low):
        return
    for table in _TABLE.finditer(low):
        columns = [at for at, heading in enumerate(table[1].split("|")) if _SECRET_HEADING.search(heading)]
        at = table.start(2)
        for row in table[2].split("\n") if columns else ():
            yield from _cells(text, at, row, columns)
            at += len(row) + 1


def _cells(text: str, at: int, row: str, columns: list[int]) -> Iterator[SecretMatch]:
    for column, cell in enumerate(row.split("|")):
        if column in columns:
            bare = cell.strip(" \t`")
            start = at + cell.find(bare)
            value = text[start : start + len(bare)]
            if is_meant(value):
                yield SecretMatch(start, start + len(bare), "PASSWORD", Certainty.NAMED)
        at += len(cell) + 1


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
    r"|session(?:id)?|hash|ticket|assertion|credential|awsaccesskeyid|otp)=([^&\s\"'`<>#;\\]{6,2000})"
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
    """Find secrets by their place. `words` are the distinct words of `low`; patterns whose words are not among them are skipped."""
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
