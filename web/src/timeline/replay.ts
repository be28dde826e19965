// Replay of a past run, event by event. Pure.

import { headlineOf } from "../cards/tool-data.ts";
import { View } from "../fold/view.ts";
import type { Message, Part } from "../wire/types.ts";
import type { LogEvent, Track } from "./tracks.ts";

/** Returns the events of one run, in the order of their numbers. */
export function framesOf(events: readonly LogEvent[], track: Track): LogEvent[] {
  const numbers = new Set(track.numbers);
  return events.filter((event) => numbers.has(event.number));
}

/** Returns the view after the first `count` events, computed by the same fold as the conversation. */
export function viewAt(frames: readonly LogEvent[], count: number): View {
  const view = new View();
  for (const { number, ...event } of frames.slice(0, count)) view.apply({ number, event });
  return view;
}

/** Describes an event in a few words. */
export function describeEvent(event: LogEvent): string {
  switch (event.type) {
    case "run":
      return ofRun(event.payload.type, event.payload.payload.state, event.payload.payload.step ?? 0, event.payload.payload.cancel_requested ?? false);
    case "run_complete":
      return `end: ${event.payload.payload.outcome}`;
    case "message":
      return ofMessage(event.payload.type, event.payload.payload);
    case "file":
      return `${(event.payload.payload.origin ?? "tool") === "outside" ? "before the change" : "changed"}: ${event.payload.payload.path}`;
    case "permission_request":
      return `${event.payload.payload.tool_name} requests permission`;
    case "permission_notification": {
      const { granted, denied, withdrawn } = event.payload.payload;
      return granted ? "permission given" : denied ? "permission denied" : withdrawn ? "request withdrawn" : "permission requested";
    }
    case "question_batch_request":
      return "question of the model";
    case "question_batch_notification":
      return event.payload.payload.cancelled ? "questions dismissed" : "questions answered";
    default:
      return event.type;
  }
}

function ofRun(change: string, state: string, step: number, isCancelled: boolean): string {
  if (change === "created") return state === "waiting" ? "accepted, queued" : "accepted";
  if (change === "deleted") return "refused";
  if (isCancelled) return "cancel requested";
  if (state === "folded") return "folded into the current turn";
  return step ? `step ${step} begins` : state === "active" ? "it starts" : state;
}

function ofMessage(change: string, message: Message): string {
  if (message.role === "user") return "prompt added to the conversation";
  if (message.role === "tool") {
    const names = message.parts.flatMap((part) => (part.type === "tool_result" ? [part.data.name] : []));
    return `result of ${names.join(", ")}`;
  }
  if (change === "deleted") return "attempt withdrawn";
  if (!message.parts.length) return "model request";
  return ofPart(message.parts[message.parts.length - 1]);
}

function ofPart(part: Part | undefined): string {
  switch (part?.type) {
    case "reasoning":
      return "model thinks";
    case "text":
      return "model writes";
    case "tool_call":
      return part.data.finished ? `calls ${part.data.name} ${headlineOf(part.data.name, part.data.input)}`.trim() : `prepares ${part.data.name}`;
    case "finish":
      return `answer ends: ${part.data.reason.replace("_", " ")}`;
    default:
      return "message changed";
  }
}
