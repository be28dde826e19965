// The event log of the current session: its last runs, fetched page by page and updated while the timeline is shown.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { cursor, getLog, listRuns, Problem } from "../store.ts";
import type { LogEvent } from "./tracks.ts";

export interface Log {
  readonly session: string;
  readonly events: readonly LogEvent[];
  readonly isComplete: boolean;
  /** There are runs before the shown ones. */
  readonly hasEarlier: boolean;
  /** The number of the first shown run; of earlier runs the log contains only the rest. */
  readonly first: number;
  readonly trouble: string;
}

const EMPTY: Log = { session: "", events: [], isComplete: false, hasEarlier: false, first: 0, trouble: "" };
const RUNS = 20;
const PAGE = 500;
const PAUSE = 250;

export const log = signal<Log>(EMPTY);
/** Number of runs to show. */
const wanted = signal(RUNS);

export function showEarlier(): void {
  wanted.value += RUNS;
}

/** Fetches the log of the session, then its additions. */
export function useLog(session: string): void {
  const count = wanted.value;
  useEffect(() => {
    const reader = new Reader(session, count);
    const stop = cursor.subscribe(() => reader.requestRead());
    return () => {
      stop();
      reader.isOver = true;
    };
  }, [session, count]);
}

class Reader {
  isOver = false;
  private isReading = false;
  private isRequested = false;
  private after = -1;
  private hasEarlier = false;
  private first = 0;
  private events: readonly LogEvent[] = [];
  private readonly session: string;
  private readonly count: number;

  constructor(session: string, count: number) {
    this.session = session;
    this.count = count;
    if (log.value.session !== session) log.value = { ...EMPTY, session };
  }

  requestRead(): void {
    this.isRequested = true;
    if (!this.isReading) void this.read();
  }

  private async read(): Promise<void> {
    this.isReading = true;
    while (this.isRequested && !this.isOver) {
      this.isRequested = false;
      try {
        if (this.after < 0) await this.begin();
        await this.readAll();
      } catch (error) {
        if (!this.isOver) log.value = { ...log.value, trouble: error instanceof Problem ? error.message : String(error) };
      }
      await new Promise((resolve) => setTimeout(resolve, PAUSE));
    }
    this.isReading = false;
  }

  /** A session may have thousands of runs: reading starts where the last of them begin. */
  private async begin(): Promise<void> {
    const runs = await listRuns({ session_id: this.session, limit: this.count });
    const first = Math.min(...runs.map((run) => run.number ?? 0));
    this.hasEarlier = runs.length >= this.count;
    this.first = this.hasEarlier ? first : 0;
    this.after = Number.isFinite(first) ? Math.max(0, first - 1) : 0;
  }

  private async readAll(): Promise<void> {
    for (let isMore = true; isMore; ) {
      const page = await getLog({ session_id: this.session, after: this.after, limit: PAGE });
      if (this.isOver) return;
      this.after = Math.max(this.after, page.next);
      this.events = [...this.events, ...(page.events as unknown as LogEvent[])];
      isMore = page.more;
      const isWhole = !isMore || this.events.length > log.value.events.length;
      if (isWhole) log.value = { session: this.session, events: this.events, isComplete: !isMore, hasEarlier: this.hasEarlier, first: this.first, trouble: "" };
    }
  }
}
