/** Syntax highlighting as plain tokens, never as HTML. Code beyond a limit stays plain. */

export interface Token {
  readonly text: string;
  /** Class names of highlight.js; empty for plain text. */
  readonly kind: string;
}

export type Line = readonly Token[];

/** Longer code is not highlighted, because it would block the page. */
export const MAX_CODE = 40_000;

const ENDINGS: Readonly<Record<string, string>> = {
  bash: "bash", c: "c", cc: "cpp", cfg: "ini", cpp: "cpp", cs: "csharp", css: "css", cts: "typescript", diff: "diff", go: "go",
  h: "c", hpp: "cpp", htm: "xml", html: "xml", ini: "ini", java: "java", js: "javascript", json: "json", jsonl: "json",
  jsx: "javascript", kt: "kotlin", kts: "kotlin", lua: "lua", md: "markdown", mjs: "javascript", mk: "makefile", mts: "typescript",
  patch: "diff", php: "php", py: "python", pyi: "python", rb: "ruby", rs: "rust", sh: "bash", sql: "sql", svg: "xml", swift: "swift",
  toml: "ini", ts: "typescript", tsx: "typescript", xml: "xml", yaml: "yaml", yml: "yaml", zsh: "bash",
};

/** Returns the language of a file by its name; empty if it is unknown. */
export function languageOf(path: string): string {
  const name = path.slice(path.lastIndexOf("/") + 1).toLowerCase();
  if (name === "dockerfile" || name === "makefile") return name;
  return ENDINGS[name.slice(name.lastIndexOf(".") + 1)] ?? "";
}

const ENTITIES: Readonly<Record<string, string>> = { amp: "&", lt: "<", gt: ">", quot: '"', "#x27": "'" };
const PIECE = /<span class="([^"]*)">|<\/span>|&(amp|lt|gt|quot|#x27);|([^<&]+)|[<&]/g;

/** Splits the spans of highlight.js into lines of tokens. Pure. */
export function linesOf(html: string): readonly Line[] {
  const lines: Token[][] = [[]];
  const open: string[] = [];
  let text = "";
  const flushText = (): void => {
    const kind = open.filter(Boolean).join(" ");
    text.split("\n").forEach((piece, at) => {
      if (at > 0) lines.push([]);
      if (piece !== "") lines[lines.length - 1]?.push({ text: piece, kind });
    });
    text = "";
  };
  for (const found of html.matchAll(PIECE)) {
    const [whole, opened, entity, plain] = found;
    if (opened !== undefined) {
      flushText();
      open.push(opened);
    } else if (whole === "</span>") {
      flushText();
      open.pop();
    } else text += entity !== undefined ? (ENTITIES[entity] ?? "") : (plain ?? whole);
  }
  flushText();
  return lines;
}

/** Longer code is highlighted in several steps, with a pause between them. */
const CHUNK_SIZE = 5_000;
const BORDER = /\n[ \t]*\n(?=\S)/g;

/** Splits code at likely boundaries: after an empty line, before a line that is not indented. Joining the parts with
 * line ends yields the original code. Pure. */
export function stretchesOf(code: string): string[] {
  const stretches: string[] = [];
  let start = 0;
  while (code.length - start > CHUNK_SIZE) {
    BORDER.lastIndex = start + CHUNK_SIZE;
    const found = BORDER.exec(code);
    if (found === null) break;
    const end = found.index + found[0].length;
    stretches.push(code.slice(start, end - 1));
    start = end;
  }
  return [...stretches, code.slice(start)];
}

const rest = (): Promise<void> =>
  new Promise((resolve) => {
    if (typeof requestIdleCallback === "function") requestIdleCallback(() => resolve(), { timeout: 200 });
    else setTimeout(resolve);
  });

/** Returns highlighted lines; null if the language is unknown or the code is too long. */
export async function highlightLines(code: string, language: string): Promise<readonly Line[] | null> {
  const name = language.toLowerCase();
  if (name === "" || name === "text" || name === "plaintext" || code.length > MAX_CODE) return null;
  try {
    const { coloured } = await import("./languages.ts");
    const lines: Line[] = [];
    for (const stretch of stretchesOf(code)) {
      if (lines.length > 0) await rest();
      const html = coloured(stretch, ENDINGS[name] ?? name);
      if (html === null) return null;
      lines.push(...linesOf(html));
    }
    return lines;
  } catch {
    return null;
  }
}

/** Returns nodes for the lines, with line ends between them. */
export function fragmentOf(lines: readonly Line[]): DocumentFragment {
  const nodes = document.createDocumentFragment();
  lines.forEach((line, at) => {
    if (at > 0) nodes.append("\n");
    for (const token of line) {
      if (token.kind === "") {
        nodes.append(token.text);
        continue;
      }
      const span = document.createElement("span");
      span.className = token.kind;
      span.textContent = token.text;
      nodes.append(span);
    }
  });
  return nodes;
}
