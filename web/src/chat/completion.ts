/** Completions in the composer: files and agents after `@`, commands after `/`. */

import { signal } from "@preact/signals";
import { listAgents, listCommands, listFiles, readFile, rememberPrompts } from "../store/actions.ts";
import { commands } from "../store/commands.ts";
import { sent } from "../store/composer-state.ts";
import { workspace } from "../store/state.ts";
import { Problem } from "../wire/http.ts";
import type { Attachment } from "../wire/types.ts";
import { best, mentionAt, mentionsIn } from "./mentions.ts";

export interface Offer {
  readonly value: string;
  readonly words: string;
  /** A command of the page is run when it is selected; all others are inserted. */
  readonly runs: boolean;
}

export interface Offers {
  readonly kind: "file" | "command" | "sent";
  /** Start of the text that a completion replaces. */
  readonly from: number;
  readonly list: readonly Offer[];
  readonly chosen: number;
}

export const offers = signal<Offers | null>(null);

/** Maximum age of a list, in milliseconds. */
const FRESH = 20_000;
const MOST_NAMED = 20;

/** A list that is fetched on demand, and again when it is old. Empty if it cannot be fetched. */
class Fresh<T> {
  private list: Promise<readonly T[]> | null = null;
  private at = 0;
  private place = "";

  constructor(private readonly ask: () => Promise<readonly T[]>) {}

  get(): Promise<readonly T[]> {
    const place = workspace.value?.id ?? "";
    if (this.list === null || this.place !== place || Date.now() - this.at > FRESH) {
      this.at = Date.now();
      this.place = place;
      this.list = this.ask().catch(() => []);
    }
    return this.list;
  }
}

const files = new Fresh(async () => (await listFiles()).files);
const agents = new Fresh(listAgents);
const given = new Fresh(listCommands);
const prompts = new Fresh(async () => {
  await rememberPrompts();
  return [];
});
let asked = 0;

/** Updates the completions for the text before the cursor. */
export function updateOffers(text: string, cursor: number): void {
  asked += 1;
  const before = text.slice(0, cursor);
  const command = /^\/([\w:.-]*)$/.exec(before);
  const letters = mentionAt(before);
  if (command !== null) void offerCommands((command[1] ?? "").toLowerCase(), asked);
  else if (letters !== null) void offerFiles(letters, cursor - letters.length - 1, asked);
  else offers.value = null;
}

async function offerCommands(letters: string, mine: number): Promise<void> {
  const own = commands.value
    .filter((one) => one.when?.() ?? true)
    .map((one) => ({ value: `/${one.name}`, words: one.title, runs: true }));
  const known = new Set(own.map((one) => one.value));
  const others = (await given.get())
    .map((one) => ({ value: `/${one.name}`, words: [one.description, one.hint].filter(Boolean).join("  "), runs: false }))
    .filter((one) => !known.has(one.value));
  if (mine !== asked) return;
  const fitting = [...own, ...others].filter((one) => one.value.toLowerCase().includes(letters));
  const begins = (one: Offer): boolean => one.value.toLowerCase().startsWith(`/${letters}`);
  fitting.sort((a, b) => Number(begins(b)) - Number(begins(a)));
  offer("command", 0, fitting.slice(0, 12));
}

async function offerFiles(letters: string, from: number, mine: number): Promise<void> {
  const [names, known] = await Promise.all([files.get(), agents.get()]);
  if (mine !== asked) return;
  const people = known
    .filter((one) => one.name.toLowerCase().startsWith(letters.toLowerCase()))
    .map((one) => ({ value: one.name, words: `agent  ${one.description ?? ""}`, runs: false }));
  const found = best(letters, names).map((name) => ({ value: name, words: "", runs: false }));
  offer("file", from, [...people, ...found].slice(0, 12));
}

/** Returns sent prompts that contain these words, newest first. */
export async function offerSent(words: string): Promise<void> {
  asked += 1;
  const mine = asked;
  offers.value = { kind: "sent", from: 0, list: offers.value?.list ?? [], chosen: 0 };
  await prompts.get();
  if (mine !== asked) return;
  const wanted = words.trim().toLowerCase();
  const found = sent.value.filter((one) => one.toLowerCase().includes(wanted)).reverse();
  offer("sent", 0, found.slice(0, 50).map((value) => ({ value, words: "", runs: false })));
}

function offer(kind: Offers["kind"], from: number, list: readonly Offer[]): void {
  offers.value = list.length === 0 ? null : { kind, from, list, chosen: 0 };
}

export function closeOffers(): void {
  asked += 1;
  offers.value = null;
}

export function step(by: number): void {
  const now = offers.value;
  if (now === null) return;
  offers.value = { ...now, chosen: (now.chosen + by + now.list.length) % now.list.length };
}

/** Returns the text and the cursor position after the selected completion. */
export function completed(text: string, cursor: number, now: Offers, chosen: Offer): readonly [string, number] {
  if (now.kind === "sent") return [chosen.value, chosen.value.length];
  const name = now.kind === "file" ? `@${/\s/.test(chosen.value) ? `"${chosen.value}"` : chosen.value}` : chosen.value;
  const rest = text.slice(cursor);
  const start = text.slice(0, now.from) + name + (rest.startsWith(" ") ? "" : " ");
  return [start + rest, start.length];
}

/** Returns the files that a text mentions. Names that are not files are ignored. */
export async function namedFiles(text: string): Promise<readonly Attachment[]> {
  const found: Attachment[] = [];
  for (const name of mentionsIn(text).slice(0, MOST_NAMED)) {
    try {
      found.push(await readFile(name));
    } catch (error) {
      if (error instanceof Problem && (error.status === 404 || error.status === 400)) continue;
      throw error;
    }
  }
  return found;
}
