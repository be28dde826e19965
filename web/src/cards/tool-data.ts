// Contents of tool cards as data. Pure.

import { countChanges, diffOf, parseUnified } from "../diff/lines.ts";
import type { DiffLine } from "../diff/lines.ts";

export type JsonObject = Readonly<Record<string, unknown>>;

export const CHANGE_TOOLS: ReadonlySet<string> = new Set(["write", "edit", "multiedit"]);
export const SUBAGENT_TOOLS: ReadonlySet<string> = new Set(["agent", "agentic_fetch"]);

/** Parses a JSON object; returns an empty one for invalid JSON, such as a call that is still streaming. */
export function parseObject(text: string | undefined): JsonObject {
  if (!text) return {};
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as JsonObject) : {};
  } catch {
    return {};
  }
}

export function textAt(facts: JsonObject, key: string): string {
  const value = facts[key];
  return typeof value === "string" ? value : "";
}

export function numberAt(facts: JsonObject, key: string): number | null {
  const value = facts[key];
  return typeof value === "number" ? value : null;
}

const TITLES = ["command", "file_path", "pattern", "url", "path", "prompt", "query", "shell_id"];

/** Summarises the input of a tool in one line. */
export function headlineOf(name: string, input: string, metadata = "", directory = ""): string {
  const args = parseObject(input);
  for (const key of TITLES) {
    const value = textAt(args, key);
    if (value.trim()) return shorten(value, directory) + headlineSuffix(name, args, directory);
  }
  if (name === "todos") return progressOf(todosOf(input, metadata));
  if (name === "question") {
    const questions = questionsOf(input);
    return questions.length > 1 ? `${questions.length} questions` : (questions[0] ?? "");
  }
  return "";
}

function shorten(value: string, directory: string): string {
  const [first = "", ...rest] = value.trim().split("\n");
  return relativePath(first.replace(/[\x00-\x1f\x7f]/g, "·"), directory) + (rest.join("").trim() ? " …" : "");
}

/** Returns a path relative to the workspace. */
export function relativePath(path: string, directory: string): string {
  return directory && path.startsWith(`${directory}/`) ? path.slice(directory.length + 1) : path;
}

function headlineSuffix(name: string, args: JsonObject, directory: string): string {
  const path = textAt(args, "path");
  if ((name === "grep" || name === "glob") && path && path !== "." && textAt(args, "pattern")) return `  in ${relativePath(path, directory)}`;
  const offset = numberAt(args, "offset");
  if (name === "view" && offset) return `  from line ${offset + 1}`;
  if (name === "bash" && args["run_in_background"] === true) return "  (in the background)";
  if (name === "multiedit" && Array.isArray(args["edits"])) return `  ${args["edits"].length} edits`;
  return "";
}

export interface TodoLine {
  readonly content: string;
  readonly status: string;
}

export function todosOf(input: string, metadata = ""): TodoLine[] {
  const meta = parseObject(metadata);
  const todos = Array.isArray(meta["todos"]) ? meta["todos"] : parseObject(input)["todos"];
  if (!Array.isArray(todos)) return [];
  return todos
    .filter((item): item is JsonObject => typeof item === "object" && item !== null)
    .map((item) => ({ content: textAt(item, "content"), status: textAt(item, "status") }));
}

export function progressOf(todos: readonly TodoLine[]): string {
  return todos.length ? `${todos.filter((todo) => todo.status === "completed").length} of ${todos.length} done` : "";
}

export function questionsOf(input: string): string[] {
  const questions = parseObject(input)["questions"];
  if (!Array.isArray(questions)) return [];
  return questions.map((item) => textAt(item as JsonObject, "question")).filter((text) => text);
}

/** Formats the answer to a question with the labels of its choices instead of their ids. */
export function answerOf(line: string, input: string): string {
  const answer = line.replace(/^User (?:answered|provided): /, "");
  const chosen = /^User selected: (\[.*\])$/.exec(answer)?.[1];
  if (chosen === undefined) return answer.replace(/^User /, "");
  const labels = labelsOf(input);
  try {
    return (JSON.parse(chosen) as string[]).map((id) => labels.get(id) ?? id).join(", ");
  } catch {
    return chosen;
  }
}

function labelsOf(input: string): Map<string, string> {
  const questions = parseObject(input)["questions"];
  const found = new Map<string, string>();
  for (const question of Array.isArray(questions) ? (questions as JsonObject[]) : []) {
    const choices = question["choices"] ?? question["options"];
    for (const choice of Array.isArray(choices) ? (choices as JsonObject[]) : []) found.set(textAt(choice, "id"), textAt(choice, "label"));
  }
  return found;
}

