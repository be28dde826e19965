/** A code block: highlighted once it is closed, with a copy button, and cheap to update while it grows. */

import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { CopyButton } from "../chat/copy-button.tsx";
import { fragmentOf, highlightLines, type Line } from "./highlight.ts";

const PIECE = 4_000;
/** Lines per piece. */
const LINES = 50;

export interface CodeProps {
  readonly text: string;
  readonly language: string;
  readonly isOpen?: boolean;
}

export function CodeBlock({ text, language, isOpen = false }: CodeProps): JSX.Element {
  return (
    <figure class="code">
      <figcaption>
        <span class="language">{language || "text"}</span>
        {isOpen ? <span class="faint">…</span> : <CopyButton text={text} label="Copy the code" />}
      </figcaption>
      {/* Wide code is scrolled with the keyboard, too. */}
      <pre class={isOpen ? "open" : ""} tabIndex={0} role="group" aria-label={language ? `Code in ${language}` : "Code"}>
        {isOpen ? <Growing text={text} /> : <Closed text={text} language={language} />}
      </pre>
    </figure>
  );
}

/** Long code in pieces: invisible ones are not laid out, and the pieces are highlighted one after the other. */
function Closed({ text, language }: { text: string; language: string }): JSX.Element {
  const code = useRef<HTMLElement>(null);
  useLayoutEffect(() => {
    const lines = text.split("\n");
    const pieces: HTMLElement[] = [];
    for (let at = 0; at < lines.length; at += LINES) {
      const piece = document.createElement("span");
      piece.textContent = lines.slice(at, at + LINES).join("\n") + (at + LINES < lines.length ? "\n" : "");
      pieces.push(piece);
    }
    code.current?.replaceChildren(...pieces);
  }, [text]);
  useEffect(() => {
    const wanted = new AbortController();
    whenIdle(() => {
      void highlightLines(text, language).then((lines) => {
        if (lines !== null && code.current) colour(code.current, lines, 0, wanted.signal);
      });
    }, wanted.signal);
    return () => wanted.abort();
  }, [text, language]);
  return <code ref={code} class="pieces" />;
}

function colour(code: HTMLElement, lines: readonly Line[], at: number, wanted: AbortSignal): void {
  const piece = code.children[at];
  if (wanted.aborted || piece === undefined) return;
  const start = at * LINES;
  const nodes = fragmentOf(lines.slice(start, start + LINES));
  if (start + LINES < lines.length) nodes.append("\n");
  piece.replaceChildren(nodes);
  whenIdle(() => colour(code, lines, at + 1, wanted), wanted);
}

/** Append-only text in separately laid out pieces, so that the cost of a token does not depend on the length. */
export function Growing({ text, as = "code" }: { text: string; as?: "code" | "p" }): JSX.Element {
  const code = useRef<HTMLElement>(null);
  const shown = useRef(0);
  useLayoutEffect(() => {
    const element = code.current;
    if (!element) return;
    if (text.length < shown.current) {
      element.replaceChildren();
      shown.current = 0;
    }
    grow(element, text.slice(shown.current));
    shown.current = text.length;
  }, [text]);
  const Element = as as "code";
  return <Element ref={code} class="growing" />;
}

function grow(element: HTMLElement, fresh: string): void {
  let rest = fresh;
  while (rest !== "") {
    let piece = element.lastElementChild;
    if (piece === null || (Number(piece.getAttribute("data-size")) > PIECE && piece.textContent?.endsWith("\n"))) {
      piece = document.createElement("span");
      element.append(piece);
    }
    // A piece ends with a line, so that it can be a separate box.
    const size = Number(piece.getAttribute("data-size"));
    const cut = size > PIECE ? rest.indexOf("\n") + 1 : rest.indexOf("\n", PIECE - size) + 1;
    const part = cut > 0 ? rest.slice(0, cut) : rest;
    if (piece.firstChild instanceof Text) piece.firstChild.appendData(part);
    else piece.append(part);
    piece.setAttribute("data-size", String(size + part.length));
    rest = rest.slice(part.length);
  }
}

function whenIdle(work: () => void, wanted: AbortSignal): void {
  const go = (): void => {
    if (!wanted.aborted) work();
  };
  if (typeof requestIdleCallback === "function") requestIdleCallback(go, { timeout: 500 });
  else setTimeout(go, 16);
}
