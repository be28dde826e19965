"""The request of each client method: every argument arrives where the protocol has it, and every default holds.

Each string argument is its own name, numbers are 7, and flags are set. A row is `name: METHOD path?query body`, where W
is the path of the workspace, with `patient` for a request without a time limit and `repeats` for one that is sent again
after a broken connection. A method with optional arguments has a second row, called without them.
"""

import inspect
from contextlib import suppress
from typing import Any, get_type_hints

import msgspec
import pytest

from holdfast.client.client import Client
from holdfast.client.errors import BrokenResponse
from holdfast.client.request import Response
from holdfast.client.server_address import ServerAddress
from holdfast.domain.files import UndoRequest
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.settings import McpSettings
from holdfast.http11.client_messages import IDEMPOTENT, ResponseHead
from holdfast.protocol.bodies import AgentMessage, ConfigModelRequest, RunChange, SelectedModel
from holdfast.protocol.routes import PREFIX, ROUTES

ROWS = """
health: GET /health
version: GET /version
server_config: GET /config
control: POST /control {"command":"command","force":true}
control: POST /control {"command":"command","force":false}
list_nodes: GET /nodes
drain_node: POST /nodes/node/drain
evict_node: POST /nodes/node/evict
retire_client: DELETE /clients/me
metrics: GET /metrics
all_stats: GET /stats?zone=7
all_stats: GET /stats
openapi: GET /openapi.json
docs: GET /docs/
open_web: POST /web {"port":7,"env":["env"]}
open_web: POST /web {"port":0,"env":[]}
close_web: DELETE /web
enter_page: POST /web/exchange {"code":"code"}
page_pass: POST /web/page
greet_page: POST /web/hello {"page":"page","nonce":"nonce"}
return_page: POST /web/return {"page":"page","proof":"proof"}
list_workspaces: GET /workspaces
create_workspace: POST /workspaces {"id":"","path":"path","yolo":true,"debug":true,"version":"version",
  "client_id":"me","env":["env"]}
create_workspace: POST /workspaces {"id":"","path":"path","client_id":"me"}
get_workspace: GET W
leave_workspace: DELETE W?client_id=me
set_current_session: POST W/current-session?client_id=me {"session_id":"session"}
snapshot: GET W/snapshot?session_id=session
snapshot: GET W/snapshot
read_log: GET W/log?after=7&limit=7&session_id=session&run_id=run
read_log: GET W/log?after=0&limit=500
get_config: GET W/config
list_providers: GET W/providers
doctor: GET W/doctor?areas=areas
doctor: GET W/doctor
stats: GET W/stats?zone=7
stats: GET W/stats
list_sessions: GET W/sessions
create_session: POST W/sessions {"title":"title","id":""}
create_session: POST W/sessions {"title":"New session","id":""}
get_session: GET W/sessions/session
put_session: PUT W/sessions/session {"title":"title"}
delete_session: DELETE W/sessions/session
list_messages: GET W/sessions/session/messages
list_user_messages: GET W/sessions/session/messages/user
list_all_user_messages: GET W/messages/user
list_history: GET W/sessions/session/history
list_read_files: GET W/sessions/session/filetracker/files
mark_read: POST W/filetracker/read {"session_id":"session","path":"path"}
last_read: GET W/filetracker/lastread?session_id=session&path=path
agent_info: GET W/agent
send_prompt: POST W/agent {"session_id":"session","prompt":"prompt","run_id":"run"} repeats
init_agent: POST W/agent/init {"interactive":true}
init_agent: POST W/agent/init {"interactive":false}
update_agent: POST W/agent/update
agent_session: GET W/agent/sessions/session
cancel_session: POST W/agent/sessions/session/cancel?client_id=me
count_queued: GET W/agent/sessions/session/prompts/queued
list_queued: GET W/agent/sessions/session/prompts/list
clear_queue: POST W/agent/sessions/session/prompts/clear?client_id=me
summarize: POST W/agent/sessions/session/summarize patient
default_small_model: GET W/agent/default-small-model?provider_id=provider_id
default_small_model: GET W/agent/default-small-model
list_runs: GET W/runs?session_id=session&state=state&limit=7&before=7
list_runs: GET W/runs
get_run: GET W/runs/run
patch_run: PATCH W/runs/run {"position":1,"delivery":null}
cancel_run: POST W/runs/run/cancel?client_id=me
get_skip: GET W/permissions/skip
set_skip: POST W/permissions/skip {"skip":true}
grant: POST W/permissions/grant?client_id=me&via=editor {"key":"answer"}
pending_permissions: GET W/permissions/pending
answer_question: POST W/questions/answer?client_id=me&via=editor {"key":"answer"}
cancel_question: POST W/questions/cancel?batch_id=batch&client_id=me&via=editor
cancel_question: POST W/questions/cancel?client_id=me&via=editor
pending_questions: GET W/questions/pending
config_problems: GET W/config/problems
config_set: POST W/config/set {"key":"key","scope":7,"value":"value"}
config_set: POST W/config/set {"key":"key","scope":0,"value":"value"}
config_remove: POST W/config/remove {"key":"key","scope":7,"value":null}
config_remove: POST W/config/remove {"key":"key","scope":0,"value":null}
config_model: POST W/config/model {"model_type":"large","model":{"model":"model","provider":"provider"},"scope":0}
config_compact: POST W/config/compact {"key":"body"}
config_provider_key: POST W/config/provider-key {"key":"body"}
config_refresh_oauth: POST W/config/refresh-oauth {"key":"body"}
config_import_copilot: POST W/config/import-copilot
needs_init: GET W/project/needs-init
init_project: POST W/project/init
init_prompt: GET W/project/init-prompt
run_shell: POST W/agent/sessions/session/shell {"command":"command","session_id":"session","term_width":7} patient
run_shell: POST W/agent/sessions/session/shell {"command":"command","session_id":"session","term_width":0} patient
list_jobs: GET W/jobs?session_id=session
list_jobs: GET W/jobs
job_output: GET W/jobs/job
kill_job: POST W/jobs/job/kill
undo_changes: POST W/undo {"run_id":"run","force":true}
list_files: GET W/files
read_file: GET W/files/read?path=path
get_sandbox: GET W/sandbox
get_trust: GET W/trust
set_trust: POST W/trust {"trusted":true,"files":[],"digest":"digest","withheld":[]}
set_trust: POST W/trust {"trusted":true,"files":[],"digest":"","withheld":[]}
list_skills: GET W/skills
read_skill: POST W/skills/read {"skill_id":"skill"}
list_commands: GET W/commands
expand_command: POST W/commands/expand {"prompt":"prompt","arguments":{"key":"arguments"}}
expand_command: POST W/commands/expand {"prompt":"prompt","arguments":{}}
list_agents: GET W/agents
list_lsps: GET W/lsps
lsp_diagnostics: GET W/lsps/lsp/diagnostics
start_lsps: POST W/lsps/start {"path":"path"}
stop_lsps: POST W/lsps/stop
restart_lsps: POST W/lsps/restart {"name":"name"}
restart_lsps: POST W/lsps/restart {"name":""}
lsp_log: GET W/lsps/log?name=name
mcp_states: GET W/mcp/states
mcp_prompts: GET W/mcp/prompts
mcp_pending_auth: GET W/mcp/pending-auth
mcp_refresh_tools: POST W/mcp/refresh-tools {"name":"name"}
mcp_refresh_prompts: POST W/mcp/refresh-prompts {"name":"name"}
mcp_refresh_resources: POST W/mcp/refresh-resources {"name":"name"}
mcp_get_prompt: POST W/mcp/get-prompt {"client_id":"server","prompt_id":"prompt","args":{"key":"arguments"}}
mcp_get_prompt: POST W/mcp/get-prompt {"client_id":"server","prompt_id":"prompt","args":{}}
mcp_read_resource: POST W/mcp/read-resource {"name":"server","uri":"uri"}
mcp_auth_url: GET W/mcp/auth-url?name=name
mcp_auth: POST W/mcp/auth {"name":"name"} patient
mcp_restart: POST W/mcp/restart {"name":"name"}
mcp_log: GET W/mcp/log?name=name
mcp_lend: POST W/mcp/lend {"client_id":"me","servers":{"name":{"command":"command"}}}
mcp_docker_enable: POST W/mcp/docker/enable
mcp_docker_disable: POST W/mcp/docker/disable
"""

