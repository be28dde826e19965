"""Model providers: catalogue, model selection, HTTP client and one adapter per wire protocol.

Belongs here: everything between a `ModelRequest` of the engine and the bytes on a provider's connection, and the
discovery of providers and models. Does not belong here: retries and the agent loop (`engine`), reading of settings
and stored keys (`config`), and the assembly of model instances per workspace.
"""
