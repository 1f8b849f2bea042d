"""The web pages: server-rendered HTML, forms for actions, and a stream that tells a page to
reload.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from anyio.to_thread import run_sync

from metaclaw import __version__
from metaclaw.api.router import (
    ApiError,
    ApiRequest,
    ApiResponse,
    ApiStream,
    Route,
    Scope,
    headers_of,
    route,
    routes_of,
)
from metaclaw.api.status_words import short
from metaclaw.api.web import formats
from metaclaw.api.web.actions import ACTIONS, ActionResult, PageActions, back_path
from metaclaw.api.web.calls import patch_lines, shown_call
from metaclaw.api.web.content import PAGES, Context, PageContent
from metaclaw.api.web.export import exported
from metaclaw.api.web.sign_in import SIGN_IN, SignIn
from metaclaw.domain import status as wording
from metaclaw.domain.chat import Json
from metaclaw.domain.person import KeyRole, Person
from metaclaw.errors import StoreError
from metaclaw.wires import encode_json

if TYPE_CHECKING:
    from jinja2 import Environment

log = logging.getLogger(__name__)

_HTML: Final = "text/html; charset=utf-8"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_SAFETY: Final = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    # With "no-referrer" browsers would send forms without their origin.
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
)
_UNCACHED: Final = ("cache-control", "no-store")
_STATIC: Final = {
    "style.css": "text/css; charset=utf-8",
    "script.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_POLL_S: Final = 0.5
_BEAT_S: Final = 15.0
_MOST_STREAMS: Final = 32
_MOST_NOTICES: Final = 100
_FORMATS: Final = (
    *(
        "ago",
        "amount",
        "audience",
        "clock",
        "count",
        "moment",
        "money",
        "plural",
    ),
    *("project", "seconds", "signal", "situation", "tokens"),
)
_WORDS: Final = {
    "agent": wording.agent_word,
    "dollars": wording.money,
    "judged_by": wording.source_words,
    "outcome": wording.outcome_word,
    "reason": wording.reason_words,
}
_SAID: Final = ("noted", "replaced", "retracted", "notice")


class Pages:
    """The routes of the pages. All except signing in need a session cookie or the key."""

    def __init__(
        self,
        sign_in: SignIn,
        content: PageContent,
        actions: PageActions,
        *,
        slow_down: Callable[[str | None], Awaitable[None]],
        can_train: Callable[[], bool],
        health: Callable[[], tuple[object, ...]],
    ) -> None:
        self._sign_in = sign_in
        self._slow_down = slow_down
        self._content = content
        self._actions = actions
        self._can_train = can_train
        self._health = health
        self._notices: dict[str, ActionResult] = {}
        self._streams = 0
        self._titles_wanted = asyncio.Event()

    async def prepare(self) -> None:
        """Compile the templates and count the answers of the last days; once a list of sessions is
        opened, read all titles, and return.
        """
        await run_sync(_compile)
        try:
            await self._content.call("GET", "/api/progress")
            await self._titles_wanted.wait()
            await self._content.read_titles()
        except StoreError as error:
            log.warning("pages.not_prepared reason=%s", error)

    def table(self) -> list[Route]:
        pages = [
            Route("GET", page.path, self._serving(name), f"Page: {page.title}", is_page=True)
            for name, page in PAGES.items()
        ]
        parts = [
            Route("GET", f"/ui/{name}", _static(name), "Part of the pages", is_page=True)
            for name in _STATIC
        ]
        return [*pages, *parts, *routes_of(self)]

    @property
    def _person(self) -> Person:
        return self._content.home.person

    async def serve_root(self, request: ApiRequest) -> object:
        """The first page: what is new, or for those who are no owners their sessions."""
        name = "today" if self._person.is_owner else "sessions"
        return await self._serving(name)(request)

    def refusal(self, scope: Scope) -> ApiResponse | None:
        """The refusal for a browser that is not signed in, or None. Called for requests without the
        key.
        """
        method, path, headers = scope["method"], scope["path"], headers_of(scope)
        if (fault := self._sign_in.fault(method, headers)) is not None:
            return self._refused(403, fault, headers)
        if self._sign_in.is_public(path) or self._sign_in.session_of(headers) is not None:
            return None
        return self._refused(401, "", headers)

    def failed(self, scope: Scope, status: int, reason: str) -> ApiResponse:
        """The page for a request that cannot be served."""
        session = self._sign_in.session_of(headers_of(scope))
        return self._page("error.html", {"reason": reason}, session, status=status)

    def _refused(self, status: int, reason: str, headers: Mapping[str, str]) -> ApiResponse:
        if "text/html" not in headers.get("accept", ""):
            message = (
                reason
                or "this request carries no MetaClaw key; `metaclaw key` prints it, and `metaclaw page` a link for a browser"
            )
            return ApiResponse(
                status,
                encode_json({"error": {"message": message, "code": "invalid_api_key"}}),
                headers=_SAFETY,
            )
        return self._plain("sign_in.html", {"reason": reason, "is_refused": status == 403}, status)

    def _serving(self, name: str) -> Callable[[ApiRequest], Awaitable[object]]:
        """The function that serves the page of this name."""
        page = PAGES[name]
        content: Callable[[ApiRequest], Awaitable[Context]] = getattr(self._content, name)

        async def serve(request: ApiRequest) -> object:
            session, cookie = self._sign_in.session_of(request.headers), list[tuple[str, str]]()
            if session is None:
                # The request has the key: from now on the browser sends the cookie.
                session = self._sign_in.new_cookie(self._person)
                cookie.append(("set-cookie", self._sign_in.set_cookie(request.headers, session)))
                if request.scope.get("raw_path", b"").startswith(b"/k/"):
                    return _go_to("/", *cookie)
            if page.active == "sessions":
                self._titles_wanted.set()
            status, used = 200, page.template
            try:
                context = await content(request)
            except ApiError as error:
                status, used, context = error.status, "error.html", {"reason": str(error)}
            except StoreError as error:
                status, used, context = (
                    503,
                    "error.html",
                    {"reason": f"The store cannot be used now: {error}"},
                )
            if status == 200 and (kind := request.query.get("as")):
                return await run_sync(exported, context[page.rows], kind, name)
            shown = {
                "active": page.active,
                "here": _here(request),
                "has_rows": status == 200,
                **context,
            }
            if notice := self._notices.get(request.query.get("notice", "")):
                shown["notice"] = notice
                if notice.is_shown_once:
                    del self._notices[request.query["notice"]]
            return await run_sync(self._page, used, shown, session, status, cookie)

        return serve

    def _page(
        self,
        template: str,
        context: Mapping[str, Any],
        session: str | None,
        status: int = 200,
        headers: Iterable[tuple[str, str]] = (),
    ) -> ApiResponse:
        """A page with the navigation and forms of a session."""
        token = self._sign_in.form_token(session or "")
        shared = {
            "active": "",
            "token": "" if self._person.role is KeyRole.READER else token,
            "session_token": token,
            "notice": None,
            "has_rows": False,
            "here": "/",
        }
        return self._plain(template, {**shared, **context}, status, headers)

    def _plain(
        self,
        template: str,
        context: Mapping[str, Any],
        status: int = 200,
        headers: Iterable[tuple[str, str]] = (),
    ) -> ApiResponse:
        shared = {
            "can_train": self._can_train(),
            "version": __version__,
            "is_owner": self._person.is_owner,
        }
        text = _environment().get_template(template).render({**shared, **context})
        body = text.encode("utf-8", "replace")
        return ApiResponse(status, body, _HTML, (*_SAFETY, _UNCACHED, *headers))

    @route("GET", SIGN_IN, "Page: sign in by a link", is_page=True)
    async def _open_link(self, request: ApiRequest) -> object:
        token = request.query.get("token", "")
        if request.scope["method"] == "HEAD" and self._sign_in.has_link(token):
            return self._plain("welcome.html", {})
        person = self._sign_in.take_link(token) or self._sign_in.person_of(request.headers)
        if person is not None:
            return self._welcome(request, person)
        reason = (
            "This link was used, or it is older than ten minutes, or the program was restarted"
            " since."
            if token
            else ""
        )
        return self._plain(
            "sign_in.html", {"reason": reason, "is_refused": False}, 401 if token else 200
        )

    @route("POST", SIGN_IN, "Page: sign in with the key", is_page=True)
    async def _enter_key(self, request: ApiRequest) -> object:
        person = self._sign_in.holder(_form(request).get("key", "").strip())
        if person is not None:
            return self._welcome(request, person)
        await self._slow_down((request.scope.get("client") or (None,))[0])
        return self._plain(
            "sign_in.html", {"reason": "That is not this proxy's key.", "is_refused": False}, 401
        )

    def _welcome(self, request: ApiRequest, person: Person) -> ApiResponse:
        """Set the cookie and go to the page; not by a redirect, after which a browser from another
        site omits the cookie.
        """
        # A session that there is goes on: signing out would not end one whose cookie was replaced.
        session = self._sign_in.session_of(request.headers)
        if session is None or self._sign_in.person_of(request.headers) != person:
            session = self._sign_in.new_cookie(person)
        cookie = self._sign_in.set_cookie(request.headers, session)
        return self._plain("welcome.html", {}, headers=[("set-cookie", cookie)])

    @route("POST", "/ui/sign-out", "Page: sign out", is_page=True)
    async def _sign_out(self, request: ApiRequest) -> object:
        self._check_form(request, _form(request))
        session = self._sign_in.session_of(request.headers)
        if session is not None:
            await run_sync(self._sign_in.end_session, session)
        cookie = self._sign_in.set_cookie(request.headers, "")
        return _go_to(SIGN_IN, ("set-cookie", cookie))

    @route("POST", "/api/sign-in", "A link that signs a browser in to the pages, once")
    async def _new_link(self, request: ApiRequest) -> object:
        host = request.headers.get("host", "127.0.0.1")
        url = f"{self._sign_in.scheme}://{host}"
        return {"url": self._sign_in.new_link(url, self._person)}

    @route("POST", "/ui/do/{action}", "Page: carry out a form", is_page=True)
    async def _do(self, request: ApiRequest) -> object:
        form, name = _form(request), request.path["action"]
        self._check_form(request, form)
        action = ACTIONS.get(name)
        if action is None:
            raise ApiError(f"there is no action {name}", 404)
        back = back_path(form.get("back", "/"))
        if action.question and form.get("confirm") != "yes":
            context = {
                "question": _filled_in(action.question, form),
                "button": action.button,
                "action": name,
                "fields": form,
                "back": back,
                "here": back,
            }
            return self._page("confirm.html", context, self._sign_in.session_of(request.headers))
        try:
            done = await action.do(self._actions, form)
        except ApiError as error:
            done = ActionResult(f"That was not done: {error}")
        except StoreError as error:
            done = ActionResult(f"That was not done: the store cannot be used now ({error})")
        return _go_to(_with_notice(back, self._keep(done)))

    def _keep(self, done: ActionResult) -> str:
        number = secrets.token_urlsafe(6)
        self._notices[number] = done
        while len(self._notices) > _MOST_NOTICES:
            del self._notices[next(iter(self._notices))]
        return number

    def _check_form(self, request: ApiRequest, form: Mapping[str, str]) -> None:
        session = self._sign_in.session_of(request.headers)
        if session is not None and not self._sign_in.is_form_token(session, form.get("token", "")):
            raise ApiError(
                "this form was not made for your session; reload the page and try again", 403
            )

    @route("GET", "/ui/find", "Page: what has these words", ("q",), is_page=True)
    async def _find(self, request: ApiRequest) -> object:
        self._titles_wanted.set()
        return {"found": await run_sync(self._content.find, request.query.get("q", "")[:200])}

    @route("GET", "/ui/live", "Page: a stream that says when something changed", is_page=True)
    async def _live(self, request: ApiRequest) -> object:
        if self._streams >= _MOST_STREAMS:
            raise ApiError(
                f"{_MOST_STREAMS} pages follow the program already; close one of them", 429
            )
        session = self._sign_in.session_of(request.headers)
        return ApiStream("text/event-stream; charset=utf-8", self._changes(session))

    async def _changes(self, session: str | None) -> AsyncGenerator[bytes, None]:
        """Yield an event `changed` whenever something was recorded, learned or failed, with
        sentences about lessons and notices. End with the session, if there is one."""
        reader = self._content.home.reader
        self._streams += 1
        try:
            cursor, before = await run_sync(reader.last_event), await self._mark()
            beat = time.monotonic()
            yield b": MetaClaw\n\n"
            while session is None or self._sign_in.is_open(session):
                await asyncio.sleep(_POLL_S)
                try:
                    found = await run_sync(reader.events, cursor)
                    events = await run_sync(reader.own_events, found)
                    mark = await self._mark()
                except StoreError:
                    continue
                said = [
                    _sentence(event.kind, event.data) for event in events if event.kind in _SAID
                ]
                if found:
                    cursor = found[-1].seq
                if events or mark != before:
                    before, beat = mark, time.monotonic()
                    yield (
                        b"event: changed\ndata: "
                        + encode_json({"said": list[Json](said)})
                        + b"\n\n"
                    )
                elif time.monotonic() - beat > _BEAT_S:
                    beat = time.monotonic()
                    yield b": still here\n\n"
        finally:
            self._streams -= 1

    async def _mark(self) -> tuple[object, ...]:
        """A value that changes with each turn and each failure of a provider."""
        newest = await run_sync(self._content.home.overview.newest_turn)
        return newest, self._health() if self._person.is_owner else ()


def _go_to(path: str, *headers: tuple[str, str]) -> ApiResponse:
    return ApiResponse(303, b"", _HTML, (("location", path), _UNCACHED, *headers))


def _static(name: str) -> Callable[[ApiRequest], Awaitable[object]]:
    async def serve(request: ApiRequest) -> object:
        return ApiResponse(
            200, _file(name), _STATIC[name], (*_SAFETY, ("cache-control", "no-cache"))
        )

    return serve


@cache
def _file(name: str) -> bytes:
    return (files("metaclaw.api.web") / "static" / name).read_bytes()


@cache
def _environment() -> "Environment":
    # Imported late, so that agents do not wait for it at the start.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("metaclaw.api.web", "templates")
    made = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {name: getattr(formats, name) for name in _FORMATS} | _WORDS
    made.filters |= {"call": shown_call, "patch": patch_lines}
    return made


def _compile() -> None:
    """Load every template, so that the first request for a page does not wait for it."""
    environment = _environment()
    for name in environment.list_templates(extensions=["html"]):
        environment.get_template(name)


def _form(request: ApiRequest) -> dict[str, str]:
    try:
        text = request.body.decode()
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=40))
    except ValueError as error:
        raise ApiError("the form cannot be read", 400) from error


def _filled_in(question: str, form: Mapping[str, str]) -> str:
    for name in ("name", "generation", "version"):
        question = question.replace(f"{{{name}}}", form.get(name, ""))
    return question


def _here(request: ApiRequest) -> str:
    """The address of a page, without the notice it shows."""
    query = urlencode({name: value for name, value in request.query.items() if name != "notice"})
    return f"{request.scope['path']}?{query}" if query else request.scope["path"]


def _with_notice(path: str, number: str) -> str:
    parts = urlsplit(path)
    query = [(name, value) for name, value in parse_qsl(parts.query) if name != "notice"]
    return urlunsplit(("", "", parts.path or "/", urlencode([*query, ("notice", number)]), ""))


def _sentence(kind: str, data: Mapping[str, Json]) -> str:
    text = short(str(data.get("text") or ""), 160)
    if kind == "replaced" and isinstance(old := data.get("replaces"), list):
        text = f"{text} (in place of {', '.join(map(str, old))})"
    return {
        "noted": f"Noted: {text}",
        "replaced": f"Changed: {text}",
        "retracted": f"Taken back: {text}",
    }.get(kind, text)
