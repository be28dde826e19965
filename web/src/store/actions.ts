/** Actions of the user. All of them throw `Problem`; `reportErrors` shows it as a toast instead. The state changes only with
 * the events of the server, which follow at once. */

import { api, Problem } from "../wire/http.ts";
import type {
  PromptAccepted,
  SubagentInfo,
  Attachment,
  CommandInfo,
  ConfigProblem,
  Delivery,
  FileVersion,
  GrantAction,
  Job,
  JobOutput,
  Message,
  SelectedModel,
  PermissionRequest,
  Provider,
  QuestionAnswer,
  QuestionRequest,
  Run,
  SandboxState,
  Session,
  ShellResult,
  Stats,
  TrustBody,
  UndoRequest,
  UndoReport,
  Via,
  Workspace,
} from "../wire/types.ts";
import * as composing from "./composer-state.ts";
import { readAgent, readJobs } from "./polling.ts";
import { chooseSession } from "./connection.ts";
import { at, newId } from "./paths.ts";
import * as state from "./state.ts";

export { chooseSession, openDirectory, retryNow } from "./connection.ts";

const MAX_ATTEMPTS = 3;
const attached = new Map<string, readonly Attachment[]>();
let unanswered: { readonly key: string; readonly run_id: string } | null = null;

const inSession = (id: string, path = ""): string => at(`/sessions/${encodeURIComponent(id)}${path}`);
const inAgent = (id: string, path = ""): string => at(`/agent/sessions/${encodeURIComponent(id)}${path}`);
const ofRun = (id: string, path = ""): string => at(`/runs/${encodeURIComponent(id)}${path}`);
const mine = (): { client_id: string } => ({ client_id: state.clientId.value });
const answering = (): { client_id: string; via: Via } => ({ ...mine(), via: "page" });

/** Awaits an action and shows its error, if any. */
export async function reportErrors<T>(work: Promise<T>, title?: string): Promise<T | undefined> {
  try {
    return await work;
  } catch (error) {
    if (!(error instanceof Problem)) console.error(error);
    state.toast("error", error instanceof Error ? error.message : String(error), title);
    return undefined;
  }
}

// Sessions.

export const newSession = (): Promise<void> => chooseSession(null);

export const renameSession = (id: string, title: string): Promise<Session> =>
  api.put<Session>(inSession(id), { id, title });

export const deleteSession = (id: string): Promise<void> => api.del(inSession(id));

/** Returns the current session; creates one if there is none. The text stays in the composer meanwhile. */
async function someSession(): Promise<string> {
  const here = state.chosenId.value;
  if (here !== null) return here;
  making ??= makeSession().finally(() => {
    making = null;
  });
  return making;
}

/** Two prompts sent at once belong to one session. */
let making: Promise<string> | null = null;

async function makeSession(): Promise<string> {
  const made = await api.post<Session>(at("/sessions"), { title: "New session" });
  composing.carryDraft(made.id);
  await chooseSession(made.id);
  return made.id;
}

export const summarize = async (): Promise<void> => {
  const session = state.sessionId.value;
  if (session !== null) await api.post(inAgent(session, "/summarize"));
};

// Prompts and runs.

export interface PromptOptions {
  readonly delivery?: Delivery;
  readonly attachments?: readonly Attachment[];
  readonly yolo?: boolean;
}

/** Sends a prompt; the first one creates the session. The run id is created here, so that a retry is safe. */
export async function prompt(text: string, options: PromptOptions = {}): Promise<PromptAccepted> {
  const session_id = await someSession();
  const attachments = options.attachments ?? [];
  const body = {
    session_id,
    prompt: text,
    delivery: options.delivery ?? "steer",
    client_id: state.clientId.value,
    interactive: true,
    ...(attachments.length > 0 ? { attachments } : {}),
    ...(options.yolo ? { yolo: true } : {}),
  };
  // The outcome of the last attempt is unknown: the same run id prevents a second run.
  const key = JSON.stringify(body);
  const run_id = unanswered?.key === key ? unanswered.run_id : newId();
  keepFiles(run_id, attachments);
  for (let attempt = 1; ; attempt += 1) {
    try {
      const accepted = await api.post<PromptAccepted>(at("/agent"), { ...body, run_id });
      unanswered = null;
      return accepted;
    } catch (error) {
      const isLost = error instanceof Problem && error.status === 0;
      unanswered = isLost ? { key, run_id } : null;
      if (!isLost || attempt === MAX_ATTEMPTS) throw error;
      await new Promise((resolve) => setTimeout(resolve, 300 * attempt));
    }
  }
}

