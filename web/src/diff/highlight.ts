// Syntax highlighting of a diff: each side is highlighted as code, then split into lines.

import { highlightLines } from "../text/highlight.ts";
import type { Line } from "../text/highlight.ts";
import type { DiffLine, Span } from "./lines.ts";

export type Colours = ReadonlyMap<DiffLine, Line>;

export interface Piece {
  readonly text: string;
  /** Class names of a token; empty for plain text. */
  readonly kind: string;
  readonly isChanged: boolean;
}

/** Lines after this number are not highlighted. */
const MAX_LINES = 1_000;

/** Returns the tokens of each line; null if the language is unknown or the diff is too long. */
export async function coloursOf(lines: readonly DiffLine[], language: string): Promise<Colours | null> {
  if (language === "") return null;
  const found = new Map<DiffLine, Line>();
  const shown = lines.slice(0, MAX_LINES).filter((line) => line.kind !== "hunk");
  for (const missing of ["added", "removed"] as const) {
    const side = shown.filter((line) => line.kind !== missing);
    if (side.length === 0) continue;
    const coloured = await highlightLines(side.map((line) => line.text).join("\n"), language);
    if (coloured === null || coloured.length !== side.length) return null;
    side.forEach((line, at) => found.set(line, coloured[at] ?? []));
  }
  return found;
}

/** Splits a line wherever a token or a changed range begins or ends. Pure. */
export function piecesOf(text: string, tokens: Line, spans: readonly Span[]): Piece[] {
  const pieces: Piece[] = [];
  let at = 0;
  let next = 0;
  for (const token of tokens.length > 0 ? tokens : [{ text, kind: "" }]) {
    const end = at + token.text.length;
    while (at < end) {
      while (next < spans.length && (spans[next]?.[1] ?? 0) <= at) next += 1;
      const [from, to] = spans[next] ?? [end, end];
      const isChanged = from <= at;
      const cut = Math.min(end, isChanged ? to : from);
      pieces.push({ text: text.slice(at, cut), kind: token.kind, isChanged });
      at = cut;
    }
  }
  return pieces;
}
