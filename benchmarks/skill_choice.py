"""Does a real model ask for the skill that it needs? Requests as the running program sends them, with
its list of skills and its tool `metaclaw_skill`, answered greedily by a model that calls tools.

    python -m benchmarks.skill_choice --data FILE --model FOLDER [--gguf NAME] [--json FILE]

The data has `skills` (name, trigger, body, natural tasks) and `unrelated` requests, as in
`benchmarks/reach`. The model is a folder that transformers reads; `--gguf` names a file in it."""

import argparse
import json
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from benchmarks.home import CommandProgram

_ASKED = re.compile(r'"name":\s*"metaclaw_skill"[^}]*?"name":\s*"([^"]+)"')
_SYSTEM = "You are a coding agent. You work in the user's repository with the tools you have."
_MOST_NEW_TOKENS = 128


def _tool(name: str, about: str, *arguments: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {one: {"type": "string"} for one in arguments},
        "required": list(arguments),
    }
    function = {"name": name, "description": about, "parameters": parameters}
    return {"type": "function", "function": function}


_TOOLS = [
    _tool("Bash", "Run a shell command and return its output", "command"),
    _tool("Edit", "Replace text in a file", "file_path", "old_string", "new_string"),
]


class Recorder:
    """SIMULATED: a provider that keeps each request and answers with a word."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                outer.bodies.append(json.loads(body))
                message = {"role": "assistant", "content": "Done."}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                answer = json.dumps(
                    {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}
                ).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"


def recorded(data: Mapping[str, Any], folder: Path) -> list[dict[str, Any]]:
    """What the provider gets for each task, with the skill that it needs."""
    provider, home = Recorder(), folder / "home"
    for skill in data["skills"]:
        place = home / "skills" / skill["name"]
        place.mkdir(parents=True)
        (place / "SKILL.md").write_text(
            f"---\nname: {skill['name']}\ndescription: {skill['trigger']}\n---\n\n{skill['body']}\n"
        )
    config = (
        f'[[providers]]\nname = "p"\nkind = "openai"\nbase_url = "{provider.url}/v1"\n'
        'api_key = "x"\nmodels = ["m"]\nwires = ["chat"]\n[skills]\nlearn = false\n'
    )
    tasks = [(task, skill["name"]) for skill in data["skills"] for task in skill["natural"]]
    tasks += [(task, None) for task in data["unrelated"]]
    program = CommandProgram(sys.executable, home, config, env={})
    program.start()
    found = []
    try:
        for number, (task, wanted) in enumerate(tasks):
            messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": task}]
            httpx.post(
                f"{program.url}/v1/chat/completions",
                json={"model": "m", "messages": messages, "tools": _TOOLS},
                headers={**program.auth, "X-Session-Id": f"task-{number}"},
                timeout=60,
            ).raise_for_status()
            found.append({**provider.bodies[-1], "wanted": wanted})
    finally:
        program.stop()
    return found


def answers(requests: Sequence[Mapping[str, Any]], model: Path, gguf: str | None) -> list[str]:
    """The model's greedy answers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    file = {"gguf_file": gguf} if gguf else {}
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left", **file)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16, **file)
    network = network.eval().to(device)
    at_once = 16 if device == "cuda" else 1
    found: list[str] = []
    for start in range(0, len(requests), at_once):
        texts = [
            tokenizer.apply_chat_template(
                one["messages"], tools=one["tools"], add_generation_prompt=True, tokenize=False
            )
            for one in requests[start : start + at_once]
        ]
        prompts = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        prompts = prompts.to(device)
        with torch.no_grad():
            made = network.generate(**prompts, max_new_tokens=_MOST_NEW_TOKENS, do_sample=False)
        width = prompts["input_ids"].shape[1]
        found += [tokenizer.decode(one[width:], skip_special_tokens=True) for one in made]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.skill_choice", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--gguf")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="skill-choice-") as folder:
        requests = recorded(json.loads(given.data.read_text()), Path(folder))
    counts: Counter[str] = Counter()
    said = answers(requests, given.model, given.gguf)
    for request, answer in zip(requests, said, strict=True):
        asked, kind = _ASKED.findall(answer), "natural" if request["wanted"] else "unrelated"
        counts[kind] += 1
        counts[f"{kind}, the right skill asked for"] += request["wanted"] in asked
        counts[f"{kind}, any asked for"] += bool(asked)
    for label, number in sorted(counts.items()):
        print(f"{label}: {number}")
    if given.json:
        given.json.write_text(json.dumps({"counts": counts, "answers": said}, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
