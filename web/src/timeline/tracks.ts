// Phases of each run, derived from the event log: accepted, waiting, model request, tools, end.
// Pure: the same events always yield the same tracks.

import type { Message, Outcome, Part, Run, WireEvent } from "../wire/types.ts";

/** A stored event with its number and the time of its storage in milliseconds. */
export type LogEvent = WireEvent & { readonly number: number; readonly at: number };

export type PhaseKind = "wait" | "think" | "write" | "call";

/** Phase of the model: no output yet, thinking, writing, preparing a tool call. */
export interface Phase {
  kind: PhaseKind;
  readonly start: number;
  end: number | null;
  readonly number: number;
}
export interface Approval {
  readonly id: string;
  readonly start: number;
  readonly number: number;
  end: number | null;
  verdict: string;
}
export interface ToolBar {
  readonly id: string;
  readonly name: string;
  readonly input: string;
  readonly start: number;
  readonly number: number;
  readonly step: number;
  readonly messageId: string;
  end: number | null;
  /** The event with its result. */
  endNumber: number;
  failed: boolean;
  readonly approvals: Approval[];
}
export interface StepBar {
  readonly step: number;
  readonly start: number;
  readonly number: number;
  end: number | null;
  messageId: string;
  readonly phases: Phase[];
}
export interface Track {
  readonly runId: string;
  readonly sessionId: string;
  readonly number: number;
  readonly kind: string;
  readonly parent: string;
  prompt: string;
  delivery: string;
  accepted: number;
  started: number | null;
  ended: number | null;
  outcome: Outcome | null;
  error: string;
  foldedInto: string;
  cancelAt: number | null;
  readonly steps: StepBar[];
  readonly tools: ToolBar[];
  /** The numbers of its events, for the replay. */
  readonly numbers: number[];
}

interface State {
  readonly tracks: Map<string, Track>;
  /** By run and call, because call ids are unique only within a run. */
  readonly tools: Map<string, { tool: ToolBar; track: Track }>;
  readonly approvals: Map<string, { approval: Approval; track: Track }>;
  /** The message of a session's open step. */
  readonly heads: Map<string, Track>;
}

/** Processes a growing log incrementally. */
export class Tracker {
  private readonly state: State = { tracks: new Map(), tools: new Map(), approvals: new Map(), heads: new Map() };
  private last = 0;

  /** All runs in the events, in the order of acceptance. */
  read(events: readonly LogEvent[]): Track[] {
    for (const event of events) {
      if (event.number <= this.last) continue;
      this.last = event.number;
      applyEvent(this.state, event);
    }
    return [...this.state.tracks.values()].sort((a, b) => a.number - b.number);
  }
}

export const tracksOf = (events: readonly LogEvent[]): Track[] => new Tracker().read(events);

function applyEvent(state: State, event: LogEvent): void {
  switch (event.type) {
    case "run":
      if (event.payload.type === "deleted") {
        // The run was refused after its acceptance.
        state.tracks.delete(event.payload.payload.run_id);
        return;
      }
      return applyRun(state, event.payload.payload, event);
    case "run_complete": {
      const end = event.payload.payload;
      const track = state.tracks.get(end.run_id);
      if (track) finish(state, track, event, end.outcome, end.error ?? "", end.folded_into ?? "");
      return;
    }
    case "message":
      return applyMessage(state, event.payload.payload, event);
    case "permission_request":
    case "question_batch_request": {
      const request = event.payload.payload;
      return openApproval(state, request.id, request.tool_call_id, request.run_id ?? "", event);
    }
    case "permission_notification": {
      const notification = event.payload.payload;
      if (!notification.granted && !notification.denied && !notification.withdrawn) return note(state.approvals.get(notification.id ?? "")?.track, event);
      return closeApproval(state, notification.id ?? "", notification.withdrawn ? "withdrawn" : notification.granted ? "allowed" : "denied", event);
    }
    case "question_batch_notification": {
      const notification = event.payload.payload;
      return closeApproval(state, notification.batch_id, notification.withdrawn ? "withdrawn" : notification.cancelled ? "dismissed" : "answered", event);
    }
    case "file":
      note(state.tracks.get(event.payload.payload.run_id ?? ""), event);
      return;
    default:
      return;
  }
}

