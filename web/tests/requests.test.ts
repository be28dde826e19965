// @vitest-environment node
import { describe, expect, it } from "vitest";
import { answerOf, isAnswered, NOTHING, toggle } from "../src/dialogs/answers.ts";
import { hasInvisible, escapeInvisible } from "../src/dialogs/escape-invisible.ts";
import { modelLines } from "../src/dialogs/model-lines.ts";
import { describeOutcome, subjectOf, describeRequest } from "../src/dialogs/permission-text.ts";
import type { PermissionRequest, Question } from "../src/wire/types.ts";

const shown = (text: string): string => escapeInvisible(text).map((piece) => (piece.hidden ? `<${piece.text}>` : piece.text)).join("");

describe("escapeInvisible", () => {
  it("escapes invisible characters", () => {
    expect(shown("rm\u001b[2K\u202ex\u200b\u00a0\t\r")).toBe("rm<\\x1b>[2K<\\u202e>x<\\u200b\\xa0\\t\\r>");
    expect(shown("a\u{e0041}b")).toBe("a<\\u{e0041}>b");
  });

  it("keeps ordinary text", () => {
    expect(shown("echo 'grüße 日本 🎉'\n ls")).toBe("echo 'grüße 日本 🎉'\n ls");
    expect(hasInvisible("make\tall\n")).toBe(false);
    expect(hasInvisible("ls \u202e")).toBe(true);
  });
});

const permission = (params: Record<string, unknown>, more: Partial<PermissionRequest> = {}): PermissionRequest => ({
  id: "a",
  session_id: "s",
  tool_call_id: "c",
  tool_name: "bash",
  description: "",
  action: "execute",
  path: "/w",
  params,
  ...more,
});

describe("a permission request", () => {
  it("is described in words", () => {
    expect(describeRequest(permission({}))).toBe("bash wants to run a command");
    expect(describeRequest(permission({}, { tool_name: "x", action: "dance" }))).toBe("x wants to dance");
  });

  it("shows a command, a change, or all parameters", () => {
    expect(subjectOf(permission({ command: "ls\nrm x" }))).toEqual({ kind: "command", command: "ls\nrm x", where: "/w" });
    const change = subjectOf(permission({ file_path: "/w/a", old_content: "1\n", new_content: "2\n" }));
    expect(change.kind === "change" && change.lines.map((line) => line.kind)).toEqual(["removed", "added"]);
    expect(subjectOf(permission({ url: "https://x", timeout: 0, deep: { a: 1 } }))).toEqual({
      kind: "facts",
      facts: [
        ["url", "https://x"],
        ["deep", '{\n  "a": 1\n}'],
      ],
    });
  });

  it("shows which client answered", () => {
    expect(describeOutcome({ tool_call_id: "c", granted: true, denied: false, by: "12345678-9", via: "terminal" })).toBe("Allowed in a terminal app (12345678).");
    expect(describeOutcome({ tool_call_id: "c", granted: false, denied: true })).toBe("Denied in another client.");
    expect(describeOutcome({ batch_id: "b", cancelled: true, via: "command" })).toBe("Dismissed on a command line.");
    expect(describeOutcome({ batch_id: "b", withdrawn: true })).toContain("its run has ended");
    expect(describeOutcome(undefined)).toContain("its run has ended");
  });
});

describe("answers to questions", () => {
  const one: Question = { id: "q", type: "single_choice", question: "?", choices: [{ id: "a", label: "A" }] };
  const many: Question = { ...one, type: "multi_choice" };
  const yes: Question = { id: "q", type: "yes_no", question: "?" };

  it("are empty when the question was skipped", () => {
    expect(answerOf(one, NOTHING)).toEqual({ request_id: "q" });
    expect(isAnswered(one, { ...NOTHING, text: "  " })).toBe(false);
  });

  it("contain choices and text", () => {
    expect(answerOf(one, { ...NOTHING, chosen: ["a"], text: " and more " })).toEqual({ request_id: "q", selected_ids: ["a"], fill_in_text: "and more" });
    expect(answerOf(yes, { ...NOTHING, yes: false, text: "because" })).toEqual({ request_id: "q", yes: false, notes: { _question: "because" } });
  });

  it("allow one choice or several", () => {
    expect(toggle(one, { ...NOTHING, chosen: ["b"] }, "a").chosen).toEqual(["a"]);
    expect(toggle(many, { ...NOTHING, chosen: ["b"] }, "a").chosen).toEqual(["b", "a"]);
    expect(toggle(many, { ...NOTHING, chosen: ["b", "a"] }, "b").chosen).toEqual(["a"]);
  });
});

describe("modelLines", () => {
  it("lists providers without a key last", () => {
    const lines = modelLines([
      { id: "far", name: "Far", lack: "Far needs a key.", models: [{ id: "m", context_window: 200_000, cost_per_1m_in: 3, cost_per_1m_out: 15 }] },
      { id: "none", lack: "No." },
      { id: "near", models: [{ id: "n", name: "N" }] },
    ]);
    expect(lines.map((line) => line.value)).toEqual(["near/n", "far/m", "none/"]);
    expect(lines[1]?.detail).toBe("Far · 200k tokens · $3 in, $15 out");
  });
});
