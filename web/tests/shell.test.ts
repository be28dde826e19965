// @vitest-environment node
import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { changedFiles, changingRuns, planned } from "../src/panels/changed-files.ts";
import { mergeRuns } from "../src/panels/merge-runs.ts";
import { findMatches, findInSessions } from "../src/panels/search-matches.ts";
import { clear, fetchSessions, sessionCache, unfetched } from "../src/panels/session-cache.ts";
import { endNotifications } from "../src/shell/notifications.ts";
import { describeReconnect } from "../src/shell/connection.tsx";
import { ago, dayOf, elapsed, money, thousands } from "../src/shell/format.ts";
import { groupByDay, buildTree } from "../src/shell/session-tree.ts";
import { meterOf, windowOf } from "../src/shell/context-usage.ts";
import type { FileVersion, Message, Run, Session } from "../src/wire/types.ts";

const session = (id: string, more: Partial<Session> = {}): Session => ({
  id,
  parent_session_id: "",
  title: id,
  message_count: 0,
  prompt_tokens: 0,
  completion_tokens: 0,
  summary_message_id: "",
  cost: 0,
  created_at: 1,
  updated_at: 1,
  is_busy: false,
  attached_clients: 0,
  ...more,
});

describe("the list of sessions", () => {
  const all = [session("old", { updated_at: 1 }), session("new", { updated_at: 9 }), session("help", { parent_session_id: "old", title: "Fetch Analysis" })];

  it("is sorted by the latest change, with sub-agents below their parents", () => {
    expect(buildTree(all).map((tree) => [tree.session.id, tree.subagents.map((subagent) => subagent.id)])).toEqual([
      ["new", []],
      ["old", ["help"]],
    ]);
  });

  it("is filtered by words, also of sub-agents", () => {
    expect(buildTree(all, "fetch").map((tree) => tree.session.id)).toEqual(["old"]);
    expect(buildTree(all, "nothing")).toEqual([]);
  });

  it("has headings by day", () => {
    const now = new Date(2026, 5, 20, 12).getTime() / 1000;
    expect(dayOf(now - 60, now)).toBe("Today");
    expect(dayOf(now - 86_400, now)).toBe("Yesterday");
    expect(dayOf(now - 3 * 86_400, now)).toBe("This week");
    expect(groupByDay(buildTree(all), now)[0]?.[0]).toBe("Earlier");
  });
});

describe("formatted numbers", () => {
  it("match the terminal app", () => {
    expect([elapsed(900), elapsed(61_000), elapsed(3_660_000)]).toEqual(["0 s", "1 min 01 s", "1 h 01 min"]);
    expect([ago(5), ago(120), ago(7_300), ago(200_000)]).toEqual(["now", "2 min ago", "2 h ago", "2 d ago"]);
    expect([thousands(12), thousands(1_500), thousands(200_000), thousands(1_048_576)]).toEqual(["12", "1.5k", "200k", "1M"]);
    expect([money(0), money(0.0012), money(1.234)]).toEqual(["$0.00", "$0.0012", "$1.23"]);
  });

  it("show the context usage", () => {
    const config = { models: { large: { provider: "p", model: "m" } }, providers: { p: { id: "p", models: [{ id: "m", context_window: 1_000 }] } } };
    expect(windowOf(config, null)).toBe(1_000);
    expect(windowOf({}, null)).toBe(0);
    expect(meterOf(session("s", { prompt_tokens: 700, completion_tokens: 50 }), 1_000)).toMatchObject({ share: 0.75, level: "full" });
    expect(meterOf(session("s", { prompt_tokens: 950 }), 1_000).level).toBe("over");
    expect(meterOf(null, 0)).toMatchObject({ share: null, level: "calm" });
  });
});

const version = (path: string, number: number, content: string, more: Partial<FileVersion> = {}): FileVersion => ({
  id: `${path}${number}`,
  session_id: "s",
  path,
  content,
  version: number,
  created_at: number,
  updated_at: number,
  ...more,
});

