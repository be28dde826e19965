/** What somebody writes: the text, what goes along with it, and what was sent before. Each session has its own draft. */

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
/** Texts that were sent, oldest first. */
export const sent = signal<readonly string[]>([]);
/** Grows by one whenever the composer is to take the focus. */
export const focusAsked = signal(0);

interface Kept {
  readonly text: string;
  readonly pending: readonly Pending[];
}

const STORED = "holdfast-drafts";
const drafts = keptTexts();
let current = "";
let count = 0;
text.value = drafts.get(current)?.text ?? "";

// A draft stays with its session; one that was begun before there was a session goes along with its first prompt.
effect(() => {
  const next = chosenId.value ?? "";
  if (next === current) return;
  drafts.set(current, { text: text.peek(), pending: pending.peek() });
  const kept = drafts.get(next) ?? { text: "", pending: [] };
  current = next;
  text.value = kept.text;
  pending.value = kept.pending;
});

/** What is written while the first prompt makes its session belongs to that session: it stays in the composer. */
export function carryDraft(session: string): void {
  if (current !== "") return;
  drafts.delete(current);
  current = session;
}

// The texts outlive the page, not the tab: a page that is loaded again, by hand or by accident, has them.
effect(keepTexts);

function keepTexts(): void {
  const texts: Record<string, string> = {};
  for (const [session, kept] of drafts) if (session !== current && kept.text.trim() !== "") texts[session] = kept.text;
  if (text.value.trim() !== "") texts[current] = text.value;
  try {
    if (Object.keys(texts).length === 0) sessionStorage.removeItem(STORED);
    else sessionStorage.setItem(STORED, JSON.stringify(texts));
  } catch {
    // The browser forbids it, or has no room: then they last as long as the page.
  }
}

/** A session was deleted: its draft goes, and so do the texts that were sent, until the server lists the others again. */
export function forgetSession(session: string): void {
  drafts.delete(session);
  sent.value = [];
  if (session === current) {
    text.value = "";
    pending.value = [];
  }
  keepTexts();
}

function keptTexts(): Map<string, Kept> {
  try {
    const texts: unknown = JSON.parse(sessionStorage.getItem(STORED) ?? "{}");
    const pairs = Object.entries(texts as Record<string, unknown>).filter((pair): pair is [string, string] => typeof pair[1] === "string");
    return new Map(pairs.map(([session, kept]) => [session, { text: kept, pending: [] }]));
  } catch {
    return new Map();
  }
}

export function focusComposer(): void {
  focusAsked.value += 1;
}

/** Puts text back into the composer, before what stands there. */
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

/** Four letters of base64 are three bytes, but for the filler at the end. */
export function bytesIn(base64: string): number {
  const filler = base64.endsWith("==") ? 2 : base64.endsWith("=") ? 1 : 0;
  return (base64.length / 4) * 3 - filler;
}

export function detach(id: number): void {
  pending.value = pending.value.filter((one) => one.id !== id);
}

/** Empties the composer; what was in it can be put back. */
export function takeAll(): Kept {
  const all = { text: text.value, pending: pending.value };
  text.value = "";
  pending.value = [];
  return all;
}

/** What could not be sent goes back to where it was written, unless something else stands there by now. */
export function putBack(all: Kept): void {
  text.value = text.value.trim() === "" ? all.text : `${all.text}\n\n${text.value}`;
  pending.value = [...all.pending, ...pending.value];
  focusComposer();
}

export function remember(given: string): void {
  const words = given.trim();
  if (words !== "") sent.value = [...sent.value.filter((one) => one !== words), words].slice(-500);
}
