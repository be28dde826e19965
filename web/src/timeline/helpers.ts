// What helpers did, below the call that sent them: read when somebody looks closely at a run.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { SENDS } from "../cards/facts.ts";
import { cursor, getLog, helperSession } from "../store.ts";
import { tracksOf } from "./tracks.ts";
import type { LogEvent, ToolBar, Track } from "./tracks.ts";

const MOST = 8;
const PAGE = 1_000;

/** The tracks of helpers, by the session of each. */
export const helped = signal<ReadonlyMap<string, readonly Track[]>>(new Map());

/** The session of the helper that a tool has sent; empty if it sends none. */
export function helperOfTool(tool: ToolBar): string {
  return SENDS.has(tool.name) ? helperSession(tool.messageId, tool.id) : "";
}

/** Reads what the helpers of a run did, again while they work. */
export function useHelpers(track: Track | undefined): void {
  const tools = (track?.tools ?? []).filter((tool) => helperOfTool(tool)).slice(0, MOST);
  const names = tools.map(helperOfTool).join(" ");
  // Those that have ended are read once.
  const beat = tools.some((tool) => tool.end === null) ? Math.floor(cursor.value / 10) : 0;
  useEffect(() => {
    let isOver = false;
    const read = async (session: string): Promise<void> => {
      const page = await getLog({ session_id: session, limit: PAGE });
      if (!isOver) helped.value = new Map(helped.value).set(session, tracksOf(page.events as unknown as LogEvent[]));
    };
    // What cannot be read is not shown; the bar of the call is still there.
    for (const session of names.split(" ").filter(Boolean)) void read(session).catch(() => undefined);
    return () => {
      isOver = true;
    };
  }, [names, beat, track?.ended]);
}
