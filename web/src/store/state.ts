/** What the page knows, as signals. Only the link and the actions write them; components read. */

import { computed, signal, type ReadonlySignal, type Signal } from "@preact/signals";
import type {
  AgentInfo,
  AgentNotice,
  Config,
  Job,
  Message,
  PermissionNotification,
  PermissionRequest,
  Provider,
  QuestionNotification,
  QuestionRequest,
  Run,
  Session,
  ToolResult,
  Workspace,
} from "../wire/types.ts";

export type ConnectionState = "connecting" | "live" | "broken" | "signed-out" | "gone";

/** `signed-out`: the token is missing or refused, a new link is needed. `gone`: there is no such workspace any more. */
export interface Connection {
  readonly state: ConnectionState;
  /** Since when it is in this state, Unix milliseconds. */
  readonly since: number;
  /** Why it is not live, for people. */
  readonly trouble: string;
  /** When the next attempt is made, Unix milliseconds; 0 while one is under way. */
  readonly retryAt: number;
  /** After how many failed attempts. */
  readonly attempts: number;
  /** The number after which the stream was taken up again, and how many events had been missed; null at first. */
  readonly resumed: { readonly from: number; readonly missed: number; readonly at: number; readonly gap: boolean } | null;
}

export interface Toast {
  readonly id: number;
  readonly kind: "info" | "success" | "warning" | "error";
  readonly title?: string;
  readonly text: string;
}

export const connection = signal<Connection>({
  state: "connecting",
  since: Date.now(),
  trouble: "",
  retryAt: 0,
  attempts: 0,
  resumed: null,
});
export const clientId = signal("");
export const workspace = signal<Workspace | null>(null);
/** All sessions, those of helpers too, latest change first. */
export const sessions = signal<readonly Session[]>([]);
/** The session that is looked at; null is a new one that has no prompt yet. */
export const sessionId = signal<string | null>(null);
/** The session that was chosen last, also while it is still being read: what is written and sent now is meant for it. */
export const chosenId = signal<string | null>(null);
/** True while the messages of a chosen session are being fetched. */
export const loading = signal(true);
/** The runs that have not ended and the last that have, in the order of their acceptance, of all sessions. */
export const runs = signal<readonly Run[]>([]);
export const permissions = signal<readonly PermissionRequest[]>([]);
export const questions = signal<readonly QuestionRequest[]>([]);
/** What became of asks, by their ids: of all that were closed since the page was opened. */
export const answers = signal<ReadonlyMap<string, PermissionNotification | QuestionNotification>>(new Map());
/** Background jobs, newest first. */
export const jobs = signal<readonly Job[]>([]);
export const providers = signal<readonly Provider[]>([]);
export const agent = signal<AgentInfo | null>(null);
/** Whether tools act without asking. */
export const skip = signal(false);
/** How many other screens look at the same session. */
export const others = signal(0);
/** How many screens look at each session, as far as events told; the session itself knows how many did at first. */
export const attachedTo = signal<ReadonlyMap<string, number>>(new Map());
/** What the engine said last of the run at hand (asked again, key refused), until the run goes on. */
export const notice = signal<AgentNotice | null>(null);
/** The newest notices of the engine, oldest first. */
export const notices = signal<readonly AgentNotice[]>([]);
export const toasts = signal<readonly Toast[]>([]);
/** A command that somebody here runs in the shell; empty when none does. */
export const shell = signal("");
/** The last durable event number that is part of what is shown. */
export const cursor = signal(0);
/** Grows by one with each file event of the current session: read the history again. */
export const filesChanged = signal(0);
/** The order of the waiting runs where it was changed by hand: run id to place. */
export const order = signal<ReadonlyMap<string, number>>(new Map());

