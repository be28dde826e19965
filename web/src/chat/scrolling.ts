/** Where the reader stands in a conversation: at its end, or where somebody scrolled to. */

import { batch, effect, signal } from "@preact/signals";
import { messageIds, messageOf, sessionId } from "../store/state.ts";

/** How many messages are drawn at first, and how many more when the reader comes near the beginning. */
export const STEP = 60;

/** How many messages from the end are drawn. */
export const drawn = signal(STEP);
/** Whether the newest line is followed. */
export const isFollowing = signal(true);
/** The message that somebody was led to. */
export const marked = signal<string | null>(null);

/** Where somebody is led to, until it is drawn. */
export const goal = signal<{ readonly id: string; readonly takesFocus: boolean } | null>(null);

let scroller: HTMLElement | null = null;

effect(() => {
  void sessionId.value;
  drawn.value = STEP;
  isFollowing.value = true;
  marked.value = null;
  goal.value = null;
});

let count = 0;

// Whoever reads further up keeps what he sees: new messages do not push the first ones out.
effect(() => {
  const grown = messageIds.value.length - count;
  count += grown;
  if (grown > 0 && !isFollowing.peek()) drawn.value = drawn.peek() + grown;
});

/** How near to its end one stands at its end. */
const AT_END = 24;

export function isAtEnd(): boolean {
  return scroller === null || scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < AT_END;
}

export function setScroller(element: HTMLElement | null): void {
  scroller = element;
}

let held: { readonly element: Element; readonly top: number } | null = null;

/** What is seen now stays where it is when something comes above it: not every browser does that by itself. */
export function holdOn(): void {
  const edge = scroller?.getBoundingClientRect().top ?? 0;
  for (const element of scroller?.querySelectorAll("[data-testid=message]") ?? []) {
    const { top, bottom } = element.getBoundingClientRect();
    if (bottom <= edge) continue;
    held = { element, top };
    return;
  }
}

export function stay(): void {
  if (held === null || scroller === null) return;
  scroller.scrollTop += held.element.getBoundingClientRect().top - held.top;
  held = null;
}

export function toEnd(): void {
  if (drawn.value > 4 * STEP) drawn.value = STEP;
  isFollowing.value = true;
  if (scroller) scroller.scrollTop = scroller.scrollHeight;
}

/** Draws the message if it is not drawn yet, marks it, and goes there. */
export function scrollToMessage(id: string, takesFocus = true): void {
  const ids = messageIds.value;
  const at = ids.indexOf(id);
  if (at < 0) return;
  batch(() => {
    isFollowing.value = false;
    drawn.value = Math.max(drawn.value, ids.length - at + 10);
    marked.value = id;
    goal.value = { id, takesFocus };
  });
}

/** After a drawing: hundreds of messages may take longer than a frame. */
export function arrive(): void {
  const wanted = goal.peek();
  const element = wanted === null ? null : document.getElementById(`message-${wanted.id}`);
  if (wanted === null || element === null) return;
  goal.value = null;
  if (wanted.takesFocus) element.focus({ preventScroll: true });
  settle(element, SETTLING);
}

/** How many frames it takes at most until what comes into sight has its true height. */
const SETTLING = 12;

function settle(element: Element, frames: number): void {
  if (!element.isConnected || goal.peek() !== null) return;
  element.scrollIntoView({ block: "center" });
  if (frames > 0) requestAnimationFrame(() => settle(element, frames - 1));
  else if (isAtEnd()) isFollowing.value = true;
}

/** From prompt to prompt: -1 back, 1 on. Beyond the last one is the end. */
export function jump(step: -1 | 1): void {
  const prompts = messageIds.value.filter((id) => messageOf(id).value?.role === "user");
  const now = goal.peek()?.id ?? document.activeElement?.closest<HTMLElement>("[data-role=user]")?.dataset["id"] ?? "";
  let at = prompts.indexOf(now);
  if (at < 0) at = step < 0 ? prompts.length : nearest(prompts);
  const next = prompts[at + step];
  if (next !== undefined) scrollToMessage(next);
  else if (step > 0) toEnd();
}

/** The last prompt above the middle of what is seen. */
function nearest(prompts: readonly string[]): number {
  const middle = (scroller?.getBoundingClientRect().top ?? 0) + (scroller?.clientHeight ?? 0) / 2;
  for (let at = prompts.length - 1; at >= 0; at -= 1) {
    const element = document.getElementById(`message-${prompts[at] ?? ""}`);
    if (element !== null && element.getBoundingClientRect().top < middle) return at;
  }
  return prompts.length;
}
