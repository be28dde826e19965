// Output of tools, limited in height; the rest is a click away.

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { highlightLines } from "../text/highlight.ts";
import type { Line } from "../text/highlight.ts";
import { cut } from "./tool-data.ts";

const PORTION = 500;
const MAX_LENGTH = 2_000;

interface BoundedProps {
  readonly text: string;
  readonly most?: number;
  /** Show the last lines instead of the first. */
  readonly fromEnd?: boolean;
  readonly live?: boolean;
  readonly kind?: string;
}

/** Plain output: the first or last lines. */
export function Bounded({ text, most = 12, fromEnd = false, live = false, kind = "" }: BoundedProps): JSX.Element {
  const [shown, setShown] = useState(most);
  const { text: visible, hidden } = useMemo(() => cut(text, Math.max(shown, most), fromEnd), [text, shown, most, fromEnd]);
  const more = hidden > 0 && (
    <button type="button" class="more" onClick={() => setShown(shown + PORTION)}>
      {hidden} {fromEnd ? "earlier" : "more"} lines
    </button>
  );
  return (
    <div class={`output ${kind}`}>
      {fromEnd && more}
      <pre tabIndex={0} aria-label="Output" aria-live={live ? "off" : undefined}>
        {clipLines(visible)}
      </pre>
      {!fromEnd && more}
    </div>
  );
}

/** Very long lines are cut, because they are slow to lay out. */
function clipLines(text: string): string {
  return text
    .split("\n")
    .map((line) => (line.length > MAX_LENGTH ? `${line.slice(0, MAX_LENGTH)} …` : line))
    .join("\n");
}

interface CodeProps {
  readonly text: string;
  readonly language: string;
  /** The number of the first line; without it lines are not numbered. */
  readonly first?: number;
  readonly most?: number;
  readonly kind?: string;
}

/** Code that is highlighted as soon as the tokens are available. */
export function Code({ text, language, first, most = 16, kind = "" }: CodeProps): JSX.Element {
  const [shown, setShown] = useState(most);
  const { text: visible, hidden } = useMemo(() => cut(text, shown), [text, shown]);
  const lines = useColours(visible, language);
  return (
    <div class={`output listing ${kind}`}>
      <pre tabIndex={0} aria-label="Code" class={first === undefined ? "" : "counted"}>
        {lines.map((line, at) => (
          <div key={at} class="code-line">
            {first !== undefined && <span class="number" aria-hidden="true">{first + at}</span>}
            <code>
              {line.map((token, index) => (token.kind ? <span key={index} class={token.kind}>{token.text}</span> : token.text))}
              {"\n"}
            </code>
          </div>
        ))}
      </pre>
      {hidden > 0 && (
        <button type="button" class="more" onClick={() => setShown(shown + PORTION)}>
          {hidden} more lines
        </button>
      )}
    </div>
  );
}

function useColours(text: string, language: string): readonly Line[] {
  const plain = useMemo(() => clipLines(text).split("\n").map((line) => [{ text: line, kind: "" }]), [text]);
  const [coloured, setColoured] = useState<{ of: string; lines: readonly Line[] } | null>(null);
  const wanted = useRef("");
  wanted.current = text;
  useEffect(() => {
    void highlightLines(text, language).then((lines) => {
      if (lines && wanted.current === text) setColoured({ of: text, lines });
    });
  }, [text, language]);
  return coloured?.of === text ? coloured.lines : plain;
}
