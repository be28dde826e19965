// Conversations of other sessions, read one after the other when somebody searches them all.

import { signal } from "@preact/signals";
import type { Message, Session } from "../wire/types.ts";

interface Read {
  /** When the session had last changed as it was read. */
  readonly stamp: number;
  readonly messages: readonly Message[];
}

/** The latest so many are read: what is older is found by its title. */
export const MOST_SESSIONS = 60;
/** So many at a time are shown together: each showing searches anew. */
const TOGETHER = 8;

export const shelf = signal<ReadonlyMap<string, Read>>(new Map());
/** How many are still to be read. */
export const unread = signal(0);

let turn = 0;

/** Reads what is not known yet, the latest first. A later call makes an earlier one void. */
export async function fill(sessions: readonly Session[], read: (id: string) => Promise<readonly Message[]>): Promise<void> {
  const mine = (turn += 1);
  const wanted = sessions.slice(0, MOST_SESSIONS);
  const ids = new Set(wanted.map((one) => one.id));
  const known = new Map([...shelf.peek()].filter(([id]) => ids.has(id)));
  const missing = wanted.filter((one) => known.get(one.id)?.stamp !== one.updated_at);
  for (const [at, session] of missing.entries()) {
    unread.value = missing.length - at;
    // A session that is gone by now has nothing to be found in.
    const messages = await read(session.id).catch(() => []);
    if (mine !== turn) return;
    known.set(session.id, { stamp: session.updated_at, messages });
    if ((at + 1) % TOGETHER === 0) shelf.value = new Map(known);
  }
  shelf.value = known;
  unread.value = 0;
}

/** What was read is kept only while somebody searches. */
export function clear(): void {
  turn += 1;
  shelf.value = new Map();
  unread.value = 0;
}
