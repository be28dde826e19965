// What the page shows of itself: which view, which panel, which dialog. Nothing of it reaches the server.

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
/** A keyboard on glass: Enter is a new line there, and a button sends. */
export const isTouch = typeof matchMedia === "function" && matchMedia("(pointer: coarse) and (hover: none)").matches;
const dark = typeof matchMedia === "function" ? matchMedia("(prefers-color-scheme: dark)") : null;

export const view = signal<ViewName>("chat");
export const panel = signal<PanelName | null>(null);
export const dialog = signal<DialogName | null>(null);
/** Asked before something that cannot be taken back. */
export const question = signal<Question | null>(null);
export const isNarrow = signal(narrow?.matches ?? false);
/** On a small screen the list of sessions is a drawer, otherwise a column that can be put away. */
export const drawer = signal(false);
export const sidebar = signal(stored("sidebar") !== "away");
/** Which run the timeline shows more of. */
export const chosenRun = signal<string | null>(null);
/** Which session is being renamed in the list. */
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

/** Ask before something that cannot be taken back. */
export function ask(title: string, text: string, confirm: string, danger = true): Promise<boolean> {
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

/** Small wishes about looks are kept in the browser; it may forbid that. */
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
    // Then it lasts as long as the page.
  }
}
