"""Language Server Protocol client: server processes, diagnostics and navigation tools. The tools that edit files
without a language server belong to `tools`.
"""
