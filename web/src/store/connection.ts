/** Connection of the page to the server: one workspace, whose events are folded into a view and copied to the signals
 * once per frame.
 *
 * It never gives up: a broken stream is resumed, a closed workspace is opened again. */

import { authenticate, hasCode, NotAuthenticated } from "../auth.ts";
import { View } from "../fold/view.ts";
import { api, onRefused, open, Problem, setToken } from "../wire/http.ts";
import { EventStream, type StreamPort } from "../wire/stream.ts";
import type {
  Item,
  Message,
  PermissionNotification,
  QuestionNotification,
  Snapshot,
  Workspace,
} from "../wire/types.ts";
import { Callers, PendingUpdates, type Earlier, flush, Frames } from "./flush.ts";
import { pushAddress, replaceAddress, setAddress, wantedSession } from "./url.ts";
import { pollState, ignoreErrors, readAgent, readJobs, reportPresence } from "./polling.ts";
import { forgetSession } from "./composer-state.ts";
import { at, newId } from "./paths.ts";
import * as state from "./state.ts";

const POLL_INTERVAL = 10_000;
const SUBAGENTS_PER_REQUEST = 20;

let view = new View({ keepsAll: false });
let pendingUpdates = new PendingUpdates();
let earlier: Earlier = new Map();
let callers = new Callers();
let stream: EventStream | null = null;
let directory = "";
let choice = 0;
/** Stream items that arrive while a snapshot is loading. */
let meanwhile: Item[] | null = null;
let pollTimer: ReturnType<typeof setInterval> | undefined;

const frames = new Frames(() => {
  const now = pendingUpdates;
  pendingUpdates = new PendingUpdates();
  flush(view, now, earlier, callers);
});

function reportErrors(change: Partial<state.Connection>): void {
  const before = state.connection.value;
  const isOther = change.state !== undefined && change.state !== before.state;
  state.connection.value = { ...before, ...(isOther ? { since: Date.now() } : {}), ...change };
}

const errorText = (error: unknown): string => (error instanceof Error ? error.message : String(error));

// Authentication.

/** Authenticates and follows the workspace of the URL. Called once, at the start. */
export async function start(): Promise<void> {
  state.clientId.value = newId();
  onRefused((why) => reportErrors({ state: "signed-out", trouble: why }));
  addEventListener("popstate", () => {
    // A new link that is opened in this tab changes only the fragment: it is handled like a new tab.
    if (hasCode()) location.reload();
    else void chooseFromAddress();
  });
  for (;;) {
    try {
      const entry = await authenticate();
      setToken(entry.token);
      directory = entry.dir;
      break;
    } catch (error) {
      if (error instanceof NotAuthenticated) return reportErrors({ state: "signed-out", trouble: error.message });
      reportErrors({ state: "broken", trouble: "The server does not answer.", retryAt: Date.now() + 1_000 });
      await new Promise((resolve) => setTimeout(resolve, 1_000));
    }
  }
  if (directory === "") return reportErrors({ state: "gone", trouble: "The URL contains no directory." });
  await follow();
}

/** Stops following. */
export function leave(): void {
  stream?.close();
  clearInterval(pollTimer);
}

/** Opens the workspace of another directory. */
export async function openDirectory(path: string): Promise<void> {
  directory = path;
  replaceAddress(path);
  state.sessionId.value = state.chosenId.value = null;
  await follow();
}

async function enterWorkspace(): Promise<void> {
  const body = { id: "", path: directory, client_id: state.clientId.value };
  const made = await api.post<Workspace>("/workspaces", body);
  if (state.workspace.value === null) state.workspace.value = made;
}

