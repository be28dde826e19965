// Full-text search in one conversation or in all. Pure.

import { headlineOf } from "../cards/tool-data.ts";
import type { Message, Part, Session } from "../wire/types.ts";

export interface Hit {
  /** Empty for a match in a title. */
  readonly messageId: string;
  readonly kind: "title" | "you" | "answer" | "thought" | "tool" | "result";
  readonly before: string;
  readonly found: string;
  readonly after: string;
}

/** Matches in one session. */
export interface Finding {
  readonly session: Session;
  readonly hits: readonly Hit[];
}

const CONTEXT_LENGTH = 60;
const PER_PART = 3;
const PER_SESSION = 5;

/** Returns all matches in the order of the conversation, up to a limit. */
export function findMatches(messages: readonly Message[], query: string, most = 200): Hit[] {
  const wanted = query.trim().toLowerCase();
  if (!wanted) return [];
  const hits: Hit[] = [];
  let shownAt = "";
  for (const message of messages) {
    // Tool results are shown with the calls of the preceding answer.
    if (message.role !== "tool") shownAt = message.id;
    for (const part of message.parts) {
      const { kind, text } = textOf(message, part);
      for (const at of matchOffsets(text, wanted)) {
        hits.push(hitAt(shownAt, kind, text, at, wanted.length));
        if (hits.length >= most) return hits;
      }
    }
  }
  return hits;
}

/** Searches titles and texts session by session, in the given order; a few matches of each. */
export function findInSessions(
  sessions: readonly Session[],
  messagesOf: (id: string) => readonly Message[],
  query: string,
  most = 200,
): Finding[] {
  const wanted = query.trim().toLowerCase();
  if (!wanted) return [];
  const found: Finding[] = [];
  let count = 0;
  for (const session of sessions) {
    const titles = matchOffsets(session.title, wanted).slice(0, 1);
    const hits = [
      ...titles.map((at) => hitAt("", "title", session.title, at, wanted.length)),
      ...findMatches(messagesOf(session.id), query, PER_SESSION),
    ];
    if (hits.length === 0) continue;
    found.push({ session, hits });
    count += hits.length;
    if (count >= most) return found;
  }
  return found;
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

function matchOffsets(text: string, wanted: string): number[] {
  const low = text.toLowerCase();
  // Lowercasing changes the length of some letters; then offsets would not match.
  if (low.length !== text.length) return text.includes(wanted) ? [text.indexOf(wanted)] : [];
  const offsets: number[] = [];
  for (let at = low.indexOf(wanted); at >= 0 && offsets.length < PER_PART; at = low.indexOf(wanted, at + wanted.length)) offsets.push(at);
  return offsets;
}

function hitAt(messageId: string, kind: Hit["kind"], text: string, at: number, length: number): Hit {
  const flat = (piece: string): string => piece.replace(/\s+/g, " ");
  const from = Math.max(0, at - CONTEXT_LENGTH);
  return {
    messageId,
    kind,
    before: (from > 0 ? "…" : "") + flat(text.slice(from, at)),
    found: flat(text.slice(at, at + length)),
    after: flat(text.slice(at + length, at + length + CONTEXT_LENGTH)) + (at + length + CONTEXT_LENGTH < text.length ? "…" : ""),
  };
}
