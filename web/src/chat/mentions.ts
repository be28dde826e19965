/** File names after `@` in a prompt, and fuzzy matching of names, as in the terminal app. Pure. */

const OPEN = /(?:^|\s)@([^\s@"]*)$/;
const NAMED = /(?:^|(?<=\s))@("[^"\n]+"|[^\s@"]+)/g;

/** Returns the letters of the name before the cursor; null if there is none. */
export function mentionAt(before: string): string | null {
  return OPEN.exec(before)?.[1] ?? null;
}

/** Returns every name after `@` in a text once, without `@`, quotes and closing punctuation. */
export function mentionsIn(text: string): readonly string[] {
  const names = [...text.matchAll(NAMED)].map((found) => (found[1] ?? "").replace(/^"|"$/g, "").replace(/[.,;:!?)]+$/, ""));
  return [...new Set(names.filter((name) => name !== ""))];
}

/** Scores how well letters match a path, in order; higher is better, null is no match. */
export function score(letters: string, name: string): number | null {
  const wanted = letters.toLowerCase();
  if (wanted === "") return -name.length;
  const low = name.toLowerCase();
  const base = low.slice(low.lastIndexOf("/") + 1);
  const inBase = base.indexOf(wanted);
  if (inBase >= 0) {
    const begins = inBase === 0 ? 500 : "._- ".includes(base[inBase - 1] ?? "") ? 200 : 0;
    return 3_000 + begins - 10 * inBase - name.length;
  }
  if (low.includes(wanted)) return 2_000 - name.length;
  let at = -1;
  let points = 0;
  for (const letter of wanted) {
    const found = low.indexOf(letter, at + 1);
    if (found < 0) return null;
    points += found === at + 1 ? 30 : found === 0 || "/._- ".includes(low[found - 1] ?? "") ? 15 : 0;
    at = found;
  }
  return points - name.length;
}

/** Returns the best matches. */
export function best(letters: string, names: readonly string[], limit = 10): readonly string[] {
  const fitting: [number, string][] = [];
  for (const name of names) {
    const points = score(letters, name);
    if (points !== null) fitting.push([points, name]);
  }
  fitting.sort((a, b) => b[0] - a[0] || (a[1] < b[1] ? -1 : 1));
  return fitting.slice(0, limit).map(([, name]) => name);
}
