"""SDK integrations. Every module is imported in a thread on first use, because the SDKs take seconds to import.

Belongs here: one module per SDK (`build` creates the pydantic-ai model, `refine` adapts its settings) and the
conversion between our types and those of pydantic-ai. Code that must load quickly does not belong here.
"""
