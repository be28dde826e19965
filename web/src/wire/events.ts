/** Stream items with their numbers, each exactly once. Counterpart of client/events.py. Pure. */

import type { SseEvent } from "./sse.ts";
import type { Item, WireEvent } from "./types.ts";

/** Never throws: an event that cannot be decoded keeps its number, and the stream continues. */
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

/** Position of a reader in the numbered log. `since` is the last number received. */
export class CursorFilter {
  since: number;

  constructor(since: number) {
    this.since = since;
  }

  /** Returns whether the item is new. After a gap the stream continues at the cursor of the gap event. */
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

/** Exponential delays with jitter, so that many pages do not reconnect at the same time. */
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
