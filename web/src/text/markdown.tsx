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
const LONG_TAIL = 4_000;

/** How long the texts of blocks are that stand together, at least. */
const CHUNK = 1_500;

/** The blocks of one text as they are drawn; kept from one drawing to the next.
 *
 * Blocks stand together in chunks, so that a browser passes over those out of sight. A chunk that is full is the very
 * same node from then on: neither this page nor the browser looks into it again when the text goes on. */
class Drawn {
  private readonly stream = new BlockStream();
  private full: VNode[] = [];
  private last: VNode[] = [];
  private lastSize = 0;
  private count = 0;
  private definitions = 0;

  update(text: string, isLive: boolean): readonly VNode[] {
    const goesOn = this.stream.feed(text, !isLive);
    const { closed, definitions } = this.stream;
    if (!goesOn || definitions.length !== this.definitions) this.reset();
    this.definitions = definitions.length;
    for (const block of closed.slice(this.count, MOST_BLOCKS)) this.put(block);
    const tail = this.tail();
    // The tail has the place, and so the elements, of the block that it becomes.
    const open = tail === null ? this.last : [...this.last, <Piece key={this.count} block={tail} definitions={NONE} live={isLive} />];
    return open.length === 0 ? this.full : [...this.full, <Chunk key={this.full.length}>{open}</Chunk>];
  }

  private put(block: Block): void {
    const known = this.stream.definitions;
    this.last.push(<Piece key={this.count} block={block} definitions={known.length > 0 ? [...known] : NONE} live={false} />);
    this.count += 1;
    this.lastSize += block.text.length;
    if (this.lastSize < CHUNK) return;
    this.full.push(<Chunk key={this.full.length}>{this.last}</Chunk>);
    this.last = [];
    this.lastSize = 0;
  }

  private tail(): Block | null {
    const { closed } = this.stream;
    if (closed.length <= MOST_BLOCKS) return this.stream.tail;
    const rest = closed.slice(MOST_BLOCKS).map((block) => block.text).join("\n");
    return { kind: "code", language: "", text: rest, isOpen: false };
  }

  private reset(): void {
    this.full = [];
    this.last = [];
    this.lastSize = this.count = 0;
  }
}

const NONE: readonly string[] = [];

export function Markdown({ text, live = false }: { text: string; live?: boolean }): JSX.Element {
  const drawn = useRef<Drawn | null>(null);
  drawn.current ??= new Drawn();
  // What has grown here was seen, and its size is known. What was there before is guessed, and would jump.
  const hasGrown = useRef(false);
  hasGrown.current ||= live;
  return <div class={hasGrown.current ? "markdown grown" : "markdown"}>{drawn.current.update(text, live)}</div>;
}

/** A component, because the same component is passed over as a whole; the same element would be compared, part by part. */
function Chunk({ children }: { children: readonly VNode[] }): JSX.Element {
  return <div class="chunk">{children}</div>;
}

interface PieceProps {
  readonly block: Block;
  readonly definitions: readonly string[];
  readonly live: boolean;
}

function Piece({ block, definitions, live }: PieceProps): JSX.Element {
  if (block.kind === "code") return <CodeBlock text={block.text} language={block.language} isOpen={block.isOpen} />;
  if (live && block.text.length > LONG_TAIL) return <Growing key="growing" text={block.text} as="p" />;
  return <Elements text={live ? mended(block.text) : block.text} definitions={definitions} live={live} />;
}

interface ElementsProps {
  readonly text: string;
  readonly definitions: readonly string[];
  readonly live: boolean;
}

function Elements({ text, definitions, live }: ElementsProps): JSX.Element {
  const last = useRef<{ cost: number; at: number; text: string; definitions: readonly string[]; nodes: ComponentChild }>(undefined);
  const [, again] = useState(0);
  const before = performance.now();
  const known = last.current;
  const wait = live && known !== undefined && known.text !== text ? known.cost / SHARE - (before - known.at) : 0;
  useEffect(() => {
    if (wait <= FRAME) return undefined;
    const timer = setTimeout(() => again((count) => count + 1), wait);
    return () => clearTimeout(timer);
  });
  if (wait <= FRAME && (known?.text !== text || known.definitions !== definitions)) {
    const nodes = nodesOf(text, definitions);
    const after = performance.now();
    last.current = { cost: after - before, at: after, text, definitions, nodes };
  }
  return <div class="block">{last.current?.nodes}</div>;
}
