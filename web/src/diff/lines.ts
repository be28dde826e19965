// Line diff of two texts, for one column or two. Pure.

export type DiffKind = "same" | "added" | "removed" | "hunk";

/** One line. `old` and `new` are its numbers on each side; 0 where it does not exist. */
export interface DiffLine {
  readonly kind: DiffKind;
  readonly text: string;
  readonly old: number;
  readonly new: number;
}

export type Pair = readonly [DiffLine | null, DiffLine | null];
export type Span = readonly [number, number];

/** Texts with more differences are not compared further, because it would take seconds. */
const MAX_EDITS = 1_500;
const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/;

const line = (kind: DiffKind, text: string, old: number, now: number): DiffLine => ({ kind, text, old, new: now });

/** Splits a text into lines; a final newline does not add a line. */
function linesOf(text: string): string[] {
  if (text === "") return [];
  const lines = text.split(/\r\n|\n|\r/);
  if (lines[lines.length - 1] === "") lines.pop();
  return lines;
}

/** Returns the changed lines with context; a `hunk` replaces omitted lines. */
export function diffOf(before: string, after: string, context = 3): DiffLine[] {
  const old = linesOf(before);
  const now = linesOf(after);
  let start = 0;
  while (start < Math.min(old.length, now.length) && old[start] === now[start]) start++;
  let end = 0;
  const most = Math.min(old.length, now.length) - start;
  while (end < most && old[old.length - 1 - end] === now[now.length - 1 - end]) end++;
  if (start === old.length && start === now.length) return [];
  const middle = compare(old.slice(start, old.length - end), now.slice(start, now.length - end), start);
  const head: DiffLine[] = [];
  for (let at = Math.max(0, start - context); at < start; at++) head.push(line("same", old[at] ?? "", at + 1, at + 1));
  const shift = now.length - old.length;
  const tail: DiffLine[] = [];
  for (let at = old.length - end; at < Math.min(old.length, old.length - end + context); at++) {
    tail.push(line("same", old[at] ?? "", at + 1, at + 1 + shift));
  }
  return withHunks([...head, ...keepContext(middle, context), ...tail]);
}

function compare(old: string[], now: string[], start: number): DiffLine[] {
  const out: DiffLine[] = [];
  let i = 0;
  let j = 0;
  const pushUntil = (toOld: number, toNew: number): void => {
    for (; i < toOld; i++) out.push(line("removed", old[i] ?? "", start + i + 1, 0));
    for (; j < toNew; j++) out.push(line("added", now[j] ?? "", 0, start + j + 1));
  };
  for (const [a, b] of common(old, now)) {
    pushUntil(a, b);
    out.push(line("same", old[a] ?? "", start + a + 1, start + b + 1));
    i++;
    j++;
  }
  pushUntil(old.length, now.length);
  return out;
}

/** Returns the common positions in order, by Myers' greedy algorithm; empty if there is too little in common. */
export function common<T>(old: readonly T[], now: readonly T[], most = MAX_EDITS): [number, number][] {
  const trace: Int32Array[] = [];
  const limit = Math.min(most, old.length + now.length);
  const reach = new Int32Array(2 * limit + 3);
  const zero = limit + 1;
  for (let edits = 0; edits <= limit; edits++) {
    trace.push(reach.slice(zero - edits - 1, zero + edits + 2));
    for (let k = -edits; k <= edits; k += 2) {
      const down = k === -edits || (k !== edits && (reach[zero + k - 1] ?? 0) < (reach[zero + k + 1] ?? 0));
      let x = down ? (reach[zero + k + 1] ?? 0) : (reach[zero + k - 1] ?? 0) + 1;
      while (x < old.length && x - k < now.length && old[x] === now[x - k]) x++;
      reach[zero + k] = x;
      if (x >= old.length && x - k >= now.length) return backtrack(trace, old.length, now.length);
    }
  }
  return [];
}

