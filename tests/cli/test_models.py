"""`holdfast models`: lists, searches and hints. It needs no Holdfast server."""

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.models import command, progress_dots
from holdfast.providers.model_discovery import LOCAL_SERVERS


class Home:
    """An empty home, an environment without keys, and a place for a local server."""

    def __init__(self, path: Path, port: int) -> None:
        self.path = path
        self.work = path / "w"
        self.work.mkdir()
        self.settings = path / ".config/holdfast/config.toml"
        self.settings.parent.mkdir(parents=True)
        hidden = ("_API_KEY", "_TOKEN")
        self.environment: dict[str, str | None] = {
            name: None for name in os.environ if name.startswith(("AWS_", "XDG_", "GOOGLE_")) or name.endswith(hidden)
        }
        self.environment |= {
            "HOME": str(path),
            "HOLDFAST_DATA_DIR": str(path / "d"),
            "HOLDFAST_KEYRING": "0",
            "OLLAMA_HOST": f"127.0.0.1:{port}",
        }

    def call(self, *arguments: str) -> Result:
        return CliRunner().invoke(command, ["--cwd", str(self.work), *arguments], env=self.environment)

    def reported(self, *arguments: str) -> dict[str, Any]:
        result = self.call(*arguments, "--json")
        assert result.exit_code == 0, result.output
        reported: dict[str, Any] = json.loads(result.stdout)
        return reported


class Answers(BaseHTTPRequestHandler):
    """Ollama, as far as it is needed."""

    def do_GET(self) -> None:
        self._format({"models": [{"model": "qwen3:8b"}]} if self.path == "/api/tags" else {"models": []})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._format(
            {"capabilities": ["completion", "tools", "vision"], "model_info": {"qwen3.context_length": 40_960}}
        )

    def _format(self, answer: object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class ModelList(Answers):
    """An OpenAI-compatible server with one model."""

    def do_GET(self) -> None:
        self._format({"data": [{"id": "newest", "context_window": 1_000}]})


@pytest.fixture
def silent() -> Iterator[int]:
    """A port without a server: it is bound, but not listening."""
    server = HTTPServer(("127.0.0.1", 0), Answers, bind_and_activate=False)
    server.server_bind()
    yield server.server_port
    server.server_close()


@pytest.fixture
def home(tmp_path: Path, silent: int, monkeypatch: pytest.MonkeyPatch) -> Home:
    ollama, (id, name, kind, _) = LOCAL_SERVERS
    # A local model server may run on this machine.
    elsewhere = (id, name, kind, f"http://127.0.0.1:{silent}/v1")
    monkeypatch.setattr("holdfast.providers.model_registry.LOCAL_SERVERS", (ollama, elsewhere))
    return Home(tmp_path, silent)


def test_without_a_key_a_hint_is_printed(home: Home) -> None:
    result = home.call()
    assert result.exit_code == 0
    assert "* tour" in result.stdout
    assert "scripted; no real model" in result.stdout
    assert "holdfast login" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_usable_models_are_listed_with_prices(home: Home) -> None:
    home.environment["GROQ_API_KEY"] = "canary"
    result = home.call()
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0] == "Groq (groq)  ready"
    assert [line.split()[-1] for line in lines if line.startswith("* ")] == ["large", "small"]
    (large,) = (line for line in lines if line.endswith("large"))
    assert "131k" in large
    assert "$0.6 out" in large
    assert "think" in large
    assert "Anthropic" not in result.stdout
    assert "canary" not in result.output


def test_a_term_finds_models_of_all_providers(home: Home) -> None:
    result = home.call("sonnet", "5-5")
    assert "claude-sonnet-5-5" in result.stdout
    assert "haiku" not in result.stdout
    assert (
        "Anthropic (anthropic)  needs a key: set ANTHROPIC_API_KEY, or run `holdfast login anthropic`." in result.stdout
    )
    assert "gpt-oss" in home.call("GROQ").stdout


def test_a_term_without_matches_suggests_similar_names(home: Home) -> None:
    result = home.call("sonet")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "sonnet" in result.stderr


def test_all_providers_are_listed(home: Home) -> None:
    names = [view["id"] for view in home.reported("--all")["providers"]]
    assert names[0] == "anthropic"
    assert {"ollama", "lmstudio", "demo", "bedrock"} <= set(names)


