"""The check that is built in while rules are held: an agent does not lift, change or stop them itself.

A request counts only where it goes to this program: by its port, its key in the path, or a variable that points agents at it. Other
servers have a path `/api/rules`, too.
"""

from functools import lru_cache

from metaclaw.domain.check import PatternCheck, Place, Where

_COMMANDS = (
    r"(?:metaclaw|python[\d.]* -m ?metaclaw[\w.]*) (?!.* --help$)(?:-\S+ )*(?:(?:enforce (?:-\S+ )*off|undo|stop|rollback"
    r"|service (?:-\S+ )*remove"
    r"|rules (?:-\S+ )*(?:remove|edit|import)|skills (?:-\S+ )*(?:remove|retire|revert|rollback|edit|import)"
    r"|sessions (?:-\S+ )*forget|store (?:-\S+ )*(?:restore|repair)|agents (?:-\S+ )*disconnect)(?=\s|$)"
    r"|config (?:-\S+ )*set (?:-\S+ )*(?:proxy\.enforce|skills\.)|[^|;&]*--set[ =]proxy\.enforce)"
    r"|(?:export )?METACLAW__PROXY__ENFORCE"
)
_PROCESSES = (
    r"(?:pkill|killall|kill|taskkill|stop-process) [^|;&]*metaclaw"
    r"|(?:systemctl|launchctl|service|docker|podman|supervisorctl|pm2|tmux|screen) (?:.*? )?"
    r"(?:stop|kill-session|quit|disable|kill|mask|rm|remove"
    r"|unload|bootout|delete) "
    r"(?:.*? )?\S*metaclaw|(?:fuser -k\S* (?:.*? )?{port}/tcp|kill .*:{port}\b|kill-port (?:.*? )?{port}\b)"
)
_FILES = (
    r"(?:rm|mv|truncate|unlink|shred|chmod|ln|unzip|yq -i|sed -i|perl -pi|tar (?:.*? )?-C) (?:.*? )?"
    r"\S*(?:\.metaclaw|METACLAW_HOME)(?:\W|$)|find (?:.*? )?\S*\.metaclaw.* -(?:exec|delete)"
    r"|[^\n]*\.metaclaw/(?:config\.toml|skills/[^\n]*)\n"
)
_REQUESTS = (
    r"(?:request (?:POST|PUT|PATCH|DELETE) |(?i:curl|wget|https?|xh|irm|iwr|invoke-\w+)"
    r"(?=.*(?:(?i: -X ?| --request[ =]| --method[ =]| -Method )[\"']?(?i:POST|PUT|PATCH|DELETE)| -d| --data| --json"
    r"| -F | --form| --post-data"
    r"| --body-data|POST |PUT |PATCH |DELETE | \S+:?=\S)) )(?:.*[\s\"'=/@])?"
    r"(?:[^\s\"'/]*:{port}|[^\s/]*(?:ANTHROPIC|OPENAI|METACLAW)_?\w*[^\s/]*|[^\s\"']*/k/[^/\s]+)(?:/[^\s/]+)*?"
    r"/api/(?:enforce|rules|undo|generations/revert|skills/[^/\s]+/(?:retire|restore)|skills/[^/\s?]+(?=[\s\"'?]|$)"
    r"|sessions/[^/\s]+/forget)\b"
)
_PIPED_INTO_KILL = (
    r"\b(?:pgrep|pidof|ps|lsof|ss|netstat|cat|jq)\b[^;&\n]*(?:\[?m\]?etaclaw|\b{port}\b)[^;&\n]*"
    r"\| *(?:xargs )?(?:\S+ )*kill(?=\s|$|;|\n)"
)


@lru_cache(16)
def keep_rules_check(port: int) -> PatternCheck:
    """The check for a program that listens on this port."""
    pattern = f"(?s)^(?:{'|'.join((_COMMANDS, _PROCESSES, _FILES, _REQUESTS))})|{_PIPED_INTO_KILL}"
    return PatternCheck(pattern.replace("{port}", str(port)), must_match=False, where=Where(Place.CALLS, "shell|edit"))
