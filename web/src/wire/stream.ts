/** Follows the events of a workspace across broken connections, suspended machines and server restarts.
 *
 * A numbered event is passed on exactly once, in order. The stream is reopened automatically after the last received
 * number until it is closed. Pages share nothing: each has its own stream. */

import { Problem } from "./http.ts";
import { Backoff, decodeItem, CursorFilter } from "./events.ts";
import { SseReader } from "./sse.ts";
import type { Item } from "./types.ts";

/** The server sends something every 15 s. After three times that, the connection is considered dead. */
export const SILENCE_TIMEOUT = 45_000;
/** When the page becomes visible, a connection that was silent for longer than a heartbeat is not trusted. */
const SUSPECT_AFTER = 20_000;
const WATCH_INTERVAL = 5_000;
const SILENCE_REASON = "The connection is silent.";

export interface StreamError {
  readonly why: string;
  readonly attempts: number;
  /** Time of the next attempt, as in `Date.now()`. */
  readonly retryAt: number;
}

export interface StreamPort {
  /** Opens the stream after `since`. Throws `Problem`; 404 if the workspace does not exist. */
  connect(since: number, signal: AbortSignal): Promise<Response>;
  /** The workspace was closed: opens it again. Throws `Problem`. */
  enter(): Promise<void>;
  onItem(item: Item): void;
  /** The stream was opened at `since`; `cursor` is the newest number of the server. */
  onLive(since: number, cursor: number): void;
  onTrouble(trouble: StreamError): void;
  /** Called when authentication is refused; the stream ends. */
  onRefused(why: string): void;
}

export class EventStream {
  private readonly follower: CursorFilter;
  private readonly backoff: Backoff;
  private current: AbortController | null = null;
  private receivedAt = 0;
  private attempts = 0;
  private isClosed = false;
  private wake: () => void = () => undefined;
  private watchdog: ReturnType<typeof setInterval> | undefined;

  constructor(
    private readonly port: StreamPort,
    since: number,
    private readonly silenceTimeout = SILENCE_TIMEOUT,
    jitter: () => number = Math.random,
  ) {
    this.follower = new CursorFilter(since);
    this.backoff = new Backoff(jitter);
  }

  /** The last number that was passed on. */
  get cursor(): number {
    return this.follower.since;
  }

  /** Runs until it is closed or refused. */
  async run(): Promise<void> {
    const onWake = (): void => this.retryNow();
    globalThis.addEventListener?.("online", onWake);
    globalThis.document?.addEventListener("visibilitychange", onWake);
    this.watchdog = setInterval(() => this.watch(), Math.min(WATCH_INTERVAL, this.silenceTimeout));
    try {
      while (!this.isClosed) {
        const why = await this.once();
        if (this.isClosed) return;
        await this.pause(why);
      }
    } finally {
      clearInterval(this.watchdog);
      globalThis.removeEventListener?.("online", onWake);
      globalThis.document?.removeEventListener("visibilitychange", onWake);
    }
  }

  close(): void {
    this.isClosed = true;
    this.current?.abort();
    this.wake();
  }

  /** Retries at once; checks a connection that was silent. */
  retryNow(): void {
    if (globalThis.document?.visibilityState === "hidden") return;
    this.backoff.reset();
    this.wake();
    if (this.receivedAt > 0 && Date.now() - this.receivedAt > SUSPECT_AFTER) this.current?.abort();
  }

  private watch(): void {
    if (this.receivedAt > 0 && Date.now() - this.receivedAt > this.silenceTimeout) this.current?.abort();
  }

  /** Reads one connection to its end and returns the reason. */
  private async once(): Promise<string> {
    const control = new AbortController();
    this.current = control;
    this.receivedAt = Date.now();
    try {
      const response = await this.port.connect(this.follower.since, control.signal);
      await this.read(response, control.signal);
      return control.signal.aborted ? SILENCE_REASON : "The connection was closed.";
    } catch (error) {
      if (control.signal.aborted) return SILENCE_REASON;
      if (error instanceof Problem) return await this.answered(error);
      return "The connection broke.";
    } finally {
      control.abort();
      this.current = null;
      this.receivedAt = 0;
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
      this.receivedAt = Date.now();
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

  /** Waits before the next attempt, unless `retryNow` is called. */
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