/** Returns the change that a tool has made or is about to make. */
export function changeOf(name: string, input: string, metadata = ""): DiffLine[] {
  if (!CHANGE_TOOLS.has(name)) return [];
  const meta = parseObject(metadata);
  if (typeof meta["diff"] === "string") return parseUnified(meta["diff"]);
  if (typeof meta["new_content"] === "string") return diffOf(textAt(meta, "old_content"), meta["new_content"]);
  const args = parseObject(input);
  if (typeof args["content"] === "string") return diffOf("", args["content"]);
  if (typeof args["new_string"] === "string") return diffOf(textAt(args, "old_string"), args["new_string"]);
  if (Array.isArray(args["edits"])) {
    return args["edits"].flatMap((item) => {
      const edit = item as JsonObject;
      return diffOf(textAt(edit, "old_string"), textAt(edit, "new_string"));
    });
  }
  return [];
}

/** Returns the number of changed lines as reported by the tool; otherwise counts them. */
export function sizeOfChange(lines: readonly DiffLine[], metadata = ""): { added: number; removed: number } {
  const meta = parseObject(metadata);
  const added = numberAt(meta, "additions");
  const removed = numberAt(meta, "removals");
  return added !== null && removed !== null ? { added, removed } : countChanges(lines);
}

const EXIT = /(?:^|\n)Exit code (-?\d+)\s*$/;

export interface ShellOutput {
  readonly text: string;
  /** Null if it is unknown or still running. */
  readonly exit: number | null;
}

/** Returns the output of a command without remarks for the model, and its exit code. */
export function shellOf(content: string, metadata: string, output: string, isDone: boolean): ShellOutput {
  const meta = parseObject(metadata);
  const finalOutput = textAt(meta, "output") || (content.split("\n\n<cwd>")[0] ?? "").replace(/^no output$/, "");
  const text = isDone ? finalOutput : output;
  const found = EXIT.exec(text);
  if (found) return { text: text.slice(0, found.index), exit: Number(found[1]) };
  return { text, exit: isDone && meta["background"] !== true && "end_time" in meta ? 0 : null };
}

/** Returns the duration reported by the tool, in milliseconds. */
export function durationOf(metadata: string): number | null {
  const meta = parseObject(metadata);
  const start = numberAt(meta, "start_time");
  const end = numberAt(meta, "end_time");
  return start !== null && end !== null ? Math.max(0, end - start) : null;
}

export interface Match {
  readonly line: number;
  readonly text: string;
}

export interface FileMatches {
  readonly path: string;
  readonly matches: readonly Match[];
}

/** Returns the matches of grep by file; null if the result has another format. */
export function matchesOf(content: string): FileMatches[] | null {
  const files: { path: string; matches: Match[] }[] = [];
  for (const text of content.split("\n")) {
    const hit = /^\s+Line (\d+)(?:, Char \d+)?: ?(.*)$/.exec(text);
    const head = /^(\S.*):$/.exec(text);
    if (hit) files[files.length - 1]?.matches.push({ line: Number(hit[1]), text: hit[2] ?? "" });
    else if (head) files.push({ path: head[1] ?? "", matches: [] });
  }
  return files.some((file) => file.matches.length) ? files : null;
}

/** Returns the lines of a viewed file with their numbers. */
export function viewedOf(content: string, metadata: string, input: string): { first: number; text: string } {
  const meta = parseObject(metadata);
  if (typeof meta["content"] === "string") return { first: (numberAt(parseObject(input), "offset") ?? 0) + 1, text: meta["content"] };
  return { first: 1, text: content };
}

export interface Cut {
  readonly text: string;
  readonly hidden: number;
}

/** Returns the first or last `most` lines and the number of omitted ones. */
export function cut(text: string, most: number, fromEnd = false): Cut {
  const lines = text.replace(/\n+$/, "").split("\n");
  // Omitting a handful of lines would save nothing.
  if (lines.length <= most + Math.max(1, Math.floor(most / 3))) return { text: lines.join("\n"), hidden: 0 };
  const visible = fromEnd ? lines.slice(-most) : lines.slice(0, most);
  return { text: visible.join("\n"), hidden: lines.length - most };
}

/** Removes terminal colours and cursor movements; an overwritten line keeps its last text. */
export function plain(text: string): string {
  return text
    .replace(/\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]/g, "")
    .replace(/[^\n]*\r(?!\n)/g, "")
    .replace(/\r\n/g, "\n")
    .replace(/[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]/g, "·");
}

/** Returns the text to copy: the command, the new text of a file, or the result. */
export function copyOf(input: string, metadata: string, content: string): string {
  const args = parseObject(input);
  const meta = parseObject(metadata);
  const found = [args["command"], meta["new_content"], meta["content"], args["content"]].find((value) => typeof value === "string" && value);
  return typeof found === "string" ? found : content;
}