describe("changed files", () => {
  const versions = [
    version("a", 0, "1", { origin: "outside", run_id: "r1" }),
    version("a", 1, "2", { run_id: "r1" }),
    version("a", 2, "3", { run_id: "r2" }),
    version("b", 0, "", { origin: "outside", is_missing: true, run_id: "r1" }),
    version("b", 1, "x", { run_id: "r1" }),
    version("c", 0, "same", { origin: "outside", run_id: "r2" }),
    version("c", 1, "other", { run_id: "r2" }),
    version("c", 2, "same", { origin: "undo", run_id: "r2", restores: 0 }),
  ];

  it("differ from their first version", () => {
    expect(changedFiles(versions).map((file) => [file.path, file.first.content, file.last.content, file.runs])).toEqual([
      ["a", "1", "3", ["r2", "r1"]],
      ["b", "", "x", ["r1"]],
    ]);
  });

  it("have the runs that changed them", () => {
    expect(changingRuns(changedFiles(versions))).toEqual([
      { runId: "r2", files: 1, at: 2 },
      { runId: "r1", files: 2, at: 1 },
    ]);
  });

  it("describe the effect of an undo, refusals first", () => {
    expect(
      planned(
        [
          { path: "/w/a.py", outcome: "removed", version: 0 },
          { path: "/w/b.py", outcome: "refused", version: 1, reason: "it has changed since" },
        ],
        "/w",
      ),
    ).toEqual(["b.py: it has changed since", "a.py is removed"]);
  });
});

describe("runs", () => {
  it("merge events with the prompt of the first one", () => {
    const run = (more: Partial<Run>): Run => ({ run_id: "r", session_id: "s", state: "active", delivery: "queue", accepted_at: 1, number: 3, ...more });
    const both = mergeRuns([run({ prompt: "do it", ended_at: 9 }), run({ run_id: "q", number: 7 })], [run({ state: "ended", outcome: "completed" })]);
    expect(both.map((one) => one.run_id)).toEqual(["q", "r"]);
    expect(both[1]).toMatchObject({ prompt: "do it", state: "ended", outcome: "completed", ended_at: 9 });
  });
});

describe("notifications", () => {
  const run = (id: string, more: Partial<Run>): Run => ({ run_id: id, session_id: "s", state: "ended", delivery: "queue", accepted_at: 1, outcome: "completed", ...more });

  it("report only runs that have just ended", () => {
    const now = [
      run("done", {}),
      run("failed", { outcome: "failed" }),
      run("earlier", {}),
      run("cancelled", { outcome: "cancelled" }),
      run("subagent", { parent_run_id: "done" }),
      run("folded", { folded_into: "done" }),
      run("going", { state: "active" }),
    ];
    const before = new Set(now.map((one) => one.run_id).filter((id) => id !== "earlier"));
    expect(endNotifications(before, now, [session("s", { title: "The parser" })])).toEqual(["Completed: The parser", "It failed: The parser"]);
  });
});

describe("search", () => {
  const message = (id: string, role: Message["role"], parts: Message["parts"]): Message => ({ id, role, parts, session_id: "s", model: "", provider: "", created_at: 1, updated_at: 1 });
  const messages = [
    message("u", "user", [{ type: "text", data: { text: "Where is the PARSER?" } }]),
    message("a", "assistant", [{ type: "tool_call", data: { id: "c", name: "grep", input: '{"pattern":"parser"}', finished: true } }]),
    message("t", "tool", [{ type: "tool_result", data: { tool_call_id: "c", name: "grep", content: "in parser.py\nparser", metadata: "", is_error: false } }]),
  ];

  it("finds every match and its message", () => {
    expect(findMatches(messages, "parser").map((hit) => [hit.messageId, hit.kind, hit.found])).toEqual([
      ["u", "you", "PARSER"],
      ["a", "tool", "parser"],
      ["a", "result", "parser"],
      ["a", "result", "parser"],
    ]);
  });

  it("is bounded, and returns nothing without words", () => {
    expect(findMatches(messages, "parser", 2)).toHaveLength(2);
    expect(findMatches(messages, "  ")).toEqual([]);
  });
});

