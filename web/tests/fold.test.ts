// @vitest-environment node
// The TypeScript fold and the Python fold yield the same view of the same events: both are tested with the recordings.

import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { afterCodePoints, codePoints, lastCodePoints } from "../src/fold/message-delta.ts";
import { View } from "../src/fold/view.ts";
import { decodeItem } from "../src/wire/events.ts";
import type { Snapshot } from "../src/wire/types.ts";

type Step = { snapshot: Snapshot; session: string | null } | { number: number | null; event: { type: string; payload: any } };

interface Recording {
  readonly steps: readonly Step[];
  readonly shown: Readonly<Record<"all" | "watched", unknown>>;
  readonly digests: Readonly<Record<"all" | "watched", string>>;
}

const FOLD = join(import.meta.dirname, "../../tests/web/fold");
const names = readdirSync(FOLD).filter((name) => name.endsWith(".json"));

class Fold {
  private readonly view: View;
  private readonly sessions = new Set<string>();
  private readonly changed: boolean[] = [];

  constructor(keepsAll: boolean) {
    this.view = new View({ keepsAll });
  }

  apply(step: Step): void {
    if ("snapshot" in step) {
      this.view.load(step.snapshot, step.session);
      return;
    }
    this.changed.push(this.view.apply(decodeItem({ data: JSON.stringify(step.event), number: step.number })));
    const inner = step.event.payload?.payload ?? step.event.payload;
    this.sessions.add(inner?.session_id ?? "");
  }

  shown(): unknown {
    const { view } = this;
    const messages = [...this.sessions].map((name) => [name, view.messages(name)] as const);
    return {
      cursor: view.cursor,
      is_stale: view.isStale,
      workspace: view.workspace,
      sessions: [...view.sessions.values()],
      runs: [...view.runs.values()],
      permissions: [...view.permissions.values()],
      questions: [...view.questions.values()],
      outputs: Object.fromEntries(view.outputs),
      presence: view.presence,
      notices: view.notices,
      messages: Object.fromEntries(messages.filter(([, found]) => found.length > 0)),
      changed: this.changed,
    };
  }
}

/** JSON with sorted keys, as Python writes it. */
function plain(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(plain).join(",")}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return `{${entries.map(([name, one]) => `${JSON.stringify(name)}:${plain(one)}`).join(",")}}`;
}

describe("the same view as the Python fold after every step", () => {
  test.each(names.flatMap((name) => [[name, "all"] as const, [name, "watched"] as const]))("%s, %s", (name, kind) => {
    const recording = JSON.parse(readFileSync(join(FOLD, name), "utf8")) as Recording;
    expect(recording.steps.length).toBeGreaterThan(0);
    const fold = new Fold(kind === "all");
    recording.steps.forEach((step, at) => {
      fold.apply(step);
      const digest = createHash("sha256").update(plain(fold.shown())).digest("hex").slice(0, 8);
      expect(`${at}: ${digest}`).toBe(`${at}: ${recording.digests[kind].slice(8 * at, 8 * at + 8)}`);
    });
    expect(fold.shown()).toEqual(recording.shown[kind]);
  });
});

describe("code points", () => {
  const text = "a😀b👋🏽é𝔘";
  const points = [...text];

  test("are counted and cut as Python does", () => {
    expect(codePoints(text)).toBe(points.length);
    for (let count = 0; count <= points.length; count += 1) {
      expect(afterCodePoints(text, count)).toBe(points.slice(count).join(""));
      expect(lastCodePoints(text, count)).toBe(points.slice(points.length - count).join(""));
    }
  });

  test("a lone surrogate counts as one", () => {
    expect(codePoints("\ud83da")).toBe(2);
    expect(codePoints("a\ud83d")).toBe(2);
  });
});

test("a token costs the same however long its message is", () => {
  const message = { id: "m", session_id: "s", role: "assistant", parts: [{ type: "text", data: { text: "" } }], model: "", provider: "", created_at: 1, updated_at: 1 } as const;
  const view = new View();
  view.apply({ number: 1, event: { type: "message", payload: { type: "created", payload: message } } });
  let read = 0;
  let offset = 0;
  const feed = (count: number): void => {
    for (let at = 0; at < count; at += 1) {
      // A text that counts accesses to its characters.
      const text = "word ";
      view.apply({ number: null, event: { type: "message_delta", payload: { session_id: "s", message_id: "m", part: 0, offset, text } } });
      offset += text.length;
      read += 1;
    }
  };
  feed(20_000);
  const [part] = view.message("s", "m")?.parts ?? [];
  expect(part?.type === "text" && part.data.text.length).toBe(5 * read);
  // A repeated delta, an overlapping one, and one that leaves a gap.
  view.apply({ number: null, event: { type: "message_delta", payload: { session_id: "s", message_id: "m", part: 0, offset: offset - 5, text: "word more" } } });
  view.apply({ number: null, event: { type: "message_delta", payload: { session_id: "s", message_id: "m", part: 0, offset: offset + 100, text: "hole" } } });
  const [grown] = view.message("s", "m")?.parts ?? [];
  expect(grown?.type === "text" && grown.data.text.slice(-9)).toBe("word more");
});
