// Key names as written in shortcuts ("alt+n", "mod+k", "?") and as reported by the browser. Pure.

export interface Pressed {
  readonly key: string;
  readonly code: string;
  readonly ctrlKey: boolean;
  readonly metaKey: boolean;
  readonly altKey: boolean;
  readonly shiftKey: boolean;
}

/** `mod` is Cmd on a Mac and Ctrl elsewhere. Letters are matched by key code where Alt produces other characters. */
export function isPressed(keys: string, event: Pressed, isMac: boolean): boolean {
  const parts = keys.toLowerCase().split("+");
  const key = parts.pop() ?? "";
  const wants = (name: string): boolean => parts.includes(name);
  const ctrl = wants("ctrl") || (wants("mod") && !isMac);
  const meta = wants("mod") && isMac;
  if (event.ctrlKey !== ctrl || event.metaKey !== meta || event.altKey !== wants("alt")) return false;
  if (key.length === 1 && /[a-z0-9]/.test(key)) {
    const isPlace = event.code === `Key${key.toUpperCase()}` || event.code === `Digit${key}`;
    const isLetter = event.key.toLowerCase() === key;
    return event.shiftKey === wants("shift") && (isLetter || (event.altKey && isPlace));
  }
  return event.key.toLowerCase() === key;
}

const NAMES: Readonly<Record<string, string>> = { alt: "Alt", ctrl: "Ctrl", shift: "⇧", mod: "Ctrl", enter: "↵", escape: "Esc", arrowup: "↑", arrowdown: "↓" };
const MAC: Readonly<Record<string, string>> = { alt: "⌥", ctrl: "⌃", shift: "⇧", mod: "⌘", enter: "↵", escape: "esc", arrowup: "↑", arrowdown: "↓" };

/** Returns the keys of a shortcut one by one, as printed on a keyboard. */
export function keyLabels(keys: string, isMac: boolean): string[] {
  if (keys === "+") return ["+"];
  return keys.split("+").map((part) => (isMac ? MAC : NAMES)[part.toLowerCase()] ?? (part.length === 1 ? part.toUpperCase() : capital(part)));
}

const capital = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);

/** Returns whether keys without Ctrl or Alt belong to a text field. */
export function isWriting(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || target.matches("textarea, select, input:not([type=checkbox]):not([type=radio]):not([type=range]):not([type=button])");
}
