/** Descriptions of messages and runs. Pure. */

import type { AgentNotice, Finish, Message, Run, ToolCall } from "../wire/types.ts";

export function textOf(message: Message): string {
  return message.parts.map((part) => (part.type === "text" ? part.data.text : "")).join("");
}

export function finishOf(message: Message): Finish | null {
  for (let at = message.parts.length - 1; at >= 0; at -= 1) {
    const part = message.parts[at];
    if (part?.type === "finish") return part.data;
  }
  return null;
}

const NAMED = /"(?:command|file_path|pattern|url|path|prompt)"\s*:\s*"((?:[^"\\]|\\.){1,200})/;

function named(call: ToolCall): string {
  const found = NAMED.exec(call.input.slice(0, 4_000))?.[1] ?? "";
  const summary = found.replace(/\\n/g, " ").replace(/\\(.)/g, "$1").trim().split(/\s+/).join(" ").slice(0, 60);
  return summary ? `${call.name}: ${summary}` : call.name;
}

/** Describes the current activity of the session; empty when it is idle. */
export function activityOf(runs: readonly Run[], last: Message | undefined, notice: AgentNotice | null, isAwaitingApproval = false): string {
  const [head] = runs;
  if (head === undefined) return "";
  if (head.state === "cancelling" || head.cancel_requested) return "Stopping";
  if (isAwaitingApproval) return "Waiting for approval";
  if (notice?.error) return notice.error;
  if (head.kind === "summary") return "Summarising";
  if (last === undefined || last.role !== "assistant" || finishOf(last) !== null) {
    return head.started_at ? "Waiting for the model" : "Starting";
  }
  const part = last.parts[last.parts.length - 1];
  switch (part?.type) {
    case "tool_call":
      return part.data.finished ? `Running ${named(part.data)}` : `Preparing ${part.data.name}`;
    case "reasoning":
      return "Thinking";
    case "text":
      return "Writing";
    default:
      return "Waiting for the model";
  }
}

export interface Note {
  readonly kind: "error" | "warning" | "info";
  readonly title: string;
  readonly text: string;
  readonly hint: string;
}

/** Describes how an answer ended, unless it ended normally. */
export function noteOf(finish: Finish): Note | null {
  const text = [finish.message, finish.details].filter(Boolean).join("\n");
  switch (finish.reason) {
    case "canceled":
      return { kind: "info", title: "Cancelled", text: /^cancell?ed\.?$/i.test(text) ? "" : text, hint: "" };
    case "error":
      return { kind: "error", title: finish.message || "The answer was interrupted", text: finish.details ?? "", hint: hintOf(text) };
    case "max_tokens":
      return { kind: "warning", title: "The answer reached its limit", text, hint: "Send “continue” to let the model continue." };
    case "content_filter":
      return { kind: "warning", title: "The provider withheld the answer", text, hint: "Rephrase the prompt, or choose another model." };
    default:
      return null;
  }
}

function hintOf(text: string): string {
  if (/key|unauthor|401|403|credential/i.test(text)) return "Choose another model or set a key with “Choose a model”.";
  if (/rate|429|overload|quota|billing/i.test(text)) return "Wait a moment and send the prompt again, or choose another model.";
  if (/context|too long|too large/i.test(text)) return "Summarise the session, or start a new one.";
  if (/interrupt|server (was )?stopp|restart/i.test(text)) return "Send the prompt again to continue.";
  return "Send the prompt again, or choose another model.";
}

export function sizeOf(bytes: number): string {
  if (bytes < 1_024) return `${bytes} B`;
  return bytes < 1_048_576 ? `${Math.round(bytes / 1_024)} KB` : `${(bytes / 1_048_576).toFixed(1)} MB`;
}
