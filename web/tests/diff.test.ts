// @vitest-environment node
import { describe, expect, it } from "vitest";
import { coloursOf, piecesOf } from "../src/diff/highlight.ts";
import { changedWords, common, countChanges, diffOf, hasTwoSides, pairLines, parseUnified } from "../src/diff/lines.ts";
import type { DiffLine } from "../src/diff/lines.ts";

const short = (lines: readonly DiffLine[]): string[] =>
  lines.map((item) => `${{ same: " ", added: "+", removed: "-", hunk: "~" }[item.kind]}${item.text}`);

function random(seed: number): () => number {
  return () => (seed = (seed * 1_103_515_245 + 12_345) & 0x7fffffff) / 0x7fffffff;
}

describe("diffOf", () => {
  it("is empty for equal texts", () => {
    expect(diffOf("a\nb\n", "a\nb")).toEqual([]);
  });

  it("shows a change with context and line numbers", () => {
    const before = Array.from({ length: 20 }, (_, at) => `line ${at + 1}`).join("\n");
    const lines = diffOf(before, before.replace("line 10", "line ten"));
    expect(short(lines)).toEqual(["~", " line 7", " line 8", " line 9", "-line 10", "+line ten", " line 11", " line 12", " line 13"]);
    expect(lines.find((item) => item.kind === "added")?.new).toBe(10);
  });

  it("marks omitted lines between two changes", () => {
    const before = Array.from({ length: 40 }, (_, at) => `${at}`).join("\n");
    const lines = diffOf(before, before.replace("\n5\n", "\nfive\n").replace("\n30\n", "\nthirty\n"));
    expect(lines.filter((item) => item.kind === "hunk")).toHaveLength(2);
  });

  it("handles a new file and an emptied one", () => {
    expect(short(diffOf("", "a\nb\n"))).toEqual(["+a", "+b"]);
    expect(short(diffOf("a\n", ""))).toEqual(["-a"]);
  });

  it("always transforms the old text into the new one", () => {
    const next = random(7);
    for (let round = 0; round < 300; round++) {
      const make = (): string[] => Array.from({ length: Math.floor(next() * 12) }, () => "abc"[Math.floor(next() * 3)] ?? "a");
      const old = make();
      const now = make();
      const lines = diffOf(old.join("\n"), now.join("\n"), 99);
      if (old.join() === now.join()) continue;
      expect(lines.filter((item) => item.kind === "same" || item.kind === "removed").map((item) => item.text)).toEqual(old);
      expect(lines.filter((item) => item.kind === "same" || item.kind === "added").map((item) => item.text)).toEqual(now);
      const same = common(old, now);
      expect(same.every(([a, b]) => old[a] === now[b])).toBe(true);
    }
  });

  it("gives up quickly on two large unrelated texts", () => {
    const one = Array.from({ length: 20_000 }, (_, at) => `a${at}`).join("\n");
    const other = Array.from({ length: 20_000 }, (_, at) => `b${at}`).join("\n");
    expect(countChanges(diffOf(one, other))).toEqual({ added: 20_000, removed: 20_000 });
  });
});

describe("parseUnified", () => {
  it("parses a unified diff", () => {
    const lines = parseUnified("--- a/x\n+++ b/x\n@@ -3,3 +3,3 @@\n same\n-old\n+new\n\\ No newline at end of file\n");
    expect(short(lines)).toEqual(["~", " same", "-old", "+new"]);
    expect(lines[2]).toMatchObject({ old: 4, new: 0 });
    expect(lines[3]).toMatchObject({ old: 0, new: 4 });
  });

  it("does not treat the header as a change", () => {
    expect(parseUnified("--- a\n+++ b\n")).toEqual([]);
  });
});

describe("pairLines", () => {
  it("pairs removed lines with their replacements", () => {
    const pairs = pairLines(diffOf("a\nb\nc", "a\nB\nBB\nc"));
    expect(pairs.map(([old, now]) => [old?.text ?? null, now?.text ?? null])).toEqual([
      ["a", "a"],
      ["b", "B"],
      [null, "BB"],
      ["c", "c"],
    ]);
  });
});

describe("two columns", () => {
  it("are used for changed files, but not for new or deleted ones", () => {
    expect(hasTwoSides(diffOf("a\nb", "a\nx\nb"))).toBe(true);
    expect(hasTwoSides(diffOf("a\nb", "a"))).toBe(true);
    expect(hasTwoSides(diffOf("a", "b"))).toBe(true);
    expect(hasTwoSides(diffOf("", "a\nb"))).toBe(false);
    expect(hasTwoSides(diffOf("a\nb", ""))).toBe(false);
  });
});