/** Follows the workspace until the page is closed, or another one is opened. */
async function follow(): Promise<void> {
  leave();
  view = new View({ keepsAll: false });
  state.workspace.value = null;
  const wanted = wantedSession();
  for (let attempt = 1; ; attempt += 1) {
    try {
      await enterWorkspace();
      await load(wanted);
      break;
    } catch (error) {
      const problem = error instanceof Problem ? error : null;
      if (problem?.status === 401) return;
      if (problem !== null && problem.status >= 400 && problem.status < 500) {
        return reportErrors({ state: "gone", trouble: problem.message });
      }
      const wait = Math.min(5_000, 250 * 2 ** attempt);
      reportErrors({ state: "broken", trouble: errorText(error), attempts: attempt, retryAt: Date.now() + wait });
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }
  stream = new EventStream(port, view.cursor);
  pollTimer = setInterval(() => void pollState(), POLL_INTERVAL);
  void readAgent();
  await stream.run();
}

const port: StreamPort = {
  connect: (since, signal) => open(at("/events", { client_id: state.clientId.value, since }), { signal }),
  enter: enterWorkspace,
  onItem: applyItem,
  onLive: (since, cursor) => {
    const before = state.connection.value;
    const isBack = before.state === "broken";
    const resumed = { from: since, missed: Math.max(0, cursor - since), at: Date.now(), gap: cursor < since };
    reportErrors({ state: "live", trouble: "", attempts: 0, retryAt: 0, ...(isBack ? { resumed } : {}) });
    void reportPresence();
    if (isBack) void readAside();
  },
  onTrouble: ({ why, attempts, retryAt }) => reportErrors({ state: "broken", trouble: why, attempts, retryAt }),
  onRefused: (why) => reportErrors({ state: "signed-out", trouble: why }),
};

/** Retries at once instead of after the delay. */
export function retryNow(): void {
  stream?.retryNow();
}

// Following.

function applyItem(item: Item): void {
  meanwhile?.push(item);
  try {
    if (!view.apply(item)) return handleOther(item);
    mark(item);
    handleOther(item);
  } catch (error) {
    // An event that fails to apply must not stop the others: its contents are in the snapshot.
    console.error("An event could not be applied.", error);
    view.isStale = true;
  }
  if (view.isStale) void reload();
  frames.schedule();
}

function mark(item: Item): void {
  const event = item.event;
  switch (event.type) {
    case "message":
      pendingUpdates.sessions ||= event.payload.type !== "updated";
      markMessage(event.payload.payload, event.payload.type !== "updated");
      break;
    case "message_delta":
    case "message_part":
      touch(event.payload.session_id, event.payload.message_id);
      break;
    case "tool_output":
      pendingUpdates.outputs.set(event.payload.tool_call_id, event.payload.message_id);
      touch(event.payload.session_id, "");
      break;
    case "session":
      pendingUpdates.sessions = true;
      if (event.payload.type !== "deleted") watchSubagent(event.payload.payload.id);
      else {
        forgetSession(event.payload.payload.id);
        if (event.payload.payload.id === state.sessionId.value) leaveDeleted();
      }
      pendingUpdates.runs ||= event.payload.type === "deleted";
      pendingUpdates.requests ||= event.payload.type === "deleted";
      break;
    case "run":
      pendingUpdates.runs = true;
      if (event.payload.type === "updated" && event.payload.payload.state === "waiting") void readOrder();
      break;
    case "run_complete":
      pendingUpdates.runs = pendingUpdates.requests = true;
      if (state.notice.value?.type === "retrying") state.notice.value = null;
      break;
    case "agent_event": {
      pendingUpdates.notices = true;
      const notice = event.payload.payload;
      const isHere = !notice.session_id || notice.session_id === state.sessionId.value;
      if (isHere && (notice.type === "retrying" || notice.type === "re_authenticate")) state.notice.value = notice;
      break;
    }
    case "permission_request":
    case "question_batch_request":
      pendingUpdates.requests = true;
      break;
    case "permission_notification":
      pendingUpdates.requests = true;
      storeAnswer(event.payload.payload.id ?? event.payload.payload.tool_call_id, event.payload.payload);
      break;
    case "question_batch_notification":
      pendingUpdates.requests = true;
      storeAnswer(event.payload.payload.batch_id, event.payload.payload);
      break;
    default:
      break;
  }
}

function storeAnswer(id: string, answer: PermissionNotification | QuestionNotification): void {
  state.answers.value = new Map([...state.answers.value].slice(-200)).set(id, answer);
}

/** Handles events that are not part of the view but require a fetch. */
function handleOther(item: Item): void {
  const event = item.event;
  if (event.type === "config_changed") void readWorkspace();
  else if (event.type === "attached") {
    const { session_id, clients } = event.payload.payload;
    state.attachedTo.value = new Map(state.attachedTo.value).set(session_id, clients);
    if (session_id === state.sessionId.value) state.others.value = Math.max(0, clients - 1);
  }
  else if (event.type === "file" && event.payload.payload.session_id === state.sessionId.value) {
    state.filesChanged.value += 1;
  } else if (event.type === "run_complete") void readJobs();
}

function markMessage(message: Message, isNew: boolean): void {
  touch(message.session_id, message.id);
  if (message.session_id !== state.sessionId.value) return;
  pendingUpdates.order ||= isNew;
}

function touch(session: string, message: string): void {
  if (session !== state.sessionId.value) {
    if (isOwnSubagent(session)) pendingUpdates.subagents.add(session);
    return;
  }
  state.notice.value = null;
  if (message) pendingUpdates.messages.add(message);
}

function leaveDeleted(): void {
  state.toast("info", "The session was deleted.");
  void chooseSession(null);
}

// Sub-agents.

/** Returns whether a sub-agent was started by the current session. */
function isOwnSubagent(session: string): boolean {
  const [message, call] = session.split("$$");
  const current = state.sessionId.value;
  return Boolean(call && message && current !== null && view.message(current, message) !== undefined);
}

function watchSubagent(session: string): void {
  if (isOwnSubagent(session)) view.watch(session);
}

async function fetchSubagents(mine: number): Promise<void> {
  const names = [...view.sessions.keys()].filter(isOwnSubagent);
  names.forEach((name) => view.watch(name));
  for (const name of names.slice(-SUBAGENTS_PER_REQUEST)) {
    try {
      const messages = await api.get<readonly Message[]>(at(`/sessions/${encodeURIComponent(name)}/messages`));
      if (mine !== choice) return;
      earlier.set(name, new Map(messages.map((message) => [message.id, message])));
    } catch {
      return;
    }
    pendingUpdates.subagents.add(name);
    frames.schedule();
  }
}

// Loading.

/** Loads a snapshot and shows it; a later selection aborts an earlier one. */
async function load(session: string | null): Promise<void> {
  choice += 1;
  state.chosenId.value = session;
  const mine = choice;
  try {
    await read(session, mine);
  } catch (error) {
    // The previous state stays visible, and held-back items are released.
    if (mine === choice) {
      state.chosenId.value = state.sessionId.value;
      meanwhile = null;
    }
    throw error;
  }
}

async function read(session: string | null, mine: number): Promise<void> {
  meanwhile = [];
  let found = session;
  let snapshot: Snapshot;
  try {
    snapshot = await api.get<Snapshot>(at("/snapshot", { session_id: session ?? undefined }));
  } catch (error) {
    if (!(error instanceof Problem) || error.status !== 404 || session === null) throw error;
    // The session in an old URL was deleted.
    found = null;
    snapshot = await api.get<Snapshot>(at("/snapshot"));
  }
  if (mine !== choice) return;
  if (found !== null && !snapshot.sessions.some((one) => one.id === found)) found = null;
  show(snapshot, found, mine);
}

function show(snapshot: Snapshot, session: string | null, mine: number): void {
  const isSame = session === state.sessionId.value;
  view.load(snapshot, session);
  // The stream may be ahead of the snapshot: items since the request are applied again, and ignored if known.
  for (const item of meanwhile ?? []) if (item.event.type !== "hello" && item.event.type !== "gap") view.apply(item);
  meanwhile = null;
  state.chosenId.value = session;
  state.sessionId.value = session;
  if (!isSame) {
    state.forgetMessages();
    earlier = new Map();
    callers = new Callers();
    state.notice.value = null;
    state.others.value = 0;
    state.order.value = new Map();
  }
  const all = new PendingUpdates();
  all.order = all.sessions = all.runs = all.requests = true;
  if (session !== null) for (const id of view.messageIds(session)) all.messages.add(id);
  pendingUpdates = new PendingUpdates();
  state.jobs.value = [...(snapshot.jobs ?? [])].reverse();
  flush(view, all, earlier, callers);
  state.loading.value = false;
  setAddress(directory, session);
  void fetchSubagents(mine);
  if (state.queue.value.length > 1) void readOrder();
}

let reloading: Promise<void> | null = null;

/** Loads a snapshot after a gap. */
function reload(): Promise<void> {
  reloading ??= load(state.chosenId.value)
    .catch(() => {
      // The next event of the incomplete view retries.
      view.isStale = true;
    })
    .finally(() => {
      reloading = null;
    });
  return reloading;
}

/** Shows another session; null is a new one, created by its first prompt. */
export async function chooseSession(id: string | null): Promise<void> {
  state.loading.value = id !== null;
  const before = state.sessionId.value;
  try {
    await load(id);
    if (before !== state.sessionId.value) pushAddress();
  } finally {
    state.loading.value = false;
  }
  await reportPresence();
}

async function chooseFromAddress(): Promise<void> {
  const wanted = wantedSession();
  if (wanted === state.sessionId.value || state.workspace.value === null) return;
  await load(wanted).catch((error: unknown) => state.toast("error", errorText(error)));
  await reportPresence();
}

// State without events.

const readWorkspace = (): Promise<void> =>
  ignoreErrors(async () => {
    view.workspace = await api.get<Workspace>(at());
    frames.schedule();
    await readAgent();
  });

/** Fetches the state without events after an interruption. */
const readAside = async (): Promise<void> => {
  await Promise.all([readWorkspace(), readJobs()]);
};

/** The event of a moved run does not contain its position: the queue is fetched. */
const readOrder = (): Promise<void> =>
  ignoreErrors(async () => {
    const session = state.sessionId.value;
    if (session === null) return;
    const texts = await api.get<readonly string[]>(at(`/agent/sessions/${encodeURIComponent(session)}/prompts/list`));
    if (session !== state.sessionId.value) return;
    const left = view.runsOf(session).filter((run) => run.state === "waiting");
    const positions = new Map<string, number>();
    texts.forEach((text, position) => {
      const found = left.findIndex((run) => (run.prompt ?? "") === text);
      const [run] = found < 0 ? [] : left.splice(found, 1);
      if (run !== undefined) positions.set(run.run_id, position);
    });
    state.order.value = positions;
  });
