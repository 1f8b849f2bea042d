"""Who may do what: every role is tried on every route, and finds nothing that is another's."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from metaclaw.api.access import ACCESS, RoleGate
from metaclaw.api.router import ApiResponse, ApiStream, Route
from metaclaw.domain.ids import new_session_id, new_turn_id
from metaclaw.domain.person import HOME, KeyRole, Person
from metaclaw.domain.turn import Scope
from tests.api.recorded import candidate, record
from tests.api.stage import Stage

pytestmark = pytest.mark.anyio
BOB = Person("bob", KeyRole.MEMBER, "core", mark="b")
ROLES = {role: Person("bob", role, "core", mark=role) for role in KeyRole}


async def ask(
    stage: Stage, person: Person, method: str, path: str, fields: Any = None, query: str = ""
) -> tuple[int, Any]:
    """Status and JSON of what this person is answered; a stream is only opened."""
    scope = {"method": method, "path": path, "query_string": query.encode(), "headers": []}
    body = b"" if fields is None else json.dumps(fields).encode()
    answer = await stage.api._side(person).router.respond(scope, body)
    if isinstance(answer, ApiStream):
        await answer.chunks.aclose()
        return 200, None
    is_json = answer.content_type == "application/json"
    return answer.status, json.loads(answer.body) if is_json and answer.body else answer.body


async def things_of_ann(stage: Stage) -> dict[str, str]:
    """What there is of another person, by the part of the path that says what is named."""
    turn = await record(stage)
    status, rule = await ask(
        stage, HOME, "POST", "/api/rules", {"text": "Ann wants tabs.", "scope": "user:ann"}
    )
    assert status == 200
    asked = candidate(stage, "dates-of-ann", turn.id)
    return {
        "sessions": turn.session,
        "turns": turn.id,
        "rules": rule["name"],
        "skills": rule["name"],
        "candidates": asked.id,
    }


@pytest.mark.parametrize("role", KeyRole)
async def test_every_role_on_every_route(stage: Stage, role: KeyRole) -> None:
    person, ann = ROLES[role], await things_of_ann(stage)
    routes = stage.api._side(HOME).router.routes
    assert {f"{route.method} {route.path}" for route in routes} == set(ACCESS)
    for route in routes:
        access = ACCESS[f"{route.method} {route.path}"]
        _, _, kind_of, *_ = *route.path.split("/"), "", ""
        kind = ann.get(kind_of)
        path = re.sub(r"{\w+}", kind or "x", route.path)
        if role is KeyRole.OWNER and route.method != "GET":
            continue  # they would change what the next route is asked for
        status, _ = await ask(stage, person, route.method, path)
        if role not in access.roles:
            assert status == 403, route
        elif access.is_own and role is not KeyRole.OWNER and kind is not None and "{" in route.path:
            assert status == 404, route
        else:
            assert status != 403, route
            assert status < 500 or route.path == "/readyz", route


async def test_a_route_that_is_not_in_the_table_is_an_error(stage: Stage) -> None:
    new = Route("GET", "/api/secrets", print, "Everything")
    with pytest.raises(ValueError, match="GET /api/secrets"):
        RoleGate(stage.app.api_parts.home, [new])


async def test_a_members_rules_are_theirs_and_a_teams_needs_an_owner(stage: Stage) -> None:
    stage.app.keyring._configured = {"core": {"bob", "cat"}}
    stage.app.keyring._take([])
    cat = Person("cat", KeyRole.MEMBER, "core", mark="c")
    _, rule = await ask(stage, BOB, "POST", "/api/rules", {"text": "Bob likes tabs."})
    assert (rule["scope"], rule["added"]) == ("user:bob", True)
    for scope in ("user:cat", "team:other", "owner", "workspace:/srv"):
        said = {"text": "Use spaces.", "scope": scope}
        status, told = await ask(stage, BOB, "POST", "/api/rules", said)
        assert (status, "only an owner's key" in told["error"]["message"]) == (400, True)
    said = {"text": "Sign every commit.", "scope": "team:core"}
    _, proposed = await ask(stage, BOB, "POST", "/api/rules", said)
    assert proposed["added"] is False
    path = f"/api/candidates/{proposed['candidate']}"
    assert (await ask(stage, cat, "GET", path))[0] == 404
    status, seen = await ask(stage, BOB, "GET", path)
    assert seen["question"] == "For team:core, from bob: “Sign every commit.” — put it in force?"
    assert (await ask(stage, BOB, "POST", f"{path}/approve"))[0] == 403
    assert (await ask(stage, HOME, "POST", f"{path}/approve"))[0] == 200
    _, rules = await ask(stage, cat, "GET", "/api/rules")
    assert [one["text"] for one in rules["rules"]] == ["Sign every commit."]
    path = f"/api/rules/{proposed['name']}"
    assert (await ask(stage, cat, "PATCH", path, {"scope": "user:cat"}))[0] == 403
    check = {"check": "program: |\n  print(1)"}
    assert (await ask(stage, BOB, "PATCH", f"/api/rules/{rule['name']}", check))[0] == 400
    # An undo takes back what the person who asks for it laid down, not what came last.
    _, undone = await ask(stage, BOB, "POST", "/api/undo")
    assert [one["text"] for one in undone["removed"]] == ["Bob likes tabs."]


async def test_who_changed_what_is_noted_and_forgotten_with_it(stage: Stage) -> None:
    _, rule = await ask(stage, BOB, "POST", "/api/rules", {"text": "Bob likes tabs."})
    await ask(stage, BOB, "DELETE", f"/api/rules/{rule['name']}")
    await ask(stage, BOB, "POST", f"/api/skills/{rule['name']}/restore")
    _, told = await ask(stage, HOME, "GET", "/api/audit")
    assert [(one["who"], one["action"], one["target"]) for one in told["changes"]] == [
        ("bob", "POST /api/skills/{name}/restore", rule["name"]),
        ("bob", "DELETE /api/rules/{name}", rule["name"]),
        ("bob", "POST /api/rules", rule["name"]),
    ]
    stage.app.keyring._configured = {"core": {"bob"}}
    stage.app.keyring._take([])
    wish = {"text": "Bob wants tabs for all.", "scope": "team:core"}
    await ask(stage, BOB, "POST", "/api/rules", wish)
    session = (await record(stage)).session
    status, done = await ask(stage, BOB, "POST", "/api/me/forget")
    assert (status, done["skills"], done["sessions"]) == (200, 1, 0)
    _, told = await ask(stage, HOME, "GET", "/api/audit")
    assert [one["action"] for one in told["changes"]] == ["POST /api/me/forget"]
    assert (await ask(stage, HOME, "GET", "/api/rules", query="state=retired"))[1]["rules"] == []
    assert (await ask(stage, HOME, "GET", "/api/candidates"))[1]["candidates"] == []
    assert (await ask(stage, HOME, "GET", f"/api/sessions/{session}"))[0] == 200
    assert (await ask(stage, HOME, "POST", "/api/me/forget"))[0] == 409


async def test_a_key_is_made_shown_once_and_its_limits_are_told(stage: Stage) -> None:
    said = {"name": "cat", "role": "reader", "limits": "requests=5/min", "team": "core"}
    status, made = await ask(stage, HOME, "POST", "/api/keys", said)
    assert (status, made["key"][:4], made["used"]) == (200, "mck_", {"requests=5/min": 0.0})
    _, listed = await ask(stage, HOME, "GET", "/api/keys")
    assert [(one["name"], one["role"], one["team"]) for one in listed["keys"]] == [
        ("cat", "reader", "core")
    ]
    assert made["key"] not in json.dumps(listed)
    holder = stage.app.keyring.holder(made["key"])
    assert holder is not None
    assert (await ask(stage, holder, "GET", "/api/me"))[1]["limits"] == "requests=5/min"
    assert (await ask(stage, HOME, "POST", "/api/keys", said))[0] == 409
    status, page = await ask(stage, HOME, "GET", "/ui/keys")
    assert (status, b"requests=5/min" in page, made["key"].encode() in page) == (200, True, False)
    for wrong in ({"name": "home"}, {"name": "a b"}, {"name": "dan", "limits": "words=3/min"}):
        assert (await ask(stage, HOME, "POST", "/api/keys", wrong))[0] == 400
    assert (await ask(stage, HOME, "POST", "/api/keys/cat/rotate"))[1]["key"] != made["key"]
    assert (await ask(stage, HOME, "DELETE", "/api/keys/cat"))[0] == 200
    assert (await ask(stage, HOME, "POST", "/api/keys/cat/rotate"))[0] == 404


async def test_events_are_of_ones_own_turns_and_sessions(stage: Stage) -> None:
    ann = await record(stage)
    own = replace(await record(stage), id=new_turn_id(), session=new_session_id())
    await stage.record(replace(own, scope=Scope("bob")))
    for turn in (ann, own):
        await stage.announce("noted", {"turn": turn.id, "text": f"of {turn.id}"})
        await stage.announce("forgotten", {"session": turn.session})
    await stage.announce("generation", {"put": ["a-rule-of-ann"], "reason": "noted it"})
    reader = stage.app.api_parts.home.for_person(BOB).reader
    shown = stage.app.events.follow(0, reader.own_events)
    text = await anext(shown) + await anext(shown)
    await shown.aclose()
    assert text.count(b"event: ") == 2
    assert own.id.encode() in text
    assert own.session.encode() in text
    everything = stage.app.events.follow(0)
    text = await anext(everything) + await anext(everything)
    await everything.aclose()
    assert text.count(b"event: ") == 5


async def test_what_members_share_is_proposed_for_their_team(stage: Stage) -> None:
    stage.app.keyring._configured = {"core": {"ann", "bob", "cat"}, "other": {"dan"}}
    stage.app.keyring._take([])
    names = {}
    for name, text in (
        ("ann", "Use uv, never pip."),
        ("bob", "use uv; never pip"),
        ("dan", "Use uv, never pip."),
        ("cat", "Use tabs."),
    ):
        person = Person(name, mark=name)
        _, rule = await ask(stage, person, "POST", "/api/rules", {"text": text})
        names[name] = rule["name"]
    for wanted in (1, 0):  # what was asked is not asked again
        assert len(stage.app.team_proposals.look()) == wanted
    await ask(stage, Person("cat", mark="cat"), "POST", "/api/rules", {"text": "Use spaces."})
    assert stage.app.team_proposals.look() == []
    _, told = await ask(stage, HOME, "GET", "/api/candidates", query="standing=waiting")
    (one,) = told["candidates"]
    assert one["question"] == (
        "For team:core, from ann, bob: “Use uv, never pip.” — put it in force?"
    )
    assert (await ask(stage, BOB, "GET", "/api/candidates"))[1]["candidates"] == []
    assert (await ask(stage, HOME, "POST", f"/api/candidates/{one['id']}/approve"))[0] == 200
    cat = Person("cat", mark="cat")
    _, seen = await ask(stage, cat, "GET", "/api/rules")
    assert "Use uv, never pip." in [rule["text"] for rule in seen["rules"]]
    # One undo takes it from all of them, and what everyone had of their own stays.
    _, undone = await ask(stage, HOME, "POST", "/api/undo")
    assert [rule["name"] for rule in undone["removed"]] == [one["skill"]]
    assert (await ask(stage, BOB, "GET", f"/api/rules/{names['bob']}"))[0] == 200


async def test_the_page_shows_a_new_key_once(stage: Stage) -> None:
    router = stage.api._side(HOME).router
    scope = {"method": "POST", "path": "/ui/do/key-create", "query_string": b"", "headers": []}
    done = await router.respond(scope, b"name=eve&role=reader&back=/ui/keys")
    assert isinstance(done, ApiResponse)
    path, _, query = dict(done.headers)["location"].partition("?")
    shown = [(await ask(stage, HOME, "GET", path, query=query))[1] for _ in range(2)]
    assert [b"mck_" in page for page in shown] == [True, False]


async def test_the_pages_show_nobody_a_form_that_their_key_may_not_use(stage: Stage) -> None:
    """A reader gets none but the one for signing out, a member none that is an owner's."""
    reader = Person("bob", KeyRole.READER, mark="bob-reads")
    assert (await ask(stage, BOB, "POST", "/api/rules", {"text": "Use uv, never pip."}))[0] == 200
    assert (await ask(stage, BOB, "POST", "/api/rules", {"text": "Use tabs."}))[0] == 200
    pages = {}
    for person in (HOME, BOB, reader):
        status, page = await ask(stage, person, "GET", "/ui/rules")
        assert status == 200
        pages[person] = page
    assert b"/ui/sign-out" in pages[reader]
    assert b"/ui/do/" not in pages[reader]
    assert b"Write a rule" not in pages[reader]
    assert b"/ui/do/rule-add" in pages[BOB]
    assert b"/ui/do/revert" not in pages[BOB]
    assert b"/ui/do/revert" in pages[HOME]
