/** The page's line to the server: one workspace, its events folded into a view, told to the signals once a frame.
 *
 * It never gives up: a broken stream is taken up where it broke, a workspace that was closed is opened again. */

import { enter, hasCode, NoEntry } from "../entry.ts";
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
import { Callers, Dirt, type Earlier, flush, Frames } from "./flush.ts";
import { pushAddress, replaceAddress, setAddress, wantedSession } from "./address.ts";
import { lookAround, quietly, readAgent, readJobs, sayWhere } from "./aside.ts";
import { forgetSession } from "./composing.ts";
import { at, newId } from "./paths.ts";
import * as state from "./state.ts";

const LOOK_AROUND = 10_000;
const HELPERS_AT_ONCE = 20;

let view = new View({ keepsAll: false });
let dirt = new Dirt();
let earlier: Earlier = new Map();
let callers = new Callers();
let stream: EventStream | null = null;
let directory = "";
let choice = 0;
/** What the stream says while a snapshot is on its way. */
let meanwhile: Item[] | null = null;
let looking: ReturnType<typeof setInterval> | undefined;

const frames = new Frames(() => {
  const now = dirt;
  dirt = new Dirt();
  flush(view, now, earlier, callers);
});

function say(change: Partial<state.Connection>): void {
  const before = state.connection.value;
  const isOther = change.state !== undefined && change.state !== before.state;
  state.connection.value = { ...before, ...(isOther ? { since: Date.now() } : {}), ...change };
}

const words = (error: unknown): string => (error instanceof Error ? error.message : String(error));

// Coming in.

/** Lets the page in and follows the workspace of the address. Called once, at the beginning. */
export async function start(): Promise<void> {
  state.clientId.value = newId();
  onRefused((why) => say({ state: "signed-out", trouble: why }));
  addEventListener("popstate", () => {
    // A new link that is followed in this tab changes only what stands behind the sign: it is read as if the tab were new.
    if (hasCode()) location.reload();
    else void chooseFromAddress();
  });
  for (;;) {
    try {
      const entry = await enter();
      setToken(entry.token);
      directory = entry.dir;
      break;
    } catch (error) {
      if (error instanceof NoEntry) return say({ state: "signed-out", trouble: error.message });
      say({ state: "broken", trouble: "The server does not answer.", retryAt: Date.now() + 1_000 });
      await new Promise((resolve) => setTimeout(resolve, 1_000));
    }
  }
  if (directory === "") return say({ state: "gone", trouble: "Which directory is meant?" });
  await follow();
}

/** Follows nothing any more. */
export function leave(): void {
  stream?.close();
  clearInterval(looking);
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

/** Follows the workspace until the page is closed, or another is opened. */
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
        return say({ state: "gone", trouble: problem.message });
      }
      const wait = Math.min(5_000, 250 * 2 ** attempt);
      say({ state: "broken", trouble: words(error), attempts: attempt, retryAt: Date.now() + wait });
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }
  stream = new EventStream(port, view.cursor);
  looking = setInterval(() => void lookAround(), LOOK_AROUND);
  void readAgent();
  await stream.run();
}

const port: StreamPort = {
  connect: (since, signal) => open(at("/events", { client_id: state.clientId.value, since }), { signal }),
  enter: enterWorkspace,
  onItem: take,
  onLive: (since, cursor) => {
    const before = state.connection.value;
    const isBack = before.state === "broken";
    const resumed = { from: since, missed: Math.max(0, cursor - since), at: Date.now(), gap: cursor < since };
    say({ state: "live", trouble: "", attempts: 0, retryAt: 0, ...(isBack ? { resumed } : {}) });
    void sayWhere();
    if (isBack) void readAside();
  },
  onTrouble: ({ why, attempts, retryAt }) => say({ state: "broken", trouble: why, attempts, retryAt }),
  onRefused: (why) => say({ state: "signed-out", trouble: why }),
};

/** Try now, not when it is time. */
export function retryNow(): void {
  stream?.lookAgain();
}

// Following.

function take(item: Item): void {
  meanwhile?.push(item);
  try {
    if (!view.apply(item)) return aside(item);
    mark(item);
    aside(item);
  } catch (error) {
    // An event this page cannot take must not stop the others: what it would have said is in the snapshot.
    console.error("An event could not be taken.", error);
    view.isStale = true;
  }
  if (view.isStale) void reload();
  frames.ask();
}

function mark(item: Item): void {
  const event = item.event;
  switch (event.type) {
    case "message":
      dirt.sessions ||= event.payload.type !== "updated";
      markMessage(event.payload.payload, event.payload.type !== "updated");
      break;
    case "message_delta":
    case "message_part":
      touch(event.payload.session_id, event.payload.message_id);
      break;
    case "tool_output":
      dirt.outputs.set(event.payload.tool_call_id, event.payload.message_id);
      touch(event.payload.session_id, "");
      break;
    case "session":
      dirt.sessions = true;
      if (event.payload.type !== "deleted") watchHelper(event.payload.payload.id);
      else {
        forgetSession(event.payload.payload.id);
        if (event.payload.payload.id === state.sessionId.value) leaveDeleted();
      }
      dirt.runs ||= event.payload.type === "deleted";
      dirt.asks ||= event.payload.type === "deleted";
      break;
    case "run":
      dirt.runs = true;
      if (event.payload.type === "updated" && event.payload.payload.state === "waiting") void readOrder();
      break;
    case "run_complete":
      dirt.runs = dirt.asks = true;
      if (state.notice.value?.type === "retrying") state.notice.value = null;
      break;
    case "agent_event": {
      dirt.notices = true;
      const said = event.payload.payload;
      const isHere = !said.session_id || said.session_id === state.sessionId.value;
      if (isHere && (said.type === "retrying" || said.type === "re_authenticate")) state.notice.value = said;
      break;
    }
    case "permission_request":
    case "question_batch_request":
      dirt.asks = true;
      break;
    case "permission_notification":
      dirt.asks = true;
      remember(event.payload.payload.id ?? event.payload.payload.tool_call_id, event.payload.payload);
      break;
    case "question_batch_notification":
      dirt.asks = true;
      remember(event.payload.payload.batch_id, event.payload.payload);
      break;
    default:
      break;
  }
}

