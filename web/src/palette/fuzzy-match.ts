// Fuzzy matching of names. Pure.

export interface Ranked<T> {
  readonly item: T;
  readonly score: number;
  /** Positions of the matched letters in the name, for highlighting. */
  readonly at: readonly number[];
}

const BOUNDARY = /[\s/_\-.:·]/;

interface Fit {
  readonly score: number;
  readonly at: number[];
}

/** Minimum score of a match whose letters are contiguous or each begin a word. */
const CLOSE = 60;

/** Scores how well `wanted` matches `name`: higher is better, null if a letter is missing. Letters match in order. */
export function fit(name: string, wanted: string): Fit | null {
  const low = name.toLowerCase();
  const want = wanted.toLowerCase();
  if (want === "") return { score: 0, at: [] };
  const apart = scatteredMatch(name, low, want);
  const whole = low.indexOf(want);
  if (whole < 0) return apart;
  const begins = whole === 0 ? 100 : BOUNDARY.test(low[whole - 1] ?? "") ? 80 : CLOSE;
  // Of two equal matches the shorter is better, but not for one or two letters: then the given order decides.
  const score = begins + 4 * Math.round(5 * (want.length / low.length));
  const at = Array.from({ length: want.length }, (_, index) => whole + index);
  return apart && apart.score > score ? apart : { score, at };
}

function scatteredMatch(name: string, low: string, want: string): Fit | null {
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

/** Returns the next beginning of a word with this letter, unless the letter is at the current position. */
function startOfWord(name: string, low: string, letter: string, from: number): number | null {
  if (from > 0 && low[from] === letter) return from;
  for (let at = from; at < name.length; at++) {
    if (low[at] === letter && (at === 0 || BOUNDARY.test(low[at - 1] ?? ""))) return at;
  }
  return null;
}

/** Returns the items that match every word, best first; equal ones keep their order. Matches in `more` score less. */
export function rank<T>(
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
