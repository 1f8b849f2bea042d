"""`metaclaw model`."""

from pathlib import Path

from tests.cli.program import metaclaw


def test_a_model_of_this_machine_is_taken_as_it_is(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.gguf"
    file.write_bytes(b"GGUF")
    done = metaclaw("model", "add", str(file), "--use", "--json")
    assert done.code == 0
    assert done.facts == {"path": str(file), "used": True}
    assert f'base_model = "{file}"' in (home / "config.toml").read_text()


def test_the_list_says_what_is_there_and_in_use(home: Path) -> None:
    assert metaclaw("model", "list").out == "There is no model in the home folder.\n"
    for name in ("smollm2-135m-instruct", "someone--small"):
        (home / "models" / name).mkdir(parents=True)
        (home / "models" / name / "config.json").write_text("{}")
    models = metaclaw("model", "list", "--json").facts["models"]
    assert [(one["name"], one["used"], one["size_bytes"]) for one in models] == [
        ("smollm2-135m-instruct", True, 2),
        ("someone--small", False, 2),
    ]


def test_removing_names_what_is_missing(home: Path) -> None:
    done = metaclaw("model", "remove", "nothing", "--yes")
    assert (done.code, "metaclaw model list has them" in done.err) == (1, True)