describe("search in all sessions", () => {
  const message = (id: string, text: string): Message => ({
    id, role: "user", parts: [{ type: "text", data: { text } }], session_id: "s", model: "", provider: "", created_at: 1, updated_at: 1,
  });

  it("finds titles and texts by session, a few matches of each", () => {
    const all = [session("one", { title: "The Lexer" }), session("two", { title: "Other" }), session("three", { title: "Nothing" })];
    const texts: Record<string, Message[]> = { one: [message("m1", "a parser")], two: Array.from({ length: 9 }, (_, at) => message(`n${at}`, "lexer")) };
    const found = findInSessions(all, (id) => texts[id] ?? [], "LEXER");
    expect(found.map((one) => one.session.id)).toEqual(["one", "two"]);
    expect(found[0]?.hits.map((hit) => [hit.kind, hit.found, hit.messageId])).toEqual([["title", "Lexer", ""]]);
    expect(found[1]?.hits.map((hit) => hit.messageId)).toEqual(["n0", "n1", "n2", "n3", "n4"]);
    expect(findInSessions(all, (id) => texts[id] ?? [], " ")).toEqual([]);
  });

  it("fetches each session once until it changes; a deleted one is ignored", async () => {
    clear();
    const requested: string[] = [];
    const read = async (id: string): Promise<Message[]> => {
      requested.push(id);
      if (id === "gone") throw new Error("404");
      return [message(`of ${id}`, id)];
    };
    const list = [session("a", { updated_at: 1 }), session("gone", { updated_at: 1 }), session("b", { updated_at: 1 })];
    await fetchSessions(list, read);
    await fetchSessions([session("a", { updated_at: 2 }), ...list.slice(1)], read);
    expect(requested).toEqual(["a", "gone", "b", "a"]);
    expect(sessionCache.value.get("b")?.messages.map((one) => one.id)).toEqual(["of b"]);
    expect(unfetched.value).toBe(0);
    const first = fetchSessions([session("c", {}), session("d", {})], read);
    clear();
    await first;
    expect(sessionCache.value.size).toBe(0);
  });
});

/** Text must be readable: WCAG AA in both themes. */
describe("colours", () => {
  const css = readFileSync("src/styles/tokens.css", "utf8");
  const tokens = new Map([...css.matchAll(/--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)/g)].map((found) => [found[1] ?? "", [found[2] ?? "", found[3] ?? ""] as const]));
  const pairs: [string, string[]][] = [
    ["text", ["bg", "surface", "panel", "raised", "accent-soft", "warning-soft", "code-bg", "found", "selected"]],
    ["muted", ["bg", "surface", "panel", "raised", "accent-soft", "code-bg"]],
    ["faint", ["bg", "surface", "raised", "code-bg"]],
    ["accent-strong", ["bg", "surface", "accent-soft", "raised"]],
    ["error", ["bg", "surface", "raised", "error-soft", "code-bg"]],
    ["success", ["bg", "surface", "raised", "success-soft"]],
    ["warning", ["bg", "surface", "raised", "warning-soft"]],
    ["on-accent", ["accent", "accent-strong", "violet", "teal", "error"]],
    ["added", ["added-bg", "added-part"]],
    ["removed", ["removed-bg", "removed-part"]],
    ["violet", ["bg", "raised"]],
    ["teal", ["bg", "raised", "code-bg"]],
  ];
  const light = (hex: string): number => {
    const [r = 0, g = 0, b = 0] = [1, 3, 5].map((at) => {
      const part = Number.parseInt(hex.slice(at, at + 2), 16) / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one: string, other: string): number => {
    const [low = 0, high = 0] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  for (const [front, backs] of pairs) {
    it(`${front} is readable on ${backs.join(", ")}`, () => {
      for (const back of backs) {
        for (const theme of [0, 1] as const) {
          const [a, b] = [tokens.get(front)?.[theme] ?? "", tokens.get(back)?.[theme] ?? ""];
          expect(contrast(a, b), `${front} on ${back}, ${theme ? "dark" : "light"}`).toBeGreaterThanOrEqual(4.5);
        }
      }
    });
  }
});

describe("the notice of a reconnect", () => {
  it.each([
    [{ from: 74, missed: 10014, gap: false }, "Connected again after event 74: missed events were received."],
    [{ from: 74, missed: 0, gap: false }, "Connected again after event 74: nothing was missed."],
    [{ from: 74, missed: 0, gap: true }, "Connected again after event 74: everything was reloaded."],
  ])("describes a reconnect without counting skipped numbers", (resumed, text) => {
    expect(describeReconnect(resumed)).toBe(text);
  });
});