function backtrack(trace: readonly Int32Array[], oldLength: number, newLength: number): [number, number][] {
  const found: [number, number][] = [];
  let x = oldLength;
  let y = newLength;
  for (let edits = trace.length - 1; edits >= 0; edits--) {
    const reach = trace[edits];
    const at = (k: number): number => reach?.[k + edits + 1] ?? 0;
    const k = x - y;
    const from = k === -edits || (k !== edits && at(k - 1) < at(k + 1)) ? k + 1 : k - 1;
    const startX = edits === 0 ? 0 : at(from);
    const startY = startX - from;
    while (x > startX && y > startY) found.push([--x, --y]);
    if (edits === 0) break;
    x = startX;
    y = startY;
  }
  return found.reverse();
}

/** Removes unchanged lines far from every change. */
function keepContext(lines: readonly DiffLine[], context: number): DiffLine[] {
  const near = new Uint8Array(lines.length);
  lines.forEach((item, index) => {
    if (item.kind !== "same") near.fill(1, Math.max(0, index - context), Math.min(lines.length, index + context + 1));
  });
  return lines.filter((_, index) => near[index] === 1);
}

/** Inserts a mark wherever line numbers jump. */
function withHunks(lines: readonly DiffLine[]): DiffLine[] {
  const out: DiffLine[] = [];
  let old = 1;
  let now = 1;
  for (const item of lines) {
    if ((item.old && item.old !== old) || (item.new && item.new !== now)) out.push(line("hunk", "", item.old, item.new));
    out.push(item);
    old = (item.old || old - 1) + 1;
    now = (item.new || now - 1) + 1;
  }
  return out;
}

/** Parses a unified diff. */
export function parseUnified(diff: string): DiffLine[] {
  const lines: DiffLine[] = [];
  let old = 0;
  let now = 0;
  for (const text of linesOf(diff)) {
    const found = HUNK.exec(text);
    if (found) {
      old = Number(found[1]);
      now = Number(found[2]);
      lines.push(line("hunk", "", old, now));
    } else if ((!old && !now) || text.startsWith("\\")) {
      continue;
    } else if (text.startsWith("+")) {
      lines.push(line("added", text.slice(1), 0, now++));
    } else if (text.startsWith("-")) {
      lines.push(line("removed", text.slice(1), old++, 0));
    } else {
      lines.push(line("same", text.slice(1), old++, now++));
    }
  }
  const first = lines[0];
  if (first?.kind === "hunk" && Math.max(first.old, first.new) <= 1) lines.shift();
  return lines;
}

/** Returns the numbers of added and removed lines. */
export function countChanges(lines: readonly DiffLine[]): { added: number; removed: number } {
  let added = 0;
  let removed = 0;
  for (const item of lines) {
    if (item.kind === "added") added++;
    if (item.kind === "removed") removed++;
  }
  return { added, removed };
}

/** Returns whether both sides have lines: a new file has nothing to compare with. */
export const hasTwoSides = (lines: readonly DiffLine[]): boolean =>
  lines.some((line) => line.kind === "same" || line.kind === "removed") && lines.some((line) => line.kind === "same" || line.kind === "added");

/** Pairs removed lines with the added lines that replace them. */
export function pairLines(lines: readonly DiffLine[]): Pair[] {
  const pairs: Pair[] = [];
  let removed: DiffLine[] = [];
  let added: DiffLine[] = [];
  const flushPairs = (): void => {
    pairs.push(...align(removed, added));
    removed = [];
    added = [];
  };
  for (const item of lines) {
    if (item.kind === "removed") {
      if (added.length) flushPairs();
      removed.push(item);
    } else if (item.kind === "added") {
      added.push(item);
    } else {
      flushPairs();
      pairs.push([item, item]);
    }
  }
  flushPairs();
  return pairs;
}

const MAX_ALIGNED = 24;
const MIN_SIMILARITY = 0.5;

