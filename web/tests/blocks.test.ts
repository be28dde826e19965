// @vitest-environment node
// Markdown split into blocks: the same blocks in any growth, closed ones never change, the tail stays short.

import { marked } from "marked";
import { describe, expect, test } from "vitest";
import { type Block, BlockStream, blocksOf, closeInline } from "../src/text/blocks.ts";

const TEXT = `# Title

A paragraph with **bold**
over two lines.

- one
- two

  still two

- three
1. first
2. second

   \`\`\`sh
   ls

   pwd
   \`\`\`

3. third

\`\`\`python
def f():

    return "\`\`\`"
\`\`\`
~~~
tilde \`\`\`
~~~

| a | b |
|---|---|
| 1 | 2 |

> quoted
> again

    indented

    code

the [end][1]

[1]: https://example.org/
`;

function streamed(text: string, step: number): { blocks: readonly Block[]; changed: number } {
  const stream = new BlockStream();
  let changed = 0;
  let before: Block[] = [];
  for (let end = step; end < text.length + step; end += step) {
    stream.feed(text.slice(0, end), end >= text.length);
    before.forEach((block, at) => (changed += Number(stream.closed[at] !== block)));
    before = [...stream.closed];
  }
  const { tail } = stream;
  return { blocks: tail === null ? stream.closed : [...stream.closed, tail], changed };
}

const html = (text: string): string => (marked.parse(text, { async: false }) as string).replace(/\s+/g, " ").trim();

/** Each block alone, as the page renders it. */
const drawn = (blocks: readonly Block[], definitions: string): string =>
  blocks
    .map((block) => (block.kind === "code" ? `\`\`\`\`${block.language}\n${block.text}\n\`\`\`\`\n` : block.text + definitions))
    .map(html)
    .join(" ")
    .trim();

describe("blocks", () => {
  test.each([1, 2, 3, 7, 50])("are the same for pieces of length %i, and closed ones never change", (step) => {
    const { blocks, changed } = streamed(TEXT, step);
    expect(blocks).toEqual(blocksOf(TEXT));
    expect(changed).toBe(0);
  });

  test("together equal the Markdown of the whole text", () => {
    const definitions = "\n\n[1]: https://example.org/\n";
    expect(drawn(blocksOf(TEXT), definitions)).toBe(html(TEXT));
  });

  test("code has a language and keeps other fences in it", () => {
    const code = blocksOf(TEXT).filter((block) => block.kind === "code");
    expect(code.map((block) => [block.language, block.text])).toEqual([
      ["python", 'def f():\n\n    return "```"'],
      ["", "tilde ```"],
    ]);
  });

  test("an open fence shows its code without the beginning of its end", () => {
    const stream = new BlockStream();
    stream.feed("```js\nlet a;\n``");
    expect(stream.tail).toEqual({ kind: "code", language: "js", text: "let a;", isOpen: true });
    stream.feed("```js\nlet a;\n``x");
    expect(stream.tail).toEqual({ kind: "code", language: "js", text: "let a;\n``x", isOpen: true });
    stream.feed("```js\nlet a;\n``x\n```\nmore");
    expect(stream.closed).toEqual([{ kind: "code", language: "js", text: "let a;\n``x", isOpen: false }]);
    expect(stream.tail).toEqual({ kind: "markdown", text: "more" });
  });

  test("an empty fence, one that never ends, and inline code that looks like one", () => {
    expect(blocksOf("```\n```")).toEqual([{ kind: "code", language: "", text: "", isOpen: false }]);
    expect(blocksOf("```c\nint")).toEqual([{ kind: "code", language: "c", text: "int", isOpen: false }]);
    expect(blocksOf("``` not a ` fence\n")[0]?.kind).toBe("markdown");
  });

  test("a different text restarts", () => {
    const stream = new BlockStream();
    stream.feed("one\n\ntwo\n\nthree");
    expect(stream.feed("quite another\n\ntext that is longer than it\n")).toBe(false);
    expect(stream.closed).toEqual([{ kind: "markdown", text: "quite another\n\n" }]);
  });

  test("an endless list does not make an endless tail", () => {
    const list = Array.from({ length: 2_000 }, (_, at) => `${at + 1}. item number ${at}\n`).join("");
    const stream = new BlockStream();
    let longest = 0;
    for (let end = 0; end < list.length; end += 97) {
      stream.feed(list.slice(0, end));
      longest = Math.max(longest, stream.tail?.text.length ?? 0);
    }
    expect(longest).toBeLessThan(2_200);
    expect(stream.closed[1]?.text).toMatch(/^\d+\. item/);
  });

  test("nor does a table: each piece has the heading", () => {
    const head = "| a | b |\n|---|---|\n";
    const table = head + Array.from({ length: 1_000 }, (_, at) => `| ${at} | x |\n`).join("");
    const stream = new BlockStream();
    let longest = 0;
    for (let end = 0; end <= table.length; end += 61) {
      stream.feed(table.slice(0, end));
      longest = Math.max(longest, stream.tail?.text.length ?? 0);
    }
    stream.feed(table, true);
    expect(longest).toBeLessThan(3_300);
    const rows = blocksOf(table).map((block) => html(block.text));
    expect(rows.every((piece) => piece.includes("<th>a</th>"))).toBe(true);
    expect(rows.join("").match(/<td>\d+<\/td>/g)).toHaveLength(1_000);
  });

  test("each character is processed a bounded number of times", () => {
    const words = "word ".repeat(4);
    const paragraphs = Array.from({ length: 3_000 }, () => `${words}\n\n`).join("");
    const stream = new BlockStream();
    let sliced = 0;
    for (let end = 0; end < paragraphs.length; end += 500) {
      stream.feed(paragraphs.slice(0, end));
      sliced += stream.tail?.text.length ?? 0;
    }
    // With each piece only the tail is rendered again, not the text.
    expect(sliced).toBeLessThan(paragraphs.length);
    expect(stream.closed.length).toBeGreaterThan(2_900);
  });
});

describe("open inline markup of a tail is closed", () => {
  test.each([
    ["some **bold", "some **bold**"],
    ["some **", "some "],
    ["some `code", "some `code`"],
    ["some `", "some "],
    ["see [the docs](https://exa", "see the docs"],
    ["**a** and `b` [c](d)", "**a** and `b` [c](d)"],
    ["**a\n\nb `c", "**a\n\nb `c`"],
  ])("%j", (before, after) => expect(closeInline(before)).toBe(after));
});
