// Activity of sub-agents, below the tool call that started them; fetched when the details of a run are opened.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { SUBAGENT_TOOLS } from "../cards/tool-data.ts";
import { cursor, getLog, subagentSession } from "../store.ts";
import { tracksOf } from "./tracks.ts";
import type { LogEvent, ToolBar, Track } from "./tracks.ts";

const MAX_FETCHED = 8;
const PAGE = 1_000;

/** Tracks of sub-agents, by session. */
export const subagentTracks = signal<ReadonlyMap<string, readonly Track[]>>(new Map());

/** Returns the session of the sub-agent that a tool call has started; empty for other tools. */
export function subagentOfTool(tool: ToolBar): string {
  return SUBAGENT_TOOLS.has(tool.name) ? subagentSession(tool.messageId, tool.id) : "";
}

/** Fetches the tracks of a run's sub-agents, repeatedly while they are active. */
export function useSubagents(track: Track | undefined): void {
  const tools = (track?.tools ?? []).filter((tool) => subagentOfTool(tool)).slice(0, MAX_FETCHED);
  const names = tools.map(subagentOfTool).join(" ");
  // Ended ones are fetched once.
  const beat = tools.some((tool) => tool.end === null) ? Math.floor(cursor.value / 10) : 0;
  useEffect(() => {
    let isOver = false;
    const read = async (session: string): Promise<void> => {
      const page = await getLog({ session_id: session, limit: PAGE });
      if (!isOver) subagentTracks.value = new Map(subagentTracks.value).set(session, tracksOf(page.events as unknown as LogEvent[]));
    };
    // A failed fetch is ignored: the bar of the tool call is still shown.
    for (const session of names.split(" ").filter(Boolean)) void read(session).catch(() => undefined);
    return () => {
      isOver = true;
    };
  }, [names, beat, track?.ended]);
}