/** Pairs similar lines; the lines between them are paired in order. */
function align(removed: readonly DiffLine[], added: readonly DiffLine[]): Pair[] {
  const pairs: Pair[] = [];
  let i = 0;
  let j = 0;
  const zip = (toOld: number, toNew: number): void => {
    for (; i < toOld || j < toNew; ) pairs.push([i < toOld ? (removed[i++] ?? null) : null, j < toNew ? (added[j++] ?? null) : null]);
  };
  const isSmall = removed.length <= MAX_ALIGNED && added.length <= MAX_ALIGNED;
  if (isSmall && removed.length !== added.length) {
    for (const [a, b] of matchSimilar(removed, added)) {
      zip(a, b);
      zip(a + 1, b + 1);
    }
  }
  zip(removed.length, added.length);
  return pairs;
}

/** Finds the pairs of lines, in order, with the highest total similarity. */
function matchSimilar(removed: readonly DiffLine[], added: readonly DiffLine[]): [number, number][] {
  const olds = removed.map((line) => wordsIn(line.text));
  const news = added.map((line) => wordsIn(line.text));
  const best = Array.from({ length: olds.length + 1 }, () => new Float64Array(news.length + 1));
  const at = (a: number, b: number): number => best[a]?.[b] ?? 0;
  for (let a = olds.length - 1; a >= 0; a--) {
    for (let b = news.length - 1; b >= 0; b--) {
      const likeness = similarity(olds[a] ?? [], news[b] ?? []);
      const together = likeness >= MIN_SIMILARITY ? likeness + at(a + 1, b + 1) : 0;
      (best[a] as Float64Array)[b] = Math.max(together, at(a + 1, b), at(a, b + 1));
    }
  }
  const found: [number, number][] = [];
  for (let a = 0, b = 0; a < olds.length && b < news.length; ) {
    if (at(a, b) === at(a + 1, b)) a++;
    else if (at(a, b) === at(a, b + 1)) b++;
    else found.push([a++, b++]);
  }
  return found;
}

const wordsIn = (text: string): readonly string[] => text.slice(0, 400).match(/[\p{L}\p{N}_]+/gu) ?? [];

/** Returns the similarity of two lines: 1 for the same words, 0 for none in common. */
function similarity(one: readonly string[], other: readonly string[]): number {
  if (!one.length || !other.length) return 0;
  const left = new Map<string, number>();
  for (const word of one) left.set(word, (left.get(word) ?? 0) + 1);
  let shared = 0;
  for (const word of other) {
    const count = left.get(word) ?? 0;
    if (count > 0) shared++;
    left.set(word, count - 1);
  }
  return (2 * shared) / (one.length + other.length);
}

const WORD = /\p{L}[\p{L}\p{N}_]*|\p{N}+|\s+|[^\p{L}\p{N}\s]/gu;
const MAX_LENGTH = 2_000;

/** Returns the ranges of two lines that differ, word by word; none if hardly anything is in common. The indentation is
 * not a word: a change of it is visible anyway. */
export function changedWords(before: string, after: string): { old: Span[]; new: Span[] } {
  if (before.length > MAX_LENGTH || after.length > MAX_LENGTH) return { old: [], new: [] };
  const old = before.match(WORD) ?? [];
  const now = after.match(WORD) ?? [];
  const same = common(old, now, 120);
  const commonLength = same.reduce((sum, [at]) => sum + (old[at]?.trim().length ?? 0), 0);
  if (commonLength * 3 < Math.max(before.trim().length, after.trim().length)) return { old: [], new: [] };
  const differing = (words: readonly string[], side: 0 | 1): Span[] => {
    const spans = spansWithout(words, new Set(same.map((pair) => pair[side])));
    const indent = /^\s*/.exec(words[0] ?? "")?.[0].length ?? 0;
    return spans.map(([from, to]): Span => [Math.max(from, indent), to]).filter(([from, to]) => from < to);
  };
  return { old: differing(old, 0), new: differing(now, 1) };
}

function spansWithout(words: readonly string[], commonIndexes: ReadonlySet<number>): Span[] {
  const spans: [number, number][] = [];
  let at = 0;
  words.forEach((word, index) => {
    const last = spans[spans.length - 1];
    if (!commonIndexes.has(index)) {
      if (last && last[1] === at) last[1] += word.length;
      else spans.push([at, at + word.length]);
    }
    at += word.length;
  });
  return spans;
}
