// Sessions as a list: helpers below those that sent them, headings by day. Pure.

import type { Session } from "../wire/types.ts";
import { dayOf, inSeconds } from "./format.ts";

export interface Tree {
  readonly session: Session;
  readonly helpers: readonly Session[];
}

/** The latest first. With words only those that have all of them, themselves or in a helper. */
export function nested(sessions: readonly Session[], words = ""): Tree[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (session: Session): boolean => wanted.every((word) => session.title.toLowerCase().includes(word));
  const helpers = new Map<string, Session[]>();
  const known = new Set(sessions.map((session) => session.id));
  const tops: Session[] = [];
  for (const session of sessions) {
    const parent = session.parent_session_id;
    if (parent && known.has(parent)) helpers.set(parent, [...(helpers.get(parent) ?? []), session]);
    else if (!parent) tops.push(session);
  }
  return tops
    .map((session) => {
      const mine = (helpers.get(session.id) ?? []).sort((a, b) => a.created_at - b.created_at);
      return { session, helpers: fits(session) ? mine : mine.filter(fits) };
    })
    .filter((tree) => fits(tree.session) || tree.helpers.length > 0)
    .sort((a, b) => inSeconds(b.session.updated_at) - inSeconds(a.session.updated_at));
}

export function grouped(trees: readonly Tree[], now: number): [string, Tree[]][] {
  const groups = new Map<string, Tree[]>();
  for (const tree of trees) {
    const day = dayOf(inSeconds(tree.session.updated_at), now);
    groups.set(day, [...(groups.get(day) ?? []), tree]);
  }
  return [...groups];
}
