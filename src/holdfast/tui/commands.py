"""The app's own commands, for the palette and for `/` in the editor. Pure."""

import msgspec

__all__ = ["COMMANDS", "Command"]


class Command(msgspec.Struct, frozen=True):
    """A command. `name` is typed after the slash, `action` is the action of the app."""

    name: str
    title: str
    action: str
    key: str = ""


COMMANDS = (
    Command("new", "New session", "new_session", "ctrl+n"),
    Command("sessions", "Sessions: open, rename, delete", "sessions", "ctrl+s"),
    Command("models", "Choose a model, set a key", "models", "ctrl+l"),
    Command("effort", "How much the model thinks", "effort", "f2"),
    Command("changes", "Files this session changed; undo", "changes"),
    Command("runs", "Runs: what was asked, how it ended", "runs"),
    Command("jobs", "Background jobs", "jobs"),
    Command("extensions", "MCP servers, language servers, skills", "extensions"),
    Command("queue", "Prompts that wait", "queue_focus", "ctrl+t"),
    Command("back", "Take back prompts that were cancelled elsewhere", "take_back"),
    Command("find", "Find in the conversation", "find", "ctrl+f"),
    Command("recall", "Find a prompt you sent before", "recall", "ctrl+r"),
    Command("editor", "Write in your own editor", "editor", "ctrl+o"),
    Command("summarize", "Summarise this session", "summarize"),
    Command("init", "Describe this project in a file", "init"),
    Command("yolo", "Auto-approve: let tools act without asking, or not", "yolo", "ctrl+y"),
    Command("theme", "Choose a theme", "themes"),
    Command("fold", "Unfold or fold all tools and thoughts", "fold_all"),
    Command("help", "Keys", "help", "ctrl+g"),
    Command("quit", "Leave; runs go on", "leave", "ctrl+c"),
)
