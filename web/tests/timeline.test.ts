// @vitest-environment node
import { describe, expect, it } from "vitest";
import { axisOf, formatDuration, packRows, spaceLabels, ticksOf } from "../src/timeline/layout.ts";
import { framesOf, describeEvent, viewAt } from "../src/timeline/replay.ts";
import { sharesOf, Tracker, tracksOf } from "../src/timeline/tracks.ts";
import type { LogEvent, Track } from "../src/timeline/tracks.ts";
import type { Message, Part, Run } from "../src/wire/types.ts";

/** A log that is written as events occur. */
class Book {
  readonly events: LogEvent[] = [];

  add(at: number, type: string, payload: unknown, change = "updated"): this {
    this.events.push({ number: this.events.length + 1, at, type, payload: { type: change, payload } } as unknown as LogEvent);
    return this;
  }

  run(at: number, id: string, more: Partial<Run>, change = "updated"): this {
    return this.add(at, "run", { run_id: id, session_id: "s", delivery: "queue", state: "active", accepted_at: 1_000, ...more }, change);
  }

  message(at: number, id: string, run: string, role: Message["role"], parts: readonly Part[], change = "updated"): this {
    return this.add(at, "message", { id, role, parts, session_id: "s", run_id: run, model: "m", provider: "p", created_at: 1, updated_at: 1 }, change);
  }

  end(at: number, run: string, outcome = "completed"): this {
    return this.add(at, "run_complete", { run_id: run, session_id: "s", message_id: "m", outcome });
  }
}

const think: Part = { type: "reasoning", data: { thinking: "hm", signature: "" } };
const text: Part = { type: "text", data: { text: "so" } };
const calling = (id: string, finished: boolean): Part => ({ type: "tool_call", data: { id, name: "bash", input: finished ? '{"command":"ls"}' : "", ...(finished ? { finished } : {}) } });
const answered = (id: string, is_error = false): Part => ({ type: "tool_result", data: { tool_call_id: id, name: "bash", content: "", metadata: "", is_error } });
const over: Part = { type: "finish", data: { reason: "tool_use", time: 1 } };

/** Accepted at 1 s, started at 3 s; a thought, a tool that waits 2 s for approval, an answer; the end at 12 s. */
function aRun(): Book {
  return new Book()
    .run(1_000, "r", { state: "waiting", prompt: "do it" }, "created")
    .run(3_000, "r", { started_at: 3_000 })
    .run(3_000, "r", { started_at: 3_000, step: 1 })
    .message(3_000, "m1", "r", "assistant", [], "created")
    .message(3_500, "m1", "r", "assistant", [think])
    .message(5_000, "m1", "r", "assistant", [think, calling("c", false)])
    .message(5_200, "m1", "r", "assistant", [think, calling("c", true)])
    .add(5_300, "permission_request", { id: "a", session_id: "s", tool_call_id: "c", run_id: "r", tool_name: "bash" }, "created")
    .add(5_300, "permission_notification", { id: "a", tool_call_id: "c", granted: false, denied: false }, "created")
    .add(7_300, "permission_notification", { id: "a", tool_call_id: "c", granted: true, denied: false }, "created")
    .message(8_200, "t1", "r", "tool", [answered("c")], "created")
    .message(8_200, "m1", "r", "assistant", [think, calling("c", true), over])
    .run(8_200, "r", { started_at: 3_000, step: 2 })
    .message(8_200, "m2", "r", "assistant", [], "created")
    .message(9_000, "m2", "r", "assistant", [text])
    .message(12_000, "m2", "r", "assistant", [text, over])
    .end(12_000, "r");
}

const only = (book: Book): Track => {
  const [track] = tracksOf(book.events);
  if (!track) throw new Error("no track");
  return track;
};

