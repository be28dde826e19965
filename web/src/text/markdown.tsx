/** Renders Markdown. While a text grows, closed blocks are never rendered again, only its tail. */

import type { ComponentChild, JSX, VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { type Block, BlockStream, closeInline } from "./blocks.ts";
import { CodeBlock, Growing } from "./code.tsx";
import { nodesOf } from "./nodes.tsx";

/** Blocks after this number are shown as plain text, because a page cannot hold more. */
const MAX_BLOCKS = 3_000;
/** Maximum share of time for rendering the tail; a slow tail is rendered less often. */
const SHARE = 0.15;
const FRAME = 16;
/** A longer growing paragraph is plain text until it ends. */
const LONG_TAIL = 4_000;

/** Minimum text length of a chunk of blocks. */
const CHUNK = 1_500;

/** The rendered blocks of one text, kept between renderings.
 *
 * Blocks are grouped into chunks, so that a browser can skip invisible ones. A full chunk remains the same node:
 * neither this page nor the browser processes it again when the text grows. */
class RenderedBlocks {
  private readonly stream = new BlockStream();
  private full: VNode[] = [];
  private last: VNode[] = [];
  private lastSize = 0;
  private count = 0;
  private definitions = 0;

  update(text: string, isLive: boolean): readonly VNode[] {
    const continues = this.stream.feed(text, !isLive);
    const { closed, definitions } = this.stream;
    if (!continues || definitions.length !== this.definitions) this.reset();
    this.definitions = definitions.length;
    for (const block of closed.slice(this.count, MAX_BLOCKS)) this.append(block);
    const tail = this.tail();
    // The tail has the same key, and therefore the same elements, as the block that it becomes.
    const open = tail === null ? this.last : [...this.last, <Piece key={this.count} block={tail} definitions={NONE} live={isLive} />];
    return open.length === 0 ? this.full : [...this.full, <Chunk key={this.full.length}>{open}</Chunk>];
  }

  private append(block: Block): void {
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
    if (closed.length <= MAX_BLOCKS) return this.stream.tail;
    const rest = closed.slice(MAX_BLOCKS).map((block) => block.text).join("\n");
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
  const drawn = useRef<RenderedBlocks | null>(null);
  drawn.current ??= new RenderedBlocks();
  // Text that has grown here was visible, and its size is known. The size of earlier text is estimated and would jump.
  const hasGrown = useRef(false);
  hasGrown.current ||= live;
  return <div class={hasGrown.current ? "markdown grown" : "markdown"}>{drawn.current.update(text, live)}</div>;
}

/** A component, because an equal component is skipped as a whole; an equal element would be compared part by part. */
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
  return <Elements text={live ? closeInline(block.text) : block.text} definitions={definitions} live={live} />;
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
