"""The run engine: lifecycle state machine, its asyncio driver, and the agent loop."""