function remember(id: string, answer: PermissionNotification | QuestionNotification): void {
  state.answers.value = new Map([...state.answers.value].slice(-200)).set(id, answer);
}

/** What is no part of the view, but a reason to look again. */
function aside(item: Item): void {
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
  dirt.order ||= isNew;
}

function touch(session: string, message: string): void {
  if (session !== state.sessionId.value) {
    if (isHelperHere(session)) dirt.helpers.add(session);
    return;
  }
  state.notice.value = null;
  if (message) dirt.messages.add(message);
}

function leaveDeleted(): void {
  state.toast("info", "The session was deleted.");
  void chooseSession(null);
}

// Helpers.

/** Whether a helper was sent by a call of the session that is looked at. */
function isHelperHere(session: string): boolean {
  const [message, call] = session.split("$$");
  const current = state.sessionId.value;
  return Boolean(call && message && current !== null && view.message(current, message) !== undefined);
}

function watchHelper(session: string): void {
  if (isHelperHere(session)) view.watch(session);
}

async function readHelpers(mine: number): Promise<void> {
  const names = [...view.sessions.keys()].filter(isHelperHere);
  names.forEach((name) => view.watch(name));
  for (const name of names.slice(-HELPERS_AT_ONCE)) {
    try {
      const messages = await api.get<readonly Message[]>(at(`/sessions/${encodeURIComponent(name)}/messages`));
      if (mine !== choice) return;
      earlier.set(name, new Map(messages.map((message) => [message.id, message])));
    } catch {
      return;
    }
    dirt.helpers.add(name);
    frames.ask();
  }
}

// Loading.

/** Takes a snapshot and shows it; a later choice makes an earlier one void. */
async function load(session: string | null): Promise<void> {
  choice += 1;
  state.chosenId.value = session;
  const mine = choice;
  try {
    await read(session, mine);
  } catch (error) {
    // What is shown is what was shown before, and nothing is held back for it any more.
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
    // The session of an old address is gone.
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
  // The stream may be ahead of the snapshot: what came since it was asked for comes again, and is passed over if it is known.
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
  const all = new Dirt();
  all.order = all.sessions = all.runs = all.asks = true;
  if (session !== null) for (const id of view.messageIds(session)) all.messages.add(id);
  dirt = new Dirt();
  state.jobs.value = [...(snapshot.jobs ?? [])].reverse();
  flush(view, all, earlier, callers);
  state.loading.value = false;
  setAddress(directory, session);
  void readHelpers(mine);
  if (state.queue.value.length > 1) void readOrder();
}

let reloading: Promise<void> | null = null;

/** After a gap: what was missed is in a snapshot. */
function reload(): Promise<void> {
  reloading ??= load(state.chosenId.value)
    .catch(() => {
      // The next event of the broken view asks again.
      view.isStale = true;
    })
    .finally(() => {
      reloading = null;
    });
  return reloading;
}

/** Look at another session; null is one that is made by its first prompt. */
export async function chooseSession(id: string | null): Promise<void> {
  state.loading.value = id !== null;
  const before = state.sessionId.value;
  try {
    await load(id);
    if (before !== state.sessionId.value) pushAddress();
  } finally {
    state.loading.value = false;
  }
  await sayWhere();
}

async function chooseFromAddress(): Promise<void> {
  const wanted = wantedSession();
  if (wanted === state.sessionId.value || state.workspace.value === null) return;
  await load(wanted).catch((error: unknown) => state.toast("error", words(error)));
  await sayWhere();
}

// Asking aside.

const readWorkspace = (): Promise<void> =>
  quietly(async () => {
    view.workspace = await api.get<Workspace>(at());
    frames.ask();
    await readAgent();
  });

/** After a while without a connection: what no event tells. */
const readAside = async (): Promise<void> => {
  await Promise.all([readWorkspace(), readJobs()]);
};

/** A run that was moved does not say before whom it stands now: the queue is asked. */
const readOrder = (): Promise<void> =>
  quietly(async () => {
    const session = state.sessionId.value;
    if (session === null) return;
    const texts = await api.get<readonly string[]>(at(`/agent/sessions/${encodeURIComponent(session)}/prompts/list`));
    if (session !== state.sessionId.value) return;
    const left = view.runsOf(session).filter((run) => run.state === "waiting");
    const places = new Map<string, number>();
    texts.forEach((text, place) => {
      const found = left.findIndex((run) => (run.prompt ?? "") === text);
      const [run] = found < 0 ? [] : left.splice(found, 1);
      if (run !== undefined) places.set(run.run_id, place);
    });
    state.order.value = places;
  });
