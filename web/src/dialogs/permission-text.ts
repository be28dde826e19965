// Descriptions of permission requests. Pure.

import { diffOf, parseUnified } from "../diff/lines.ts";
import type { DiffLine } from "../diff/lines.ts";
import type { PermissionNotification, PermissionRequest, QuestionNotification, Via } from "../wire/types.ts";

const ACTION_TEXTS: Readonly<Record<string, string>> = {
  execute: "run a command",
  write: "change a file",
  read: "read a file outside the workspace",
  list: "list a directory outside the workspace",
  fetch: "fetch a web page",
  download: "download a file",
};

export function describeRequest(request: PermissionRequest): string {
  return `${request.tool_name || "A tool"} wants to ${ACTION_TEXTS[request.action] ?? (request.action || "act")}`;
}

export type RequestSubject =
  | { readonly kind: "command"; readonly command: string; readonly where: string }
  | { readonly kind: "change"; readonly path: string; readonly lines: readonly DiffLine[]; readonly isNew: boolean }
  | { readonly kind: "facts"; readonly facts: readonly (readonly [string, string])[] };

/** Returns exactly what would be executed. */
export function subjectOf(request: PermissionRequest): RequestSubject {
  const params = request.params ?? {};
  const { command, new_content: now, old_content: old, diff, file_path: path } = params;
  if (typeof command === "string") return { kind: "command", command, where: request.path };
  const named = typeof path === "string" ? path : request.path;
  if (typeof now === "string") {
    const before = typeof old === "string" ? old : "";
    return { kind: "change", path: named, lines: diffOf(before, now), isNew: request.description.startsWith("Create") };
  }
  if (typeof diff === "string") return { kind: "change", path: named, lines: parseUnified(diff), isNew: false };
  const facts = Object.entries(params)
    .filter(([, value]) => value !== "" && value !== null && value !== 0 && value !== false)
    .map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value, null, 2)] as const);
  return { kind: "facts", facts: facts.length ? facts : [["description", request.description]] };
}

const ORIGINS: Readonly<Record<Via, string>> = {
  terminal: "in a terminal app",
  page: "in another page",
  command: "on a command line",
  editor: "in an editor",
  "": "in another client",
};

/** Describes the outcome of a request that another client has answered. */
export function describeOutcome(answer: PermissionNotification | QuestionNotification | undefined): string {
  if (!answer || answer.withdrawn) return "The request was withdrawn: its run has ended.";
  const where = ORIGINS[answer.via ?? ""] + (answer.by ? ` (${answer.by.slice(0, 8)})` : "");
  if ("granted" in answer) return `${answer.granted ? "Allowed" : "Denied"} ${where}.`;
  return `${answer.cancelled ? "Dismissed" : "Answered"} ${where}.`;
}
