// The stream: every split yields the same events, each event is passed on once, and it reconnects automatically.

import { afterEach, describe, expect, test, vi } from "vitest";
import { Problem } from "../src/wire/http.ts";
import { Backoff, decodeItem, CursorFilter } from "../src/wire/events.ts";
import { type SseEvent, SseReader } from "../src/wire/sse.ts";
import { EventStream, type StreamPort, type StreamError } from "../src/wire/stream.ts";
import type { Item } from "../src/wire/types.ts";

const WIRE = 'id: 7\ndata: {"type":"hello"}\n\n: still here\n\ndata: {"a":1}\ndata: {"b":"😀é"}\r\n\r\nid: x\ndata:no blank\n\nevent: z\n\n';
const EVENTS: readonly SseEvent[] = [
  { data: '{"type":"hello"}', number: 7 },
  { data: '{"a":1}\n{"b":"😀é"}', number: null },
  { data: "no blank", number: null },
];

describe("the reader", () => {
  test("gives the same events for every split into two", () => {
    for (let cut = 0; cut <= WIRE.length; cut += 1) {
      const reader = new SseReader();
      expect([...reader.feed(WIRE.slice(0, cut)), ...reader.feed(WIRE.slice(cut))]).toEqual(EVENTS);
    }
  });

  test("gives the same events character by character and byte by byte", () => {
    const reader = new SseReader();
    expect([...WIRE].flatMap((letter) => reader.feed(letter))).toEqual(EVENTS);
    const decoder = new TextDecoder();
    const second = new SseReader();
    const bytes = [...new TextEncoder().encode(WIRE)];
    expect(bytes.flatMap((byte) => second.feed(decoder.decode(new Uint8Array([byte]), { stream: true })))).toEqual(EVENTS);
  });

  test("joins a long line once, in any number of pieces", () => {
    const join = vi.spyOn(Array.prototype, "join");
    const reader = new SseReader();
    for (let at = 0; at < 1_000; at += 1) reader.feed("x".repeat(10));
    const before = join.mock.calls.length;
    reader.feed("\n\n");
    expect(before).toBe(0);
    expect(join.mock.calls.length).toBeLessThanOrEqual(2);
    join.mockRestore();
  });
});

describe("items", () => {
  test("an event that cannot be decoded keeps its number", () => {
    for (const data of ["{", "null", "[]", '"x"', "1", '{"payload":1}']) {
      expect(decodeItem({ data, number: 3 })).toEqual({ event: { type: "", payload: null }, number: 3 });
    }
  });

  test("a cursor filter drops known events and follows a gap", () => {
    const follower = new CursorFilter(5);
    const numbered = (number: number): Item => decodeItem({ data: '{"type":"x"}', number });
    expect([4, 5, 6, 6, 8].map((number) => follower.accept(numbered(number)))).toEqual([false, false, true, false, true]);
    expect(follower.accept(decodeItem({ data: '{"type":"gap","payload":{"cursor":2}}', number: null }))).toBe(true);
    expect(follower.since).toBe(2);
    expect(follower.accept(numbered(3))).toBe(true);
  });

  test("delays double up to a limit and are reset", () => {
    const backoff = new Backoff(() => 1, 250, 1_000);
    expect([1, 2, 3, 4].map(() => backoff.wait())).toEqual([250, 500, 1_000, 1_000]);
    backoff.reset();
    expect(backoff.wait()).toBe(250);
  });
});

/** A scripted server of a stream: each connection is played by the test. */
class Wire {
  readonly requested: number[] = [];
  readonly items: Item[] = [];
  readonly troubles: StreamError[] = [];
  readonly live: [number, number][] = [];
  refused = "";
  entered = 0;
  private readonly open: ReadableStreamDefaultController<Uint8Array>[] = [];
  private readonly answers: (() => Response)[] = [];
  readonly port: StreamPort = {
    connect: (since, signal) => {
      this.requested.push(since);
      const answer = this.answers.shift();
      if (answer !== undefined) return Promise.resolve().then(answer);
      const body = new ReadableStream<Uint8Array>({ start: (control) => void this.open.push(control) });
      signal.addEventListener("abort", () => this.tryError());
      return Promise.resolve(new Response(body));
    },
    enter: () => {
      this.entered += 1;
      return Promise.resolve();
    },
    onItem: (item) => this.items.push(item),
    onLive: (since, cursor) => this.live.push([since, cursor]),
    onTrouble: (trouble) => this.troubles.push(trouble),
    onRefused: (why) => {
      this.refused = why;
    },
  };

  failNext(status: number): void {
    this.answers.push(() => {
      throw new Problem(status, `status ${status}`);
    });
  }

  send(text: string): void {
    this.open[this.open.length - 1]?.enqueue(new TextEncoder().encode(text));
  }

  event(number: number): void {
    this.send(`id: ${number}\ndata: {"type":"message","payload":${number}}\n\n`);
  }

  hello(cursor: number): void {
    this.send(`data: {"type":"hello","payload":{"cursor":${cursor},"oldest":0,"epoch":1}}\n\n`);
  }

