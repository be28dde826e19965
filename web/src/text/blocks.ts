/** Splits growing Markdown into blocks: closed ones never change, only the open tail is rendered again. Pure.
 *
 * Each line is processed once. Blocks are split where Markdown ends them; a long list is also split between its
 * items and a long table between its rows, because they may never end. */

export type Block =
  | { readonly kind: "markdown"; readonly text: string }
  | { readonly kind: "code"; readonly language: string; readonly text: string; readonly isOpen: boolean };

const FENCE = /^( {0,3})(`{3,}|~{3,})([^\n]*)$/;
const INNER_FENCE = /^\s*(`{3,}|~{3,})/;
const ITEM = /^ {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)/;
const HEADING = /^ {0,3}#{1,6}(?:\s|$)/;
const DEFINITION = /^ {0,3}\[[^\]\n]{1,200}\]:\s*\S/;
const DELIMITERS = /^ {0,3}\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)+\|?\s*$/;
const LONG_LIST = 1_500;
const LONG_TABLE = 1_500;
const MAX_DEFINITIONS = 100;

interface Fence {
  readonly sign: string;
  readonly language: string;
  readonly indent: number;
}

/** Splits a text that only grows. */
export class BlockStream {
  /** The closed blocks; the array grows, its members never change. */
  readonly closed: Block[] = [];
  /** Link definitions, which may appear anywhere and apply everywhere. */
  readonly definitions: string[] = [];

  private text = "";
  /** Start of the open block. */
  private start = 0;
  /** End of the processed complete lines. */
  private seen = 0;
  private fence: Fence | null = null;
  private codeStart = 0;
  private inner = "";
  private isList = false;
  /** The first two lines of an open table, repeated above each of its pieces. */
  private heading = "";
  private prefix = "";
  private wasBlank = false;
  private isDone = false;

  /** Processes the whole text so far. Returns false if it does not continue the known text and everything restarts. */
  feed(text: string, isDone = false): boolean {
    // An equal beginning is assumed while the text grows; a shorter text is a different one.
    const continues = text.length >= this.text.length && this.sameEnd(text);
    if (!continues) this.reset();
    this.text = text;
    let end = text.indexOf("\n", this.seen);
    while (end >= 0) {
      this.line(text.slice(this.seen, end), this.seen, end + 1);
      this.seen = end + 1;
      end = text.indexOf("\n", this.seen);
    }
    this.isDone = isDone;
    return continues;
  }

  /** The open block, or null. */
  get tail(): Block | null {
    if (this.fence !== null) {
      const text = this.text.slice(this.codeStart);
      return { kind: "code", language: this.fence.language, text: this.withoutEnd(text), isOpen: !this.isDone };
    }
    const text = this.prefix + this.text.slice(this.start);
    const opened = this.isDone ? null : FENCE.exec(text);
    if (opened !== null) return { kind: "code", language: "", text: "", isOpen: true };
    return this.text.slice(this.start).trim() === "" ? null : { kind: "markdown", text };
  }

  private sameEnd(text: string): boolean {
    const from = Math.max(0, this.text.length - 64);
    return text.slice(from, this.text.length) === this.text.slice(from);
  }

  private reset(): void {
    this.closed.length = 0;
    this.definitions.length = 0;
    this.text = "";
    this.start = this.seen = this.codeStart = 0;
    this.fence = null;
    this.inner = "";
    this.isList = this.wasBlank = false;
    this.heading = this.prefix = "";
  }

  /** The last line of an open fence may be the beginning of its end. */
  private withoutEnd(text: string): string {
    const last = text.lastIndexOf("\n") + 1;
    const sign = this.fence?.sign ?? "";
    const rest = text.slice(last).trim();
    const isEnd = rest !== "" && (sign.startsWith(rest) || (rest.startsWith(sign) && rest === sign[0]?.repeat(rest.length)));
    return isEnd ? text.slice(0, Math.max(0, last - 1)) : text;
  }

  private line(raw: string, from: number, after: number): void {
    const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
    if (this.fence !== null) this.inFence(line, from, after);
    else if (this.inner !== "") this.inInner(line);
    else this.outside(line, from, after);
  }

