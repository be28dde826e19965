/** Follows the events of a workspace through broken connections, sleep and servers that come back.
 *
 * A numbered event is handed out exactly once, in order. The stream opens again by itself, after the last number that
 * came, until it is closed. Nothing is shared between pages: each follows for itself. */

import { Problem } from "./http.ts";
import { Backoff, decodeItem, Follower } from "./items.ts";
import { SseReader } from "./sse.ts";
import type { Item } from "./types.ts";

/** The server says something every 15 s. After three times that, the connection is dead. */
export const QUIET = 45_000;
/** Somebody looks at the page again: a connection that was quiet for longer than a heartbeat is not trusted. */
const DOUBTFUL = 20_000;
const WATCH = 5_000;
const QUIET_WORDS = "The connection has gone quiet.";

export interface Trouble {
  readonly why: string;
  readonly attempts: number;
  /** When the next attempt is made, as `Date.now()` counts. */
  readonly retryAt: number;
}

export interface StreamPort {
  /** Opens the stream after `since`. Throws `Problem`; 404 when there is no such workspace. */
  connect(since: number, signal: AbortSignal): Promise<Response>;
  /** The workspace is gone: open it again. Throws `Problem`. */
  enter(): Promise<void>;
  onItem(item: Item): void;
  /** The stream answers, after it was opened at `since`; `cursor` is the newest number there is. */
  onLive(since: number, cursor: number): void;
  onTrouble(trouble: Trouble): void;
  /** It cannot be gone on with: the page is not let in. */
  onRefused(why: string): void;
}

export class EventStream {
  private readonly follower: Follower;
  private readonly backoff: Backoff;
  private current: AbortController | null = null;
  private heardAt = 0;
  private attempts = 0;
  private isClosed = false;
  private wake: () => void = () => undefined;
  private watchdog: ReturnType<typeof setInterval> | undefined;

  constructor(
    private readonly port: StreamPort,
    since: number,
    private readonly quiet = QUIET,
    jitter: () => number = Math.random,
  ) {
    this.follower = new Follower(since);
    this.backoff = new Backoff(jitter);
  }

  /** The last number that was handed out. */
  get cursor(): number {
    return this.follower.since;
  }

  /** Runs until it is closed or refused. */
  async run(): Promise<void> {
    const look = (): void => this.lookAgain();
    globalThis.addEventListener?.("online", look);
    globalThis.document?.addEventListener("visibilitychange", look);
    this.watchdog = setInterval(() => this.watch(), Math.min(WATCH, this.quiet));
    try {
      while (!this.isClosed) {
        const why = await this.once();
        if (this.isClosed) return;
        await this.pause(why);
      }
    } finally {
      clearInterval(this.watchdog);
      globalThis.removeEventListener?.("online", look);
      globalThis.document?.removeEventListener("visibilitychange", look);
    }
  }

  close(): void {
    this.isClosed = true;
    this.current?.abort();
    this.wake();
  }

  /** Do not wait any longer for the next attempt; doubt a connection that has been quiet. */
  lookAgain(): void {
    if (globalThis.document?.visibilityState === "hidden") return;
    this.backoff.reset();
    this.wake();
    if (this.heardAt > 0 && Date.now() - this.heardAt > DOUBTFUL) this.current?.abort();
  }

  private watch(): void {
    if (this.heardAt > 0 && Date.now() - this.heardAt > this.quiet) this.current?.abort();
  }

  /** One connection, from its opening to its end, and why it ended. */
  private async once(): Promise<string> {
    const control = new AbortController();
    this.current = control;
    this.heardAt = Date.now();
    try {
      const response = await this.port.connect(this.follower.since, control.signal);
      await this.read(response, control.signal);
      return control.signal.aborted ? QUIET_WORDS : "The connection was closed.";
    } catch (error) {
      if (control.signal.aborted) return QUIET_WORDS;
      if (error instanceof Problem) return await this.answered(error);
      return "The connection broke.";
    } finally {
      control.abort();
      this.current = null;
      this.heardAt = 0;
    }
  }

  private async answered(problem: Problem): Promise<string> {
    if ([400, 401, 403, 405].includes(problem.status)) {
      this.isClosed = true;
      this.port.onRefused(problem.message);
      return problem.message;
    }
    if (problem.status !== 404) return problem.message;
    try {
      await this.port.enter();
      this.backoff.reset();
      return "The workspace was closed and is opened again.";
    } catch (error) {
      return error instanceof Error ? error.message : String(error);
    }
  }

  private async read(response: Response, signal: AbortSignal): Promise<void> {
    if (response.body === null) return;
    const bytes = response.body.getReader();
    const decoder = new TextDecoder();
    const reader = new SseReader();
    const since = this.follower.since;
    signal.addEventListener("abort", () => void bytes.cancel().catch(() => undefined));
    for (;;) {
      const { done, value } = await bytes.read();
      if (this.isClosed || signal.aborted) return;
      if (done) return;
      this.heardAt = Date.now();
      for (const raw of reader.feed(decoder.decode(value, { stream: true }))) {
        const item = decodeItem(raw);
        if (item.event.type === "hello") {
          this.backoff.reset();
          this.attempts = 0;
          this.port.onLive(since, item.event.payload.cursor);
        }
        if (this.follower.accept(item)) this.port.onItem(item);
        if (this.isClosed) return;
      }
    }
  }

  /** Waits before the next attempt, unless somebody has a reason not to. */
  private async pause(why: string): Promise<void> {
    const wait = this.backoff.wait();
    this.attempts += 1;
    this.port.onTrouble({ why, attempts: this.attempts, retryAt: Date.now() + wait });
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, wait);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.wake = () => undefined;
  }
}