/** Restores the attachments of a queued prompt; drops those of other clients. */
function keepFiles(run: string, attachments: readonly Attachment[]): void {
  const open = new Set(state.runs.value.filter((one) => one.state !== "ended").map((one) => one.run_id));
  for (const known of [...attached.keys()]) if (!open.has(known)) attached.delete(known);
  if (attachments.length > 0) attached.set(run, attachments);
}

/** Cancels all runs of the session. Queued prompts of this page return to the composer. */
export async function cancel(): Promise<void> {
  const session = state.sessionId.value;
  if (session === null) return;
  const waiting = state.queue.value.filter((run) => !run.client_id || run.client_id === state.clientId.value);
  await api.post(at(`/agent/sessions/${encodeURIComponent(session)}/cancel`, mine()));
  if (waiting.length === 0) return;
  const files = waiting.flatMap((run) => attached.get(run.run_id) ?? []);
  composing.insertIntoComposer(waiting.map((run) => run.prompt ?? "").join("\n\n"), files);
}

export const cancelRun = (id: string): Promise<Run> => api.post<Run>(at(`/runs/${encodeURIComponent(id)}/cancel`, mine()));

/** Moves a queued prompt back to the composer. */
export async function editQueued(run: Run): Promise<void> {
  await cancelRun(run.run_id);
  composing.insertIntoComposer(run.prompt ?? "", attached.get(run.run_id) ?? []);
}

/** `position` is the index in the queue. */
export const moveQueued = (id: string, position: number): Promise<Run> => api.patch<Run>(ofRun(id), { position });

export const redeliver = (id: string, delivery: "steer" | "queue"): Promise<Run> =>
  api.patch<Run>(ofRun(id), { delivery });

export async function clearQueue(): Promise<void> {
  const session = state.sessionId.value;
  if (session !== null) await api.post(inAgent(session, "/prompts/clear"));
}

export interface RunsQuery {
  readonly session_id?: string;
  readonly limit?: number;
  readonly before?: number;
}

export const listRuns = (query: RunsQuery = {}): Promise<readonly Run[]> => api.get(at("/runs", { ...query }));

/** Runs a shell command of the user; the model sees it with its next step. */
export async function runShell(command: string): Promise<ShellResult> {
  const session = await someSession();
  state.shell.value = command;
  try {
    return await api.post<ShellResult>(inAgent(session, "/shell"), { command, session_id: session, term_width: 100 });
  } finally {
    state.shell.value = "";
  }
}

export async function initProject(): Promise<void> {
  const start = await api.get<{ prompt: string }>(at("/project/init-prompt"));
  await prompt(start.prompt);
}

// Requests.

/** Returns false if another client was first; `answers` contains its answer. */
export async function answerPermission(request: PermissionRequest, action: GrantAction, reason = ""): Promise<boolean> {
  const body = { permission: request, action, ...(reason ? { reason } : {}) };
  return (await api.post<{ resolved: boolean }>(at("/permissions/grant", answering()), body)).resolved;
}

export async function answerQuestions(batch: QuestionRequest, responses: readonly QuestionAnswer[]): Promise<boolean> {
  const body = { batch_request_id: batch.id, responses };
  return (await api.post<{ resolved: boolean }>(at("/questions/answer", answering()), body)).resolved;
}

export async function dismissQuestions(batch: QuestionRequest): Promise<boolean> {
  const path = at("/questions/cancel", { batch_id: batch.id, ...answering() });
  return (await api.post<{ resolved: boolean }>(path)).resolved;
}