function note(track: Track | undefined, event: LogEvent): void {
  if (track) track.numbers.push(event.number);
}

function applyRun(state: State, run: Run, event: LogEvent): void {
  const track = state.tracks.get(run.run_id) ?? createTrack(state, run, event);
  note(track, event);
  if (run.prompt) track.prompt = run.prompt;
  track.delivery = run.delivery;
  track.started = run.started_at || track.started;
  track.foldedInto = run.folded_into || track.foldedInto;
  if (run.cancel_requested && track.cancelAt === null) track.cancelAt = event.at;
  const step = run.step ?? 0;
  if (step > (track.steps.at(-1)?.step ?? 0)) {
    closeStep(track, event.at);
    track.steps.push({ step, start: event.at, number: event.number, end: null, messageId: "", phases: [] });
    state.heads.set(run.session_id, track);
  }
  if (run.outcome) finish(state, track, event, run.outcome, run.error ?? "", run.folded_into ?? "", run.ended_at);
}

function createTrack(state: State, run: Run, event: LogEvent): Track {
  const track: Track = {
    runId: run.run_id,
    sessionId: run.session_id,
    number: run.number || event.number,
    kind: run.kind ?? "prompt",
    parent: run.parent_run_id ?? "",
    prompt: run.prompt ?? "",
    delivery: run.delivery,
    accepted: run.accepted_at,
    started: run.started_at || null,
    ended: null,
    outcome: null,
    error: "",
    foldedInto: "",
    cancelAt: null,
    steps: [],
    tools: [],
    numbers: [],
  };
  state.tracks.set(run.run_id, track);
  return track;
}

function closeStep(track: Track, at: number): void {
  const last = track.steps.at(-1);
  if (!last || last.end !== null) return;
  last.end = at;
  closePhase(last, at);
}

function closePhase(step: StepBar, at: number): void {
  const last = step.phases.at(-1);
  if (last && last.end === null) last.end = at;
}

function finish(state: State, track: Track, event: LogEvent, outcome: Outcome, error: string, folded: string, at?: number): void {
  if (track.outcome) return;
  const end = at || event.at;
  if (track.numbers.at(-1) !== event.number) note(track, event);
  closeStep(track, end);
  for (const tool of track.tools) {
    if (tool.end === null) tool.end = end;
    for (const approval of tool.approvals) if (approval.end === null) approval.end = end;
  }
  Object.assign(track, { outcome, error, ended: end, foldedInto: folded || track.foldedInto });
  if (state.heads.get(track.sessionId) === track) state.heads.delete(track.sessionId);
}

function applyMessage(state: State, message: Message, event: LogEvent): void {
  const track = state.tracks.get(message.run_id ?? "") ?? state.heads.get(message.session_id);
  note(track, event);
  if (!track) return;
  if (message.role === "tool") return applyResults(state, track, message, event);
  if (message.role !== "assistant") return;
  const step = track.steps.at(-1);
  if (!step || step.end !== null) return;
  step.messageId ||= message.id;
  if (step.messageId !== message.id) return;
  updatePhase(step, message, event);
  for (const part of message.parts) if (part.type === "tool_call" && part.data.finished) openTool(state, track, step, part, message, event);
}

/** The log contains only the structure of a message: the type of its last part determines the phase of the model.
 *
 * The first part begins without an event: the waiting phase before it is then relabelled. */
