// A diff in one or two columns, highlighted in its language, with changed words emphasised; long ones are shown in
// portions.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { store, stored } from "../shell/ui.ts";
import { languageOf } from "../text/highlight.ts";
import { coloursOf, piecesOf } from "./highlight.ts";
import type { Colours } from "./highlight.ts";
import { changedWords, hasTwoSides, pairLines } from "./lines.ts";
import type { DiffLine, Pair, Span } from "./lines.ts";

export type Columns = "unified" | "split";

/** Number of columns of all diffs; the choice is stored. */
export const columns = signal<Columns>(stored("diff") === "split" ? "split" : "unified");

export function turnColumns(): void {
  columns.value = columns.value === "split" ? "unified" : "split";
  store("diff", columns.value);
}

const PORTION = 400;
const SIGNS = { same: " ", added: "+", removed: "-", hunk: "" } as const;

export interface DiffProps {
  readonly lines: readonly DiffLine[];
  /** The changed file; its name determines the language. */
  readonly path: string;
  /** Number of rows shown at first. */
  readonly most?: number;
  readonly label?: string;
}

export function Diff({ lines, path, most = 60, label = "The change" }: DiffProps): JSX.Element {
  const [shown, setShown] = useState(most);
  const isSplit = columns.value === "split" && hasTwoSides(lines);
  const pairs = useMemo(() => pairLines(lines), [lines]);
  const changedSpans = useMemo(() => findChangedSpans(pairs), [pairs]);
  const colours = useColours(lines, languageOf(path));
  const styles: LineStyles = { changedSpans, colours };
  const rows = isSplit ? pairs.length : lines.length;
  const end = rows <= shown + 5 ? rows : shown;
  return (
    <div class={`diff ${isSplit ? "split" : "unified"}${colours.size > 0 ? " coloured" : ""}`} role="region" aria-label={label} tabIndex={0}>
      <table>
        {isSplit && (
          <colgroup>
            <col class="number" />
            <col />
            <col class="number" />
            <col />
          </colgroup>
        )}
        <thead class="visually-hidden">
          <tr>
            <th scope="col">Old line</th>
            {isSplit && <th scope="col">Old text</th>}
            <th scope="col">New line</th>
            <th scope="col">{isSplit ? "New text" : "Text"}</th>
          </tr>
        </thead>
        <tbody>
          {isSplit
            ? pairs.slice(0, end).map((pair, at) => <SplitRow key={at} pair={pair} styles={styles} />)
            : lines.slice(0, end).map((line, at) => <Row key={at} line={line} styles={styles} />)}
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

type ChangedSpans = ReadonlyMap<DiffLine, readonly Span[]>;

/** Derived data of the lines. */
interface LineStyles {
  readonly changedSpans: ChangedSpans;
  readonly colours: Colours;
}

const PLAIN: Colours = new Map();

/** Plain at first; highlighted when the tokens are available. */
function useColours(lines: readonly DiffLine[], language: string): Colours {
  const [found, setFound] = useState<{ readonly of: readonly DiffLine[]; readonly colours: Colours } | null>(null);
  useEffect(() => {
    let isWanted = true;
    void coloursOf(lines, language).then((colours) => {
      if (isWanted && colours !== null) setFound({ of: lines, colours });
    });
    return () => {
      isWanted = false;
    };
  }, [lines, language]);
  return found?.of === lines ? found.colours : PLAIN;
}

function findChangedSpans(pairs: readonly Pair[]): ChangedSpans {
  const found = new Map<DiffLine, readonly Span[]>();
  // Comparing words is expensive, and unnecessary far down in a very long diff.
  for (const [old, now] of pairs.slice(0, 2_000)) {
    if (!old || !now || old === now) continue;
    const spans = changedWords(old.text, now.text);
    found.set(old, spans.old);
    found.set(now, spans.new);
  }
  return found;
}

function Row({ line, styles }: { line: DiffLine; styles: LineStyles }): JSX.Element {
  if (line.kind === "hunk") return <Gap span={3} />;
  return (
    <tr class={line.kind}>
      <td class="number">{line.old || ""}</td>
      <td class="number">{line.new || ""}</td>
      <Cell line={line} styles={styles} />
    </tr>
  );
}

function SplitRow({ pair: [old, now], styles }: { pair: Pair; styles: LineStyles }): JSX.Element {
  if (old?.kind === "hunk") return <Gap span={4} />;
  return (
    <tr>
      <td class={`number ${old?.kind ?? "none"}`}>{old?.old || ""}</td>
      {old ? <Cell line={old} styles={styles} /> : <td class="none" />}
      <td class={`number ${now?.kind ?? "none"}`}>{now?.new || ""}</td>
      {now ? <Cell line={now} styles={styles} /> : <td class="none" />}
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

function Cell({ line, styles }: { line: DiffLine; styles: LineStyles }): JSX.Element {
  const sign = SIGNS[line.kind];
  return (
    <td class={`text ${line.kind}`}>
      <span class="sign">{sign}</span>
      {drawn(line, styles)}
    </td>
  );
}

/** Changed words have another background; their letters keep the colour of the line for legibility. */
function drawn(line: DiffLine, { changedSpans, colours }: LineStyles): ComponentChildren {
  if (line.text === "") return " ";
  return piecesOf(line.text, colours.get(line) ?? [], changedSpans.get(line) ?? []).map((piece, at) => {
    const text = visible(piece.text);
    if (piece.isChanged) return <b key={at}>{text}</b>;
    return piece.kind ? <span key={at} class={piece.kind}>{text}</span> : text;
  });
}

/** Characters that would move or hide others are replaced by a dot one for one, so that offsets stay valid. */
function visible(text: string): string {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\u00ad]/g, "·");
}
