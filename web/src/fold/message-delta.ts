/** Applies deltas to a message; counterpart of domain/message_merge.py. Overlaps are dropped, gaps are ignored.
 *
 * The cost of a delta does not depend on the length: text is appended (engines use ropes), lengths are cached. */

import type { Message, MessageDelta, MessagePart, Part } from "../wire/types.ts";

/** Offsets on the wire count code points; string lengths here count UTF-16 code units. */
export function codePoints(text: string): number {
  let count = text.length;
  for (let at = 0; at < text.length - 1; at += 1) {
    const high = text.charCodeAt(at);
    if (high < 0xd800 || high > 0xdbff) continue;
    const low = text.charCodeAt(at + 1);
    if (low >= 0xdc00 && low <= 0xdfff) {
      count -= 1;
      at += 1;
    }
  }
  return count;
}

/** Returns the text without its first `count` code points. */
export function afterCodePoints(text: string, count: number): string {
  let at = 0;
  for (let left = count; left > 0 && at < text.length; left -= 1) {
    at += (text.codePointAt(at) ?? 0) > 0xffff ? 2 : 1;
  }
  return text.slice(at);
}

/** Returns the last `count` code points of the text. */
export function lastCodePoints(text: string, count: number): string {
  if (text.length <= count) return text;
  let at = text.length;
  for (let left = count; left > 0 && at > 0; left -= 1) {
    const low = text.charCodeAt(at - 1);
    const high = at > 1 ? text.charCodeAt(at - 2) : 0;
    at -= low >= 0xdc00 && low <= 0xdfff && high >= 0xd800 && high <= 0xdbff ? 2 : 1;
  }
  return text.slice(at);
}

function growing(part: Part): string | null {
  if (part.type === "text") return part.data.text;
  if (part.type === "reasoning") return part.data.thinking;
  return null;
}

function extended(part: Part, text: string): Part {
  if (part.type === "text") return { type: "text", data: { ...part.data, text: part.data.text + text } };
  if (part.type === "reasoning") {
    return { type: "reasoning", data: { ...part.data, thinking: part.data.thinking + text } };
  }
  return part;
}

/** A message with its deltas. */
export class Draft {
  private message: Message;
  private readonly parts: Part[];
  private readonly lengths: (number | undefined)[] = [];
  private isGrown = false;

  constructor(message: Message) {
    this.message = message;
    this.parts = [...message.parts];
  }

  add(delta: MessageDelta): void {
    const part = this.parts[delta.part];
    if (part === undefined) return;
    let length = this.lengths[delta.part];
    if (length === undefined) {
      const text = growing(part);
      if (text === null) return;
      length = codePoints(text);
      this.lengths[delta.part] = length;
    }
    if (delta.offset > length) return;
    const fresh = delta.offset === length ? delta.text : afterCodePoints(delta.text, length - delta.offset);
    if (fresh === "") return;
    this.parts[delta.part] = extended(part, fresh);
    this.lengths[delta.part] = length + codePoints(fresh);
    this.isGrown = true;
  }

  replace(whole: MessagePart): void {
    if (whole.part > this.parts.length) return;
    this.parts[whole.part] = whole.content;
    this.lengths[whole.part] = undefined;
    this.isGrown = true;
  }

  current(): Message {
    if (this.isGrown) {
      this.message = { ...this.message, parts: [...this.parts] };
      this.isGrown = false;
    }
    return this.message;
  }
}
