"""`metaclaw setup` without a provider: the embedded engine answers, and running it again keeps what
is there.
"""

import os
from pathlib import Path

import pytest

from tests.cli.program import program
from tests.support.tiny import make_speaking_model


@pytest.mark.slow
def test_setup_without_a_provider_ends_with_an_answer_and_keeps_the_rest(
    home: Path, tmp_path: Path
) -> None:
    home.mkdir(mode=0o700)
    folder = make_speaking_model(tmp_path / "miniature")
    (home / "config.toml").write_text(
        f'[proxy]\nport = 0\n[policy]\nmode = "skills_only"\nbase_model = "{folder}"\n'
    )
    env = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    try:
        first = program(
            "setup",
            "--yes",
            "--provider",
            "embedded",
            "--agents",
            "none",
            "--train",
            env=env,
            timeout_s=600,
        )
        assert first.code == 0, first.out + first.err
        assert "miniature answered through the proxy:" in first.out
        config = (home / "config.toml").read_text()
        assert 'mode = "auto"' in config
        assert f'base_model = "{folder}"' in config
        again = program("setup", "--yes", "--agents", "none", env=env, timeout_s=600)
        assert again.code == 0, again.out + again.err
        assert "answered through the proxy" in again.out
        assert (home / "config.toml").read_text() == config
    finally:
        program("stop", env=env)
