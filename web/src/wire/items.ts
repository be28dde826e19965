/** What a stream hands to its reader: events with their numbers, each exactly once. The twin of client/items.py. Pure. */

import type { SseEvent } from "./sse.ts";
import type { Item, WireEvent } from "./types.ts";

/** Never fails: an event that cannot be understood still has its number, and the stream goes on behind it. */
export function decodeItem(raw: SseEvent): Item {
  let event: WireEvent | null = null;
  try {
    const read: unknown = JSON.parse(raw.data);
    if (typeof read === "object" && read !== null && typeof (read as { type?: unknown }).type === "string") {
      event = read as WireEvent;
    }
  } catch {
    event = null;
  }
  return { event: event ?? ({ type: "", payload: null } as unknown as WireEvent), number: raw.number };
}

/** Where a reader stands in a numbered log. `since` is the last number it has. */
export class Follower {
  since: number;

  constructor(since: number) {
    this.since = since;
  }

  /** Whether the reader is to see this. After a gap the stream goes on at the gap's cursor, wherever that is. */
  accept(item: Item): boolean {
    if (item.event.type === "gap") {
      this.since = item.event.payload.cursor;
    } else if (item.number !== null && item.event.type !== "hello") {
      if (item.number <= this.since) return false;
      this.since = item.number;
    }
    return true;
  }
}

/** Waits that double, with jitter so that many pages do not come back at one moment. */
export class Backoff {
  private next: number;

  constructor(
    private readonly jitter: () => number = Math.random,
    private readonly first = 250,
    private readonly most = 5_000,
  ) {
    this.next = first;
  }

  wait(): number {
    const wait = this.next;
    this.next = Math.min(this.next * 2, this.most);
    return wait * (0.5 + 0.5 * this.jitter());
  }

  reset(): void {
    this.next = this.first;
  }
}
