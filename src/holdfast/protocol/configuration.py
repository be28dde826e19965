"""The routes of the settings, and of a project's start."""

from typing import Any

from holdfast.protocol import bodies
from holdfast.protocol.route import Route, get, post

__all__ = ["CONFIG_ROUTES"]

_ANY = dict[str, Any]
_C = "/workspaces/{id}/config"
_P = "/workspaces/{id}/project"

CONFIG_ROUTES: tuple[Route, ...] = (
    get(
        "config_problems",
        _C + "/problems",
        "What is wrong with the files of settings.",
        tuple[bodies.ConfigProblem, ...],
        errors=(404,),
    ),
    post("config_set", _C + "/set", "Set a key.", bodies.ConfigChange, errors=(400, 404, 409, 503)),
    post("config_remove", _C + "/remove", "Remove a key.", bodies.ConfigChange, errors=(400, 404, 409, 503)),
    post("config_model", _C + "/model", "Choose a model.", bodies.ConfigModel, errors=(400, 404, 409, 503)),
    post("config_compact", _C + "/compact", "Compact display.", _ANY, errors=(400, 404, 409, 503)),
    post("config_provider_key", _C + "/provider-key", "Set a key of a provider.", _ANY, errors=(400, 404, 409, 503)),
    post("config_refresh_oauth", _C + "/refresh-oauth", "Refresh a token.", _ANY, errors=(400, 404, 409, 503)),
    post("config_import_copilot", _C + "/import-copilot", "Not built.", None, _ANY, errors=(404,)),
    get(
        "needs_init",
        _P + "/needs-init",
        "Whether to ask if the project should be described.",
        bodies.NeedsInit,
        errors=(404,),
    ),
    post("init_project", _P + "/init", "Whoever was to be asked about a start has been.", errors=(404, 503)),
    get("init_prompt", _P + "/init-prompt", "The prompt of a start.", bodies.InitPrompt, errors=(404,)),
)