export const config: ReadonlySignal<Config> = computed(() => workspace.value?.config ?? {});
/** The file in which a project is described for whoever comes next. */
export const guide: ReadonlySignal<string> = computed(() => String(config.value.options?.["initialize_as"] || "AGENTS.md"));
export const session: ReadonlySignal<Session | null> = computed(
  () => sessions.value.find((one) => one.id === sessionId.value) ?? null,
);
/** The runs of the session at hand that have not ended: the head, then those that wait, in order. */
export const openRuns: ReadonlySignal<readonly Run[]> = computed(() => {
  const places = order.value;
  const last = places.size;
  const found = runs.value.filter(
    (run) => run.session_id === sessionId.value && run.state !== "ended" && run.state !== "folded",
  );
  const place = (run: Run) => places.get(run.run_id) ?? last;
  return found.sort(
    (a, b) =>
      Number(a.state === "waiting") - Number(b.state === "waiting") ||
      place(a) - place(b) ||
      (a.number ?? 0) - (b.number ?? 0),
  );
});
export const queue: ReadonlySignal<readonly Run[]> = computed(() =>
  openRuns.value.filter((run) => run.state === "waiting"),
);
/** The run that works, or begins to; null when the session is idle. */
export const head: ReadonlySignal<Run | null> = computed(
  () => openRuns.value.find((run) => run.state !== "waiting") ?? null,
);
export const isBusy: ReadonlySignal<boolean> = computed(() => openRuns.value.length > 0);
/** The tool calls of the session at hand that wait for somebody's answer. */
export const askedCalls: ReadonlySignal<ReadonlySet<string>> = computed(
  () => new Set([...permissions.value, ...questions.value].filter((ask) => ask.session_id === sessionId.value).map((ask) => ask.tool_call_id)),
);

/** The ids of the current session's messages, in order. Changes only when one comes or goes. */
export const messageIds = signal<readonly string[]>([]);

const messageSignals = new Map<string, Signal<Message | undefined>>();
const resultSignals = new Map<string, Signal<ToolResult | undefined>>();
const outputSignals = new Map<string, Signal<string>>();
const helperSignals = new Map<string, Signal<readonly Message[]>>();

function kept<T>(known: Map<string, Signal<T>>, key: string, first: T): Signal<T> {
  let found = known.get(key);
  if (found === undefined) {
    found = signal(first);
    known.set(key, found);
  }
  return found;
}

/** One message of the current session; it changes at most once a frame. */
export const messageOf = (id: string): Signal<Message | undefined> => kept(messageSignals, id, undefined);
/** What a tool call answered, by the message that called: some models use the same ids again. Undefined while it works. */
export const resultOf = (message: string, call: string): Signal<ToolResult | undefined> =>
  kept(resultSignals, `${message}/${call}`, undefined);
/** The newest of what a tool that still works has printed. */
export const outputOf = (message: string, call: string): Signal<string> => kept(outputSignals, `${message}/${call}`, "");
/** The messages of the helper that a call has sent, by the helper's session. */
export const helperOf = (message: string, call: string): Signal<readonly Message[]> =>
  kept(helperSignals, helperSession(message, call), []);

export const helperSession = (message: string, call: string): string => `${message}$$${call}`;

/** Begin anew: another session is looked at. The signals are emptied, not replaced: somebody may hold them. */
export function forgetMessages(): void {
  for (const one of messageSignals.values()) one.value = undefined;
  for (const one of resultSignals.values()) one.value = undefined;
  for (const one of outputSignals.values()) one.value = "";
  for (const one of helperSignals.values()) one.value = [];
  messageSignals.clear();
  resultSignals.clear();
  outputSignals.clear();
  helperSignals.clear();
}

let toastCount = 0;

export function toast(kind: Toast["kind"], text: string, title?: string): void {
  toastCount += 1;
  const made: Toast = title === undefined ? { id: toastCount, kind, text } : { id: toastCount, kind, text, title };
  toasts.value = [...toasts.value.slice(-4), made];
}

export function dismissToast(id: number): void {
  toasts.value = toasts.value.filter((one) => one.id !== id);
}
