// Words in a conversation: which messages have them, and where. Pure.

import { headlineOf } from "../cards/facts.ts";
import type { Message, Part } from "../wire/types.ts";

export interface Hit {
  readonly messageId: string;
  readonly kind: "you" | "answer" | "thought" | "tool" | "result";
  readonly before: string;
  readonly found: string;
  readonly after: string;
}

const AROUND = 60;
const PER_PART = 3;

/** All places, in the order of the conversation, bounded. */
export function sought(messages: readonly Message[], words: string, most = 200): Hit[] {
  const wanted = words.trim().toLowerCase();
  if (!wanted) return [];
  const hits: Hit[] = [];
  let shownAt = "";
  for (const message of messages) {
    // Results stand with the calls of the answer before them.
    if (message.role !== "tool") shownAt = message.id;
    for (const part of message.parts) {
      const { kind, text } = textOf(message, part);
      for (const at of placesOf(text, wanted)) {
        hits.push(hitAt(shownAt, kind, text, at, wanted.length));
        if (hits.length >= most) return hits;
      }
    }
  }
  return hits;
}

function textOf(message: Message, part: Part): { kind: Hit["kind"]; text: string } {
  switch (part.type) {
    case "text":
      return { kind: message.role === "user" ? "you" : "answer", text: part.data.text };
    case "reasoning":
      return { kind: "thought", text: part.data.thinking };
    case "tool_call":
      return { kind: "tool", text: `${part.data.name} ${headlineOf(part.data.name, part.data.input)}` };
    case "tool_result":
      return { kind: "result", text: part.data.content };
    case "shell_command":
      return { kind: "tool", text: `${part.data.command}\n${part.data.output}` };
    default:
      return { kind: "answer", text: "" };
  }
}

function placesOf(text: string, wanted: string): number[] {
  const low = text.toLowerCase();
  // Some letters change their number when they are made small; then places would not fit.
  if (low.length !== text.length) return text.includes(wanted) ? [text.indexOf(wanted)] : [];
  const places: number[] = [];
  for (let at = low.indexOf(wanted); at >= 0 && places.length < PER_PART; at = low.indexOf(wanted, at + wanted.length)) places.push(at);
  return places;
}

function hitAt(messageId: string, kind: Hit["kind"], text: string, at: number, length: number): Hit {
  const flat = (piece: string): string => piece.replace(/\s+/g, " ");
  const from = Math.max(0, at - AROUND);
  return {
    messageId,
    kind,
    before: (from > 0 ? "…" : "") + flat(text.slice(from, at)),
    found: flat(text.slice(at, at + length)),
    after: flat(text.slice(at + length, at + length + AROUND)) + (at + length + AROUND < text.length ? "…" : ""),
  };
}
