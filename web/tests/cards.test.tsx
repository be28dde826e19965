import { render } from "preact";
import { act } from "preact/test-utils";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { foldAll } from "../src/cards/folding.ts";
import { ToolCard } from "../src/cards/index.ts";
import { answerOf, changeOf, copyOf, cut, headlineOf, matchesOf, plain, shellOf, sizeOfChange, todosOf, durationOf } from "../src/cards/tool-data.ts";
import type { ToolCall, ToolResult } from "../src/wire/types.ts";

const call = (name: string, input: unknown, finished = true): ToolCall => ({ id: "c", name, input: JSON.stringify(input), finished });
const result = (name: string, content: string, metadata: unknown = {}, is_error = false): ToolResult => ({
  tool_call_id: "c",
  name,
  content,
  metadata: JSON.stringify(metadata),
  is_error,
});

describe("data of a card", () => {
  it("has a line for each tool", () => {
    expect(headlineOf("view", '{"file_path":"/w/src/a.py","offset":9}', "", "/w")).toBe("src/a.py  from line 10");
    expect(headlineOf("bash", '{"command":"make\\nmake test","run_in_background":true}')).toBe("make …  (in the background)");
    expect(headlineOf("grep", '{"pattern":"x","path":"/w/src"}', "", "/w")).toBe("x  in src");
    expect(headlineOf("todos", '{"todos":[{"content":"a","status":"completed"},{"content":"b","status":"pending"}]}')).toBe("1 of 2 done");
    expect(headlineOf("bash", '{"comm')).toBe("");
    expect(headlineOf("bash", '{"command":"a\\u001b[0m"}')).toBe("a·[0m");
  });

  it("parses the exit code of a command", () => {
    const metadata = JSON.stringify({ start_time: 1_000, end_time: 3_500, output: "oh\nExit code 3" });
    expect(shellOf("", metadata, "", true)).toEqual({ text: "oh", exit: 3 });
    expect(durationOf(metadata)).toBe(2_500);
    expect(shellOf("hi\n\n<cwd>/w</cwd>", "", "", true)).toEqual({ text: "hi", exit: null });
    expect(shellOf("", "", "so far", false)).toEqual({ text: "so far", exit: null });
    expect(shellOf("", '{"end_time":1,"background":true}', "", true).exit).toBeNull();
    expect(shellOf("", '{"end_time":1,"output":"fine"}', "", true).exit).toBe(0);
  });

  it("finds the change in the result of each tool", () => {
    const kinds = (lines: ReturnType<typeof changeOf>): string => lines.map((line) => line.kind[0]).join("");
    expect(kinds(changeOf("write", "{}", JSON.stringify({ diff: "@@ -1 +1 @@\n-a\n+b\n" })))).toBe("ra");
    expect(kinds(changeOf("edit", "{}", JSON.stringify({ old_content: "a\n", new_content: "a\nb\n" })))).toBe("sa");
    expect(kinds(changeOf("edit", JSON.stringify({ old_string: "a", new_string: "b" })))).toBe("ra");
    expect(kinds(changeOf("multiedit", JSON.stringify({ edits: [{ old_string: "a", new_string: "b" }] })))).toBe("ra");
    expect(changeOf("view", '{"content":"x"}')).toEqual([]);
    expect(sizeOfChange([], '{"additions":4,"removals":2}')).toEqual({ added: 4, removed: 2 });
  });

  it("parses the result of grep", () => {
    expect(matchesOf("Found 2 matches\n\n/w/a.py:\n  Line 4, Char 5: def a():\n  Line 9, Char 1: a()")).toEqual([
      { path: "/w/a.py", matches: [{ line: 4, text: "def a():" }, { line: 9, text: "a()" }] },
    ]);
    expect(matchesOf("No matches found")).toBeNull();
  });

  it("is bounded", () => {
    const text = Array.from({ length: 100 }, (_, at) => `${at}`).join("\n");
    expect(cut(text, 10)).toEqual({ text: "0\n1\n2\n3\n4\n5\n6\n7\n8\n9", hidden: 90 });
    expect(cut(text, 2, true)).toEqual({ text: "98\n99", hidden: 98 });
    expect(cut("a\nb\n\n", 1)).toEqual({ text: "a\nb", hidden: 0 });
    const handful = text.split("\n").slice(0, 16).join("\n");
    expect(cut(handful, 12)).toEqual({ text: handful, hidden: 0 });
    expect(cut(`${handful}\n16`, 12).hidden).toBe(5);
  });

  it("removes terminal colours and cursor movements", () => {
    expect(plain("\u001b[31mred\u001b[0m 10%\r20%\n\u001b]0;title\u0007x\r\ny\u0007")).toBe("20%\nx\ny·");
  });

  it("shows answers with their labels", () => {
    const input = JSON.stringify({ questions: [{ choices: [{ id: "pg", label: "PostgreSQL" }] }] });
    expect(answerOf('User selected: ["pg","x"]', input)).toBe("PostgreSQL, x");
    expect(answerOf("User answered: yes", input)).toBe("yes");
    expect(answerOf("User skipped this question", input)).toBe("skipped this question");
  });

  it("copies the relevant text", () => {
    expect(copyOf('{"command":"ls"}', "", "out")).toBe("ls");
    expect(copyOf("{}", '{"content":"file"}', "out")).toBe("file");
    expect(copyOf("{}", "", "out")).toBe("out");
    expect(todosOf("", '{"todos":[{"content":"a","status":"pending"}]}')).toEqual([{ content: "a", status: "pending" }]);
  });
});

