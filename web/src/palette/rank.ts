// Which of many names a few letters mean. Pure.

export interface Ranked<T> {
  readonly item: T;
  readonly score: number;
  /** Where in the name the letters were found, for marking. */
  readonly at: readonly number[];
}

const BOUNDARY = /[\s/_\-.:·]/;

interface Fit {
  readonly score: number;
  readonly at: number[];
}

/** From here on the letters stand together, or each at the beginning of a word. */
const CLOSE = 60;

/** How well `wanted` fits `name`: higher is better, null if a letter is missing. Letters count in order. */
export function fit(name: string, wanted: string): Fit | null {
  const low = name.toLowerCase();
  const want = wanted.toLowerCase();
  if (want === "") return { score: 0, at: [] };
  const apart = scattered(name, low, want);
  const whole = low.indexOf(want);
  if (whole < 0) return apart;
  const begins = whole === 0 ? 100 : BOUNDARY.test(low[whole - 1] ?? "") ? 80 : CLOSE;
  // Of two that fit alike the shorter is meant, but not for a letter or two: then their order counts.
  const score = begins + 4 * Math.round(5 * (want.length / low.length));
  const at = Array.from({ length: want.length }, (_, index) => whole + index);
  return apart && apart.score > score ? apart : { score, at };
}

function scattered(name: string, low: string, want: string): Fit | null {
  const at: number[] = [];
  let starts = 0;
  let score = 0;
  let from = 0;
  const letters = want.replace(/\s+/g, "");
  for (const letter of letters) {
    const found = startOfWord(name, low, letter, from) ?? low.indexOf(letter, from);
    if (found < 0) return null;
    const isStart = found === 0 || BOUNDARY.test(low[found - 1] ?? "");
    starts += Number(isStart);
    score += isStart ? 6 : found === from && at.length ? 3 : 1;
    at.push(found);
    from = found + 1;
  }
  if (starts === letters.length && starts > 1) return { score: CLOSE + 14 + starts, at };
  return { score: Math.min(CLOSE - 20, score) - 0.01 * low.length, at };
}

/** The next beginning of a word with this letter, unless the letter stands right here: people type beginnings. */
function startOfWord(name: string, low: string, letter: string, from: number): number | null {
  if (from > 0 && low[from] === letter) return from;
  for (let at = from; at < name.length; at++) {
    if (low[at] === letter && (at === 0 || BOUNDARY.test(low[at - 1] ?? ""))) return at;
  }
  return null;
}

/** Those that fit every word, the best first; equal ones keep their order. `more` is searched too, for less. */
export function ranked<T>(
  items: readonly T[],
  wanted: string,
  name: (item: T) => string,
  more: (item: T) => string = () => "",
): Ranked<T>[] {
  const trimmed = wanted.trim();
  if (trimmed === "") return items.map((item) => ({ item, score: 0, at: [] }));
  const found: Ranked<T>[] = [];
  for (const item of items) {
    const best = rankOf(name(item), more(item), trimmed);
    if (best) found.push({ item, ...best });
  }
  return found.sort((a, b) => b.score - a.score);
}

function rankOf(name: string, more: string, wanted: string): Fit | null {
  const direct = fit(name, wanted);
  const words = wanted.split(/\s+/);
  const text = `${name} ${more}`.toLowerCase();
  const all = words.every((word) => text.includes(word.toLowerCase()));
  if (!all || (direct && direct.score >= CLOSE)) return direct;
  const at = words.flatMap((word) => {
    const hit = fit(name, word);
    return hit && hit.score >= CLOSE ? hit.at : [];
  });
  return { score: CLOSE - 15 + Math.min(10, at.length), at: [...new Set(at)].sort((a, b) => a - b) };
}