  private inFence(line: string, from: number, after: number): void {
    const fence = this.fence;
    if (fence === null || !ends(line, fence.sign)) return;
    const text = this.text.slice(this.codeStart, Math.max(this.codeStart, from - 1));
    this.closed.push({ kind: "code", language: fence.language, text, isOpen: false });
    this.fence = null;
    this.begin(after);
  }

  /** Inside a fence that belongs to a list item or a quotation. */
  private inInner(line: string): void {
    if (ends(line.trim(), this.inner)) this.inner = "";
  }

  private outside(line: string, from: number, after: number): void {
    if (line.trim() === "") {
      this.wasBlank = true;
      return;
    }
    const isItem = ITEM.test(line);
    const isIndented = /^(?: {2,}|\t)/.test(line);
    if (this.endsHere(isItem, isIndented)) this.close(from);
    else if (this.isList && isItem && !/^\s/.test(line) && from - this.start > LONG_LIST) this.close(from);
    this.wasBlank = false;
    const opened = isIndented && this.isList ? null : FENCE.exec(line);
    if (opened !== null) {
      this.openFence(opened, from, after);
      return;
    }
    if (isItem) this.isList = true;
    this.inTable(line, from, after);
    const inside = INNER_FENCE.exec(line);
    if (inside !== null && isIndented) this.inner = inside[1] ?? "";
    if (DEFINITION.test(line) && this.definitions.length < MAX_DEFINITIONS) this.definitions.push(line);
    if (HEADING.test(line) && !this.isList) this.close(after);
  }

  private inTable(line: string, from: number, after: number): void {
    if (this.heading !== "") {
      if (after - this.start <= LONG_TABLE) return;
      const { heading } = this;
      this.close(after);
      this.heading = this.prefix = heading;
    } else if (DELIMITERS.test(line) && !this.isList) {
      const above = this.text.slice(this.start, from);
      if (above.includes("|") && above.indexOf("\n") === above.length - 1) this.heading = this.text.slice(this.start, after);
    }
  }

  private endsHere(isItem: boolean, isIndented: boolean): boolean {
    if (!this.wasBlank || isIndented) return false;
    return !(this.isList && isItem);
  }

  private openFence(opened: RegExpExecArray, from: number, after: number): void {
    const [, indent = "", sign = "", info = ""] = opened;
    // Backticks in the info string: it is inline code.
    if (sign.startsWith("`") && info.includes("`")) return;
    this.close(from);
    const language = info.trim().split(/[\s{,]/)[0] ?? "";
    this.fence = { sign, language: language.slice(0, 40), indent: indent.length };
    this.codeStart = after;
  }

  private close(end: number): void {
    const text = this.text.slice(this.start, end);
    if (text.trim() !== "") this.closed.push({ kind: "markdown", text: this.prefix + text });
    this.begin(end);
  }

  private begin(start: number): void {
    this.start = start;
    this.isList = this.wasBlank = false;
    this.inner = this.heading = this.prefix = "";
  }
}

function ends(line: string, sign: string): boolean {
  const bare = line.trim();
  return bare.length >= sign.length && bare === sign.charAt(0).repeat(bare.length) && /^ {0,3}\S/.test(line);
}

/** Returns all blocks of a complete text. */
export function blocksOf(text: string): readonly Block[] {
  const stream = new BlockStream();
  stream.feed(text, true);
  const { tail } = stream;
  return tail === null ? stream.closed : [...stream.closed, tail];
}

/** Closes inline markup that a growing line has opened, so that its delimiters are not visible. */
export function closeInline(tail: string): string {
  const cut = tail.lastIndexOf("\n\n");
  const last = tail.slice(cut < 0 ? 0 : cut);
  if (last.length > 4_000) return tail;
  const ticks = last.split("`").length - 1;
  if (ticks % 2 === 1) return last.endsWith("`") ? tail.slice(0, -1) : `${tail}\``;
  const plain = last.replace(/`[^`]*`/g, "");
  const link = /\[[^\]\n]*\]\([^)\s]*$/.exec(plain);
  if (link !== null && tail.endsWith(link[0])) return tail.slice(0, tail.length - link[0].length) + link[0].replace(/^\[([^\]]*)\].*$/, "$1");
  const stars = plain.split("**").length - 1;
  if (stars % 2 === 1) return /\*\*\s*$/.test(plain) ? tail.replace(/\*\*\s*$/, "") : `${tail.trimEnd()}**`;
  return tail;
}
