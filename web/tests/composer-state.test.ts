// Completions and history of the composer: the same as in the terminal app.

import { describe, expect, test, vi } from "vitest";
import { completed, type Completions } from "../src/chat/completion.ts";
import { activityOf, noteOf, sizeOf } from "../src/chat/descriptions.ts";
import { base64, kindOf, textFile } from "../src/chat/files.tsx";
import { best, mentionAt, mentionsIn } from "../src/chat/mentions.ts";
import { Recall } from "../src/chat/prompt-history.ts";
import { Callers } from "../src/store/flush.ts";
import { forgetSession, addToHistory, sent, text } from "../src/store/composer-state.ts";
import { chosenId } from "../src/store/state.ts";
import type { Message, Run } from "../src/wire/types.ts";

describe("mentioned files", () => {
  test("the letters before the cursor", () => {
    expect(["@src/a", "see @x", "mail a@b", "@", "@a b", "x\n@y"].map(mentionAt)).toEqual(["src/a", "x", null, "", null, "y"]);
  });

  test("names in a text", () => {
    expect(mentionsIn('look at @src/a.py, @"my file.txt" and (@b) @src/a.py. mail a@b.de')).toEqual(["src/a.py", "my file.txt"]);
  });

  test("the start of a name scores more than its middle, and a name more than its directory", () => {
    const names = ["deep/view/other.py", "src/review.py", "src/view.py", "vim/ie/w.txt", "nothing"];
    expect(best("view", names)).toEqual(["src/view.py", "src/review.py", "deep/view/other.py", "vim/ie/w.txt"]);
    expect(best("", ["long/name", "a"])).toEqual(["a", "long/name"]);
  });

  test("a name is completed in place", () => {
    const offers: Completions = { kind: "file", from: 4, list: [], chosen: 0 };
    const pick = (value: string) => ({ value, description: "", runs: false });
    expect(completed("see @vi and", 7, offers, pick("src/view.py"))).toEqual(["see @src/view.py and", 16]);
    expect(completed("see @vi", 7, offers, pick("my view.py"))).toEqual(['see @"my view.py" ', 18]);
  });
});

test("the history of sent prompts ends with the current draft", () => {
  sent.value = [];
  ["one", "two", "one"].forEach(addToHistory);
  expect(sent.value).toEqual(["two", "one"]);
  const recall = new Recall();
  expect(recall.step(1, "draft")).toBeNull();
  expect([recall.step(-1, "draft"), recall.step(-1, "one"), recall.step(-1, "two")]).toEqual(["one", "two", null]);
  expect([recall.step(1, "two"), recall.step(1, "one"), recall.step(1, "draft")]).toEqual(["one", "draft", null]);
});

test("the draft of a deleted session is gone, also from the browser's storage", () => {
  chosenId.value = "one";
  text.value = "a secret draft";
  addToHistory("a secret prompt");
  chosenId.value = "two";
  expect(sessionStorage.getItem("holdfast-drafts")).toContain("a secret draft");
  forgetSession("one");
  expect(sessionStorage.getItem("holdfast-drafts") ?? "").not.toContain("a secret draft");
  text.value = "another draft";
  forgetSession("two");
  chosenId.value = "one";
  expect([text.value, sent.value]).toEqual(["", []]);
  expect(sessionStorage.getItem("holdfast-drafts")).toBeNull();
});

test("results are matched to calls although a model reuses ids", () => {
  const callers = new Callers();
  const calling = (id: string): Message => ({
    id, role: "assistant", session_id: "s", model: "", provider: "", created_at: 1, updated_at: 1,
    parts: [{ type: "tool_call", data: { id: "call_0", name: "bash", input: "{}", finished: true } }],
  });
  callers.note(calling("m1"));
  expect(callers.of("t1", "call_0")).toBe("m1");
  callers.note(calling("m2"));
  expect(callers.of("t2", "call_0")).toBe("m2");
  expect(callers.of("t1", "call_0")).toBe("m1");
  expect(callers.of("t3", "unknown")).toBe("");
});