function updatePhase(step: StepBar, message: Message, event: LogEvent): void {
  const parts = message.parts.filter((part) => part.type !== "finish");
  const last = parts.at(-1);
  const isOver = message.parts.some((part) => part.type === "finish") || allCalled(message);
  const kind = phaseOf(last);
  const open = step.phases.at(-1);
  const isLate = parts.length > 1 || parts.length < message.parts.length;
  if (open?.kind === "wait" && isLate && parts[0]?.type !== "tool_call") open.kind = phaseOf(parts[0]);
  if (isOver) return closePhase(step, event.at);
  if (open && open.end === null && open.kind === kind) return;
  closePhase(step, event.at);
  step.phases.push({ kind, start: event.at, end: null, number: event.number });
}

function allCalled(message: Message): boolean {
  const calls = message.parts.filter((part) => part.type === "tool_call");
  return calls.length > 0 && calls.every((part) => part.data.finished);
}

function phaseOf(part: Part | undefined): PhaseKind {
  if (!part) return "wait";
  if (part.type === "reasoning") return "think";
  return part.type === "tool_call" ? "call" : "write";
}

function openTool(
  state: State,
  track: Track,
  step: StepBar,
  part: Extract<Part, { type: "tool_call" }>,
  message: Message,
  event: LogEvent,
): void {
  const { id, name, input } = part.data;
  const key = `${track.runId} ${id}`;
  if (state.tools.has(key)) return;
  const tool: ToolBar = { id, name, input, start: event.at, number: event.number, step: step.step, messageId: message.id, end: null, endNumber: 0, failed: false, approvals: [] };
  state.tools.set(key, { tool, track });
  track.tools.push(tool);
}

function applyResults(state: State, track: Track, message: Message, event: LogEvent): void {
  for (const part of message.parts) {
    if (part.type !== "tool_result") continue;
    const known = state.tools.get(`${track.runId} ${part.data.tool_call_id}`);
    if (!known || known.tool.end !== null) continue;
    known.tool.end = event.at;
    known.tool.endNumber = event.number;
    known.tool.failed = part.data.is_error;
  }
}

function openApproval(state: State, id: string, call: string, run: string, event: LogEvent): void {
  const known = state.tools.get(`${run} ${call}`);
  const track = state.tracks.get(run);
  note(track, event);
  if (!known || !track) return;
  const approval: Approval = { id, start: event.at, number: event.number, end: null, verdict: "" };
  known.tool.approvals.push(approval);
  state.approvals.set(id, { approval, track });
}

function closeApproval(state: State, id: string, verdict: string, event: LogEvent): void {
  const known = state.approvals.get(id);
  note(known?.track, event);
  if (!known || known.approval.end !== null) return;
  known.approval.end = event.at;
  known.approval.verdict = verdict;
}

/** Distribution of a run's time, in milliseconds. Overlapping time counts once, for the first of the kinds. */
export interface Shares {
  readonly waiting: number;
  readonly model: number;
  readonly tools: number;
  readonly approval: number;
  readonly total: number;
}

export function sharesOf(track: Track, now: number): Shares {
  const end = track.ended ?? now;
  const started = track.started ?? end;
  const approval = union(track.tools.flatMap((tool) => tool.approvals.map((approval) => [approval.start, approval.end ?? end] as const)));
  const busy = union(track.tools.map((tool) => [tool.start, tool.end ?? end] as const));
  const model = union(track.steps.flatMap((step) => step.phases.map((phase) => [phase.start, phase.end ?? end] as const)));
  return {
    waiting: Math.max(0, started - track.accepted),
    model,
    tools: Math.max(0, busy - approval),
    approval,
    total: Math.max(0, end - track.accepted),
  };
}

/** Returns the duration during which at least one of the intervals is open. */
function union(spans: readonly (readonly [number, number])[]): number {
  let total = 0;
  let reached = -Infinity;
  for (const [start, end] of [...spans].sort((a, b) => a[0] - b[0])) {
    if (end <= reached) continue;
    total += end - Math.max(start, reached);
    reached = end;
  }
  return total;
}
