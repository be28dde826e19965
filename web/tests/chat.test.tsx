// The rendered conversation: closed blocks are not changed, thoughts are folded, errors have hints.

import { options, render } from "preact";
import { act } from "preact/test-utils";
import { beforeEach, describe, expect, test, vi } from "vitest";
import { Conversation } from "../src/chat/transcript.tsx";
import { Markdown } from "../src/text/markdown.tsx";
import type { Message, Part } from "../src/wire/types.ts";

let container: HTMLElement;

beforeEach(() => {
  container = document.createElement("div");
  document.body.replaceChildren(container);
});

const message = (role: Message["role"], ...parts: Part[]): Message => ({
  id: `m-${role}`, role, session_id: "s", model: "large", provider: "p", created_at: 1_700_000_000, updated_at: 1_700_000_000, parts,
});
const shown = async (...messages: Message[]): Promise<void> => act(() => render(<Conversation messages={messages} directory="/w" />, container));

describe("Markdown that grows", () => {
  const TEXT = "# One\n\nA paragraph with **bold** words.\n\n```python\nx = 1\n```\n\n- a\n- b\n\nThe last one grows";

  test("keeps the elements of closed blocks, and ends like a complete text", async () => {
    const elements = new Map<number, Element>();
    for (let end = 1; end <= TEXT.length; end += 1) {
      await act(() => render(<Markdown text={TEXT.slice(0, end)} live />, container));
      const blocks = [...container.querySelectorAll(".chunk > *")];
      // All but the last are closed.
      blocks.slice(0, -1).forEach((element, at) => {
        expect(elements.get(at) ?? element).toBe(element);
        elements.set(at, element);
      });
    }
    await act(() => render(<Markdown text={TEXT} />, container));
    const whole = document.createElement("div");
    await act(() => render(<Markdown text={TEXT} />, whole));
    expect(container.textContent).toBe(whole.textContent);
    expect(elements.size).toBe(3);
  });

  test("a token changes only the last chunk, at any length", async () => {
    const long = Array.from({ length: 600 }, (_, at) => `## Part ${at}\n\nSome *words* of part ${at}, and more of them.\n\n- a\n- b\n\n`).join("");
    await act(() => render(<Markdown text={`${long}The last `} live />, container));
    const chunks = [...container.querySelectorAll(".chunk")];
    expect(chunks.length).toBeGreaterThan(2);
    expect(container.querySelectorAll(".chunk h4")).toHaveLength(600);
    const touched: MutationRecord[] = [];
    const seen = new MutationObserver((records) => touched.push(...records));
    seen.observe(container, { subtree: true, childList: true, characterData: true, attributes: true });
    const drawn = vi.fn();
    options.diffed = drawn;
    await act(() => render(<Markdown text={`${long}The last paragraph **grows**`} live />, container));
    await vi.waitFor(() => expect(chunks.at(-1)?.querySelector("strong")?.textContent).toBe("grows"));
    seen.disconnect();
    delete options.diffed;
    expect(drawn.mock.calls.length).toBeLessThan(400);
    expect(touched.length).toBeGreaterThan(0);
    expect(touched.filter((one) => !chunks.at(-1)?.contains(one.target))).toEqual([]);
  });

  test("a link definition applies to earlier text", async () => {
    await act(() => render(<Markdown text={"See [there][x].\n\nMore.\n\n"} live />, container));
    expect(container.querySelector("a")).toBeNull();
    await act(() => render(<Markdown text={"See [there][x].\n\nMore.\n\n[x]: https://example.org/\n\nEnd"} live />, container));
    expect(container.querySelector("a")?.getAttribute("href")).toBe("https://example.org/");
  });

  test("a different text is rendered again", async () => {
    await act(() => render(<Markdown text={"one\n\ntwo\n\nthree"} />, container));
    await act(() => render(<Markdown text="quite another" />, container));
    expect(container.textContent).toBe("quite another");
  });

  test("an open fence is rendered as growing code", async () => {
    await act(() => render(<Markdown text={"```py\nx = 1"} live />, container));
    const code = container.querySelector("code");
    await act(() => render(<Markdown text={"```py\nx = 1\ny = 2\n"} live />, container));
    expect(container.querySelector("code")).toBe(code);
    expect(code?.textContent).toBe("x = 1\ny = 2\n");
    await act(() => render(<Markdown text={"```py\nx = 1\ny = 2\n```\n"} live />, container));
    expect(container.querySelector("code")?.textContent).toBe("x = 1\ny = 2");
    expect(container.querySelector(".language")?.textContent).toBe("py");
    expect(container.querySelector("button")?.getAttribute("aria-label")).toBe("Copy the code");
  });

  test("definitions at the end apply to earlier text", async () => {
    await act(() => render(<Markdown text={"see [x]\n\nmore\n\n[x]: https://example.org/\n\nend"} />, container));
    expect(container.querySelector("a")?.getAttribute("href")).toBe("https://example.org/");
  });

  test("a very long code block is complete, in pieces", async () => {
    const code = Array.from({ length: 500 }, (_, at) => `line ${at}`).join("\n");
    await act(() => render(<Markdown text={`\`\`\`\n${code}\n\`\`\`\n`} />, container));
    expect(container.querySelector("code")?.textContent).toBe(code);
    expect(container.querySelectorAll("code > span").length).toBe(10);
  });
});

