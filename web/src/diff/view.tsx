// A change as people read it: one column, or two; the words that differ stand out; long ones come in portions.

import type { ComponentChildren, JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { store, stored } from "../shell/ui.ts";
import { changedWords, paired } from "./lines.ts";
import type { DiffLine, Pair, Span } from "./lines.ts";

export type Columns = "unified" | "split";

/** How changes are shown everywhere; the choice is kept. */
export const columns = signal<Columns>(stored("diff") === "split" ? "split" : "unified");

export function turnColumns(): void {
  columns.value = columns.value === "split" ? "unified" : "split";
  store("diff", columns.value);
}

const PORTION = 400;
const SIGNS = { same: " ", added: "+", removed: "-", hunk: "" } as const;

export interface DiffProps {
  readonly lines: readonly DiffLine[];
  /** How many rows are shown at first. */
  readonly most?: number;
  readonly label?: string;
}

export function Diff({ lines, most = 60, label = "The change" }: DiffProps): JSX.Element {
  const [shown, setShown] = useState(most);
  const isSplit = columns.value === "split" && lines.some((line) => line.kind === "removed") && lines.some((line) => line.kind === "added");
  const pairs = useMemo(() => paired(lines), [lines]);
  const words = useMemo(() => wordsOf(pairs), [pairs]);
  const rows = isSplit ? pairs.length : lines.length;
  const end = rows <= shown + 5 ? rows : shown;
  return (
    <div class={`diff ${isSplit ? "split" : "unified"}`} role="region" aria-label={label} tabIndex={0}>
      <table>
        {isSplit && (
          <colgroup>
            <col class="number" />
            <col />
            <col class="number" />
            <col />
          </colgroup>
        )}
        <thead class="unseen">
          <tr>
            <th scope="col">Old line</th>
            {isSplit && <th scope="col">Old text</th>}
            <th scope="col">New line</th>
            <th scope="col">{isSplit ? "New text" : "Text"}</th>
          </tr>
        </thead>
        <tbody>
          {isSplit
            ? pairs.slice(0, end).map((pair, at) => <SplitRow key={at} pair={pair} words={words} />)
            : lines.slice(0, end).map((line, at) => <Row key={at} line={line} words={words} />)}
        </tbody>
      </table>
      {end < rows && (
        <button type="button" class="more" onClick={() => setShown(shown + PORTION)}>
          {rows - end} more lines
        </button>
      )}
    </div>
  );
}

type Words = ReadonlyMap<DiffLine, readonly Span[]>;

function wordsOf(pairs: readonly Pair[]): Words {
  const found = new Map<DiffLine, readonly Span[]>();
  // Comparing words costs; far down in a very long change nobody misses it.
  for (const [old, now] of pairs.slice(0, 2_000)) {
    if (!old || !now || old === now) continue;
    const spans = changedWords(old.text, now.text);
    found.set(old, spans.old);
    found.set(now, spans.new);
  }
  return found;
}

function Row({ line, words }: { line: DiffLine; words: Words }): JSX.Element {
  if (line.kind === "hunk") return <Gap span={3} />;
  return (
    <tr class={line.kind}>
      <td class="number">{line.old || ""}</td>
      <td class="number">{line.new || ""}</td>
      <Cell line={line} words={words} />
    </tr>
  );
}

function SplitRow({ pair: [old, now], words }: { pair: Pair; words: Words }): JSX.Element {
  if (old?.kind === "hunk") return <Gap span={4} />;
  return (
    <tr>
      <td class={`number ${old?.kind ?? "none"}`}>{old?.old || ""}</td>
      {old ? <Cell line={old} words={words} /> : <td class="none" />}
      <td class={`number ${now?.kind ?? "none"}`}>{now?.new || ""}</td>
      {now ? <Cell line={now} words={words} /> : <td class="none" />}
    </tr>
  );
}

function Gap({ span }: { span: number }): JSX.Element {
  return (
    <tr class="hunk">
      <td colSpan={span}>⋯</td>
    </tr>
  );
}

function Cell({ line, words }: { line: DiffLine; words: Words }): JSX.Element {
  const sign = SIGNS[line.kind];
  return (
    <td class={`text ${line.kind}`}>
      <span class="sign">{sign}</span>
      {pieces(visible(line.text), words.get(line) ?? [])}
    </td>
  );
}

function pieces(text: string, spans: readonly Span[]): ComponentChildren {
  if (!spans.length) return text || " ";
  const out: ComponentChildren[] = [];
  let at = 0;
  for (const [from, to] of spans) {
    out.push(text.slice(at, from), <b>{text.slice(from, to)}</b>);
    at = to;
  }
  out.push(text.slice(at));
  return out;
}

/** Characters that would move or hide others are shown as a dot, one for one, so that places stay right. */
function visible(text: string): string {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\u00ad]/g, "·");
}
