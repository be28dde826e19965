// Connects the browser's events with focus.ts: which keys the shown request receives, and when it is active.

import { computed, effect, signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { completions } from "../chat/completion.ts";
import { dialog, isTouch, question, view } from "../shell/ui.ts";
import { pending, text } from "../store/composer-state.ts";
import * as machine from "./focus.ts";
import type { Focus, Kind } from "./focus.ts";

/** Key handlers of a panel. */
export interface Request {
  readonly id: string;
  readonly kind: Kind;
  /** An arrow, `enter` or a digit, while the composer has the focus. */
  act(key: string): void;
  /** Tab has moved the focus here. */
  enter(): void;
  /** Digits that were taken as choices were text. */
  forgetDigits?(): void;
}

/** `writing`: the composer has text. `away`: the focus is elsewhere. `waiting`: the request has not settled yet. */
export type PanelState = "writing" | "away" | "waiting" | "active" | "focused";

const state = signal<Focus>(machine.START);
let shown: { readonly request: { readonly current: Request }; readonly element: HTMLElement } | null = null;
let timer: ReturnType<typeof setTimeout> | undefined;

const composer = (): HTMLTextAreaElement | null => document.querySelector("[data-testid=composer]");
const hasContent = (): boolean => text.value !== "" || pending.value.length > 0;
const now = (): number => Math.floor(performance.now());

/** Time of the event, however late it is processed. */
const stamp = (event: Event): number => Math.min(Math.floor(event.timeStamp), now());

/** True if keys go to the composer or to no element. */
function isHome(target: EventTarget | null): boolean {
  return view.value === "chat" && (target === document.body || (target !== null && target === composer()));
}

function isIdle(): boolean {
  const isCovered = dialog.value !== null || question.value !== null || document.querySelector("dialog[open]") !== null;
  return isHome(document.activeElement) && !hasContent() && !isCovered && completions.value === null;
}

export const panelState = computed<PanelState>(() => {
  if (state.value.isFocused) return "focused";
  if (state.value.isSettled) return "active";
  if (hasContent()) return "writing";
  return state.value.isEmpty ? "waiting" : "away";
});

function setFocus(next: Focus): void {
  state.value = next;
  clearTimeout(timer);
  const wait = machine.remaining(next, now());
  if (wait !== null) timer = setTimeout(settle, wait);
}

/** Reports changes without a key press: focus, composer, dialogs. */
function synced(): Focus {
  let next = state.peek();
  const isInside = shown !== null && shown.element.contains(document.activeElement);
  if (isInside && !next.isFocused) next = machine.focus(next);
  else if (!isInside) next = machine.blur(next, now());
  return machine.edit(next, isIdle(), now());
}

function settle(): void {
  setFocus(machine.tick(synced(), now()));
}

const NAMES: Readonly<Record<string, string>> = {
  ArrowUp: "up",
  ArrowDown: "down",
  ArrowLeft: "left",
  ArrowRight: "right",
  Enter: "enter",
  Tab: "tab",
  Escape: "escape",
};

function nameOf(event: KeyboardEvent): string {
  // Some browsers report the key that ends a composition after its end, with this code.
  if (event.isComposing || event.keyCode === 229) return "text";
  if (event.ctrlKey || event.metaKey || event.altKey) return "other";
  if (event.shiftKey && (event.key === "Tab" || event.key === "Enter")) return event.key === "Tab" ? "other" : "text";
  if (event.key === "Enter" && isTouch) return "text";
  return NAMES[event.key] ?? ([...event.key].length === 1 ? (/^[1-9]$/.test(event.key) ? event.key : "text") : "other");
}

function onKey(event: KeyboardEvent): void {
  const before = synced();
  const at = stamp(event);
  const isInside = shown !== null && event.target instanceof Node && shown.element.contains(event.target);
  const isField = event.target instanceof HTMLElement && event.target.matches("input:not([type=radio]):not([type=checkbox]), textarea");
  const name = nameOf(event);
  if (isInside) {
    // Tab moves through the buttons of the panel; a field has its own Escape.
    const [next, route] = machine.press(before, name === "tab" || isField ? "other" : name, at, event.repeat);
    setFocus(next);
    if (route.target !== "blur") return;
    composer()?.focus();
    stop(event);
    return;
  }
  if (!isHome(event.target) || (name === "tab" && completions.value !== null)) {
    setFocus(machine.press(before, "other", at)[0]);
    return;
  }
  const [next, route] = machine.press(before, name, at, event.repeat);
  setFocus(next);
  if (route.restore !== "") restore(route.restore);
  if (shown === null || (route.target !== "request" && route.target !== "focus")) return;
  if (route.target === "focus") shown.request.current.enter();
  else shown.request.current.act(name);
  stop(event);
}

function stop(event: Event): void {
  event.preventDefault();
  event.stopPropagation();
}

function restore(digits: string): void {
  shown?.request.current.forgetDigits?.();
  const area = composer();
  if (area === null) return;
  text.value = digits + area.value;
  area.value = text.value;
  area.setSelectionRange(digits.length, digits.length);
  area.focus();
}

function onPaste(event: ClipboardEvent): void {
  setFocus(machine.press(synced(), isHome(event.target) ? "text" : "other", stamp(event))[0]);
}

/** Returning to the window counts as a key press, because the user may already be typing. */
function onReturn(): void {
  setFocus(machine.press(synced(), "other", now())[0]);
}

/** A button is focused by mouse down, except one of an inactive request: a single click would both focus and answer.
 * No button is focused right after it appeared under the pointer. */
export function onMouseDown(event: MouseEvent): void {
  const before = synced();
  setFocus(before);
  const isButton = event.target instanceof Element && event.target.closest("button") !== null;
  const [, route] = machine.click(before, now());
  if (route.target === "composer" || (route.target === "focus" && isButton)) event.preventDefault();
}

/** Returns whether a click on a choice answers; otherwise it may move the focus to the request. */
export function mayClick(): boolean {
  const before = synced();
  const [next, route] = machine.click(before, now());
  setFocus(next);
  if (route.target === "focus") shown?.request.current.enter();
  return route.target === "request";
}

/** Called once, at the start of the page. */
export function beginKeyboard(): () => void {
  const onFocus = (): void => setFocus(synced());
  const over = effect(() => {
    void [text.value, pending.value, dialog.value, question.value, view.value, completions.value];
    queueMicrotask(() => setFocus(synced()));
  });
  addEventListener("keydown", onKey, true);
  addEventListener("paste", onPaste, true);
  addEventListener("focus", onReturn);
  document.addEventListener("focusin", onFocus);
  document.addEventListener("focusout", () => queueMicrotask(onFocus));
  return () => {
    over();
    removeEventListener("keydown", onKey, true);
    removeEventListener("paste", onPaste, true);
    removeEventListener("focus", onReturn);
    document.removeEventListener("focusin", onFocus);
  };
}

/** Returns the focus to the composer when an answer is sent. A disabled button would lose the next keys. */
export function leave(): void {
  if (shown?.element.contains(document.activeElement) && !isTouch) composer()?.focus();
}

/** Registers the panel in `element` as the receiver of keys while it is shown. */
export function useRequest(element: { readonly current: HTMLElement | null }, request: Request): void {
  const current = useRef(request);
  current.current = request;
  useLayoutEffect(() => {
    if (element.current === null) return undefined;
    shown = { request: current, element: element.current };
    setFocus(machine.appear(synced(), request.id, request.kind, now()));
    return () => {
      leave();
      shown = null;
      setFocus(machine.disappear(state.peek()));
    };
  }, [request.id]);
}
