// State of the user interface: view, panel, dialog. It is never sent to the server.

import { computed, signal } from "@preact/signals";

export type ViewName = "chat" | "timeline";
export type PanelName = "changes" | "runs" | "jobs" | "todos" | "search";
export type DialogName = "palette" | "help" | "models" | "sessions";
export type Theme = "auto" | "light" | "dark";

export interface Question {
  readonly title: string;
  readonly text: string;
  readonly confirm: string;
  readonly danger?: boolean;
  answer(yes: boolean): void;
}

const narrow = typeof matchMedia === "function" ? matchMedia("(max-width: 859px)") : null;
/** A touch keyboard: Enter inserts a new line, and a button sends. */
export const isTouch = typeof matchMedia === "function" && matchMedia("(pointer: coarse) and (hover: none)").matches;
const dark = typeof matchMedia === "function" ? matchMedia("(prefers-color-scheme: dark)") : null;

export const view = signal<ViewName>("chat");
export const panel = signal<PanelName | null>(null);
export const dialog = signal<DialogName | null>(null);
/** The open confirmation of an irreversible action. */
export const question = signal<Question | null>(null);
export const isNarrow = signal(narrow?.matches ?? false);
/** On a small screen the session list is a drawer, otherwise a column that can be hidden. */
export const drawer = signal(false);
export const sidebar = signal(stored("sidebar") !== "away");
/** The run whose details the timeline shows. */
export const chosenRun = signal<string | null>(null);
/** The session that is being renamed in the list. */
export const renaming = signal<string | null>(null);
export const theme = signal<Theme>(themeOf(stored("theme")));
const prefersDark = signal(dark?.matches ?? false);
export const shownTheme = computed(() => (theme.value === "auto" ? (prefersDark.value ? "dark" : "light") : theme.value));

narrow?.addEventListener("change", (event) => {
  isNarrow.value = event.matches;
  drawer.value = false;
});
dark?.addEventListener("change", (event) => {
  prefersDark.value = event.matches;
});

/** Requests confirmation of an irreversible action. */
export function confirmAction(title: string, text: string, confirm: string, danger = true): Promise<boolean> {
  question.value?.answer(false);
  return new Promise((resolve) => {
    question.value = {
      title,
      text,
      confirm,
      danger,
      answer: (yes) => {
        question.value = null;
        resolve(yes);
      },
    };
  });
}

export function toggleSidebar(): void {
  if (isNarrow.value) {
    drawer.value = !drawer.value;
    return;
  }
  sidebar.value = !sidebar.value;
  store("sidebar", sidebar.value ? "there" : "away");
}

export function togglePanel(name: PanelName): void {
  panel.value = panel.value === name ? null : name;
}

export function nextTheme(): void {
  const order: readonly Theme[] = ["auto", "light", "dark"];
  theme.value = order[(order.indexOf(theme.value) + 1) % order.length] ?? "auto";
  store("theme", theme.value);
}

function themeOf(text: string): Theme {
  return text === "light" || text === "dark" ? text : "auto";
}

/** Display preferences are stored in the browser, which may forbid it. */
export function stored(name: string): string {
  try {
    return localStorage.getItem(`holdfast-${name}`) ?? "";
  } catch {
    return "";
  }
}

export function store(name: string, value: string): void {
  try {
    localStorage.setItem(`holdfast-${name}`, value);
  } catch {
    // The preference lasts until the page is closed.
  }
}
