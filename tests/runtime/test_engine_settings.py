"""Effect of the settings on the engine and the system prompt: a row for each of them."""

from pathlib import Path

import msgspec
import pytest

from holdfast.domain.ids import SessionId
from holdfast.domain.settings import Attribution, Options, Settings
from holdfast.engine.settings import EngineSettings
from holdfast.runtime.engine_settings import context_loader, engine_settings, own_files

GIVEN = EngineSettings(grace=9.0, margin=8.0, closing=7.0, cancel_write=6.0, parallel_tools=3, titles=False)

ROWS: dict[str, tuple[object, str, object]] = {
    "max_steps": (7, "limits.steps", 7),
    "max_minutes": (7.5, "limits.minutes", 7.5),
    "max_cost": (0.25, "limits.cost", 0.25),
    "max_agents": (3, "max_subagents", 3),
    "max_agent_depth": (4, "subagent_depth", 4),
    "max_retries": (9, "retries.most", 9),
    "model_load_timeout": (77, "retries.loading_timeout", 77.0),
    "disable_auto_summarize": (True, "auto_summarize", False),
}


def flat(settings: EngineSettings) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if isinstance(value, msgspec.Struct):
            found |= {f"{name}.{inner}": getattr(value, inner) for inner in value.__struct_fields__}
        else:
            found[name] = value
    return found


@pytest.mark.parametrize("option", ROWS)
def test_an_option_changes_one_setting_of_the_engine(option: str) -> None:
    value, changed, expected = ROWS[option]
    plain = flat(engine_settings(GIVEN, Options()))
    now = flat(engine_settings(GIVEN, msgspec.structs.replace(Options(), **{option: value})))
    assert now == plain | {changed: expected}
    assert plain[changed] != expected


def test_without_options_the_engine_settings_are_unchanged() -> None:
    """The defaults of unset options equal those of the engine."""
    assert engine_settings(GIVEN, Options()) == GIVEN
    off = msgspec.structs.replace(GIVEN, auto_summarize=False)
    assert not engine_settings(off, Options()).auto_summarize


def test_the_users_own_context_files() -> None:
    plain = Options()
    assert own_files(plain, {"HOME": "/h"}) == (Path("/h/.config/holdfast/AGENTS.md"), Path("/h/.config/AGENTS.md"))
    assert own_files(plain, {"HOME": "/h", "XDG_CONFIG_HOME": "/c"})[0] == Path("/c/holdfast/AGENTS.md")
    assert own_files(plain, {"HOME": "/h", "XDG_CONFIG_HOME": ""})[0] == Path("/h/.config/holdfast/AGENTS.md")
    assert own_files(plain, {})[0] == Path("/.config/holdfast/AGENTS.md")
    named = msgspec.structs.replace(plain, global_context_paths=("/mine.md", "~/yours.md"))
    assert own_files(named, {"HOME": "/h"}) == (Path("/mine.md"), Path("~/yours.md").expanduser())


TRAILERS = {"assisted-by": "Assisted-by: Holdfast", "co-authored-by": "Co-Authored-By: Holdfast", "none": ""}


@pytest.mark.parametrize("style", TRAILERS)
async def test_system_prompt_follows_the_settings(tmp_path: Path, style: str) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "RULES.md").write_text("the rules of the project")
    (tmp_path / "mine.md").write_text("my own rules")
    calls: list[str] = []
    options = msgspec.structs.replace(
        Options(),
        context_paths=("RULES.md",),
        global_context_paths=(str(tmp_path / "mine.md"),),
        attribution=Attribution(trailer_style=style),  # type: ignore[arg-type]
    )
    settings = msgspec.structs.replace(Settings(), options=options)

    async def first() -> None:
        calls.append("first")

    def notes() -> tuple[str, ...]:
        calls.append("notes")
        return ("a note of an extension",)

    loader = context_loader(str(tmp_path / "project"), lambda: settings, {"HOME": str(tmp_path)}, notes, first)
    place = await loader.load(SessionId("s"))
    assert place.trailer == TRAILERS[style]
    assert place.notes == ("a note of an extension",)
    assert {file.text for file in place.context} == {"the rules of the project", "my own rules"}
    assert calls[0] == "first", "extensions are ready before they are used"
    assert place.directory == str(tmp_path / "project")
    assert len(place.date) == len("2026-01-31")
