"""Construction: the services of a server, the services of a workspace, and the workspace itself.

Everything that combines several of the packages below is created here: model selection, permission rules, engine
settings. Behaviour belongs to the package that is constructed.
"""
