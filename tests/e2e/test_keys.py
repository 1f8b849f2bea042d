"""Two people with keys of their own on one running program: distinct words are planted in the
sessions, rules, facts and lessons of each, and whatever the other is shown has none of them."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

import httpx
import pytest

from metaclaw.api import ACCESS
from tests.support.depth import tries
from tests.support.program import PATIENCE_S, Program
from tests.support.provider import Provider

CANARIES = tries(48, nightly=1_000)
_WORD = re.compile(r"zq(alice|bob)[a-z]\d+")
_NUMBERS = count()
_STREAM_S = 2.0


@dataclass
class Speaker:
    """A person with a key, the words planted in what is theirs, and the things that have them."""

    name: str
    client: httpx.Client
    words: list[str] = field(default_factory=list)
    things: dict[str, list[str]] = field(default_factory=dict)

    def word(self, kind: str) -> str:
        self.words.append(f"zq{self.name}{kind}{next(_NUMBERS)}")
        return self.words[-1]

    def say(self, text: str, **headers: str) -> httpx.Response:
        request = {"model": "openai/echo", "messages": [{"role": "user", "content": text}]}
        answer = self.client.post("/v1/chat/completions", json=request, headers=headers)
        return answer.raise_for_status()


@pytest.fixture(scope="module")
def people(program: Program) -> Iterator[list[Speaker]]:
    found = []
    for name in ("alice", "bob"):
        said = {"name": name, "team": f"team-of-{name}"}
        made = httpx.post(f"{program.url}/api/keys", json=said, headers=program.auth)
        headers = {"authorization": f"Bearer {made.raise_for_status().json()['key']}"}
        found.append(
            Speaker(name, httpx.Client(base_url=program.url, headers=headers, timeout=PATIENCE_S))
        )
    for speaker in found:
        plant(program, speaker, CANARIES // (4 * len(found)))
    yield found
    for speaker in found:
        speaker.client.close()


def plant(program: Program, speaker: Speaker, each: int) -> None:
    """Plant words in as many sessions, rules, facts and lessons, and note what these are called."""
    turns = [speaker.say(f"Please tell {speaker.word('s')}.") for _ in range(each)]
    rules = [{"text": f"Always mention {speaker.word('r')}."} for _ in range(each)]
    facts = [
        {"kind": "fact", "text": f"The dog is called {speaker.word('f')}."} for _ in range(each)
    ]
    laid = speaker.client.post("/api/rules", json={"rules": [*rules, *facts]}).raise_for_status()
    names = [one["name"] for one in laid.json()["rules"]]
    files = []
    for number in range(each):
        word = speaker.word("l")
        front = f"name: lesson-{word}\ndescription: after it failed\nkind: lesson"
        text = f"---\n{front}\nscope: user:{speaker.name}\n---\nFirst run {word}.\n"
        files.append({"path": f"{number}/SKILL.md", "text": text})
    # A lesson is learned from failures; its file is what an owner restores from an export.
    put = httpx.post(
        f"{program.url}/api/skills",
        json={"files": files},
        headers=program.auth,
        timeout=PATIENCE_S,
    )
    names += [one["name"] for one in put.raise_for_status().json()["skills"]]
    speaker.things = {
        "sessions": [one.headers["x-metaclaw-session"] for one in turns],
        "turns": [one.headers["x-metaclaw-turn"] for one in turns],
        "rules": names,
        "skills": names,
        "candidates": [],
    }


def shown(speaker: Speaker, path: str) -> str:
    """All that a GET gives; of a stream what comes in a while."""
    pieces = []
    with (
        suppress(httpx.ReadTimeout),
        speaker.client.stream("GET", path, timeout=_STREAM_S) as answer,
    ):
        pieces.append(str(answer.headers))
        for piece in answer.iter_text():
            pieces.append(piece)
    return "".join(pieces)


def foreign(speaker: Speaker, text: str) -> set[str]:
    return {found[0] for found in _WORD.finditer(text) if found[1] != speaker.name}


def test_no_route_page_export_or_event_shows_what_is_anothers(people: list[Speaker]) -> None:
    lists = ("?detail=verdicts", "?words=zq", "?state=retired", "?text=true", "?after=0", "?q=zq")
    for speaker in people:
        for entry in ACCESS:
            method, _, route = entry.partition(" ")
            if method != "GET":
                continue
            if "{" not in route:
                asked = [route, *(route + query for query in lists)]
                asked = asked if route.startswith(("/api", "/ui")) else [route]
                # Streams end with the time that a test gives them.
                asked = [f"{route}?after=0"] if route in ("/api/events", "/ui/live") else asked
            else:
                own = speaker.things.get(route.split("/")[2], [])[:3]
                asked = [re.sub(r"{\w+}", name, route) for name in own]
            for path in asked:
                assert foreign(speaker, shown(speaker, path)) == set(), path
    seen = shown(people[0], "/api/rules") + shown(people[0], "/api/skills?text=true")
    assert {one for one in people[0].words if one in seen} == {
        one for one in people[0].words if one[7] in "rfl"
    }


def test_things_of_others_do_not_exist(people: list[Speaker]) -> None:
    for speaker, other in (people, people[::-1]):
        for entry, access in ACCESS.items():
            method, _, route = entry.partition(" ")
            names = other.things.get((*route.split("/"), "", "")[2], [])
            for name in names[:2] if "{" in route else ():
                path = re.sub(r"{\w+}", name, route)
                answer = speaker.client.request(method, path)
                wanted = 404 if "member" in access.roles else 403
                assert answer.status_code == wanted, entry
                # Not even in other words than those that were asked.
                assert foreign(speaker, answer.text.replace(name, "")) == set()
        turn = other.things["turns"][0]
        fields = {"turn": turn, "outcome": "fail", "comment": "No."}
        assert speaker.client.post("/api/feedback", json=fields).status_code == 404
        rule = {"text": f"Rule {speaker.name}.", "source": turn}
        assert speaker.client.post("/api/rules", json=rule).status_code == 404


def test_no_prompt_has_what_is_anothers(people: list[Speaker], provider: Provider) -> None:
    for speaker, other in (people, people[::-1]):
        provider.requests.clear()
        session = other.things["sessions"][0]
        for headers in (
            {},
            {"x-user-id": other.name},
            {"x-session-id": session},
            {"x-user-id": other.name, "x-session-id": session, "x-workspace-id": other.name},
        ):
            answer = speaker.say("Always mention the dog and first run what failed.", **headers)
            assert foreign(speaker, str(answer.headers) + answer.text) <= foreign(speaker, session)
            assert answer.headers["x-metaclaw-session"] != session
        sent = b"".join(one.body for one in provider.requests).decode()
        assert foreign(speaker, sent) == set()
        assert any(word in sent for word in speaker.words)


def test_a_limit_is_told_in_the_wires_own_form(program: Program) -> None:
    said = {"name": "carol", "limits": "requests=1/day"}
    made = httpx.post(f"{program.url}/api/keys", json=said, headers=program.auth).json()
    with httpx.Client(base_url=program.url, headers={"x-api-key": made["key"]}) as client:
        assert Speaker("carol", client).say("Hello.").status_code == 200
        body = {"model": "openai/echo", "messages": [{"role": "user", "content": "Hello."}]}
        for path, shape in (("/v1/chat/completions", None), ("/v1/messages", "error")):
            refused = client.post(path, json={**body, "max_tokens": 5})
            assert (refused.status_code, refused.json().get("type")) == (429, shape)
            assert 0 < int(refused.headers["retry-after"]) <= 25 * 3600
        assert client.get("/api/me").json()["used"] == {"requests=1/day": 1.0}
        revoked = httpx.delete(f"{program.url}/api/keys/carol", headers=program.auth)
        assert revoked.status_code == 200
        assert client.get("/api/me").status_code == 401


def test_a_member_signs_in_to_the_page_until_the_key_is_replaced(
    program: Program, people: list[Speaker]
) -> None:
    alice = people[0]
    link = alice.client.post("/api/sign-in").json()["url"]
    with httpx.Client(base_url=program.url, headers={"accept": "text/html"}) as browser:
        assert browser.get(link).status_code == 200
        page = browser.get("/").text
        assert ("Keys</a>" in page, "Sessions</a>" in page) == (False, True)
        assert browser.get("/ui/keys").status_code == 403
        assert browser.get("/ui/rules").status_code == 200
        httpx.post(f"{program.url}/api/keys/alice/rotate", headers=program.auth).raise_for_status()
        assert browser.get("/ui/rules").status_code == 401