describe("tracksOf", () => {
  it("contains the phases of a run", () => {
    const track = only(aRun());
    expect(track).toMatchObject({ runId: "r", prompt: "do it", accepted: 1_000, started: 3_000, ended: 12_000, outcome: "completed" });
    expect(track.steps.map(({ step, start, end }) => [step, start, end])).toEqual([
      [1, 3_000, 8_200],
      [2, 8_200, 12_000],
    ]);
    expect(track.steps[0]?.phases.map(({ kind, start, end }) => [kind, start, end])).toEqual([
      ["wait", 3_000, 3_500],
      ["think", 3_500, 5_000],
      ["call", 5_000, 5_200],
    ]);
    expect(track.steps[1]?.phases.map(({ kind, start, end }) => [kind, start, end])).toEqual([
      ["wait", 8_200, 9_000],
      ["write", 9_000, 12_000],
    ]);
    expect(track.tools).toMatchObject([{ name: "bash", step: 1, start: 5_200, end: 8_200, failed: false, approvals: [{ start: 5_300, end: 7_300, verdict: "allowed" }] }]);
    expect(track.numbers).toHaveLength(17);
  });

  it("relabels a phase that began without an event", () => {
    const step = (first: Part, second: Part[]): string[] => {
      const book = new Book()
        .run(1_000, "r", {}, "created")
        .run(1_000, "r", { started_at: 1_000, step: 1 })
        .message(1_000, "m", "r", "assistant", [], "created")
        .message(3_000, "m", "r", "assistant", [first, ...second])
        .end(4_000, "r");
      return only(book).steps[0]?.phases.map((phase) => phase.kind) ?? [];
    };
    expect(step(text, [over])).toEqual(["write"]);
    expect(step(think, [text])).toEqual(["think", "write"]);
    expect(step(think, [calling("c", false)])).toEqual(["think", "call"]);
    expect(step(calling("c", false), [])).toEqual(["wait", "call"]);
    expect(step(text, [])).toEqual(["wait", "write"]);
  });

  it("distributes the time without counting overlaps twice", () => {
    expect(sharesOf(only(aRun()), 99_000)).toEqual({ waiting: 2_000, model: 2_200 + 3_800, tools: 1_000, approval: 2_000, total: 11_000 });
  });

  it("is the same for a complete and for a growing log", () => {
    const { events } = aRun();
    const tracker = new Tracker();
    for (let count = 1; count <= events.length; count++) tracker.read(events.slice(0, count));
    expect(tracker.read(events)).toEqual(tracksOf(events));
  });

  it("leaves active phases open", () => {
    const book = aRun();
    const track = tracksOf(book.events.slice(0, 7))[0];
    expect(track).toMatchObject({ ended: null, outcome: null });
    expect(track?.tools[0]?.end).toBeNull();
    expect(sharesOf(track as Track, 6_200).tools).toBe(1_000);
  });

  it("separates calls of different runs with the same id", () => {
    const book = aRun()
      .run(13_000, "q", { accepted_at: 13_000 }, "created")
      .run(13_000, "q", { accepted_at: 13_000, started_at: 13_000, step: 1 })
      .message(13_000, "m3", "q", "assistant", [calling("c", true)], "created")
      .message(14_000, "t3", "q", "tool", [answered("c", true)], "created")
      .end(15_000, "q", "failed");
    const [first, second] = tracksOf(book.events);
    expect(first?.tools[0]).toMatchObject({ end: 8_200, failed: false });
    expect(second?.tools[0]).toMatchObject({ start: 13_000, end: 14_000, failed: true });
  });

  it("closes interrupted phases with the run", () => {
    const book = new Book()
      .run(1_000, "r", { prompt: "x" }, "created")
      .run(1_000, "r", { started_at: 1_000, step: 1 })
      .message(1_000, "m", "r", "assistant", [calling("c", true)], "created")
      .run(2_000, "r", { started_at: 1_000, step: 1, cancel_requested: true, state: "cancelling" })
      .end(2_500, "r", "cancelled");
    expect(only(book)).toMatchObject({ cancelAt: 2_000, ended: 2_500, outcome: "cancelled" });
    expect(only(book).tools[0]?.end).toBe(2_500);
  });

  it("drops a run that was refused", () => {
    expect(tracksOf(new Book().run(1_000, "r", {}, "created").run(1_100, "r", {}, "deleted").events)).toEqual([]);
  });

  it("marks a prompt that was folded into another run", () => {
    const book = new Book().run(1_000, "f", { state: "waiting", prompt: "and" }, "created").run(2_000, "f", { state: "folded", folded_into: "r" });
    expect(only(book)).toMatchObject({ foldedInto: "r", started: null });
  });
});

const span = (runId: string, accepted: number, ended: number): Track => ({ ...only(new Book().run(accepted, runId, { accepted_at: accepted }, "created")), accepted, ended });