export async function setSkip(skip: boolean): Promise<void> {
  await api.post(at("/permissions/skip"), { skip });
  state.skip.value = skip;
}

// Models and settings.

export async function loadProviders(): Promise<readonly Provider[]> {
  state.providers.value = await api.get<readonly Provider[]>(at("/providers"));
  return state.providers.value;
}

export async function chooseModel(size: "large" | "small", model: SelectedModel): Promise<void> {
  await api.post(at("/config/model"), { model_type: size, model, scope: 0 });
  await readAgent();
}

export async function setProviderKey(provider: string, key: string): Promise<void> {
  await api.post(at("/config/provider-key"), { scope: 0, provider_id: provider, kind: "string", api_key: key });
  await loadProviders();
}

export const setConfig = (key: string, value: unknown, scope = 0): Promise<void> =>
  api.post(at("/config/set"), { key, value, scope });

export const configProblems = (): Promise<readonly ConfigProblem[]> => api.get(at("/config/problems"));
export const loadTrust = (): Promise<TrustBody> => api.get(at("/trust"));
export const setTrust = (trusted: boolean, digest: string): Promise<TrustBody> =>
  api.post<TrustBody>(at("/trust"), { trusted, digest });
export const sandbox = (): Promise<SandboxState> => api.get(at("/sandbox"));
export const stats = (): Promise<Stats> => api.get(at("/stats"));

// Jobs, files, history.

export async function loadJobs(): Promise<readonly Job[]> {
  await readJobs();
  return state.jobs.value;
}

export const jobOutput = (id: string): Promise<JobOutput> => api.get(at(`/jobs/${encodeURIComponent(id)}`));

export async function killJob(id: string): Promise<JobOutput> {
  const ended = await api.post<JobOutput>(at(`/jobs/${encodeURIComponent(id)}/kill`));
  await readJobs();
  return ended;
}

export const undo = (request: UndoRequest): Promise<UndoReport> => api.post<UndoReport>(at("/undo"), request);

export async function history(session = state.sessionId.value): Promise<readonly FileVersion[]> {
  return session === null ? [] : api.get(inSession(session, "/history"));
}

export interface LogQuery {
  readonly session_id?: string;
  readonly run_id?: string;
  readonly after?: number;
  readonly limit?: number;
}

export interface EventLogPage {
  readonly events: readonly { readonly number: number; readonly at: number; readonly type: string; readonly payload: unknown }[];
  readonly next: number;
  readonly more: boolean;
}

export const getLog = (query: LogQuery): Promise<EventLogPage> => api.get(at("/log", { ...query }));

export const listWorkspaces = (): Promise<readonly Workspace[]> => api.get("/workspaces");
export const messagesOf = (session: string): Promise<readonly Message[]> => api.get(inSession(session, "/messages"));

/** Loads the earlier prompts of the session into the history of the composer. */
export async function rememberPrompts(): Promise<void> {
  const messages = await api.get<readonly Message[]>(at("/messages/user"));
  const texts = messages.slice(0, 500).map((message) =>
    message.parts.map((part) => (part.type === "text" ? part.data.text : "")).join("").trim(),
  );
  // The server returns the newest first; of duplicates the newer is kept. Prompts of this page are the newest.
  const known = [...new Set(texts)].filter((one) => one !== "").reverse();
  composing.sent.value = [...known, ...composing.sent.value.filter((one) => !known.includes(one))];
}

/** Returns the files that a prompt can mention. */
export const listFiles = (): Promise<{ readonly files: readonly string[]; readonly is_cut?: boolean }> => api.get(at("/files"));

/** Returns the commands that can be sent as `/name`; the server expands them. */
export const listCommands = (): Promise<readonly CommandInfo[]> => api.get(at("/commands"));
export const listAgents = (): Promise<readonly SubagentInfo[]> => api.get(at("/agents"));

/** Returns a file of the workspace as an attachment. */
export const readFile = (path: string): Promise<Attachment> => api.get(at("/files/read", { path }));
