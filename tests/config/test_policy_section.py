"""`[policy]`: absent it trains nothing, empty it trains the embedded model, and what does not fit
together is refused in words.
"""

from pathlib import Path

import pytest

from metaclaw.config import InvalidConfigError, build, flatten, load, missing_secrets


def refused(home: Path, text: str) -> str:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text, "utf-8")
    with pytest.raises(InvalidConfigError) as caught:
        load(home, {})
    return str(caught.value).replace(str(home / "config.toml"), "FILE")


def test_without_the_section_no_weights_are_trained(home: Path) -> None:
    config = load(home, {})
    assert config.policy is None
    assert config.mode == "skills_only"
    assert not [key for key, _ in flatten(config) if key.startswith("policy")]


def test_an_empty_section_trains_the_embedded_model_in_windows(home: Path) -> None:
    config = build({"policy": {}}, home)
    policy = config.policy
    assert policy is not None
    assert (config.mode, policy.backend, policy.base_model, policy.device) == (
        "auto",
        "embedded",
        None,
        "auto",
    )
    assert (policy.lora_rank, policy.learning_rate, policy.steps, policy.max_lag) == (
        16,
        3e-4,
        200,
        3,
    )
    assert (policy.batch_turns, policy.batch_most, policy.rehearsal, policy.train_share) == (
        32,
        1024,
        2.0,
        0.5,
    )
    assert (
        policy.held_out_share,
        policy.canary_turns,
        policy.keep_versions,
    ) == (0.2, 50, 5)
    assert policy.hindsight


def test_the_size_of_a_step_depends_on_the_device_unless_it_is_set(home: Path) -> None:
    policy = build({"policy": {}}, home).policy
    assert policy is not None
    assert (policy.prompts_per_step, policy.group_size) == (None, None)
    assert (policy.prompts_of_a_step(True), policy.answers_to_a_prompt(True)) == (32, 16)
    assert (policy.prompts_of_a_step(False), policy.answers_to_a_prompt(False)) == (4, 12)
    chosen = build({"policy": {"prompts_per_step": 7, "group_size": 5}}, home).policy
    assert chosen is not None
    assert (chosen.prompts_of_a_step(True), chosen.answers_to_a_prompt(False)) == (7, 5)


def test_one_setting_outside_the_file_is_enough(home: Path) -> None:
    assert load(home, {"METACLAW__POLICY__MODE": "rl"}).mode == "rl"
    assert load(home, {}, ["policy.steps=9"]).mode == "auto"


def test_a_service_is_named_whole(home: Path) -> None:
    tree: dict[str, object] = {
        "backend": "tinker",
        "base_model": "Qwen/Qwen3-8B",
        "tokenizer": "{home}/tokenizer",
        "base_url": "http://127.0.0.1:8001/",
        "api_key": "env:NOT_SET_ANYWHERE",
        "hindsight": False,
        "serve": "vllm",
        "provider": "big",
    }
    config = build({"policy": tree, "providers": [{"name": "big", "kind": "openai"}]}, home)
    policy = config.policy
    assert policy is not None
    assert (policy.tokenizer, policy.base_url) == (home / "tokenizer", "http://127.0.0.1:8001")
    assert not policy.hindsight
    assert [problem.key for problem in missing_secrets(config, {})] == ["policy.api_key"]
    shown = dict(flatten(config))
    assert shown["policy.hindsight"] is False


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "mode = 'sometimes'",
            (
                "FILE:2: policy.mode must be 'auto', 'rl' or 'skills_only'; write, for example,"
                ' mode = "auto"'
            ),
        ),
        (
            "backend = 'cloud'",
            "FILE:2: policy.backend must be embedded, mint, tinker or weaver",
        ),
        (
            "group_size = 1",
            (
                "FILE:2: policy.group_size must be greater than or equal to 2; write, for example,"
                " group_size = 8"
            ),
        ),
        ("lora_rnk = 8", "FILE:2: policy.lora_rnk is not a known key; did you mean lora_rank?"),
        ("learning_rate = inf", "FILE:2: policy.learning_rate"),
        ("held_out_share = 1", "FILE:2: policy.held_out_share must be less than 1"),
        ("keep_versions = 1", "FILE:2: policy.keep_versions must be greater than or equal to 2"),
        (
            "api_key = 'abc'",
            (
                'FILE:2: policy.api_key does not apply to backend = "embedded"; delete this line,'
                " or set another backend"
            ),
        ),
        ("base_url = 'http://x'", 'FILE:2: policy.base_url does not apply to backend = "embedded"'),
        (
            "backend = 'tinker'",
            'FILE:1: policy needs base_model and tokenizer for backend = "tinker"',
        ),
        ("backend = 'mint'\nbase_model = 'm'", 'policy needs tokenizer for backend = "mint"'),
        (
            "backend = 'tinker'\ndevice = 'cuda'",
            "FILE:3: policy.device applies only to the embedded backend",
        ),
        (
            "backend = 'weaver'\nbase_url = 'x'",
            "FILE:3: policy.base_url is not an http:// or https:// address",
        ),
        (
            "backend = 'weaver'\napi_key = 'passthrough'",
            "FILE:3: policy.api_key cannot be passthrough",
        ),
        ("tokenizer = 'here'", "FILE:2: policy.tokenizer is not a whole path"),
        ("base_model = ' '", "FILE:2: policy.base_model is empty"),
        ("base_model = 'smol'", "policy needs the absolute path of a folder as base_model"),
        ("serve = 'cloud'", "FILE:2: policy.serve must be backend, sglang or vllm"),
        ("provider = 'x'", "policy needs serve to name a server if provider or serve_command is"),
        ("serve_command = ['x']", "policy needs serve to name a server if provider or"),
        (
            "serve = 'vllm'\nprovider = 'x'\nserve_command = ['x']",
            "policy has provider, a server that runs, and serve_command, which starts one",
        ),
        ("serve = 'vllm'\nprovider = 'x'", "policy.provider names x, which is no provider"),
        (
            "hindsihgt = true",
            "FILE:2: policy.hindsihgt is not a known key; did you mean hindsight?",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_place_and_a_remedy(
    home: Path, text: str, words: str
) -> None:
    assert words in refused(home, f"[policy]\n{text}\n")


def test_the_section_itself_must_be_one(home: Path) -> None:
    assert "FILE:1: policy is not a section; write [policy] on a line of its own" in refused(
        home, "policy = true\n"
    )


PROVIDERS = "[[providers]]\nname = 'a'\nkind = '{}'\n"


def test_weights_are_served_by_somebody_who_can(home: Path) -> None:
    assert "trains a model that no provider serves" in refused(
        home, PROVIDERS.format("openai") + "[policy]\n"
    )
    serve = "[policy]\nserve = 'vllm'\nprovider = 'a'\n"
    assert "is not of kind openai" in refused(home, PROVIDERS.format("anthropic") + serve)
    assert "forwards its callers' credentials" in refused(
        home, PROVIDERS.format("openai") + "api_key = 'passthrough'\n" + serve
    )
    embedded = [{"name": "a", "kind": "openai"}, {"name": "b", "kind": "embedded"}]
    assert build({"policy": {}, "providers": embedded}, home).mode == "auto"
