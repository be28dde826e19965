/** The state of the page as signals. Only the connection and the actions write them; components read. */

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

/** `signed-out`: the token is missing or refused, a new link is needed. `gone`: the workspace no longer exists. */
export interface Connection {
  readonly state: ConnectionState;
  /** Start of this state, Unix milliseconds. */
  readonly since: number;
  /** Reason for a state other than live, for the user. */
  readonly trouble: string;
  /** Time of the next attempt, Unix milliseconds; 0 during an attempt. */
  readonly retryAt: number;
  /** Number of failed attempts. */
  readonly attempts: number;
  /** The number after which the stream was resumed, and the number of missed events; null at first. */
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
/** All sessions including those of sub-agents, latest change first. */
export const sessions = signal<readonly Session[]>([]);
/** The shown session; null is a new one without a prompt. */
export const sessionId = signal<string | null>(null);
/** The selected session, also while it is loading: prompts sent now belong to it. */
export const chosenId = signal<string | null>(null);
/** True while the messages of a selected session are loading. */
export const loading = signal(true);
/** The open runs and the last ended ones of all sessions, in the order of their acceptance. */
export const runs = signal<readonly Run[]>([]);
export const permissions = signal<readonly PermissionRequest[]>([]);
export const questions = signal<readonly QuestionRequest[]>([]);
/** Outcomes of requests by id, since the page was opened. */
export const answers = signal<ReadonlyMap<string, PermissionNotification | QuestionNotification>>(new Map());
/** Background jobs, newest first. */
export const jobs = signal<readonly Job[]>([]);
export const providers = signal<readonly Provider[]>([]);
export const agent = signal<AgentInfo | null>(null);
/** True if tools act without approval. */
export const skip = signal(false);
/** Number of other clients that show the same session. */
export const others = signal(0);
/** Number of clients per session, as far as reported by events; the session contains the initial number. */
export const attachedTo = signal<ReadonlyMap<string, number>>(new Map());
/** The last notice of the engine about the current run (retry, refused key), until the run continues. */
export const notice = signal<AgentNotice | null>(null);
/** The latest notices of the engine, oldest first. */
export const notices = signal<readonly AgentNotice[]>([]);
export const toasts = signal<readonly Toast[]>([]);
/** The running shell command of this page; empty if there is none. */
export const shell = signal("");
/** The number of the last applied durable event. */
export const cursor = signal(0);
/** Incremented by each file event of the current session, to fetch the history again. */
export const filesChanged = signal(0);
/** Positions of queued runs that were moved, by run id. */
export const order = signal<ReadonlyMap<string, number>>(new Map());

export const config: ReadonlySignal<Config> = computed(() => workspace.value?.config ?? {});
/** The file that describes the project for agents. */
export const guide: ReadonlySignal<string> = computed(() => String(config.value.options?.["initialize_as"] || "AGENTS.md"));
export const session: ReadonlySignal<Session | null> = computed(
  () => sessions.value.find((one) => one.id === sessionId.value) ?? null,
);
/** The open runs of the current session: the head, then the queued ones in order. */
export const openRuns: ReadonlySignal<readonly Run[]> = computed(() => {
  const positions = order.value;
  const last = positions.size;
  const found = runs.value.filter(
    (run) => run.session_id === sessionId.value && run.state !== "ended" && run.state !== "folded",
  );
  const position = (run: Run) => positions.get(run.run_id) ?? last;
  return found.sort(
    (a, b) =>
      Number(a.state === "waiting") - Number(b.state === "waiting") ||
      position(a) - position(b) ||
      (a.number ?? 0) - (b.number ?? 0),
  );
});
export const queue: ReadonlySignal<readonly Run[]> = computed(() =>
  openRuns.value.filter((run) => run.state === "waiting"),
);
/** The active or starting run; null when the session is idle. */
export const head: ReadonlySignal<Run | null> = computed(
  () => openRuns.value.find((run) => run.state !== "waiting") ?? null,
);
export const isBusy: ReadonlySignal<boolean> = computed(() => openRuns.value.length > 0);
/** The tool calls of the current session that wait for an approval. */
export const waitingCalls: ReadonlySignal<ReadonlySet<string>> = computed(
  () => new Set([...permissions.value, ...questions.value].filter((request) => request.session_id === sessionId.value).map((request) => request.tool_call_id)),
);

/** The message ids of the current session, in order. Changes only when a message is added or removed. */
export const messageIds = signal<readonly string[]>([]);

const messageSignals = new Map<string, Signal<Message | undefined>>();
const resultSignals = new Map<string, Signal<ToolResult | undefined>>();
const outputSignals = new Map<string, Signal<string>>();
const subagentSignals = new Map<string, Signal<readonly Message[]>>();

function signalFor<T>(known: Map<string, Signal<T>>, key: string, first: T): Signal<T> {
  let found = known.get(key);
  if (found === undefined) {
    found = signal(first);
    known.set(key, found);
  }
  return found;
}

/** A message of the current session; it changes at most once per frame. */
export const messageOf = (id: string): Signal<Message | undefined> => signalFor(messageSignals, id, undefined);
/** The result of a tool call, by the message with the call: some models reuse ids. Undefined while it runs. */
export const resultOf = (message: string, call: string): Signal<ToolResult | undefined> =>
  signalFor(resultSignals, `${message}/${call}`, undefined);
/** The latest output of a running tool. */
export const outputOf = (message: string, call: string): Signal<string> => signalFor(outputSignals, `${message}/${call}`, "");
/** The messages of a sub-agent, by its session. */
export const subagentOf = (message: string, call: string): Signal<readonly Message[]> =>
  signalFor(subagentSignals, subagentSession(message, call), []);

export const subagentSession = (message: string, call: string): string => `${message}$$${call}`;

/** Resets the messages for another session. The signals are emptied, not replaced, because components hold them. */
export function forgetMessages(): void {
  for (const one of messageSignals.values()) one.value = undefined;
  for (const one of resultSignals.values()) one.value = undefined;
  for (const one of outputSignals.values()) one.value = "";
  for (const one of subagentSignals.values()) one.value = [];
  messageSignals.clear();
  resultSignals.clear();
  outputSignals.clear();
  subagentSignals.clear();
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
