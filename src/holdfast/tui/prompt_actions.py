"""Prompts: sending, queueing, steering, cancelling and restoring them; their attachments; completions."""

import asyncio
import contextlib
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rich.text import Text
from textual.app import SuspendNotSupported

from holdfast.client.errors import ClientError
from holdfast.domain.ids import RunId
from holdfast.domain.messages import text_of
from holdfast.domain.runs import Attachment, Delivery, Run
from holdfast.protocol.bodies import RunChange
from holdfast.tui.app_context import AppContext
from holdfast.tui.attachments import (
    AttachmentTooLarge,
    best_matches,
    clipboard_image,
    find_mentions,
    read_attachment,
    text_attachment,
)
from holdfast.tui.key_hints import key_hints
from holdfast.tui.screens.picker import Picker, PickerItem
from holdfast.tui.slash_commands import SlashCommands
from holdfast.tui.widgets.queue_panel import QueuePanel

__all__ = ["SECOND_PRESS_TIME", "AttachmentBar", "CompletionController", "PromptController"]

SECOND_PRESS_TIME = 2.0
"""Seconds within which a second Escape cancels, or a second Ctrl-C leaves."""
_MAX_REMEMBERED = 50
"""Number of sent prompts whose attachments are kept."""
_FILE_LIST_AGE = 20.0
"""Seconds for which a list of files is reused."""


