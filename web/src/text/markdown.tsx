/** Markdown on the page. While a text grows, closed blocks are never touched again: only its tail is drawn anew. */

import type { ComponentChild, JSX, VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { type Block, BlockStream, mended } from "./blocks.ts";
import { CodeBlock, Growing } from "./code.tsx";
import { nodesOf } from "./nodes.tsx";

/** What comes after this many blocks is shown as plain text: nobody reads so much, and no page can hold it. */
const MOST_BLOCKS = 3_000;
/** A tail that is slow to draw is drawn less often: at most this share of the time. */
const SHARE = 0.15;
const FRAME = 16;
/** A paragraph that is longer and still grows is plain text until its end. */
const LONG_TAIL = 6_000;

/** The blocks of one text as they are drawn; kept from one drawing to the next. */
class Drawn {
  private readonly stream = new BlockStream();
  private nodes: VNode[] = [];
  private definitions = 0;

  update(text: string, isLive: boolean): { readonly nodes: readonly VNode[]; readonly tail: Block | null } {
    const goesOn = this.stream.feed(text, !isLive);
    const { closed, definitions } = this.stream;
    if (!goesOn || definitions.length !== this.definitions) this.nodes = [];
    this.definitions = definitions.length;
    for (const block of closed.slice(this.nodes.length, MOST_BLOCKS)) {
      this.nodes.push(<Closed key={this.nodes.length} block={block} definitions={[...definitions]} />);
    }
    if (closed.length <= MOST_BLOCKS) return { nodes: this.nodes, tail: this.stream.tail };
    const rest = closed.slice(MOST_BLOCKS).map((block) => block.text).join("\n");
    return { nodes: this.nodes, tail: { kind: "code", language: "", text: rest, isOpen: false } };
  }
}

export function Markdown({ text, live = false }: { text: string; live?: boolean }): JSX.Element {
  const drawn = useRef<Drawn | null>(null);
  drawn.current ??= new Drawn();
  const { nodes, tail } = drawn.current.update(text, live);
  return (
    <div class="markdown">
      {nodes}
      {tail === null ? null : <Tail key="tail" block={tail} live={live} />}
    </div>
  );
}

function Tail({ block, live }: { block: Block; live: boolean }): JSX.Element {
  if (block.kind === "code") return <CodeBlock text={block.text} language={block.language} isOpen={block.isOpen} />;
  if (live && block.text.length > LONG_TAIL) return <Growing key="growing" text={block.text} as="p" />;
  return <Elements text={live ? mended(block.text) : block.text} definitions={[]} live={live} />;
}

function Closed({ block, definitions }: { block: Block; definitions: readonly string[] }): JSX.Element {
  if (block.kind === "code") return <CodeBlock text={block.text} language={block.language} />;
  return <Elements text={block.text} definitions={definitions} live={false} />;
}

interface ElementsProps {
  readonly text: string;
  readonly definitions: readonly string[];
  readonly live: boolean;
}

function Elements({ text, definitions, live }: ElementsProps): JSX.Element {
  const last = useRef<{ cost: number; at: number; text: string; nodes: ComponentChild }>(undefined);
  const [, again] = useState(0);
  const before = performance.now();
  const known = last.current;
  const wait = live && known !== undefined && known.text !== text ? known.cost / SHARE - (before - known.at) : 0;
  useEffect(() => {
    if (wait <= FRAME) return undefined;
    const timer = setTimeout(() => again((count) => count + 1), wait);
    return () => clearTimeout(timer);
  });
  if (wait <= FRAME && known?.text !== text) {
    const nodes = nodesOf(text, definitions);
    const after = performance.now();
    last.current = { cost: after - before, at: after, text, nodes };
  }
  return <div class="block">{last.current?.nodes}</div>;
}
