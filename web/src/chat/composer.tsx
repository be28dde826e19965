/** The composer: prompts, slash commands, shell commands and attachments. */

import { type ReadonlySignal, useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { Icon } from "../shell/icons.tsx";
import { isNarrow, isTouch } from "../shell/ui.ts";
import { prompt, rememberPrompts, runShell, reportErrors } from "../store/actions.ts";
import { commands, runCommand } from "../store/commands.ts";
import { attach, detach, focusRequests, focusComposer, pending, restoreContents, addToHistory, clearComposer, text } from "../store/composer-state.ts";
import { connection, isBusy, sessionId, toast } from "../store/state.ts";
import { Problem } from "../wire/http.ts";
import { closeCompletions, completed, updateCompletions, namedFiles, completions, completeSentPrompt, step } from "./completion.ts";
import { escape } from "./escape.ts";
import { sizeOf } from "./descriptions.ts";
import { attachFiles, isPicture, Picture, textFile } from "./files.tsx";
import { Recall } from "./prompt-history.ts";
import { toEnd } from "./scrolling.ts";

/** A longer paste becomes an attachment instead of text in the composer. */
const LONG_PASTE = { lines: 120, letters: 12_000 };

export function Composer(): JSX.Element {
  const area = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const recall = useRef(new Recall());
  useFocus(area);
  useHeight(area);
  const isDropping = useDrop();
  useEffect(() => void rememberPrompts().catch(() => undefined), []);
  const isShell = text.value.startsWith("!");
  const isEmpty = text.value.trim() === "" && pending.value.length === 0;
  const mayQueue = isBusy.value && !isShell;
  return (
    <form
      class={`composer${isShell ? " shell" : ""}${isDropping.value ? " dropping" : ""}`}
      onSubmit={(event) => {
        event.preventDefault();
        void send(false);
      }}
    >
      <Attached />
      <OfferList onPick={() => area.current && pick(area.current)} />
      <div class="composer-line">
        <button type="button" class="square" aria-label="Attach files" title="Attach files" onClick={() => picker.current?.click()}>
          <Icon name="plus" />
        </button>
        <input
          type="file"
          multiple
          hidden
          ref={picker}
          data-testid="attach"
          onChange={(event) => {
            void attachFiles([...(event.currentTarget.files ?? [])]);
            event.currentTarget.value = "";
          }}
        />
        <textarea
          ref={area}
          id="composer"
          data-testid="composer"
          rows={1}
          value={text.value}
          placeholder={placeholder()}
          aria-label="Prompt"
          aria-autocomplete="list"
          aria-controls={completions.value === null ? undefined : "completions"}
          aria-activedescendant={completions.value === null ? undefined : `completion-${completions.value.chosen}`}
          aria-haspopup="listbox"
          enterkeyhint={isTouch ? "enter" : "send"}
          autocapitalize="sentences"
          onInput={(event) => {
            text.value = event.currentTarget.value;
            recall.current.reset();
            if (completions.value?.kind === "sent") void completeSentPrompt(event.currentTarget.value);
            else updateCompletions(event.currentTarget.value, event.currentTarget.selectionStart);
          }}
          onKeyDown={(event) => onKey(event, event.currentTarget, recall.current)}
          onPaste={onPaste}
          onBlur={() => setTimeout(closeCompletions, 150)}
        />
        {mayQueue ? (
          <button type="button" class="button small queue-it" disabled={isEmpty} data-testid="queue" title="Queue it as a separate turn (Alt+Enter)" onClick={() => void send(true)}>
            Queue
          </button>
        ) : null}
        <button type="submit" class="button primary send" disabled={isEmpty} data-testid="send" title={mayQueue ? "The model reads it before its next step (Enter)" : "Send (Enter)"}>
          {isShell ? "Run" : mayQueue ? "Steer" : "Send"}
        </button>
      </div>
    </form>
  );
}

function placeholder(): string {
  if (connection.value.state !== "live" && connection.value.state !== "connecting") return isNarrow.value ? "Not connected" : "Not connected: your text is kept";
  if (isBusy.value) return isNarrow.value ? "Steer the run" : "Steer: the model reads it before its next step";
  return isNarrow.value ? "Write a prompt" : "Write a prompt; @ for files, / for commands, ! for the shell";
}

// Sending.

async function send(queues: boolean): Promise<void> {
  const now = text.value.trim();
  if (now === "" && pending.value.length === 0) return;
  closeCompletions();
  if (now.startsWith("!")) return sendShell(now.slice(1).trim());
  const command = /^\/([\w-]+)(?:\s+([\s\S]*))?$/.exec(now);
  if (command !== null && commands.value.some((one) => one.name === command[1])) {
    clearComposer();
    if (!runCommand(command[1] ?? "", command[2] ?? "")) toast("info", `/${command[1]} is not available at the moment.`);
    return;
  }
  const all = clearComposer();
  toEnd();
  try {
    const attachments = [...all.pending.map((one) => one.attachment), ...(await namedFiles(now))];
    await prompt(now, { delivery: queues ? "queue" : "steer", attachments });
    addToHistory(now);
  } catch (error) {
    restoreContents(all);
    toast("error", error instanceof Error ? error.message : String(error), "Not sent");
    if (!(error instanceof Problem)) console.error(error);
  }
}

async function sendShell(command: string): Promise<void> {
  if (command === "") return;
  const all = clearComposer();
  addToHistory(`!${command}`);
  if ((await reportErrors(runShell(command), "Not run")) === undefined) restoreContents(all);
}

// Keys.

function onKey(event: KeyboardEvent, area: HTMLTextAreaElement, recall: Recall): void {
  if (event.isComposing) return;
  if (completions.value !== null && onOfferKey(event, area)) return done(event);
  if (event.key === "Enter") {
    const isNewLine = event.shiftKey || (isTouch && !event.ctrlKey && !event.metaKey && !event.altKey);
    if (isNewLine) return;
    void send(isBusy.value && (event.altKey || event.ctrlKey || event.metaKey));
    recall.reset();
    return done(event);
  }
  if (event.key === "Escape" && escape()) return done(event);
  if (event.key.toLowerCase() === "r" && event.ctrlKey && !event.shiftKey && !event.altKey) {
    void completeSentPrompt(area.value);
    return done(event);
  }
  if (event.key === "Backspace" && area.value === "" && pending.value.length > 0) {
    detach(pending.value[pending.value.length - 1]?.id ?? 0);
    return done(event);
  }
  if ((event.key === "ArrowUp" || event.key === "ArrowDown") && walks(event, area, recall)) done(event);
}

const done = (event: Event): void => {
  event.preventDefault();
  event.stopPropagation();
};

function onOfferKey(event: KeyboardEvent, area: HTMLTextAreaElement): boolean {
  switch (event.key) {
    case "ArrowDown":
    case "ArrowUp":
      step(event.key === "ArrowDown" ? 1 : -1);
      return true;
    case "Tab":
    case "Enter":
      if (event.shiftKey || event.altKey || event.ctrlKey) return false;
      pick(area);
      return true;
    case "Escape":
      closeCompletions();
      return true;
    default:
      return false;
  }
}

/** Applies the selected completion: a file name is inserted, a command is run. */
function pick(area: HTMLTextAreaElement): void {
  const given = completions.value;
  const chosen = given?.list[given.chosen];
  if (given === null || chosen === undefined) return;
  closeCompletions();
  if (chosen.runs) {
    text.value = "";
    runCommand(chosen.value.slice(1));
    return;
  }
  const [next, cursor] = completed(area.value, area.selectionStart, given, chosen);
  replaceText(area, next, cursor);
}

function replaceText(area: HTMLTextAreaElement, next: string, cursor: number): void {
  text.value = next;
  area.value = next;
  area.setSelectionRange(cursor, cursor);
  area.focus();
}

/** Up on the first line and Down on the last one browse the sent prompts. */
function walks(event: KeyboardEvent, area: HTMLTextAreaElement, recall: Recall): boolean {
  if (event.shiftKey || event.altKey || event.ctrlKey || event.metaKey) return false;
  const up = event.key === "ArrowUp";
  const rest = up ? area.value.slice(0, area.selectionStart) : area.value.slice(area.selectionEnd);
  if (rest.includes("\n") || (!recall.isWalking && area.value.trim() !== "")) return false;
  const next = recall.step(up ? -1 : 1, area.value);
  if (next === null) return false;
  replaceText(area, next, up ? 0 : next.length);
  return true;
}

function onPaste(event: ClipboardEvent): void {
  const clipboard = event.clipboardData;
  if (clipboard === null) return;
  if (clipboard.files.length > 0) {
    event.preventDefault();
    void attachFiles([...clipboard.files]);
    return;
  }
  const pasted = clipboard.getData("text/plain");
  if (pasted.length <= LONG_PASTE.letters && pasted.split("\n").length <= LONG_PASTE.lines) return;
  event.preventDefault();
  attach(textFile(pasted, `paste-${pending.value.length + 1}.txt`));
  toast("info", "The long text was attached as a file.");
}

// Elements around the text area.

function Attached(): JSX.Element | null {
  if (pending.value.length === 0) return null;
  return (
    <ul class="files" aria-label="Attachments">
      {pending.value.map(({ id, attachment, size }) => (
        <li class="file" key={id} data-testid="attachment">
          {isPicture(attachment.mime_type) ? (
            <Picture type={attachment.mime_type} data={attachment.content} name={attachment.file_name} />
          ) : (
            <Icon name="file" small />
          )}
          <span class="clip">{attachment.file_name}</span>
          <span class="faint">{sizeOf(size)}</span>
          <button type="button" class="square small" aria-label={`Remove ${attachment.file_name}`} onClick={() => detach(id)}>
            <Icon name="close" small />
          </button>
        </li>
      ))}
    </ul>
  );
}

const TITLES = { file: "Files", command: "Commands", sent: "Sent before" } as const;

function OfferList({ onPick }: { onPick(): void }): JSX.Element | null {
  const given = completions.value;
  if (given === null) return null;
  return (
    <ul class={`completions ${given.kind}`} id="completions" role="listbox" aria-label={TITLES[given.kind]}>
      {given.list.map((offer, at) => (
        <li
          key={offer.value}
          id={`completion-${at}`}
          role="option"
          aria-selected={at === given.chosen}
          onMouseDown={(event) => event.preventDefault()}
          onClick={() => {
            completions.value = { ...given, chosen: at };
            onPick();
          }}
        >
          <span class={given.kind === "sent" ? "clip" : "mono"}>{offer.value}</span>
          <span class="faint">{offer.description}</span>
        </li>
      ))}
    </ul>
  );
}

// The text area.

type Area = { readonly current: HTMLTextAreaElement | null };

/** Focuses the text area on request, and when another session is opened on a device with a keyboard. */
function useFocus(area: Area): void {
  const count = focusRequests.value;
  const session = sessionId.value;
  useEffect(() => {
    const element = area.current;
    if (!element || (count === 0 && isTouch)) return;
    element.focus({ preventScroll: true });
    element.setSelectionRange(element.value.length, element.value.length);
  }, [count]);
  useEffect(() => {
    if (!isTouch && document.activeElement === document.body) area.current?.focus({ preventScroll: true });
  }, [session]);
}

/** Files may be dropped anywhere: otherwise the browser would leave the page. */
function useDrop(): ReadonlySignal<boolean> {
  const isOver = useSignal(false);
  useEffect(() => {
    const over = (event: DragEvent): void => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      isOver.value = true;
    };
    const leave = (event: DragEvent): void => {
      if (event.relatedTarget === null) isOver.value = false;
    };
    const drop = (event: DragEvent): void => {
      isOver.value = false;
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      void attachFiles([...event.dataTransfer.files]).then(focusComposer);
    };
    addEventListener("dragover", over);
    addEventListener("dragleave", leave);
    addEventListener("drop", drop);
    return () => {
      removeEventListener("dragover", over);
      removeEventListener("dragleave", leave);
      removeEventListener("drop", drop);
    };
  }, []);
  return isOver;
}

/** Sizes the text area to its text, up to a part of the window, in browsers that do not do so themselves. */
function useHeight(area: Area): void {
  const now = text.value;
  useLayoutEffect(() => {
    const element = area.current;
    if (!element || CSS.supports?.("field-sizing", "content")) return;
    element.style.height = "auto";
    element.style.height = `${element.scrollHeight}px`;
  }, [now]);
}
