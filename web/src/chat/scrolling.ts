/** Scroll position of the conversation: following its end, or at a position chosen by the user. */

import { batch, effect, signal } from "@preact/signals";
import { messageIds, messageOf, sessionId } from "../store/state.ts";

/** Number of messages rendered at first, and added when the user scrolls near the beginning. */
export const STEP = 60;

/** Number of rendered messages, counted from the end. */
export const drawn = signal(STEP);
/** True if the view follows the newest line. */
export const isFollowing = signal(true);
/** The highlighted message, after a jump. */
export const marked = signal<string | null>(null);

/** The target of a jump until it is rendered. */
export const jumpTarget = signal<{ readonly id: string; readonly takesFocus: boolean } | null>(null);

let scroller: HTMLElement | null = null;

effect(() => {
  void sessionId.value;
  drawn.value = STEP;
  isFollowing.value = true;
  marked.value = null;
  jumpTarget.value = null;
});

let count = 0;

// While the user reads earlier messages, new messages do not remove the first ones.
effect(() => {
  const grown = messageIds.value.length - count;
  count += grown;
  if (grown > 0 && !isFollowing.peek()) drawn.value = drawn.peek() + grown;
});

/** Maximum distance from the end that counts as the end, in pixels. */
const AT_END = 24;

export function isAtEnd(): boolean {
  return scroller === null || scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < AT_END;
}

export function setScroller(element: HTMLElement | null): void {
  scroller = element;
}

let held: { readonly element: Element; readonly top: number } | null = null;

/** Keeps the visible content in place when content is added above it; not every browser does. */
export function keepPosition(): void {
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

/** Renders the message if necessary, highlights it, and scrolls to it. */
export function scrollToMessage(id: string, takesFocus = true): void {
  const ids = messageIds.value;
  const at = ids.indexOf(id);
  if (at < 0) return;
  batch(() => {
    isFollowing.value = false;
    drawn.value = Math.max(drawn.value, ids.length - at + 10);
    marked.value = id;
    jumpTarget.value = { id, takesFocus };
  });
}

/** Called after a rendering: hundreds of messages may take longer than a frame. */
export function finishJump(): void {
  const wanted = jumpTarget.peek();
  const element = wanted === null ? null : document.getElementById(`message-${wanted.id}`);
  if (wanted === null || element === null) return;
  jumpTarget.value = null;
  if (wanted.takesFocus) element.focus({ preventScroll: true });
  settle(element, MAX_SETTLE_FRAMES);
}

/** Maximum number of frames until newly visible content has its final height. */
const MAX_SETTLE_FRAMES = 12;

function settle(element: Element, frames: number): void {
  if (!element.isConnected || jumpTarget.peek() !== null) return;
  element.scrollIntoView({ block: "center" });
  if (frames > 0) requestAnimationFrame(() => settle(element, frames - 1));
  else if (isAtEnd()) isFollowing.value = true;
}

/** Jumps from prompt to prompt: -1 back, 1 forward. After the last prompt follows the end. */
export function jump(step: -1 | 1): void {
  const prompts = messageIds.value.filter((id) => messageOf(id).value?.role === "user");
  const now = jumpTarget.peek()?.id ?? document.activeElement?.closest<HTMLElement>("[data-role=user]")?.dataset["id"] ?? "";
  let at = prompts.indexOf(now);
  if (at < 0) at = step < 0 ? prompts.length : nearest(prompts);
  const next = prompts[at + step];
  if (next !== undefined) scrollToMessage(next);
  else if (step > 0) toEnd();
}

/** Returns the last prompt above the middle of the visible area. */
function nearest(prompts: readonly string[]): number {
  const middle = (scroller?.getBoundingClientRect().top ?? 0) + (scroller?.clientHeight ?? 0) / 2;
  for (let at = prompts.length - 1; at >= 0; at -= 1) {
    const element = document.getElementById(`message-${prompts[at] ?? ""}`);
    if (element !== null && element.getBoundingClientRect().top < middle) return at;
  }
  return prompts.length;
}
