// Sessions as a list: sub-agents below their parents, headings by day. Pure.

import type { Session } from "../wire/types.ts";
import { dayOf, inSeconds } from "./format.ts";

export interface Tree {
  readonly session: Session;
  readonly subagents: readonly Session[];
}

/** Returns sessions, latest first. With search words, only those that contain all of them, or whose sub-agents do. */
export function buildTree(sessions: readonly Session[], query = ""): Tree[] {
  const wanted = query.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (session: Session): boolean => wanted.every((word) => session.title.toLowerCase().includes(word));
  const subagents = new Map<string, Session[]>();
  const known = new Set(sessions.map((session) => session.id));
  const tops: Session[] = [];
  for (const session of sessions) {
    const parent = session.parent_session_id;
    if (parent && known.has(parent)) subagents.set(parent, [...(subagents.get(parent) ?? []), session]);
    else if (!parent) tops.push(session);
  }
  return tops
    .map((session) => {
      const mine = (subagents.get(session.id) ?? []).sort((a, b) => a.created_at - b.created_at);
      return { session, subagents: fits(session) ? mine : mine.filter(fits) };
    })
    .filter((tree) => fits(tree.session) || tree.subagents.length > 0)
    .sort((a, b) => inSeconds(b.session.updated_at) - inSeconds(a.session.updated_at));
}

export function groupByDay(trees: readonly Tree[], now: number): [string, Tree[]][] {
  const groups = new Map<string, Tree[]>();
  for (const tree of trees) {
    const day = dayOf(inSeconds(tree.session.updated_at), now);
    groups.set(day, [...(groups.get(day) ?? []), tree]);
  }
  return [...groups];
}