describe("similar lines", () => {
  const sides = (before: string, after: string): (string | null)[][] => pairLines(diffOf(before, after)).map(([old, now]) => [old?.text ?? null, now?.text ?? null]);

  it("are paired although a line was added between them", () => {
    expect(sides("def total(text):\n    return sum(parse(text))", 'def total(text, start):\n    """Their sum."""\n    return sum(parse(text), start)')).toEqual([
      ["def total(text):", "def total(text, start):"],
      [null, '    """Their sum."""'],
      ["    return sum(parse(text))", "    return sum(parse(text), start)"],
    ]);
  });

  it("lose no line in any pairing", () => {
    const next = random(3);
    for (let round = 0; round < 200; round++) {
      const make = (): string[] => Array.from({ length: Math.floor(next() * 9) }, () => `${"ab"[Math.floor(next() * 2)]} ${"xyz"[Math.floor(next() * 3)]} ${Math.floor(next() * 3)}`);
      const [old, now] = [make(), make()];
      const pairs = sides(old.join("\n"), now.join("\n"));
      if (old.join() === now.join()) continue;
      expect(pairs.map(([left]) => left).filter((text) => text !== null)).toHaveLength(diffOf(old.join("\n"), now.join("\n")).filter((line) => line.kind !== "added").length);
      expect(pairs.map(([, right]) => right).filter((text) => text !== null)).toHaveLength(diffOf(old.join("\n"), now.join("\n")).filter((line) => line.kind !== "removed").length);
    }
  });
});

describe("changedWords", () => {
  it("marks only the words that differ", () => {
    const found = changedWords("const total = sum(items);", "const total = sum(items, tax);");
    expect(found.old).toEqual([]);
    expect(found.new.map(([from, to]) => "const total = sum(items, tax);".slice(from, to)).join("")).toBe(", tax");
  });

  it("marks nothing where little is in common", () => {
    expect(changedWords("alpha beta", "one two three")).toEqual({ old: [], new: [] });
  });
});

describe("highlighting of a diff", () => {
  const lines = diffOf("def f(x):\n    return 'a'\n", "def f(x):\n    return 'b'  # other\n");

  it("uses the code of each side", async () => {
    const found = await coloursOf(lines, "python");
    const kinds = lines.map((line) => (found?.get(line) ?? []).filter((token) => token.kind).map((token) => `${token.kind.split(" ").at(-1)}:${token.text}`));
    expect(lines.map((line) => line.kind)).toEqual(["same", "removed", "added"]);
    expect(kinds[0]).toContain("hljs-keyword:def");
    expect(kinds[1]).toEqual(["hljs-keyword:return", "hljs-string:'a'"]);
    expect(kinds[2]).toEqual(["hljs-keyword:return", "hljs-string:'b'", "hljs-comment:# other"]);
    for (const line of lines) expect((found?.get(line) ?? []).map((token) => token.text).join("")).toBe(line.text);
  });

  it("works for new and deleted files", async () => {
    for (const change of [diffOf("", "x = 1\ny = 2\n"), diffOf("x = 1\n", "")]) expect((await coloursOf(change, "python"))?.size).toBe(change.length);
  });

  it("is omitted for unknown languages and long diffs", async () => {
    expect(await coloursOf(lines, "")).toBeNull();
    expect(await coloursOf(lines, "klingon")).toBeNull();
    expect(await coloursOf(diffOf("", "x = 1\n".repeat(200) + "y".repeat(50_000)), "python")).toBeNull();
  });

  it("is split at changed words without losing a character", () => {
    const tokens = [{ text: "return ", kind: "k" }, { text: "'abc'", kind: "s" }, { text: ";", kind: "" }];
    expect(piecesOf("return 'abc';", tokens, [[3, 9], [12, 13]])).toEqual([
      { text: "ret", kind: "k", isChanged: false },
      { text: "urn ", kind: "k", isChanged: true },
      { text: "'a", kind: "s", isChanged: true },
      { text: "bc'", kind: "s", isChanged: false },
      { text: ";", kind: "", isChanged: true },
    ]);
    expect(piecesOf("plain", [], [[1, 2]]).map((piece) => piece.text)).toEqual(["p", "l", "ain"]);
    expect(piecesOf("plain", [], [])).toEqual([{ text: "plain", kind: "", isChanged: false }]);
  });

  it("a change of indentation is not a changed word", () => {
    expect(changedWords("        await send(items)", "    await send(items)")).toEqual({ old: [], new: [] });
    expect(changedWords("  value = before + one", "    value = before + two")).toEqual({ old: [[19, 22]], new: [[21, 24]] });
  });
});