def test_json_contains_all_details(home: Home) -> None:
    home.environment["GROQ_API_KEY"] = "canary"
    reported = home.reported()
    assert reported["large"]["provider"] == "groq"
    groq, demo = reported["providers"]
    assert groq["usable"]
    assert groq["api_key"] == "$GROQ_API_KEY"
    assert {"id", "context_window", "cost_per_1m_in", "supports_attachments"} <= groq["models"][0].keys()
    assert demo["id"] == "demo"
    assert "canary" not in json.dumps(reported)


def test_settings_select_the_models(home: Home) -> None:
    home.environment["GROQ_API_KEY"] = "k"
    home.settings.write_text(
        """
        [models.large]
        provider = "local"
        model = "mine"
        [providers.local]
        base_url = "http://127.0.0.1:9/v1"
        [[providers.local.models]]
        id = "mine"
        context_window = 12345
        """
    )
    reported = home.reported()
    assert reported["large"] == {"provider": "local", "model": "mine"}
    assert reported["providers"][0]["models"][0]["context_window"] == 12_345


def test_an_unusable_selection_is_explained(home: Home) -> None:
    home.environment["GROQ_API_KEY"] = "k"
    home.settings.write_text('[models.large]\nprovider = "grok-cloud"\nmodel = "x"\n')
    result = home.call()
    assert result.exit_code == 0
    assert "models.large: There is no provider grok-cloud" in result.stderr
    assert "There is no provider" in home.reported()["problem"]


def test_an_unreadable_settings_file_is_reported_without_a_fallback(home: Home) -> None:
    home.settings.write_text("[models.large\n")
    result = home.call()
    assert f"models.large: {home.settings}:1: this is not TOML" in result.stderr
    assert "the scripted tour answers" not in result.stderr
    assert "large" not in home.reported()


def test_a_local_server_is_found(home: Home) -> None:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        home.environment["OLLAMA_HOST"] = f"127.0.0.1:{server.server_port}"
        result = home.call()
        server.shutdown()
        thread.join()
    assert result.stdout.splitlines()[:2] == [
        "Ollama (ollama)  on this machine",
        "* qwen3:8b   41k      image  large and small",
    ]
    assert result.stderr == ""


def test_a_refresh_lists_models_that_are_newer_than_the_catalogue(home: Home) -> None:
    """Providers of the catalogue are queried with `--refresh` only."""
    home.environment["GROQ_API_KEY"] = "k"
    with HTTPServer(("127.0.0.1", 0), ModelList) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        home.settings.write_text(f'[providers.groq]\nbase_url = "http://127.0.0.1:{server.server_port}/v1"\n')
        before = home.reported()["providers"][0]
        result = home.call("--refresh", "--json")
        server.shutdown()
        thread.join()
    assert result.stderr == "Querying providers for their models ...\n"
    after = json.loads(result.stdout)["providers"][0]
    assert {model["id"] for model in after["models"]} - {model["id"] for model in before["models"]} == {"newest"}
    assert len(before["models"]) > 1


def test_a_refresh_lists_the_catalogue_if_no_server_answers(home: Home, silent: int) -> None:
    home.environment["GROQ_API_KEY"] = "k"
    home.settings.write_text(f'[providers.groq]\nbase_url = "http://127.0.0.1:{silent}/v1"\n')
    assert home.reported("--refresh")["providers"] == home.reported()["providers"]


def test_progress_dots_are_printed_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.models._DOT_INTERVAL", 0.001)
    reported: list[str] = []
    third = threading.Event()

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            size = super().write(text)
            reported.append(text)
            if "".join(reported).endswith("..."):
                third.set()
            return size

    monkeypatch.setattr("sys.stderr", Terminal())
    with progress_dots("Fetching"):
        assert third.wait(20)
    assert "".join(reported).startswith("Fetching ...")
    assert "".join(reported).endswith("\n")


def test_names_of_models_cannot_control_the_terminal(home: Home) -> None:
    home.settings.write_text(
        '[providers.bad]\nbase_url = "http://127.0.0.1:9"\n[[providers.bad.models]]\nid = "a\\u001b[2J"\n'
    )
    result = home.call()
    assert "\x1b" not in result.output
    assert "a\\x1b[2J" in result.output


def test_the_command_imports_little() -> None:
    """Listing models loads neither SDKs nor the catalogue builder."""
    script = "import sys, holdfast.cli.models; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"httpx2", "genai_prices", "pydantic_ai", "openai", "anthropic", "apsw"}
