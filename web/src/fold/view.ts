/** State of a screen: a fold of a snapshot and the events after it. Counterpart of client/view.py, with the same fields
 * and names; both are tested with the same recorded events. It uses no clock, no network and no DOM. */

import type {
  AgentNotice,
  Change,
  Item,
  Message,
  MessageDelta,
  MessagePart,
  PermissionNotification,
  PermissionRequest,
  QuestionRequest,
  Run,
  RunComplete,
  Session,
  Snapshot,
  ToolOutput,
  WireEvent,
  Workspace,
} from "../wire/types.ts";
import { Draft, lastCodePoints } from "./message-delta.ts";

export interface ViewSettings {
  /** Keep the messages of every session; otherwise only of watched ones. */
  readonly keepsAll: boolean;
  readonly endedRuns: number;
  readonly notices: number;
  readonly output: number;
}

const SETTINGS: ViewSettings = { keepsAll: true, endedRuns: 50, notices: 50, output: 16_384 };

export class View {
  /** The last number that is included. */
  cursor = 0;
  /** Set after a gap: load a snapshot. */
  isStale = false;
  workspace: Workspace | null = null;
  sessions = new Map<string, Session>();
  /** The open runs and the last ended ones, in the order of their acceptance. */
  runs = new Map<string, Run>();
  permissions = new Map<string, PermissionRequest>();
  questions = new Map<string, QuestionRequest>();
  /** The latest output of each running tool; removed when its result arrives. */
  readonly outputs = new Map<string, string>();
  presence: unknown = null;
  readonly notices: AgentNotice[] = [];

  private readonly settings: ViewSettings;
  private readonly drafts = new Map<string, Map<string, Draft>>();
  private readonly watched = new Set<string>();
  private ended: string[] = [];
  private seen = 0;
  private isFed = false;
  private isAhead = false;

  constructor(settings: Partial<ViewSettings> = {}) {
    this.settings = { ...SETTINGS, ...settings };
  }

  /** Returns the messages of a session, with the text streamed so far. */
  messages(session: string): Message[] {
    return [...(this.drafts.get(session)?.values() ?? [])].map((draft) => draft.current());
  }

  message(session: string, message: string): Message | undefined {
    return this.drafts.get(session)?.get(message)?.current();
  }

  messageIds(session: string): string[] {
    return [...(this.drafts.get(session)?.keys() ?? [])];
  }

  /** Returns the sessions whose messages are kept. */
  heldSessions(): string[] {
    return [...this.drafts.keys()];
  }

  runsOf(session: string): Run[] {
    return [...this.runs.values()].filter((run) => run.session_id === session);
  }

  /** Keeps the messages of a session from now on. */
  watch(session: string): void {
    this.watched.add(session);
  }

  /** Drops the messages of a session that is no longer shown. */
  forget(session: string): void {
    this.watched.delete(session);
    if (!this.settings.keepsAll) this.drafts.delete(session);
  }

  /** Replaces the state by a snapshot; `session` is the one whose messages it contains, and is watched from now on.
   *
   * A snapshot may be newer than the stream of this view. Numbered events that it already contains are ignored when
   * they arrive, and so are the deltas between them. */
  load(snapshot: Snapshot, session: string | null = null): void {
    this.cursor = snapshot.cursor;
    if (!this.isFed) this.seen = snapshot.cursor;
    this.isAhead = snapshot.cursor > this.seen;
    this.isStale = false;
    this.workspace = snapshot.workspace;
    this.sessions = new Map(snapshot.sessions.map((one) => [one.id, one]));
    const sorted = [...snapshot.runs].sort((a, b) => (a.number ?? 0) - (b.number ?? 0));
    this.runs = new Map(sorted.map((run) => [run.run_id, run]));
    this.ended = snapshot.runs
      .filter((run) => run.state === "ended")
      .sort((a, b) => (a.ended_at ?? 0) - (b.ended_at ?? 0) || (a.number ?? 0) - (b.number ?? 0))
      .map((run) => run.run_id);
    this.permissions = new Map((snapshot.permissions ?? []).map((request) => [request.id, request]));
    this.questions = new Map((snapshot.questions ?? []).map((request) => [request.id, request]));
    this.drafts.clear();
    this.outputs.clear();
    this.watched.clear();
    if (session !== null) {
      this.watched.add(session);
      this.drafts.set(session, new Map());
    }
    for (const message of snapshot.messages) this.held(message.session_id).set(message.id, new Draft(message));
  }

  /** Applies one item of a stream. Returns whether the state may have changed. */
  apply(item: Item): boolean {
    this.isFed = true;
    if (item.number !== null) {
      this.seen = Math.max(this.seen, item.number);
      this.isAhead = this.isAhead && this.seen < this.cursor;
      if (item.number <= this.cursor) return false;
      this.cursor = item.number;
    }
    const event = item.event;
    if (event.type === "hello") {
      // Live events follow all numbered events up to the cursor of the hello event.
      this.isAhead = this.isAhead && event.payload.cursor < this.cursor;
      return false;
    }
    if (event.type === "gap") {
      this.seen = this.cursor = event.payload.cursor;
      this.isAhead = false;
      this.isStale = true;
      return true;
    }
    return this.applyEvent(event);
  }

