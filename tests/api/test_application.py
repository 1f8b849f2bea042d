"""The rest of the program's own API: readiness, metrics, sessions, turns, and the description of
all routes.
"""

import errno
import re
from pathlib import Path

import pytest

from metaclaw.api.application import PersonalApi
from metaclaw.domain.candidate import Standing
from metaclaw.domain.chat import Wire
from metaclaw.domain.person import HOME
from tests.api.recorded import candidate, record
from tests.api.stage import Stage, staged
from tests.support.application import configured

pytestmark = pytest.mark.anyio
DOCUMENT = Path(__file__).parents[2] / "docs" / "http.md"


async def test_readiness_tells_why_not(stage: Stage, tmp_path: Path) -> None:
    assert await stage.get("/readyz") == {"ready": True}
    unopened = Stage(configured(tmp_path, providers=[{"name": "embedded", "kind": "embedded"}]))
    assert (
        await unopened.refused(503, "GET", "/readyz") == "not ready: the embedded model is stopped"
    )


async def test_metrics_are_served_as_prometheus_reads_them(stage: Stage) -> None:
    stage.app.metrics.in_flight = 3
    answer = await stage.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "metaclaw_turns_in_flight 3.0" in answer.text


async def test_metrics_that_are_switched_off_are_not_there(tmp_path: Path) -> None:
    async with staged(tmp_path, telemetry={"prometheus": False}) as stage:
        assert "switched off" in await stage.refused(404, "GET", "/metrics")


async def test_sessions_are_listed_page_by_page_and_shown_with_their_turns(stage: Stage) -> None:
    sessions = [(await record(stage)).session for _ in range(3)]
    listed = [one["id"] for one in (await stage.get("/api/sessions?limit=2"))["sessions"]]
    assert listed == sessions[:0:-1]
    rest = await stage.get(f"/api/sessions?before={listed[-1]}")
    assert [one["id"] for one in rest["sessions"]] == [sessions[0]]
    second = await record(stage, sessions[0])
    shown = await stage.get(f"/api/sessions/{sessions[0]}")
    assert (shown["turn_count"], len(shown["turns"])) == (2, 2)
    after = await stage.get(f"/api/sessions/{sessions[0]}?after={shown['turns'][0]['cursor']}")
    assert [turn["id"] for turn in after["turns"]] == [second.id]
    assert (
        await stage.refused(404, "GET", "/api/sessions/s_nothing")
        == "there is no session s_nothing"
    )


async def test_ending_a_session_is_done_once(stage: Stage) -> None:
    session = stage.app.origins.identify(
        Wire.CHAT, {}, {"messages": [{"role": "user", "content": "Hello."}]}
    ).session
    assert (await stage.http.post(f"/api/sessions/{session}/end")).json() == {
        "session": session,
        "ended": True,
    }
    assert "no running session" in await stage.refused(404, "POST", f"/api/sessions/{session}/end")


async def test_a_turn_is_shown_with_what_it_is_for(stage: Stage) -> None:
    turn = await record(stage)
    shown = await stage.get(f"/api/turns/{turn.id}")
    assert (shown["request"], shown["answer"]) == ({"model": "m-1"}, {"id": "x"})
    assert (shown["verdict"], shown["role"]) == (None, "query")
    stage.candidates.begin_attempt("dates", stage.library.view.generation, [turn.id])
    assert (await stage.get(f"/api/turns/{turn.id}"))["role"] == "support"
    candidate(stage, "dates", turn.id, Standing.ACCEPTED)
    other = await record(stage)
    stage.library.retire(stage.library.view.skills[0].name)
    assert (await stage.get(f"/api/turns/{other.id}"))["role"] is None
    assert await stage.refused(404, "GET", "/api/turns/t_nothing") == "there is no turn t_nothing"


async def test_the_description_lists_every_route_with_what_it_takes(stage: Stage) -> None:
    described = await stage.get("/api/openapi.json")
    assert described["openapi"] == "3.1.0"
    paths = described["paths"]
    listed = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert listed == {
        (route.method, route.path)
        for route in stage.api._side(HOME).router.routes
        if not route.is_page
    }
    for method, path in listed:
        operation = paths[path][method.lower()]
        inside = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
        assert inside == set(re.findall(r"{(\w+)}", path))
        assert operation["summary"]
    bodies = {
        path: methods["post"].get("requestBody")
        for path, methods in paths.items()
        if "post" in methods
    }
    taking = {
        "/api/feedback",
        "/api/generations/revert",
        "/api/rule-file",
        "/api/rules",
        "/api/skill-test",
        "/api/skills",
        "/api/skills/{name}/pin",
        "/api/undo",
        "/api/enforce",
        "/api/keys",
        "/api/whatif",
        "/api/candidates",
    }
    taking |= {"/api/policy/promote", "/api/policy/rollback"}
    assert {path for path, body in bodies.items() if body is not None} == taking
    feedback = bodies["/api/feedback"]["content"]["application/json"]["schema"]
    assert (feedback["required"], set(feedback["properties"])) == (
        ["turn", "outcome"],
        {"turn", "outcome", "comment"},
    )


async def test_every_route_says_in_the_description_that_another_method_is_refused(
    stage: Stage,
) -> None:
    for path, methods in (await stage.get("/api/openapi.json"))["paths"].items():
        concrete = re.sub(r"{\w+}", "x", path)
        assert "PUT" in await stage.refused(405, "PUT", concrete)
        # GET /api/policy/train asks for the version of that name.
        if "get" not in methods and not path.startswith("/api/policy/"):
            assert "not GET" in await stage.refused(405, "GET", concrete)


async def test_the_page_about_http_tells_of_every_route(stage: Stage) -> None:
    page = DOCUMENT.read_text()
    told = [route for route in stage.api._side(HOME).router.routes if not route.is_page]
    missing = [route.path for route in told if f"{route.method} {route.path}" not in page]
    assert missing == []
    assert "`GET /ui/…`" in page


async def test_without_open_files_the_first_request_is_told_to_try_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(_: object) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(PersonalApi, "pages", property(run_out))
        answer = await stage.http.get("/api/sessions")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "Too many open files" in answer.json()["error"]["message"]
    assert (await stage.http.get("/api/sessions")).status_code == 200
