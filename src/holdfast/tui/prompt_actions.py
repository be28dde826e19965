"""Prompts: sending, queueing, steering, cancelling and restoring them."""

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
from textual import on, work
from textual.app import SuspendNotSupported
from textual.widgets import Static

from holdfast.client.errors import ClientError
from holdfast.domain.ids import RunId
from holdfast.domain.messages import text_of
from holdfast.domain.runs import Attachment, Delivery, Run
from holdfast.protocol.bodies import RunPatch
from holdfast.tui.attachments import TooLarge, attached, best, clipboard_image, mentioned, pasted
from holdfast.tui.keys import hints
from holdfast.tui.rendering import SECOND_ESCAPE
from holdfast.tui.screens.picker import Choice, Picker
from holdfast.tui.slash_commands import Slashes
from holdfast.tui.widgets.composer import Completer, Composer
from holdfast.tui.widgets.queue_panel import QueuePanel

__all__ = ["Prompting"]

_KEPT = 50
_FRESH = 20.0
"""Seconds for which a list of files is reused."""


class Prompting(Slashes):
    """The editor, the attachments and the queue."""

    _attachments: tuple[Attachment, ...] = ()
    _given: Mapping[RunId, tuple[Attachment, ...]] = MappingProxyType({})
    """Attachments of the newest prompts from here, which are restored with them."""
    _ended_here: frozenset[RunId] = frozenset()
    """Queued prompts that were restored or removed here."""
    _lost: tuple[Run, ...] = ()
    """Queued prompts from here that another client has cancelled."""
    _files: Sequence[str] = ()
    _listed_at = -_FRESH
    _pastes = 0

    # Sending.

    @on(Composer.Sent)
    async def _sent(self, event: Composer.Sent) -> None:
        if self.is_own(event.text):
            await self.run_slash(event.text[1:])
            return
        self.transcript.action_bottom()
        if event.text.startswith("!") and event.text[1:].strip():
            self._run_shell(event.text[1:].strip())
        else:
            self._prompt(event.text, queues=event.queues)

    @work
    async def _prompt(self, text: str, *, queues: bool) -> None:
        if await self.is_unknown(text):
            self.editor.take(text)
            self.notify(f"No command is called {text}: ctrl+p lists them all.", severity="warning", markup=False)
            return
        given, self._attachments = self._attachments, ()
        self._draw_attachments()
        try:
            named = await asyncio.to_thread(self._named, text)
            delivery: Delivery | None = "queue" if queues else None
            sent = await self.link.prompt(text, delivery=delivery, attachments=(*given, *named))
            self._given = {**dict(list(self._given.items())[-_KEPT:]), sent.run_id: given}
        except (ClientError, TooLarge) as error:
            self._attachments = given
            self._draw_attachments()
            self.editor.take(text)
            words = str(error) or str(type(error).__doc__)
            self.notify(words, title="Not sent", severity="error", timeout=10, markup=False)

    def _named(self, text: str) -> list[Attachment]:
        """Return the files that a text mentions with `@`."""
        found = (attached(os.path.join(self.link.directory, name), name) for name in mentioned(text))
        return [item for item in found if item is not None]

    @work(group="shell")
    async def _run_shell(self, command: str) -> None:
        if self.link.session is None:
            made = await self.ask(self.link.client.create_session(self.link.workspace))
            if made is None:
                return
            await self.link.choose(made.id)
        session = self.link.session
        if session is None:
            return
        self.link.shells.append(command)
        self.note_change()
        try:
            call = self.link.client.run_shell(self.link.workspace, session, command, self.size.width)
            if await self.ask(call) is None:
                self.editor.take(f"!{command}")
        finally:
            self.link.shells.remove(command)
            self.note_change()

    # Cancelling.

    def action_escape(self) -> None:
        """Cancel on the second Escape; otherwise return to the editor."""
        is_busy = bool(self.link.runs() or self.link.shells)
        if not is_busy or not self.editor.has_focus:
            self.transcript.find("")
            self.editor.focus()
            if not is_busy:
                return
        now = time.monotonic()
        if now - self.escaped_at < SECOND_ESCAPE:
            self.escaped_at = 0.0
            self._cancel()
        else:
            self.escaped_at = now
            self.set_timer(SECOND_ESCAPE + 0.05, self.note_change)
        self.note_change()

    @work
    async def _cancel(self) -> None:
        for command in self.link.shells:
            self.notify(f"Stopped: $ {command}", markup=False)
        # A shell command is cancelled when its request is.
        self.workers.cancel_group(self, "shell")
        if not self.link.runs():
            return
        mine = self.link.client.client_id
        waiting = [run for run in self.link.waiting() if run.client_id in ("", mine)]
        self._ended_here |= {run.run_id for run in waiting}
        if await self.say(self.link.cancel()) and waiting:
            self._take_back(waiting)

    def note_cancelled(self, ended: Sequence[RunId]) -> None:
        """Notify of queued prompts from here that another client has cancelled; they can be restored."""
        runs = [self.link.view.runs.get(name) for name in ended if name not in self._ended_here]
        lost = [run for run in runs if run is not None and self._is_lost(run)]
        if lost:
            self._lost = (*self._lost, *lost)
            what = "A prompt of yours that waited was" if len(lost) == 1 else f"{len(lost)} prompts of yours were"
            self.notify(f"{what} cancelled elsewhere: /back takes it into the editor.", timeout=15)

    def _is_lost(self, run: Run) -> bool:
        is_mine = bool(run.client_id) and run.client_id == self.link.client.client_id
        return is_mine and run.outcome == "cancelled" and not run.started_at and not run.folded_into

    def action_take_back(self) -> None:
        """Restore prompts that another client has cancelled."""
        lost, self._lost = self._lost, ()
        if lost:
            self._take_back(lost)
        else:
            self.notify("No prompt of yours was cancelled while it waited.")

    def _take_back(self, runs: Sequence[Run]) -> None:
        """Insert the prompts into the editor, with the attachments that are still known."""
        self.editor.take("\n\n".join(run.prompt for run in runs))
        back = [item for run in runs for item in self._given.get(run.run_id, ())]
        if back:
            self._attachments = (*self._attachments, *back)
            self._draw_attachments()
        named = {item.file_name for item in back}
        named |= {os.path.basename(name) for run in runs for name in mentioned(run.prompt)}
        gone = [item.file_name for run in runs for item in run.attachments if item.file_name not in named]
        if gone:
            self.notify(f"Attach again: {', '.join(gone)}", severity="warning", markup=False)

    # The queue.

    def action_queue_focus(self) -> None:
        """Move the focus to the queue."""
        queue = self.base.query_one(QueuePanel)
        if queue.display:
            queue.focus()
        else:
            self.notify("Nothing waits.")

    @on(QueuePanel.Left)
    def _left_queue(self) -> None:
        self.editor.focus()

    @on(QueuePanel.Wished)
    def _wished(self, event: QueuePanel.Wished) -> None:
        self._change_queue(event)

    @work
    async def _change_queue(self, event: QueuePanel.Wished) -> None:
        client, workspace, run = self.link.client, self.link.workspace, event.run
        match event.wish:
            case "edit":
                self._ended_here |= {run.run_id}
                if await self.say(client.cancel_run(workspace, run.run_id)):
                    self._take_back([run])
            case "remove":
                self._ended_here |= {run.run_id}
                await self.say(client.cancel_run(workspace, run.run_id))
                if len(self.link.waiting()) <= 1:
                    self.editor.focus()
            case "up" | "down":
                place = max(0, event.place + (1 if event.wish == "down" else -1))
                await self.say(client.patch_run(workspace, run.run_id, RunPatch(position=place)))
            case "now":
                await self.say(client.patch_run(workspace, run.run_id, RunPatch(delivery="steer")))
            case "later":
                await self.say(client.patch_run(workspace, run.run_id, RunPatch(delivery="queue")))

    # Attachments.

    @on(Composer.Pasted)
    def _pasted(self, event: Composer.Pasted) -> None:
        try:
            if event.is_path:
                item = attached(event.text, event.text)
            else:
                self._pastes += 1
                item = pasted(event.text, self._pastes)
        except TooLarge as error:
            self.notify(str(type(error).__doc__), severity="error")
            return
        if item is not None:
            self._add(item)

    @on(Composer.ImageWanted)
    @work
    async def _paste_image(self) -> None:
        image = await asyncio.to_thread(clipboard_image)
        if image is None:
            self.editor.action_paste()
            return
        self._pastes += 1
        name = f"image-{self._pastes}.png"
        self._add(Attachment(image, name, name, "image/png"))

    @on(Composer.Emptied)
    def _emptied(self) -> None:
        if self._attachments:
            self._attachments = self._attachments[:-1]
            self._draw_attachments()

    def _add(self, item: Attachment) -> None:
        self._attachments = (*self._attachments, item)
        self._draw_attachments()

    def _draw_attachments(self) -> None:
        self.editor.has_attachments = bool(self._attachments)
        line = self.base.query_one("#attachments", Static)
        line.display = bool(self._attachments)
        names = "   ".join(f"⊞ {item.file_name} ({_size(len(item.content))})" for item in self._attachments)
        line.update(Text(f"{names}   ") + hints(("backspace", "removes the last")) if names else "")

    # Completing.

    @on(Composer.Completing)
    def _completing(self, event: Composer.Completing) -> None:
        self.workers.cancel_group(self, "files")
        if event.kind == "command":
            self._offer_commands(event.letters)
        elif event.kind == "file":
            self._offer_files(event.letters)
        else:
            self._offer(())

    def _offer(self, names: Sequence[tuple[str, str]]) -> None:
        self.base.query_one(Completer).offer(names)
        self.editor.completes = bool(names)
        self.note_change()

    @work(exclusive=True, group="files")
    async def _offer_commands(self, letters: str) -> None:
        self._offer(self.fitting_commands(letters))
        await self.read_commands()
        self._offer(self.fitting_commands(letters))

    @work(exclusive=True, group="files")
    async def _offer_files(self, letters: str) -> None:
        if time.monotonic() - self._listed_at > _FRESH:
            if self.link.is_open:
                with contextlib.suppress(ClientError):
                    # The server lists files without running commands from a repository's configuration.
                    self._files = (await self.link.client.list_files(self.link.workspace)).files
            self._listed_at = time.monotonic()
        names = await asyncio.to_thread(best, letters, self._files)
        self._offer([(name, "") for name in names])

    @on(Completer.Picked)
    async def _picked(self, event: Completer.Picked) -> None:
        self.editor.completes = False
        self.editor.complete(event.value)
        if event.value.startswith("/"):
            await self.run_slash(event.value[1:])

    # Other ways to write.

    def action_editor(self) -> None:
        """Edit the text in the user's own editor."""
        command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        with tempfile.NamedTemporaryFile("w+", suffix=".md", prefix="holdfast-", delete=False) as file:
            file.write(self.editor.text)
        try:
            with self.suspend():
                done = subprocess.run([*shlex.split(command), file.name], check=False)
            if done.returncode == 0:
                with open(file.name, encoding="utf-8", errors="replace") as written:
                    self.editor.text = written.read().rstrip("\n")
                self.editor.move_cursor(self.editor.document.end)
        except (SuspendNotSupported, OSError, ValueError) as error:
            self.notify(f"{command} cannot be started: {error}. Set EDITOR.", severity="error", markup=False)
        finally:
            os.unlink(file.name)
        self.editor.focus()

    @work
    async def action_recall(self) -> None:
        """Choose a prompt of any session from the history."""
        texts = list(dict.fromkeys(reversed(self.editor.sent)))
        choices = [Choice(str(at), " ".join(text.split())[:200]) for at, text in enumerate(texts)]
        picked = await self.push_screen_wait(Picker("Sent before", choices, empty="Nothing was sent yet."))
        if picked is not None:
            self.editor.text = texts[int(picked.value)]
            self.editor.move_cursor(self.editor.document.end)
        self.editor.focus()

    async def remember_prompts(self) -> None:
        """Load the prompts of all sessions into the editor's history."""
        try:
            messages = await self.link.client.list_all_user_messages(self.link.workspace)
        except ClientError:
            return
        texts = [text_of(message).strip() for message in reversed(messages[:500])]
        if self.is_shown:
            self.editor.remember([text for text in texts if text] + self.editor.sent)


def _size(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    return f"{count // 1024} KB" if count < 1024 * 1024 else f"{count / 1024 / 1024:.1f} MB"
