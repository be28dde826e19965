"""Table of the node of a cluster that answers each route. It is the only place of this decision. Pure.

Without a cluster every route is answered by the server that receives it.

* `here`: by the node that receives it, from the store and its own state. Inputs (prompts, cancels, answers, settings)
  are stored by any node, also while the workspace has no owner, and event streams follow the log on any node. So no
  promise depends on the relay.
* `owner`: only by the owner. It has the files, the commands and jobs with their output, the language and MCP servers
  and the switch that skips permission requests. Any other node relays the request, or answers 503.
* `owner_first`: by the owner if it can be reached at once, otherwise by the node that receives it, with what its own
  disk and keys show: a client can always open a workspace, and the doctor works best where something is wrong.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

__all__ = ["ACCEPTED", "POLLED", "SERVED_BY", "SLOW", "ServedBy"]

ServedBy: TypeAlias = Literal["here", "owner", "owner_first"]

_HERE = """
    health version server_config control retire_client metrics all_stats openapi docs
    list_nodes drain_node evict_node
    open_web close_web enter_page page_pass greet_page return_page
    list_workspaces create_workspace get_workspace leave_workspace set_current_session events snapshot read_log stats
    list_sessions create_session get_session put_session delete_session list_messages list_user_messages
    list_all_user_messages list_history list_read_files
    agent_info send_prompt agent_session cancel_session count_queued list_queued clear_queue summarize
    list_runs get_run patch_run cancel_run
    grant pending_permissions answer_question cancel_question pending_questions
    config_set config_remove config_model config_compact config_provider_key config_refresh_oauth config_import_copilot
    mcp_lend mcp_docker_enable mcp_docker_disable
"""
_OWNER = """
    mark_read run_shell list_jobs job_output kill_job undo_changes list_files read_file get_sandbox set_trust set_skip
    init_project read_skill expand_command
    lsp_diagnostics start_lsps stop_lsps restart_lsps lsp_log
    mcp_refresh_tools mcp_refresh_prompts mcp_refresh_resources mcp_get_prompt mcp_read_resource mcp_auth_url mcp_auth
    mcp_restart mcp_log
"""
_OWNER_FIRST = """
    get_config list_providers doctor init_agent update_agent default_small_model config_problems needs_init init_prompt
    last_read list_skills list_commands list_agents list_lsps mcp_states mcp_prompts mcp_pending_auth get_trust get_skip
"""


def _table() -> Mapping[str, ServedBy]:
    table: dict[str, ServedBy] = dict.fromkeys(_HERE.split(), "here")
    table |= dict.fromkeys(_OWNER.split(), "owner")
    table |= dict.fromkeys(_OWNER_FIRST.split(), "owner_first")
    return MappingProxyType(table)


SERVED_BY = _table()
"""The decision for each route, by its name."""

ACCEPTED = frozenset({*_OWNER.split(), *_OWNER_FIRST.split(), "get_workspace", "agent_info", "send_prompt"})
"""Routes that a node answers to other nodes: those that are relayed, and those of which handlers use the answer."""

POLLED = frozenset({"agent_info"})
"""Routes that clients request many times a second."""

SLOW = frozenset({"doctor", "send_prompt"})
"""Routes whose answer may take long, although this node can do without it: MCP servers may take part in it."""