VALUES: dict[tuple[str, str], Any] = {
    ("send_prompt", "prompt"): AgentMessage(SessionId("session"), "prompt", RunId("run")),
    ("undo_changes", "ask"): UndoRequest(run_id=RunId("run"), force=True),
    ("config_model", "choice"): ConfigModelRequest("large", SelectedModel("model", "provider")),
    ("patch_run", "patch"): RunChange(position=1),
    ("mcp_lend", "servers"): {"name": McpSettings(command="command")},
}


class Sender(Client):
    """Records requests instead of sending them."""

    def __init__(self) -> None:
        super().__init__(ServerAddress(path="/none"), client_id="me", via="editor", seconds=30.0)
        self.sent = ""
        self._pool.exchange = self._record  # type: ignore[method-assign]

    async def _record(
        self,
        message: bytes,
        *,
        method: str,
        can_repeat: bool,
        seconds: float | None,
        address: ServerAddress | None = None,
    ) -> Response:
        assert address == self.address
        head, _, body = message.decode().partition("\r\n\r\n")
        sent_method, target, _ = head.partition("\r\n")[0].split(" ")
        assert sent_method == method
        assert seconds in (None, 30.0)
        notes = ["patient"] * (seconds is None) + ["repeats"] * (can_repeat and method not in IDEMPOTENT)
        path = target.removeprefix(PREFIX).replace("/workspaces/workspace", "W")
        self.sent = " ".join(filter(None, [method, path, body, *notes]))
        return Response(ResponseHead(200, {}), b"\x00")


def value_for(method: str, name: str, kind: object) -> Any:  # noqa: ANN401
    """Return a value of this parameter that can be recognized."""
    if (method, name) in VALUES:
        return VALUES[method, name]
    text = str(kind)
    if kind is bool:
        return True
    if kind is int or text == "int | None":
        return 7
    if "tuple" in text:
        return (name,)
    if "dict" in text or "Mapping" in text:
        return {"key": name}
    return name


async def request_of(method: str, *, is_full: bool) -> str:
    """Call a method with all arguments or the required ones, and return its request."""
    function = getattr(Client, method)
    hints = get_type_hints(function)
    given = {
        name: value_for(method, name, hints[name])
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self" and (is_full or parameter.default is parameter.empty)
    }
    client = Sender()
    with suppress(BrokenResponse, msgspec.DecodeError):
        await getattr(client, method)(**given)
    return client.sent


def rows() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in ROWS.strip().replace(",\n  ", ",").splitlines():
        name, _, request = line.partition(": ")
        found.setdefault(name, []).append(request)
    return found


def test_every_method_has_a_row() -> None:
    assert list(rows()) == [route.name for route in ROUTES if not route.streams]


@pytest.mark.parametrize("name", rows())
async def test_the_request_of_a_method(name: str) -> None:
    full, smallest = [await request_of(name, is_full=is_full) for is_full in (True, False)]
    assert rows()[name] == ([full] if full == smallest else [full, smallest])
