"""The recipes and the workflows, executed as written: real git, a real server, a scripted model."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent

from e2e.cli_environment import TIMEOUT, CliEnvironment, CompletedCommand, cli_environment
from model_server.script import CallTool, Reply, Say
from model_server.server import RecordedRequest

DOCS = Path(__file__).parents[2] / "docs"
CHANGE = "echo changed >> deps.txt"


def _recipe(title: str) -> str:
    """Return the first script below a heading."""
    text = (DOCS / "recipes.md").read_text().partition(f"\n## {title}\n")[2]
    found = re.search(r"^```sh\n(.*?)^```", text, re.M | re.S)
    assert found is not None
    return found[1]


def _steps(workflow: str) -> dict[str, str]:
    """Return the commands of the named steps of a workflow."""
    steps = (DOCS / "examples" / workflow).read_text().split("\n      - ")[1:]
    runs = (
        (step, re.search(r"\n        run: (\|\n(?P<lines>(?:          .*\n?)+)|(?P<line>.+))", step)) for step in steps
    )
    return {
        step.partition("\n")[0].removeprefix("name: "): found["line"] or dedent(found["lines"])
        for step, found in runs
        if found is not None
    }


def _script(request: RecordedRequest) -> Reply:
    messages = json.dumps(request.json.get("messages"))
    if "Review this change" in messages:
        return Reply((Say(("BLOCK\nA secret." if "password" in messages else "OK",)),))
    if "tools" not in request.json or '"role": "tool"' in messages:
        return Reply((Say(("Changed it.",)),))
    line = f"{CHANGE}; git add -A; git commit -qm deps" if "commit it" in messages else CHANGE
    return Reply((CallTool("c1", "bash", (json.dumps({"command": line, "description": "x"}),)),))


class Machine:
    """An environment for the recipes: a clone of a repository, and the command on the path."""

    def __init__(self, cli_env: CliEnvironment) -> None:
        self.cli_env = cli_env
        self.work = cli_env.project
        tools = cli_env.root / "bin"
        tools.mkdir()
        self.tool("holdfast", f'exec {sys.executable} -P -m holdfast "$@"')
        cli_env.environment["PATH"] = f"{tools}:{cli_env.environment['PATH']}"

    def tool(self, name: str, script: str) -> None:
        file = self.cli_env.root / "bin" / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    async def sh(self, script: str, **variables: str) -> CompletedCommand:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *("bash", "-e", "-o", "pipefail", "-c", script),
            cwd=self.work,
            env={**self.cli_env.environment, **variables},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
        )
        async with asyncio.timeout(TIMEOUT):
            out, err = await process.communicate()
        return CompletedCommand(process.returncode or 0, out.decode(), err.decode())

    async def must(self, script: str, **variables: str) -> str:
        done = await self.sh(script, **variables)
        assert done.code == 0, done.err
        return done.out


@asynccontextmanager
async def _machine() -> AsyncIterator[Machine]:
    async with cli_environment(_script) as cli_env:
        machine = Machine(cli_env)
        await machine.must(
            "git init -q --bare -b main ../origin; git init -q -b main .; git remote add origin ../origin;"
            "git config user.name n; git config user.email e; echo 1 > f; git add f; git commit -qm one;"
            "git push -q origin main"
        )
        yield machine


async def test_the_recipe_for_a_review_before_each_commit() -> None:
    """It blocks the commit if the response does; without a response it does not block."""
    async with _machine() as machine:
        hook = machine.work / ".git/hooks/pre-commit"
        hook.write_text(_recipe("Review before a commit"))
        hook.chmod(0o755)
        done = await machine.sh("echo password=1 > g; git add g; git commit -qm two")
        assert done.code == 1
        assert "A secret." in done.err
        await machine.must("echo fine > g; git add g; git commit -qm two")
        await machine.must("echo password=2 > g; git add g; HOLDFAST_HOST=unix:///nowhere git commit -qm three")


async def test_the_recipe_for_a_nightly_task() -> None:
    async with _machine() as machine:
        answer = machine.cli_env.root / "nightly.md"
        script = _recipe("A task every night").replace("/srv/project", str(machine.work))
        script = script.replace("/var/tmp/nightly.md", str(answer))
        await machine.must(script)
        assert answer.read_text() == "Changed it.\n"
        assert "deps.txt" in await machine.must("git -C ../origin ls-tree --name-only nightly")
        done = await machine.must("git -C ../origin rev-parse nightly")
        await machine.must(script)
        assert await machine.must("git -C ../origin rev-parse nightly") == done, "a second start on the same day"


async def test_the_workflows_run() -> None:
    async with _machine() as machine:
        review = _steps("review.yml")
        await machine.must("git switch -q -c pull; echo x > g; git add g; git commit -qm g")
        await machine.must(review["Review"], BASE="main")
        machine.tool("gh", 'echo "$@" > ../gh; cat review.md >> ../gh')
        await machine.must(review["Comment"].replace("${{ github.event.pull_request.number }}", "7"))
        assert (machine.cli_env.root / "gh").read_text() == "pr comment 7 --body-file review.md\nOK\n"
        fix = _steps("fix.yml")
        await machine.must("rm review.md; git switch -q main")
        await machine.must(fix["Work"], TASK="Do it.")
        await machine.must(fix["Push"].replace("${{ github.run_id }}", "8"))
        summary = machine.cli_env.root / "summary.md"
        await machine.must(fix["What was done"], GITHUB_STEP_SUMMARY=str(summary))
        assert summary.read_text().startswith("Changed it.\n```\n")
        assert (
            await machine.must("git -C ../origin show --format=%B --name-only holdfast-8")
            == "Changed it.\n\n\ndeps.txt\n"
        )
