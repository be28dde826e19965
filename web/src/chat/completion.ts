/** Completions in the composer: files and agents after `@`, commands after `/`. */

import { signal } from "@preact/signals";
import { listAgents, listCommands, listFiles, readFile, rememberPrompts } from "../store/actions.ts";
import { commands } from "../store/commands.ts";
import { sent } from "../store/composer-state.ts";
import { workspace } from "../store/state.ts";
import { Problem } from "../wire/http.ts";
import type { Attachment } from "../wire/types.ts";
import { best, mentionAt, mentionsIn } from "./mentions.ts";

export interface Completion {
  readonly value: string;
  readonly description: string;
  /** A command of the page is run when it is selected; all others are inserted. */
  readonly runs: boolean;
}

export interface Completions {
  readonly kind: "file" | "command" | "sent";
  /** Start of the text that a completion replaces. */
  readonly from: number;
  readonly list: readonly Completion[];
  readonly chosen: number;
}

export const completions = signal<Completions | null>(null);

/** Maximum age of a list, in milliseconds. */
const MAX_AGE = 20_000;
const MAX_MENTIONS = 20;

/** A list that is fetched on demand, and again when it is old. Empty if it cannot be fetched. */
class CachedList<T> {
  private list: Promise<readonly T[]> | null = null;
  private at = 0;
  private workspaceId = "";

  constructor(private readonly fetchList: () => Promise<readonly T[]>) {}

  get(): Promise<readonly T[]> {
    const workspaceId = workspace.value?.id ?? "";
    if (this.list === null || this.workspaceId !== workspaceId || Date.now() - this.at > MAX_AGE) {
      this.at = Date.now();
      this.workspaceId = workspaceId;
      this.list = this.fetchList().catch(() => []);
    }
    return this.list;
  }
}

const files = new CachedList(async () => (await listFiles()).files);
const agents = new CachedList(listAgents);
const customCommands = new CachedList(listCommands);
const prompts = new CachedList(async () => {
  await rememberPrompts();
  return [];
});
let latestRequest = 0;

/** Updates the completions for the text before the cursor. */
export function updateCompletions(text: string, cursor: number): void {
  latestRequest += 1;
  const before = text.slice(0, cursor);
  const command = /^\/([\w:.-]*)$/.exec(before);
  const letters = mentionAt(before);
  if (command !== null) void completeCommand((command[1] ?? "").toLowerCase(), latestRequest);
  else if (letters !== null) void completeMention(letters, cursor - letters.length - 1, latestRequest);
  else completions.value = null;
}

async function completeCommand(letters: string, request: number): Promise<void> {
  const own = commands.value
    .filter((one) => one.when?.() ?? true)
    .map((one) => ({ value: `/${one.name}`, description: one.title, runs: true }));
  const known = new Set(own.map((one) => one.value));
  const others = (await customCommands.get())
    .map((one) => ({ value: `/${one.name}`, description: [one.description, one.hint].filter(Boolean).join("  "), runs: false }))
    .filter((one) => !known.has(one.value));
  if (request !== latestRequest) return;
  const fitting = [...own, ...others].filter((one) => one.value.toLowerCase().includes(letters));
  const begins = (one: Completion): boolean => one.value.toLowerCase().startsWith(`/${letters}`);
  fitting.sort((a, b) => Number(begins(b)) - Number(begins(a)));
  showCompletions("command", 0, fitting.slice(0, 12));
}

async function completeMention(letters: string, from: number, request: number): Promise<void> {
  const [names, known] = await Promise.all([files.get(), agents.get()]);
  if (request !== latestRequest) return;
  const matchingAgents = known
    .filter((one) => one.name.toLowerCase().startsWith(letters.toLowerCase()))
    .map((one) => ({ value: one.name, description: `agent  ${one.description ?? ""}`, runs: false }));
  const found = best(letters, names).map((name) => ({ value: name, description: "", runs: false }));
  showCompletions("file", from, [...matchingAgents, ...found].slice(0, 12));
}

/** Returns sent prompts that contain these words, newest first. */
export async function completeSentPrompt(query: string): Promise<void> {
  latestRequest += 1;
  const request = latestRequest;
  completions.value = { kind: "sent", from: 0, list: completions.value?.list ?? [], chosen: 0 };
  await prompts.get();
  if (request !== latestRequest) return;
  const wanted = query.trim().toLowerCase();
  const found = sent.value.filter((one) => one.toLowerCase().includes(wanted)).reverse();
  showCompletions("sent", 0, found.slice(0, 50).map((value) => ({ value, description: "", runs: false })));
}

function showCompletions(kind: Completions["kind"], from: number, list: readonly Completion[]): void {
  completions.value = list.length === 0 ? null : { kind, from, list, chosen: 0 };
}

export function closeCompletions(): void {
  latestRequest += 1;
  completions.value = null;
}

export function step(by: number): void {
  const now = completions.value;
  if (now === null) return;
  completions.value = { ...now, chosen: (now.chosen + by + now.list.length) % now.list.length };
}

/** Returns the text and the cursor position after the selected completion. */
export function completed(text: string, cursor: number, now: Completions, chosen: Completion): readonly [string, number] {
  if (now.kind === "sent") return [chosen.value, chosen.value.length];
  const name = now.kind === "file" ? `@${/\s/.test(chosen.value) ? `"${chosen.value}"` : chosen.value}` : chosen.value;
  const rest = text.slice(cursor);
  const start = text.slice(0, now.from) + name + (rest.startsWith(" ") ? "" : " ");
  return [start + rest, start.length];
}

/** Returns the files that a text mentions. Names that are not files are ignored. */
export async function namedFiles(text: string): Promise<readonly Attachment[]> {
  const found: Attachment[] = [];
  for (const name of mentionsIn(text).slice(0, MAX_MENTIONS)) {
    try {
      found.push(await readFile(name));
    } catch (error) {
      if (error instanceof Problem && (error.status === 404 || error.status === 400)) continue;
      throw error;
    }
  }
  return found;
}
