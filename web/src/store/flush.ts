/** Copies changes to the signals once per frame: a hundred tokens are one rendering. */

import { batch } from "@preact/signals";
import type { View } from "../fold/view.ts";
import type { Message, Session } from "../wire/types.ts";
import * as state from "./state.ts";

/** The parts of the page that may have changed. */
export class PendingUpdates {
  readonly messages = new Set<string>();
  /** Calls with new output, with the messages that contain them. */
  readonly outputs = new Map<string, string>();
  readonly subagents = new Set<string>();
  order = false;
  sessions = false;
  runs = false;
  requests = false;
  notices = false;
}

/** Minimum distance of two renderings in milliseconds: every second frame of most screens. */
const MIN_INTERVAL = 25;

/** Calls `work` before one of the next frames, or soon if the page is not rendered at all. */
export class Frames {
  private isWaiting = false;
  private last = -MIN_INTERVAL;

  constructor(private readonly work: () => void) {}

  schedule(): void {
    if (this.isWaiting) return;
    this.isWaiting = true;
    let isDone = false;
    const go = (): void => {
      if (isDone) return;
      isDone = true;
      clearTimeout(timer);
      this.isWaiting = false;
      this.work();
    };
    const frame = (now: number): void => {
      if (isDone) return;
      if (now - this.last < MIN_INTERVAL) {
        requestAnimationFrame(frame);
        return;
      }
      this.last = now;
      go();
    };
    // A page in the background gets no frames; its state must still be current.
    const timer = setTimeout(go, 200);
    if (typeof requestAnimationFrame === "function") requestAnimationFrame(frame);
  }
}

/** The message of each call, which receives its result. Models may reuse an id: the latest call with it counts. */
export class Callers {
  private readonly latest = new Map<string, string>();
  private readonly settled = new Map<string, string>();

  note(message: Message): void {
    for (const part of message.parts) if (part.type === "tool_call") this.latest.set(part.data.id, message.id);
  }

  /** A repeated result stays with its call. */
  of(result: string, call: string): string {
    const key = `${result}/${call}`;
    const found = this.settled.get(key) ?? this.latest.get(call) ?? "";
    this.settled.set(key, found);
    return found;
  }
}

/** Messages of sub-agents from before they were shown, by session; the view has the later ones. */
export type Earlier = Map<string, Map<string, Message>>;

function subagentMessages(view: View, earlier: Earlier, session: string): readonly Message[] {
  const known = new Map(earlier.get(session));
  for (const message of view.messages(session)) known.set(message.id, message);
  return [...known.values()];
}

const latestFirst = (a: Session, b: Session): number =>
  b.updated_at - a.updated_at || b.created_at - a.created_at || (a.id < b.id ? 1 : -1);

export function flush(view: View, pendingUpdates: PendingUpdates, earlier: Earlier, callers: Callers): void {
  batch(() => {
    if (pendingUpdates.sessions) state.sessions.value = [...view.sessions.values()].sort(latestFirst);
    if (pendingUpdates.runs) state.runs.value = [...view.runs.values()];
    if (pendingUpdates.requests) {
      state.permissions.value = [...view.permissions.values()];
      state.questions.value = [...view.questions.values()];
    }
    if (pendingUpdates.notices) state.notices.value = [...view.notices];
    state.cursor.value = view.cursor;
    state.workspace.value = view.workspace;
    flushMessages(view, pendingUpdates, callers);
    for (const session of pendingUpdates.subagents) {
      const [message = "", call = ""] = session.split("$$");
      state.subagentOf(message, call).value = subagentMessages(view, earlier, session);
    }
    for (const [call, message] of pendingUpdates.outputs) state.outputOf(message, call).value = view.outputs.get(call) ?? "";
  });
}

function flushResults(message: Message, callers: Callers): void {
  for (const part of message.parts) {
    if (part.type !== "tool_result") continue;
    const caller = callers.of(message.id, part.data.tool_call_id);
    state.resultOf(caller, part.data.tool_call_id).value = part.data;
    state.outputOf(caller, part.data.tool_call_id).value = "";
  }
}

function flushMessages(view: View, pendingUpdates: PendingUpdates, callers: Callers): void {
  const session = state.sessionId.value;
  if (session === null) {
    if (state.messageIds.value.length > 0) state.messageIds.value = [];
    return;
  }
  for (const id of pendingUpdates.messages) {
    const message = view.message(session, id);
    state.messageOf(id).value = message;
    if (message === undefined) continue;
    if (message.role === "assistant") callers.note(message);
    else if (message.role === "tool") flushResults(message, callers);
  }
  if (pendingUpdates.order) state.messageIds.value = view.messageIds(session);
}