  cut(): void {
    this.open[this.open.length - 1]?.close();
  }

  private tryError(): void {
    try {
      this.open[this.open.length - 1]?.error(new DOMException("aborted", "AbortError"));
    } catch {
      // It had already ended.
    }
  }

  get numbers(): (number | null)[] {
    return this.items.filter((item) => item.number !== null).map((item) => item.number);
  }
}

describe("the stream", () => {
  const started: EventStream[] = [];
  const follow = (wire: Wire, since = 0): EventStream => {
    const stream = new EventStream(wire.port, since, 45_000, () => 0);
    started.push(stream);
    void stream.run();
    return stream;
  };
  afterEach(() => {
    started.splice(0).forEach((one) => one.close());
    vi.useRealTimers();
  });
  const settle = () => vi.advanceTimersByTimeAsync(0);

  test("resumes after the last number and passes nothing on twice", async () => {
    vi.useFakeTimers();
    const wire = new Wire();
    const stream = follow(wire, 3);
    await settle();
    wire.hello(3);
    wire.event(4);
    wire.event(5);
    await settle();
    wire.cut();
    await settle();
    expect(wire.troubles).toHaveLength(1);
    await vi.advanceTimersByTimeAsync(5_000);
    wire.hello(6);
    wire.event(5);
    wire.event(6);
    await settle();
    expect(wire.requested).toEqual([3, 5]);
    expect(wire.numbers).toEqual([4, 5, 6]);
    expect(wire.live).toEqual([
      [3, 3],
      [5, 6],
    ]);
    expect(stream.cursor).toBe(6);
  });

  test("an incomplete event is not passed on, and arrives complete later", async () => {
    vi.useFakeTimers();
    const wire = new Wire();
    follow(wire);
    await settle();
    wire.hello(0);
    wire.send('id: 1\ndata: {"type":"mess');
    await settle();
    wire.cut();
    await vi.advanceTimersByTimeAsync(5_000);
    wire.hello(1);
    wire.event(1);
    await settle();
    expect(wire.requested).toEqual([0, 0]);
    expect(wire.numbers).toEqual([1]);
  });

  test("detects a silent server", async () => {
    vi.useFakeTimers();
    const wire = new Wire();
    follow(wire);
    await settle();
    wire.hello(0);
    await vi.advanceTimersByTimeAsync(44_000);
    expect(wire.requested).toHaveLength(1);
    wire.send(": still here\n\n");
    await vi.advanceTimersByTimeAsync(44_000);
    expect(wire.requested).toHaveLength(1);
    await vi.advanceTimersByTimeAsync(15_000);
    expect(wire.requested).toHaveLength(2);
    expect(wire.troubles[0]?.why).toContain("silent");
  });

  test("a page that becomes visible retries at once", async () => {
    vi.useFakeTimers();
    const wire = new Wire();
    follow(wire);
    for (let count = 0; count < 6; count += 1) wire.failNext(503);
    await settle();
    wire.cut();
    await vi.advanceTimersByTimeAsync(6_000);
    const before = wire.requested.length;
    expect(before).toBeGreaterThan(3);
    document.dispatchEvent(new Event("visibilitychange"));
    await settle();
    expect(wire.requested.length).toBe(before + 1);
  });

  test("a connection after a suspension is not trusted", async () => {
    vi.useFakeTimers();
    const wire = new Wire();
    follow(wire);
    await settle();
    wire.hello(0);
    await settle();
    vi.setSystemTime(Date.now() + 30_000);
    dispatchEvent(new Event("online"));
    await vi.advanceTimersByTimeAsync(300);
    expect(wire.requested).toHaveLength(2);
  });

  test("a closed workspace is opened again", async () => {
    vi.useFakeTimers();
    const wire = new Wire();
    wire.failNext(404);
    follow(wire, 9);
    await vi.advanceTimersByTimeAsync(1_000);
    expect(wire.entered).toBe(1);
    expect(wire.requested).toEqual([9, 9]);
  });

  test("a refused page stops requesting", async () => {
    vi.useFakeTimers();
    const wire = new Wire();
    wire.failNext(401);
    follow(wire);
    await vi.advanceTimersByTimeAsync(60_000);
    expect(wire.refused).toBe("status 401");
    expect(wire.requested).toHaveLength(1);
  });

  test("waits longer without responses, and reports the next attempt", async () => {
    vi.useFakeTimers();
    const wire = new Wire();
    for (let count = 0; count < 20; count += 1) wire.failNext(0);
    follow(wire);
    await vi.advanceTimersByTimeAsync(20_000);
    const waits = wire.troubles.map((one, at) => one.retryAt - (wire.troubles[at - 1]?.retryAt ?? one.retryAt));
    expect(waits[2]).toBeGreaterThan(waits[1] ?? 0);
    expect(Math.max(...waits)).toBeLessThanOrEqual(5_000);
    expect(wire.troubles.map((one) => one.attempts)).toEqual(wire.troubles.map((_, at) => at + 1));
  });
});
