// Messages of other sessions, fetched one after the other for a search in all sessions.

import { signal } from "@preact/signals";
import type { Message, Session } from "../wire/types.ts";

interface Read {
  /** The last change of the session at the time of the fetch. */
  readonly stamp: number;
  readonly messages: readonly Message[];
}

/** Maximum number of sessions to fetch, latest first; older ones are found by title only. */
export const MAX_SESSIONS = 60;
/** Number of sessions added to the results at a time, because each addition repeats the search. */
const BATCH_SIZE = 8;

export const sessionCache = signal<ReadonlyMap<string, Read>>(new Map());
/** Number of sessions not fetched yet. */
export const unfetched = signal(0);

let turn = 0;

/** Fetches the missing sessions, latest first. A later call aborts an earlier one. */
export async function fetchSessions(sessions: readonly Session[], read: (id: string) => Promise<readonly Message[]>): Promise<void> {
  const mine = (turn += 1);
  const wanted = sessions.slice(0, MAX_SESSIONS);
  const ids = new Set(wanted.map((one) => one.id));
  const known = new Map([...sessionCache.peek()].filter(([id]) => ids.has(id)));
  const missing = wanted.filter((one) => known.get(one.id)?.stamp !== one.updated_at);
  for (const [at, session] of missing.entries()) {
    unfetched.value = missing.length - at;
    // The session was deleted meanwhile.
    const messages = await read(session.id).catch(() => []);
    if (mine !== turn) return;
    known.set(session.id, { stamp: session.updated_at, messages });
    if ((at + 1) % BATCH_SIZE === 0) sessionCache.value = new Map(known);
  }
  sessionCache.value = known;
  unfetched.value = 0;
}

/** Discards the messages when the search is closed. */
export function clear(): void {
  turn += 1;
  sessionCache.value = new Map();
  unfetched.value = 0;
}