describe("drafts", () => {
  /** The page, reloaded in the same tab. */
  async function loaded() {
    vi.resetModules();
    const [composing, state] = await Promise.all([import("../src/store/composer-state.ts"), import("../src/store/state.ts")]);
    return { text: composing.text, go: (session: string | null) => void (state.chosenId.value = session) };
  }

  test("each session has its own, and they survive a reload", async () => {
    sessionStorage.clear();
    const before = await loaded();
    before.text.value = "without a session";
    before.go("one");
    before.text.value = "for one";
    before.go("two");
    expect(before.text.value).toBe("");
    const after = await loaded();
    expect(after.text.value).toBe("without a session");
    after.go("one");
    expect(after.text.value).toBe("for one");
    after.text.value = "";
    after.go("two");
    const last = await loaded();
    last.go("one");
    expect(last.text.value).toBe("");
  });

  test.each(["no JSON", "[1]", "null", '{"": 7}'])("invalid stored drafts are ignored: %s", async (stored) => {
    sessionStorage.setItem("holdfast-drafts", stored);
    expect((await loaded()).text.value).toBe("");
  });
});

describe("attachments", () => {
  test("images and PDFs unchanged, others as text, binary files refused", () => {
    const bytes = (text: string) => new TextEncoder().encode(text);
    expect(kindOf("image/png", bytes("x\0"))).toBe("image/png");
    expect(kindOf("application/pdf", bytes("x\0"))).toBe("application/pdf");
    expect(kindOf("application/json", bytes("{}"))).toBe("text/plain; charset=utf-8");
    expect(kindOf("application/zip", bytes("PK\0"))).toBeNull();
  });

  test("any number of bytes is preserved", () => {
    for (const size of [0, 1, 2, 3, 100_000]) {
      const bytes = Uint8Array.from({ length: size }, (_, at) => at % 256);
      expect(Buffer.from(base64(bytes), "base64").equals(Buffer.from(bytes))).toBe(true);
    }
    expect(Buffer.from(textFile("ü", "a.txt").content, "base64").toString()).toBe("ü");
    expect([0, 1_023, 2_048, 5_242_880].map(sizeOf)).toEqual(["0 B", "1023 B", "2 KB", "5.0 MB"]);
  });
});

describe("activity", () => {
  const run: Run = { run_id: "r", session_id: "s", state: "active", delivery: "steer", accepted_at: 1, started_at: 2 };
  const answer = (...parts: Message["parts"]): Message => ({ id: "m", role: "assistant", session_id: "s", model: "", provider: "", created_at: 1, updated_at: 1, parts });

  test("is described as in the terminal app", () => {
    expect(activityOf([], undefined, null)).toBe("");
    expect(activityOf([{ ...run, started_at: 0 }], undefined, null)).toBe("Starting");
    expect(activityOf([run], undefined, null)).toBe("Waiting for the model");
    expect(activityOf([run], answer({ type: "reasoning", data: { thinking: "", signature: "" } }), null)).toBe("Thinking");
    expect(activityOf([run], answer({ type: "text", data: { text: "x" } }), null)).toBe("Writing");
    const call = { id: "c", name: "bash", input: '{"command": "ls -la\\nx"}' };
    expect(activityOf([run], answer({ type: "tool_call", data: call }), null)).toBe("Preparing bash");
    expect(activityOf([run], answer({ type: "tool_call", data: { ...call, finished: true } }), null)).toBe("Running bash: ls -la x");
    expect(activityOf([run], answer({ type: "tool_call", data: { ...call, finished: true } }), null, true)).toBe("Waiting for approval");
    expect(activityOf([{ ...run, cancel_requested: true }], undefined, null)).toBe("Stopping");
    expect(activityOf([run], undefined, { type: "retrying", error: "busy; again in 2 s" })).toBe("busy; again in 2 s");
    expect(activityOf([{ ...run, kind: "summary" }], undefined, null)).toBe("Summarising");
  });

  test("an error has a hint", () => {
    expect(noteOf({ reason: "error", time: 1, message: "401: no key" })?.hint).toContain("key");
    expect(noteOf({ reason: "error", time: 1, message: "whatever" })?.hint).not.toBe("");
    expect(noteOf({ reason: "canceled", time: 1, message: "Cancelled" })).toEqual({ kind: "info", title: "Cancelled", text: "", hint: "" });
    expect(noteOf({ reason: "end_turn", time: 1 })).toBeNull();
    expect(noteOf({ reason: "max_tokens", time: 1 })?.hint).toContain("continue");
  });
});
