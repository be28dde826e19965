/** State of the composer: text, attachments, and history of sent prompts. Each session has its own draft. */

import { effect, signal } from "@preact/signals";
import type { Attachment } from "../wire/types.ts";
import { chosenId } from "./state.ts";

export interface Pending {
  readonly id: number;
  readonly attachment: Attachment;
  readonly size: number;
}

export const text = signal("");
export const pending = signal<readonly Pending[]>([]);
/** Sent prompts, oldest first. */
export const sent = signal<readonly string[]>([]);
/** Incremented to focus the composer. */
export const focusRequests = signal(0);

interface Draft {
  readonly text: string;
  readonly pending: readonly Pending[];
}

const STORED = "holdfast-drafts";
const drafts = loadDrafts();
let current = "";
let count = 0;
text.value = drafts.get(current)?.text ?? "";

// A draft belongs to its session; one without a session moves to the session of its first prompt.
effect(() => {
  const next = chosenId.value ?? "";
  if (next === current) return;
  drafts.set(current, { text: text.peek(), pending: pending.peek() });
  const draft = drafts.get(next) ?? { text: "", pending: [] };
  current = next;
  text.value = draft.text;
  pending.value = draft.pending;
});

/** Text that is typed while the first prompt creates its session belongs to that session: it stays in the composer. */
export function carryDraft(session: string): void {
  if (current !== "") return;
  drafts.delete(current);
  current = session;
}

// Drafts are kept for the tab, so that they survive a reload.
effect(storeDrafts);

function storeDrafts(): void {
  const texts: Record<string, string> = {};
  for (const [session, draft] of drafts) if (session !== current && draft.text.trim() !== "") texts[session] = draft.text;
  if (text.value.trim() !== "") texts[current] = text.value;
  try {
    if (Object.keys(texts).length === 0) sessionStorage.removeItem(STORED);
    else sessionStorage.setItem(STORED, JSON.stringify(texts));
  } catch {
    // Storage is forbidden or full: the texts last until the page is closed.
  }
}

/** Deletes the draft of a deleted session, and the history until the server lists it again. */
export function forgetSession(session: string): void {
  drafts.delete(session);
  sent.value = [];
  if (session === current) {
    text.value = "";
    pending.value = [];
  }
  storeDrafts();
}

function loadDrafts(): Map<string, Draft> {
  try {
    const texts: unknown = JSON.parse(sessionStorage.getItem(STORED) ?? "{}");
    const pairs = Object.entries(texts as Record<string, unknown>).filter((pair): pair is [string, string] => typeof pair[1] === "string");
    return new Map(pairs.map(([session, draftText]) => [session, { text: draftText, pending: [] }]));
  } catch {
    return new Map();
  }
}

export function focusComposer(): void {
  focusRequests.value += 1;
}

/** Inserts text before the current text of the composer. */
export function insertIntoComposer(given: string, attachments: readonly Attachment[] = []): void {
  const now = text.value;
  text.value = now.trim() === "" ? given : given === "" ? now : `${given}\n\n${now}`;
  attachments.forEach(attach);
  focusComposer();
}

export function attach(attachment: Attachment): void {
  count += 1;
  pending.value = [...pending.value, { id: count, attachment, size: bytesIn(attachment.content) }];
}

/** Four base64 characters are three bytes, without the padding. */
export function bytesIn(base64: string): number {
  const filler = base64.endsWith("==") ? 2 : base64.endsWith("=") ? 1 : 0;
  return (base64.length / 4) * 3 - filler;
}

export function detach(id: number): void {
  pending.value = pending.value.filter((one) => one.id !== id);
}

/** Empties the composer; returns the contents, which can be restored. */
export function clearComposer(): Draft {
  const all = { text: text.value, pending: pending.value };
  text.value = "";
  pending.value = [];
  return all;
}

/** Restores contents that could not be sent, unless the composer has other contents by now. */
export function restoreContents(all: Draft): void {
  text.value = text.value.trim() === "" ? all.text : `${all.text}\n\n${text.value}`;
  pending.value = [...all.pending, ...pending.value];
  focusComposer();
}

export function addToHistory(given: string): void {
  const prompt = given.trim();
  if (prompt !== "") sent.value = [...sent.value.filter((one) => one !== prompt), prompt].slice(-500);
}