  private applyEvent(event: WireEvent): boolean {
    switch (event.type) {
      case "message_delta":
        return this.grow(event.payload, (draft, growth) => draft.add(growth));
      case "message_part":
        return this.grow(event.payload, (draft, growth) => draft.replace(growth));
      case "message":
        this.applyMessage(event.payload);
        return true;
      case "session":
        this.applySession(event.payload);
        return true;
      case "run":
        this.applyRun(event.payload);
        return true;
      case "run_complete":
        this.endRun(event.payload.payload);
        return true;
      case "agent_event":
        this.notices.push(event.payload.payload);
        if (this.notices.length > this.settings.notices) this.notices.shift();
        return true;
      case "tool_output":
        return this.appendOutput(event.payload);
      case "permission_request":
        this.permissions.set(event.payload.payload.id, event.payload.payload);
        return true;
      case "permission_notification":
        return this.answered(event.payload.payload);
      case "question_batch_request":
        this.questions.set(event.payload.payload.id, event.payload.payload);
        return true;
      case "question_batch_notification":
        this.questions.delete(event.payload.payload.batch_id);
        return true;
      case "presence":
        this.presence = event.payload;
        return true;
      default:
        // Files, settings and events of deleted sessions are not part of this view; events of a newer server
        // are ignored.
        return false;
    }
  }

  private held(session: string): Map<string, Draft> {
    let found = this.drafts.get(session);
    if (found === undefined) {
      found = new Map();
      this.drafts.set(session, found);
    }
    return found;
  }

  private grow<T extends MessageDelta | MessagePart>(growth: T, add: (draft: Draft, growth: T) => void): boolean {
    const draft = this.drafts.get(growth.session_id)?.get(growth.message_id);
    if (draft === undefined || this.isAhead) return false;
    add(draft, growth);
    return true;
  }

  private appendOutput(output: ToolOutput): boolean {
    if (!this.drafts.has(output.session_id)) return false;
    const combined = (this.outputs.get(output.tool_call_id) ?? "") + output.text;
    this.outputs.set(output.tool_call_id, lastCodePoints(combined, this.settings.output));
    return true;
  }

  private applyMessage(change: Change<Message>): void {
    const message = change.payload;
    for (const part of message.parts) {
      if (part.type === "tool_result") this.outputs.delete(part.data.tool_call_id);
    }
    if (change.type === "deleted") {
      this.drafts.get(message.session_id)?.delete(message.id);
    } else if (this.settings.keepsAll || this.watched.has(message.session_id)) {
      // A known message keeps its position.
      this.held(message.session_id).set(message.id, new Draft(message));
    }
    this.count(change);
  }

  /** Counts a message in its session at once, because the event of the session may arrive much later or never. */
  private count({ type, payload }: Change<Message>): void {
    const session = this.sessions.get(payload.session_id);
    if (session === undefined || type === "updated") return;
    const change =
      type === "created"
        ? { message_count: session.message_count + 1, updated_at: Math.max(session.updated_at, payload.updated_at) }
        : { message_count: session.message_count - 1 };
    this.sessions.set(session.id, { ...session, ...change });
  }

  private applySession(change: Change<Session>): void {
    const session = change.payload;
    if (change.type !== "deleted") {
      this.sessions.set(session.id, session);
      return;
    }
    this.sessions.delete(session.id);
    this.drafts.delete(session.id);
    for (const run of this.runsOf(session.id)) this.removeRun(run.run_id);
    this.dropRequests((request) => request.session_id === session.id);
  }

  private dropRequests(matches: (request: PermissionRequest | QuestionRequest) => boolean): void {
    for (const requests of [this.permissions, this.questions]) {
      for (const [id, request] of [...requests]) if (matches(request)) requests.delete(id);
    }
  }

  private applyRun(change: Change<Run>): void {
    const run = change.payload;
    if (change.type === "deleted") {
      this.removeRun(run.run_id);
      return;
    }
    const before = this.runs.get(run.run_id);
    // Only the first event of a run contains the prompt.
    const keepsPrompt = before?.prompt && !run.prompt;
    this.runs.set(run.run_id, keepsPrompt ? { ...run, prompt: before.prompt } : run);
  }

  private endRun(end: RunComplete): void {
    // A crashed server has not withdrawn its requests; an ended run has no open ones.
    this.dropRequests((request) => request.run_id === end.run_id);
    const before = this.runs.get(end.run_id);
    if (before === undefined) return;
    const { error: _e, message_id: _m, folded_into: _f, ...rest } = before;
    this.runs.set(end.run_id, {
      ...rest,
      state: "ended",
      outcome: end.outcome,
      ...(end.error ? { error: end.error } : {}),
      ...(end.message_id ? { message_id: end.message_id } : {}),
      ...(end.folded_into ? { folded_into: end.folded_into } : {}),
    });
    this.ended.push(end.run_id);
    while (this.ended.length > this.settings.endedRuns) this.runs.delete(this.ended.shift() ?? "");
  }

  private removeRun(run: string): void {
    this.runs.delete(run);
    const at = this.ended.indexOf(run);
    if (at >= 0) this.ended.splice(at, 1);
  }

  /** Returns whether a notice closes a request: the first notice of a request only announces it. */
  private answered(notice: PermissionNotification): boolean {
    if (!notice.granted && !notice.denied && !notice.withdrawn) return false;
    if (notice.id !== undefined) {
      this.permissions.delete(notice.id);
      return true;
    }
    // Notices without an id contain only the tool call.
    for (const [id, request] of [...this.permissions]) {
      if (request.tool_call_id === notice.tool_call_id) this.permissions.delete(id);
    }
    return true;
  }
}