let container: HTMLElement;
beforeEach(() => {
  container = document.createElement("div");
  document.body.append(container);
});
afterEach(() => {
  render(null, container);
  container.remove();
});
const draw = (card: preact.JSX.Element): HTMLElement => {
  act(() => render(card, container));
  return container.querySelector("article") as HTMLElement;
};

describe("ToolCard", () => {
  it("shows the output of a running command, then its exit code", () => {
    const bash = call("bash", { command: "make" });
    const running = draw(<ToolCard call={bash} output={"compiling\n"} />);
    expect(running.dataset["state"]).toBe("running");
    expect(running.textContent).toContain("compiling");
    const done = draw(<ToolCard call={bash} result={result("bash", "", { start_time: 1, end_time: 2, output: "broken\nExit code 2" })} />);
    expect(done.textContent).toContain("exit 2");
    expect(done.textContent).toContain("broken");
  });

  it("is not shown as running while it waits for approval", () => {
    const card = draw(<ToolCard call={call("bash", { command: "make" })} isAwaitingApproval />);
    expect(card.dataset["state"]).toBe("awaiting-approval");
    expect(card.querySelector(".spinner")).toBeNull();
    expect(card.textContent).toContain("waits for approval");
  });

  it("is not shown as running after an interruption", () => {
    const card = draw(<ToolCard call={call("bash", { command: "make" })} isOver />);
    expect(card.dataset["state"]).toBe("cut");
    expect(card.querySelector(".spinner")).toBeNull();
  });

  it("shows a change with its size", () => {
    const card = draw(<ToolCard call={call("edit", { file_path: "/w/a.py" })} result={result("edit", "ok", { old_content: "a\n", new_content: "b\n", additions: 1, removals: 1 })} directory="/w" />);
    expect(card.querySelector("td.added")?.textContent).toBe("+b");
    expect(card.textContent).toContain("+1");
    expect(card.textContent).toContain("a.py");
  });

  it("folds the results of reading tools until they are opened", () => {
    const card = draw(<ToolCard call={call("view", { file_path: "a" })} result={result("view", "", { content: "inside" })} />);
    expect(card.textContent).not.toContain("inside");
    act(() => card.querySelector<HTMLButtonElement>(".card-fold")?.click());
    expect(card.textContent).toContain("inside");
  });

  it("opens and closes with all others", () => {
    const card = draw(<ToolCard call={call("view", { file_path: "a" })} result={result("view", "", { content: "inside" })} />);
    act(() => foldAll());
    expect(card.textContent).toContain("inside");
    act(() => foldAll());
    expect(card.textContent).not.toContain("inside");
  });

  it("shows a hostile result as text only", () => {
    const card = draw(<ToolCard call={call("mcp_evil_tool", { a: "<img src=x>", b: 1 })} result={result("mcp_evil_tool", "<script>alert(1)</script><img src=https://x onerror=alert(1)>")} />);
    act(() => card.querySelector<HTMLButtonElement>(".card-fold")?.click());
    expect(card.querySelector("script, img")).toBeNull();
    expect(card.textContent).toContain("<script>alert(1)</script>");
  });

  it("limits a long output and shows more on demand", () => {
    const text = Array.from({ length: 5_000 }, (_, at) => `line ${at}`).join("\n");
    const card = draw(<ToolCard call={call("bash", { command: "x" })} result={result("bash", "", { end_time: 1, output: text })} />);
    expect(card.querySelector("pre")?.textContent?.split("\n")).toHaveLength(12);
    act(() => card.querySelector<HTMLButtonElement>(".more")?.click());
    expect(card.querySelector("pre")?.textContent?.split("\n")).toHaveLength(512);
  });
});