describe("the axis", () => {
  const tracks = [span("a", 0, 10_000), span("b", 8_000, 20_000), span("c", 3_620_000, 3_630_000)];

  it("compresses long pauses and draws the rest to scale", () => {
    const axis = axisOf(tracks, 0, "clock");
    const [a, b, c] = tracks as [Track, Track, Track];
    expect(axis.segments.map((segment) => segment.idle)).toEqual([false, true, false]);
    expect(axis.position(a, 5_000)).toBe(5_000);
    expect(axis.position(b, 8_000)).toBe(8_000);
    expect(axis.position(c, 3_620_000)).toBeCloseTo(20_000 + 0.04 * 30_000);
    expect(axis.length).toBeCloseTo(30_000 * 1.04);
  });

  it("is monotonic", () => {
    const axis = axisOf(tracks, 0, "clock");
    let last = -1;
    for (let time = -5_000; time < 3_640_000; time += 1_777) {
      const at = axis.position(tracks[0] as Track, time);
      expect(at).toBeGreaterThanOrEqual(last);
      last = at;
    }
  });

  it("starts every run at zero for comparison", () => {
    const axis = axisOf(tracks, 0, "zero");
    expect(axis.position(tracks[2] as Track, 3_620_000)).toBe(0);
    expect(axis.length).toBe(12_000);
  });

  it("extends open runs to the current time", () => {
    const open = { ...span("a", 1_000, 0), ended: null };
    expect(axisOf([open], 5_000, "clock").length).toBe(4_000);
    expect(axisOf([], 5_000, "clock").length).toBe(1);
  });

  it("has ticks at round distances that do not overlap", () => {
    const axis = axisOf(tracks, 0, "clock");
    const ticks = ticksOf(axis, 1_700);
    expect(ticks.slice(0, 3).map((tick) => tick.since)).toEqual([0, 2_000, 4_000]);
    const worded = spaceLabels(ticks, axis.length, 2_500).filter((tick) => tick.isWorded);
    worded.slice(1).forEach((tick, at) => expect(tick.at - (worded[at]?.at ?? 0)).toBeGreaterThanOrEqual(2_500));
    expect(worded.some((tick) => tick.isFirst && tick.at > 0)).toBe(true);
  });

  it("assigns overlapping intervals to rows", () => {
    expect(packRows([{ start: 0, end: 5 }, { start: 1, end: 2 }, { start: 2, end: 9 }, { start: 5, end: 6 }])).toEqual([0, 1, 1, 0]);
  });

  it("formats durations", () => {
    expect([0, 999, 4_230, 59_400, 61_000, 3_720_000].map(formatDuration)).toEqual(["0 ms", "999 ms", "4.2 s", "59 s", "1 min 01 s", "1 h 02 min"]);
  });
});

describe("a replay", () => {
  it("shows the view after each event", () => {
    const book = aRun();
    const frames = framesOf(book.events, only(book));
    expect(frames).toHaveLength(17);
    expect(viewAt(frames, 1).messages("s")).toEqual([]);
    expect(viewAt(frames, 1).runs.get("r")?.state).toBe("waiting");
    expect(viewAt(frames, 5).messages("s")[0]?.parts).toEqual([think]);
    expect(viewAt(frames, 9).permissions.size).toBe(1);
    expect(viewAt(frames, 10).permissions.size).toBe(0);
    expect(viewAt(frames, 17).runs.get("r")?.outcome).toBe("completed");
  });

  it("describes every event", () => {
    expect(aRun().events.map(describeEvent)).toEqual([
      "accepted, queued",
      "it starts",
      "step 1 begins",
      "model request",
      "model thinks",
      "prepares bash",
      "calls bash ls",
      "bash requests permission",
      "permission requested",
      "permission given",
      "result of bash",
      "answer ends: tool use",
      "step 2 begins",
      "model request",
      "model writes",
      "answer ends: tool use",
      "end: completed",
    ]);
  });

  it("has only the events of its run", () => {
    const book = aRun().run(20_000, "other", { accepted_at: 20_000 }, "created");
    const [first, second] = tracksOf(book.events) as [Track, Track];
    expect(framesOf(book.events, first)).toHaveLength(17);
    expect(framesOf(book.events, second).map((event) => event.number)).toEqual([18]);
  });
});