class AttachmentBar:
    """The attachments of the next prompt, in a line above the composer."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._items: tuple[Attachment, ...] = ()
        self._pastes = 0
        """Number of pastes, for the names of attachments without a file."""

    def add(self, *items: Attachment) -> None:
        """Add attachments."""
        self._items = (*self._items, *items)
        self._draw()

    def remove_last(self) -> None:
        """Remove the last attachment, if there is one."""
        if self._items:
            self._items = self._items[:-1]
            self._draw()

    def clear(self) -> tuple[Attachment, ...]:
        """Remove all attachments and return them."""
        items, self._items = self._items, ()
        self._draw()
        return items

    def add_paste(self, text: str, *, is_path: bool) -> None:
        """Attach a pasted text, or the file at a pasted path."""
        try:
            if is_path:
                item = read_attachment(text, text)
            else:
                self._pastes += 1
                item = text_attachment(text, self._pastes)
        except AttachmentTooLarge as error:
            self._context.notify(str(type(error).__doc__), severity="error")
            return
        if item is not None:
            self.add(item)

    async def paste_image(self) -> None:
        """Attach the image on the clipboard; if there is none, paste text."""
        image = await asyncio.to_thread(clipboard_image)
        if image is None:
            self._context.composer.action_paste()
            return
        self._pastes += 1
        name = f"image-{self._pastes}.png"
        self.add(Attachment(image, name, name, "image/png"))

    def _draw(self) -> None:
        self._context.composer.has_attachments = bool(self._items)
        line = self._context.line("attachments")
        line.display = bool(self._items)
        names = "   ".join(f"⊞ {item.file_name} ({_format_size(len(item.content))})" for item in self._items)
        line.update(Text(f"{names}   ") + key_hints(("backspace", "removes the last")) if names else "")


class PromptController:
    """Sends prompts and shell commands, cancels runs, and changes the queue."""

    def __init__(self, context: AppContext, commands: SlashCommands, attachments: AttachmentBar) -> None:
        self._context = context
        self._connection = context.connection
        self._commands = commands
        self._attachments = attachments
        self._escaped_at = -SECOND_PRESS_TIME
        self._sent_attachments: Mapping[RunId, tuple[Attachment, ...]] = MappingProxyType({})
        """Attachments of the newest prompts from here, which are restored with them."""
        self._cancelled_here: frozenset[RunId] = frozenset()
        """Queued prompts that were restored or removed here."""
        self._cancelled_elsewhere: tuple[Run, ...] = ()
        """Queued prompts from here that another client has cancelled."""

    # Sending.

    async def submit(self, text: str, *, queues: bool) -> None:
        """Run an own command, a shell command after `!`, or send a prompt."""
        if self._commands.is_own(text):
            await self._commands.run(text[1:])
            return
        self._context.transcript.action_bottom()
        if text.startswith("!") and text[1:].strip():
            self._context.start(self._run_shell, text[1:].strip(), group="shell")
        else:
            self._context.start(self._send, text, "queue" if queues else None)

    async def _send(self, text: str, delivery: Delivery | None) -> None:
        """Send a prompt. If that fails, the text and its attachments are restored."""
        composer = self._context.composer
        if await self._commands.is_unknown(text):
            composer.restore(text)
            self._context.notify(f"There is no command {text}; ctrl+p lists all commands.", severity="warning")
            return
        attachments = self._attachments.clear()
        try:
            mentioned = await asyncio.to_thread(self._read_mentions, text)
            sent = await self._connection.prompt(text, delivery=delivery, attachments=(*attachments, *mentioned))
            newest = list(self._sent_attachments.items())[-_MAX_REMEMBERED:]
            self._sent_attachments = {**dict(newest), sent.run_id: attachments}
        except (ClientError, AttachmentTooLarge) as error:
            self._attachments.add(*attachments)
            composer.restore(text)
            reason = str(error) or str(type(error).__doc__)
            self._context.notify(reason, title="Not sent", severity="error", timeout=10)

    def _read_mentions(self, text: str) -> list[Attachment]:
        """Return the files that a text mentions with `@`. Raises `AttachmentTooLarge`."""
        directory = self._connection.directory
        found = (read_attachment(os.path.join(directory, name), name) for name in find_mentions(text))
        return [item for item in found if item is not None]

    async def _run_shell(self, command: str) -> None:
        """Run a shell command on the server. Its request is open while it runs."""
        context, connection = self._context, self._connection
        if connection.session is None:
            created = await context.fetch(connection.client.create_session(connection.workspace))
            if created is None:
                return
            await connection.open_session(created.id)
        session = connection.session
        if session is None:
            return
        connection.shell_commands.append(command)
        context.request_frame()
        try:
            request = connection.client.run_shell(connection.workspace, session, command, context.size.width)
            if await context.fetch(request) is None:
                context.composer.restore(f"!{command}")
        finally:
            connection.shell_commands.remove(command)
            context.request_frame()

    # Cancelling.

    @property
    def is_cancel_pending(self) -> bool:
        """True after a first Escape, as long as a second one would cancel."""
        return time.monotonic() - self._escaped_at < SECOND_PRESS_TIME

    def escape(self) -> None:
        """Cancel on the second Escape; otherwise return to the composer."""
        context = self._context
        is_busy = bool(self._connection.runs() or self._connection.shell_commands)
        if not is_busy or not context.composer.has_focus:
            context.transcript.find("")
            context.composer.focus()
            if not is_busy:
                return
        if self.is_cancel_pending:
            self._escaped_at = -SECOND_PRESS_TIME
            context.start(self._cancel)
        else:
            self._escaped_at = time.monotonic()
            # The hint disappears when the time is over.
            context.set_timer(SECOND_PRESS_TIME + 0.05, context.request_frame)
        context.request_frame()

    async def _cancel(self) -> None:
        """Cancel shell commands and runs, and restore the queued prompts of this client."""
        connection = self._connection
        for command in connection.shell_commands:
            self._context.notify(f"Stopped: $ {command}")
        # A shell command is cancelled when its request is.
        self._context.cancel_group("shell")
        if not connection.runs():
            return
        own = connection.client.client_id
        queued = [run for run in connection.waiting() if run.client_id in ("", own)]
        self._cancelled_here |= {run.run_id for run in queued}
        if await self._context.send(connection.cancel()) and queued:
            self._restore(queued)

    def report_cancelled(self, ended: Sequence[RunId]) -> None:
        """Notify of queued prompts from here that another client has cancelled; they can be restored."""
        runs = [self._connection.view.runs.get(name) for name in ended if name not in self._cancelled_here]
        lost = [run for run in runs if run is not None and self._is_own_and_cancelled(run)]
        if len(lost) == 1:
            text = "A queued prompt of yours was cancelled elsewhere: /back restores it."
        else:
            text = f"{len(lost)} queued prompts of yours were cancelled elsewhere: /back restores them."
        if lost:
            self._cancelled_elsewhere = (*self._cancelled_elsewhere, *lost)
            self._context.notify(text, timeout=15)

    def _is_own_and_cancelled(self, run: Run) -> bool:
        is_own = bool(run.client_id) and run.client_id == self._connection.client.client_id
        return is_own and run.outcome == "cancelled" and not run.started_at and not run.folded_into

    def restore_cancelled(self) -> None:
        """Restore prompts that another client has cancelled."""
        lost, self._cancelled_elsewhere = self._cancelled_elsewhere, ()
        if lost:
            self._restore(lost)
        else:
            self._context.notify("No queued prompt of yours was cancelled.")

    def _restore(self, runs: Sequence[Run]) -> None:
        """Insert the prompts into the composer, with the attachments that are still known."""
        self._context.composer.restore("\n\n".join(run.prompt for run in runs))
        known = [item for run in runs for item in self._sent_attachments.get(run.run_id, ())]
        if known:
            self._attachments.add(*known)
        names = {item.file_name for item in known}
        # Mentioned files are read again when the prompt is sent.
        names |= {os.path.basename(name) for run in runs for name in find_mentions(run.prompt)}
        missing = [item.file_name for run in runs for item in run.attachments if item.file_name not in names]
        if missing:
            self._context.notify(f"Attach again: {', '.join(missing)}", severity="warning")

    # The queue.

    def focus_queue(self) -> None:
        """Move the focus to the queue."""
        if self._context.queue.display:
            self._context.queue.focus()
        else:
            self._context.notify("No prompt is queued.")

    async def change_queue(self, event: QueuePanel.ActionRequested) -> None:
        """Edit, remove, move or reclassify a queued prompt."""
        context, connection, run = self._context, self._connection, event.run
        client, workspace = connection.client, connection.workspace
        match event.action:
            case "edit":
                self._cancelled_here |= {run.run_id}
                if await context.send(client.cancel_run(workspace, run.run_id)):
                    self._restore([run])
            case "remove":
                self._cancelled_here |= {run.run_id}
                await context.send(client.cancel_run(workspace, run.run_id))
                if len(connection.waiting()) <= 1:
                    context.composer.focus()
            case "up" | "down":
                position = max(0, event.position + (1 if event.action == "down" else -1))
                await context.send(client.patch_run(workspace, run.run_id, RunChange(position=position)))
            case "now":
                await context.send(client.patch_run(workspace, run.run_id, RunChange(delivery="steer")))
            case "later":
                await context.send(client.patch_run(workspace, run.run_id, RunChange(delivery="queue")))

    # Other ways to write.

    def edit_externally(self) -> None:
        """Edit the text in the user's own editor."""
        composer = self._context.composer
        command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        with tempfile.NamedTemporaryFile("w+", suffix=".md", prefix="holdfast-", delete=False) as file:
            file.write(composer.text)
        try:
            with self._context.suspend():
                done = subprocess.run([*shlex.split(command), file.name], check=False)
            if done.returncode == 0:
                with open(file.name, encoding="utf-8", errors="replace") as edited:
                    composer.set_text(edited.read().rstrip("\n"))
        except (SuspendNotSupported, OSError, ValueError) as error:
            self._context.notify(f"{command} cannot be started: {error}. Set EDITOR.", severity="error")
        finally:
            os.unlink(file.name)
        composer.focus()

    async def recall(self) -> None:
        """Choose a prompt of any session from the history."""
        composer = self._context.composer
        texts = list(dict.fromkeys(reversed(composer.sent_prompts)))
        items = [PickerItem(str(at), " ".join(text.split())[:200]) for at, text in enumerate(texts)]
        picked = await self._context.show_dialog(Picker("Earlier prompts", items, empty="No prompt was sent yet."))
        if picked is not None:
            composer.set_text(texts[int(picked.value)])
        composer.focus()

    async def load_history(self) -> None:
        """Load the prompts of all sessions into the composer's history."""
        try:
            messages = await self._connection.client.list_all_user_messages(self._connection.workspace)
        except ClientError:
            return
        texts = [text_of(message).strip() for message in reversed(messages[:500])]
        if self._context.is_mounted:
            composer = self._context.composer
            composer.set_sent_prompts([text for text in texts if text] + composer.sent_prompts)