describe("messages", () => {
  test("a prompt is shown as it was written, not as Markdown or HTML", async () => {
    await shown(message("user", { type: "text", data: { text: "**not bold** <b>x</b>\n  indented" } }));
    expect(container.querySelector(".prompt")?.textContent).toBe("**not bold** <b>x</b>\n  indented");
    expect(container.querySelector("strong, b")).toBeNull();
    expect(container.querySelector("[data-testid=message]")?.getAttribute("data-role")).toBe("user");
  });

  test("a thought is folded and opens", async () => {
    await shown(message("assistant", { type: "reasoning", data: { thinking: "first\nsecond", signature: "", started_at: 10, finished_at: 13 } }, { type: "text", data: { text: "answer" } }));
    const fold = container.querySelector<HTMLButtonElement>(".thought button");
    expect(fold?.getAttribute("aria-expanded")).toBe("false");
    expect(fold?.textContent).toContain("Thought for 3 s");
    expect(container.textContent).not.toContain("first");
    await act(() => fold?.click());
    expect(fold?.getAttribute("aria-expanded")).toBe("true");
    expect(container.querySelector(".thought .markdown")?.textContent).toContain("first");
  });

  test("a failed answer shows what to do; a complete one has a time and a copy button", async () => {
    await shown(message("assistant", { type: "text", data: { text: "half" } }, { type: "finish", data: { reason: "error", time: 1_700_000_009, message: "The provider is overloaded (429)." } }));
    expect(container.querySelector("[role=alert]")?.textContent).toContain("overloaded");
    expect(container.querySelector("[role=alert]")?.textContent).toContain("Wait a moment");
    await shown(message("assistant", { type: "text", data: { text: "done" } }, { type: "finish", data: { reason: "end_turn", time: 1_700_000_009 } }));
    expect(container.querySelector("[role=alert]")).toBeNull();
    expect(container.querySelector("footer time")).not.toBeNull();
    expect(container.querySelector("footer button")?.getAttribute("aria-label")).toBe("Copy this answer");
  });

  test("a call is shown with its result, and tool messages are not shown", async () => {
    const call = { id: "c1", name: "bash", input: '{"command":"ls"}', finished: true };
    const result = { tool_call_id: "c1", name: "bash", content: "a.txt", metadata: "", is_error: false };
    await shown(message("assistant", { type: "tool_call", data: call }), message("tool", { type: "tool_result", data: result }));
    expect(container.querySelectorAll("[data-testid=message]")).toHaveLength(1);
    expect(container.querySelector("[data-testid=tool]")?.getAttribute("data-state")).toBe("done");
    expect(container.textContent).toContain("a.txt");
  });

  test("files and shell commands", async () => {
    await shown(
      message(
        "user",
        { type: "binary", data: { Path: "a/b.png", MIMEType: "image/png", Data: "aGk=" } },
        { type: "binary", data: { Path: "x.svg", MIMEType: "image/svg+xml", Data: "aGk=" } },
        { type: "shell_command", data: { command: "false", output: "<i>no</i>", exit_code: 1 } },
      ),
    );
    expect([...container.querySelectorAll("img")].map((one) => one.getAttribute("src"))).toEqual(["data:image/png;base64,aGk="]);
    expect(container.textContent).toContain("2 B");
    expect(container.textContent).toContain("exit code 1");
    expect(container.querySelector(".shell-command pre")?.textContent).toBe("<i>no</i>");
  });
});

test("a part that fails to render does not affect the others", async () => {
  const quiet = vi.spyOn(console, "error").mockImplementation(() => undefined);
  const broken = { type: "reasoning", data: null } as unknown as Part;
  await shown(message("assistant", { type: "text", data: { text: "before" } }, broken, { type: "text", data: { text: "after" } }));
  expect(container.textContent).toContain("before");
  expect(container.textContent).toContain("after");
  expect(container.textContent).toContain("This part cannot be displayed");
  quiet.mockRestore();
});
