/** State without events, and presence for other clients: requested periodically; errors are ignored. */

import { api } from "../wire/http.ts";
import type { AgentInfo, Job, Session } from "../wire/types.ts";
import { at } from "./paths.ts";
import * as state from "./state.ts";

export async function ignoreErrors(work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch {
    // Presence only, or requested again soon.
  }
}

export const reportPresence = (): Promise<void> =>
  ignoreErrors(async () => {
    if (state.connection.value.state !== "live") return;
    const body = { session_id: state.sessionId.value ?? "" };
    await api.post(at("/current-session", { client_id: state.clientId.value }), body);
    await pollState();
  });

export const pollState = (): Promise<void> =>
  ignoreErrors(async () => {
    const session = state.sessionId.value;
    if (document.visibilityState === "hidden" || state.connection.value.state !== "live") return;
    if (state.jobs.value.some((job) => (job.state ?? "running") === "running")) await readJobs();
    if (session === null) return;
    const now = await api.get<Session>(at(`/sessions/${encodeURIComponent(session)}`));
    if (session === state.sessionId.value) state.others.value = Math.max(0, now.attached_clients - 1);
  });

export const readJobs = (): Promise<void> =>
  ignoreErrors(async () => {
    state.jobs.value = [...(await api.get<readonly Job[]>(at("/jobs")))].reverse();
  });

export const readAgent = (): Promise<void> =>
  ignoreErrors(async () => {
    state.agent.value = await api.get<AgentInfo>(at("/agent"));
    state.skip.value = (await api.get<{ skip: boolean }>(at("/permissions/skip"))).skip;
  });