class CompletionController:
    """Completes file mentions and slash commands. The composer keeps the focus."""

    def __init__(self, context: AppContext, commands: SlashCommands) -> None:
        self._context = context
        self._commands = commands
        self._files: Sequence[str] = ()
        self._listed_at = -_FILE_LIST_AGE

    def complete(self, kind: str, letters: str) -> None:
        """Offer completions for a word of this kind: `file`, `command`, or empty for none."""
        self._context.cancel_group("completion")
        if kind == "command":
            self._context.start(self._offer_commands, letters, group="completion", is_exclusive=True)
        elif kind == "file":
            self._context.start(self._offer_files, letters, group="completion", is_exclusive=True)
        else:
            self._offer_completions(())

    def press(self, key: str) -> None:
        """Handle a key that the composer leaves to the list while it is shown."""
        completer = self._context.completer
        match key:
            case "up":
                completer.action_cursor_up()
            case "down":
                completer.action_cursor_down()
            case "escape":
                completer.offer(())
                self._context.composer.completes = False
            case _:
                completer.pick()

    async def accept(self, value: str) -> None:
        """Insert a completion, or run the completed command."""
        composer = self._context.composer
        composer.completes = False
        composer.complete(value)
        if value.startswith("/"):
            await self._commands.run(value[1:])

    def _offer_completions(self, names: Sequence[tuple[str, str]]) -> None:
        self._context.completer.offer(names)
        self._context.composer.completes = bool(names)
        self._context.request_frame()

    async def _offer_commands(self, letters: str) -> None:
        # The known commands at once, then again after the commands of extensions have been fetched.
        self._offer_completions(self._commands.completions(letters))
        await self._commands.refresh()
        self._offer_completions(self._commands.completions(letters))

    async def _offer_files(self, letters: str) -> None:
        connection = self._context.connection
        if time.monotonic() - self._listed_at > _FILE_LIST_AGE:
            if connection.is_open:
                with contextlib.suppress(ClientError):
                    # The server lists files without running commands from a repository's configuration.
                    self._files = (await connection.client.list_files(connection.workspace)).files
            self._listed_at = time.monotonic()
        names = await asyncio.to_thread(best_matches, letters, self._files)
        self._offer_completions([(name, "") for name in names])


def _format_size(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    return f"{count // 1024} KB" if count < 1024 * 1024 else f"{count / 1024 / 1024:.1f} MB"
