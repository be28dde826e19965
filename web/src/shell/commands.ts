// All actions with names and keys, shared by the palette, slash commands and the keyboard.

import { foldAll } from "../cards/folding.ts";
import { turnColumns } from "../diff/diff-view.tsx";
import { isMac } from "../palette/keycap.tsx";
import { isPressed, isWriting } from "../palette/keys.ts";
import { openSearch } from "../panels/search.tsx";
import {
  cancel,
  commands,
  focusComposer,
  initProject,
  isBusy,
  newSession,
  registerCommand,
  reportErrors,
  sessionId,
  setSkip,
  skip,
  summarize,
  toast,
} from "../store.ts";
import type { Command } from "../store/commands.ts";
import { changeAlerts } from "./notifications.ts";
import { confirmAction, dialog, drawer, isNarrow, nextTheme, question, renaming, sidebar, togglePanel, toggleSidebar, view } from "./ui.ts";

const inSession = (): boolean => sessionId.value !== null;

const COMMANDS: readonly Command[] = [
  { name: "commands", title: "All commands", keys: "mod+k", run: () => (dialog.value = dialog.value === "palette" ? null : "palette") },
  { name: "new", title: "New session", keys: "alt+n", run: startSession },
  { name: "sessions", title: "Sessions: open one", keys: "alt+s", run: () => (dialog.value = "sessions") },
  { name: "rename", title: "Rename this session", keys: "alt+e", when: inSession, run: rename },
  { name: "models", title: "Choose a model or set a key", keys: "alt+m", run: () => (dialog.value = "models") },
  { name: "timeline", title: "Timeline of the runs, with replay", keys: "alt+t", when: inSession, run: () => (view.value = view.value === "timeline" ? "chat" : "timeline") },
  { name: "changes", title: "Changed files, with undo", keys: "alt+c", run: () => togglePanel("changes") },
  { name: "runs", title: "Runs and their outcomes", keys: "alt+r", run: () => togglePanel("runs") },
  { name: "jobs", title: "Background jobs", keys: "alt+j", run: () => togglePanel("jobs") },
  { name: "todos", title: "The model's plan", keys: "alt+p", run: () => togglePanel("todos") },
  { name: "find", title: "Find in the conversation", keys: "mod+f", when: inSession, run: () => openSearch(false) },
  { name: "search", title: "Find in all sessions", keys: "mod+shift+f", run: () => openSearch(true) },
  { name: "queue", title: "Prompts that wait", keys: "alt+q", when: () => document.querySelector(".queue") !== null, run: focusQueue },
  { name: "write", title: "Go to the composer", keys: "alt+w", run: () => focusComposer() },
  { name: "cancel", title: "Cancel all runs of this session", keys: "alt+x", when: () => isBusy.value, run: () => void reportErrors(cancel()) },
  { name: "summarize", title: "Summarise this session", keys: "alt+u", when: inSession, run: () => void reportErrors(summarize()) },
  { name: "init", title: "Describe this project for agents", keys: "alt+i", run: () => void reportErrors(initProject()) },
  { name: "yolo", title: "Auto-approve: on or off", keys: "alt+y", run: () => void changeSkip() },
  { name: "fold", title: "Unfold or fold all tools and thoughts", keys: "alt+o", run: foldAll },
  { name: "columns", title: "Changes in one column or two", keys: "alt+d", run: turnColumns },
  { name: "notify", title: "Desktop notifications: on or off", keys: "alt+a", run: () => void changeAlerts() },
  { name: "theme", title: "Theme: system, light, dark", keys: "alt+l", run: nextTheme },
  { name: "sidebar", title: "Show or hide the sessions", keys: "alt+b", run: toggleSidebar },
  { name: "help", title: "Keys", keys: "?", run: () => (dialog.value = "help") },
];

export function startSession(): void {
  drawer.value = false;
  view.value = "chat";
  void reportErrors(newSession()).then(() => focusComposer());
}

function rename(): void {
  if (isNarrow.value) drawer.value = true;
  else sidebar.value = true;
  renaming.value = sessionId.value;
}

function focusQueue(): void {
  document.querySelector<HTMLElement>(".queue li")?.focus();
}

async function changeSkip(): Promise<void> {
  const wants = !skip.value;
  const text = "Commands run and files change without approval, in every session of this workspace, until it is switched off.";
  if (wants && !(await confirmAction("Turn auto-approve on?", text, "Turn on"))) return;
  if (!(await reportErrors(setSkip(wants).then(() => true)))) return;
  if (wants) toast("warning", "Auto-approve is on.");
  else toast("info", "Auto-approve is off.");
}

for (const command of COMMANDS) registerCommand(command);

/** Called once, at the start of the page. */
export function beginCommands(): () => void {
  const onKey = (event: KeyboardEvent): void => {
    if (event.defaultPrevented || event.isComposing) return;
    const found = commands.value.find((command) => command.keys !== undefined && isPressed(command.keys, event, isMac));
    if (!found || !mayRun(found, event)) return;
    event.preventDefault();
    found.run();
  };
  addEventListener("keydown", onKey);
  return () => removeEventListener("keydown", onKey);
}

function mayRun(command: Command, event: KeyboardEvent): boolean {
  const keys = command.keys ?? "";
  // On a Mac, characters such as @ and [ are typed with the Option key.
  const isText = !keys.includes("+") || (isMac && keys.startsWith("alt+"));
  if (isText && isWriting(event.target)) return false;
  // A second press opens the browser's own search.
  if (command.name === "find" && event.target instanceof HTMLElement && event.target.closest(".find.here")) return false;
  const isOpen = dialog.value !== null || question.value !== null || document.querySelector("dialog[open]") !== null;
  if (isOpen && command.name !== "theme" && command.name !== "columns" && !(command.name === "commands" && dialog.value)) return false;
  return command.when?.() ?? true;
}
