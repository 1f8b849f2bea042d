"""`metaclaw agents files`: what agents keep themselves, beside the rules of the person."""

from pathlib import Path

import pytest

from tests.cli.program import metaclaw


@pytest.fixture(autouse=True)
def users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which agents keep their files; never that of the machine."""
    folder = tmp_path / "user"
    monkeypatch.setenv("HOME", str(folder))
    for variable in ("CLAUDE_CONFIG_DIR", "OPENCLAW_STATE_DIR", "HERMES_HOME"):
        monkeypatch.delenv(variable, raising=False)
    return folder


SKILL = "---\nname: deploy\ndescription: When deploying\n---\n\n- Run the tests first.\n"


def test_files_of_agents_are_listed_with_what_repeats_or_contradicts_a_rule(
    home: Path, tmp_path: Path, users_folder: Path
) -> None:
    project = tmp_path / "shop"
    claude, hermes = users_folder / ".claude", users_folder / ".hermes"
    files = {
        claude / "CLAUDE.md": "- Use uv instead of pip.\n- Indent with tabs.\n",
        claude / "skills" / "deploy" / "SKILL.md": SKILL,
        hermes / "memories" / "MEMORY.md": "The staging server is stage-2.\n",
        project / "AGENTS.md": "- Never force-push.\n",
        claude / "skills" / "broken" / "SKILL.md": "no front matter",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for rule in ("Use uv instead of pip.", "Indent with spaces."):
        assert metaclaw("rules", "add", rule).code == 0
    assert metaclaw("rules", "add", "Be brief.", "--project", str(project)).code == 0
    facts = metaclaw("agents", "files", "--json").facts["files"]
    assert {(one["agent"], one["kind"], Path(one["path"])) for one in facts} == {
        ("claude-code", "memory", claude / "CLAUDE.md"),
        ("claude-code", "skill", claude / "skills" / "deploy" / "SKILL.md"),
        ("claude-code", "skill", claude / "skills" / "broken" / "SKILL.md"),
        ("hermes", "memory", hermes / "memories" / "MEMORY.md"),
        ("project", "memory", project / "AGENTS.md"),
    }
    told = {(related["kind"], related["rule"]) for one in facts for related in one["relations"]}
    assert told == {
        ("repeats", "use-uv-instead-of-pip"),
        ("contradicts", "indent-with-spaces"),
    }
    shown = metaclaw("agents", "files").out
    assert "contradicts the rule indent-with-spaces: Indent with tabs." in shown
    assert "broken/SKILL.md cannot be read" in shown
    assert {path: path.read_text() for path in files} == files, "nothing is changed"


def test_the_workspace_that_openclaw_is_configured_for_is_read(
    home: Path, tmp_path: Path, users_folder: Path
) -> None:
    workspace, folder = tmp_path / "claw", users_folder / ".openclaw"
    for path, text in {
        folder / "openclaw.json": f'{{agents: {{defaults: {{workspace: "{workspace}"}}}}}}',
        folder / "workspace" / "SOUL.md": "- Be kind.\n",
        workspace / "MEMORY.md": "- Answer in English.\n",
        workspace / "memory" / "2026-11-18.md": "- The cat is called Mo.\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert metaclaw("rules", "add", "Answer in German.").code == 0
    facts = metaclaw("agents", "files", "--json").facts["files"]
    assert {Path(one["path"]).name for one in facts} == {"SOUL.md", "MEMORY.md", "2026-11-18.md"}
    (related,) = (related for one in facts for related in one["relations"])
    assert (related["kind"], related["text"]) == ("contradicts", "Answer in English.")


def test_a_rule_of_one_project_is_not_compared_with_files_of_another(
    home: Path, tmp_path: Path
) -> None:
    shop, blog = tmp_path / "shop", tmp_path / "blog"
    for project, indent in ((shop, "tabs"), (blog, "spaces")):
        project.mkdir()
        (project / "CLAUDE.local.md").write_text(f"- Indent with {indent}.\n")
        rule = f"Indent with {indent}."
        assert metaclaw("rules", "add", rule, "--project", str(project)).code == 0
    facts = metaclaw("agents", "files", "--json").facts["files"]
    related = [(one["kind"], one["rule"]) for file in facts for one in file["relations"]]
    assert sorted(related) == [("repeats", "indent-with-spaces"), ("repeats", "indent-with-tabs")]


def test_without_such_files_that_is_said(home: Path) -> None:
    assert "were found" in metaclaw("agents", "files").out
