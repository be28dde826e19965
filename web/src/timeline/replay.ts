// A past run, event by event: what was known when each of them had come. Pure.

import { headlineOf } from "../cards/facts.ts";
import { View } from "../fold/view.ts";
import type { Message, Part } from "../wire/types.ts";
import type { LogEvent, Track } from "./tracks.ts";

/** The events of one run, in the order of their numbers. */
export function framesOf(events: readonly LogEvent[], track: Track): LogEvent[] {
  const numbers = new Set(track.numbers);
  return events.filter((event) => numbers.has(event.number));
}

/** The view when the first `count` of the events had come: the same fold that draws the conversation. */
export function viewAt(frames: readonly LogEvent[], count: number): View {
  const view = new View();
  for (const { number, ...event } of frames.slice(0, count)) view.apply({ number, event });
  return view;
}

/** An event in a few words. */
export function told(event: LogEvent): string {
  switch (event.type) {
    case "run":
      return ofRun(event.payload.type, event.payload.payload.state, event.payload.payload.step ?? 0, event.payload.payload.cancel_requested ?? false);
    case "run_complete":
      return `the end: ${event.payload.payload.outcome}`;
    case "message":
      return ofMessage(event.payload.type, event.payload.payload);
    case "file":
      return `${(event.payload.payload.origin ?? "tool") === "outside" ? "before the change" : "changed"}: ${event.payload.payload.path}`;
    case "permission_request":
      return `${event.payload.payload.tool_name} asks for permission`;
    case "permission_notification": {
      const { granted, denied, withdrawn } = event.payload.payload;
      return granted ? "permission given" : denied ? "permission denied" : withdrawn ? "nobody has to answer any more" : "permission is asked for";
    }
    case "question_batch_request":
      return "the model has a question";
    case "question_batch_notification":
      return event.payload.payload.cancelled ? "the questions were dismissed" : "the questions were answered";
    default:
      return event.type;
  }
}

function ofRun(change: string, state: string, step: number, isCancelled: boolean): string {
  if (change === "created") return state === "waiting" ? "accepted; it waits" : "accepted";
  if (change === "deleted") return "refused";
  if (isCancelled) return "somebody asked it to stop";
  if (state === "folded") return "folded into the turn under way";
  return step ? `step ${step} begins` : state === "active" ? "it starts" : state;
}

function ofMessage(change: string, message: Message): string {
  if (message.role === "user") return "the prompt is part of the conversation";
  if (message.role === "tool") {
    const names = message.parts.flatMap((part) => (part.type === "tool_result" ? [part.data.name] : []));
    return `result of ${names.join(", ")}`;
  }
  if (change === "deleted") return "an attempt is taken back";
  if (!message.parts.length) return "the model is asked";
  return ofPart(message.parts[message.parts.length - 1]);
}

function ofPart(part: Part | undefined): string {
  switch (part?.type) {
    case "reasoning":
      return "the model thinks";
    case "text":
      return "the model writes";
    case "tool_call":
      return part.data.finished ? `it calls ${part.data.name} ${headlineOf(part.data.name, part.data.input)}`.trim() : `it prepares ${part.data.name}`;
    case "finish":
      return `the answer ends: ${part.data.reason.replace("_", " ")}`;
    default:
      return "the message changed";
  }
}
