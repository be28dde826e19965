/** Types of the wire protocol, as encoded by the server. Keys that the server omits when they have their default value
 * are optional here. Times of messages and sessions are Unix seconds, those of runs and jobs milliseconds. */

export type Delivery = "steer" | "queue" | "reject" | "interrupt";
export type Outcome = "completed" | "failed" | "cancelled" | "interrupted";
export type RunState = "waiting" | "accepted" | "active" | "cancelling" | "folded" | "ended";
export type Role = "user" | "assistant" | "tool" | "system";
export type FinishReason =
  | "end_turn"
  | "max_tokens"
  | "tool_use"
  | "canceled"
  | "error"
  | "content_filter"
  | "unknown"
  | "stop";

export interface Text {
  readonly text: string;
  /** The text for the model, if it differs from the typed text. */
  readonly meant?: string;
}
export interface Reasoning {
  readonly thinking: string;
  readonly signature: string;
  readonly started_at?: number;
  readonly finished_at?: number;
  readonly redacted?: readonly string[];
}
export interface Binary {
  readonly Path: string;
  readonly MIMEType: string;
  /** Base64. */
  readonly Data: string;
}
export interface ToolCall {
  readonly id: string;
  readonly name: string;
  /** JSON text; empty until the call is finished. */
  readonly input: string;
  readonly finished?: boolean;
}
export interface ToolResult {
  readonly tool_call_id: string;
  readonly name: string;
  readonly content: string;
  /** JSON text for display. */
  readonly metadata: string;
  readonly is_error: boolean;
  readonly data?: string;
  readonly mime_type?: string;
}
export interface Finish {
  readonly reason: FinishReason;
  readonly time: number;
  readonly message?: string;
  readonly details?: string;
}
export interface ShellCommand {
  readonly command: string;
  readonly output: string;
  readonly exit_code: number;
}

export type Part =
  | { readonly type: "text"; readonly data: Text }
  | { readonly type: "reasoning"; readonly data: Reasoning }
  | { readonly type: "binary"; readonly data: Binary }
  | { readonly type: "tool_call"; readonly data: ToolCall }
  | { readonly type: "tool_result"; readonly data: ToolResult }
  | { readonly type: "shell_command"; readonly data: ShellCommand }
  | { readonly type: "finish"; readonly data: Finish };

export interface Message {
  readonly parts: readonly Part[];
  readonly id: string;
  readonly role: Role;
  readonly session_id: string;
  readonly model: string;
  readonly provider: string;
  readonly created_at: number;
  readonly updated_at: number;
  readonly is_summary_message?: boolean;
  readonly run_id?: string;
}

export interface Todo {
  readonly content: string;
  readonly status: "pending" | "in_progress" | "completed";
  readonly active_form: string;
}
export interface Session {
  readonly id: string;
  readonly parent_session_id: string;
  readonly title: string;
  readonly message_count: number;
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly summary_message_id: string;
  readonly cost: number;
  readonly created_at: number;
  readonly updated_at: number;
  readonly is_busy: boolean;
  readonly attached_clients: number;
  readonly todos?: readonly Todo[];
  readonly estimated_usage?: boolean;
}

export interface AttachmentInfo {
  readonly file_name: string;
  readonly mime_type: string;
  readonly size: number;
}
export interface Attachment {
  /** Base64. */
  readonly content: string;
  readonly file_path: string;
  readonly file_name: string;
  readonly mime_type: string;
}
export interface Run {
  readonly run_id: string;
  readonly session_id: string;
  readonly state: RunState;
  readonly delivery: Delivery;
  readonly accepted_at: number;
  readonly prompt?: string;
  readonly position?: number;
  readonly number?: number;
  readonly kind?: "prompt" | "summary";
  readonly attachments?: readonly AttachmentInfo[];
  readonly client_id?: string;
  readonly interactive?: boolean;
  readonly yolo?: boolean;
  readonly parent_run_id?: string;
  readonly started_at?: number;
  readonly step?: number;
  readonly cancel_requested?: boolean;
  readonly cancelled_by?: string;
  readonly folded_into?: string;
  readonly ended_at?: number;
  readonly outcome?: Outcome | null;
  readonly error?: string;
  readonly message_id?: string;
}
export interface RunComplete {
  readonly session_id: string;
  readonly message_id: string;
  readonly run_id: string;
  readonly outcome: Outcome;
  readonly text?: string;
  readonly error?: string;
  readonly cancelled?: boolean;
  readonly folded_into?: string;
}

export interface FileVersion {
  readonly id: string;
  readonly session_id: string;
  readonly path: string;
  readonly content: string;
  readonly version: number;
  readonly created_at: number;
  readonly updated_at: number;
  readonly run_id?: string;
  readonly origin?: "tool" | "outside" | "undo";
  readonly is_missing?: boolean;
  readonly restores?: number;
}

export type GrantAction = "allow" | "allow_session" | "allow_always" | "deny";
export interface PermissionRequest {
  readonly id: string;
  readonly session_id: string;
  readonly tool_call_id: string;
  readonly tool_name: string;
  readonly description: string;
  readonly action: string;
  readonly params: Readonly<Record<string, unknown>>;
  readonly path: string;
  readonly run_id?: string;
  readonly why?: string;
  readonly rules?: readonly string[];
}
/** The kind of client that answered; empty if it is unknown. */
export type Via = "terminal" | "page" | "command" | "editor" | "";
export interface PermissionNotification {
  readonly tool_call_id: string;
  readonly granted: boolean;
  readonly denied: boolean;
  readonly id?: string;
  readonly session_id?: string;
  readonly by?: string;
  readonly action?: string;
  readonly withdrawn?: boolean;
  readonly via?: Via;
}
export interface Choice {
  readonly id: string;
  readonly label: string;
  readonly description?: string;
}
export interface Question {
  readonly id: string;
  readonly type: "yes_no" | "single_choice" | "multi_choice" | "free_text";
  readonly question: string;
  readonly label?: string;
  /** Markdown. */
  readonly description?: string;
  readonly choices?: readonly Choice[];
}
export interface QuestionRequest {
  readonly id: string;
  readonly session_id: string;
  readonly tool_call_id: string;
  readonly questions: readonly Question[];
  readonly confirm_title?: string;
  readonly confirm_description?: string;
  readonly run_id?: string;
}
export interface QuestionAnswer {
  /** The id of the question. */
  readonly request_id: string;
  readonly selected_ids?: readonly string[];
  readonly fill_in_text?: string;
  readonly yes?: boolean;
  readonly notes?: Readonly<Record<string, string>>;
}
export interface QuestionNotification {
  readonly batch_id: string;
  readonly session_id?: string;
  readonly by?: string;
  readonly cancelled?: boolean;
  readonly withdrawn?: boolean;
  readonly via?: Via;
}

export interface AgentNotice {
  readonly type: "agent_finished" | "error" | "re_authenticate" | "retrying";
  readonly error?: string;
  readonly run_id?: string;
  readonly session_id?: string;
  readonly session_title?: string;
}
export interface MessageDelta {
  readonly session_id: string;
  readonly message_id: string;
  readonly part: number;
  /** Number of code points before it. */
  readonly offset: number;
  readonly text: string;
}
export interface MessagePart {
  readonly session_id: string;
  readonly message_id: string;
  readonly part: number;
  readonly content: Part;
}
export interface ToolOutput {
  readonly session_id: string;
  readonly message_id: string;
  readonly tool_call_id: string;
  readonly offset: number;
  readonly text: string;
}
export interface Hello {
  readonly cursor: number;
  readonly oldest: number;
  readonly epoch: number;
}

export interface Change<T> {
  readonly type: "created" | "updated" | "deleted";
  readonly payload: T;
}
export type WireEvent =
  | { readonly type: "message"; readonly payload: Change<Message> }
  | { readonly type: "session"; readonly payload: Change<Session> }
  | { readonly type: "file"; readonly payload: Change<FileVersion> }
  | { readonly type: "run"; readonly payload: Change<Run> }
  | { readonly type: "run_complete"; readonly payload: Change<RunComplete> }
  | { readonly type: "removed"; readonly payload: { readonly session_id: string } }
  | { readonly type: "permission_request"; readonly payload: Change<PermissionRequest> }
  | { readonly type: "permission_notification"; readonly payload: Change<PermissionNotification> }
  | { readonly type: "question_batch_request"; readonly payload: Change<QuestionRequest> }
  | { readonly type: "question_batch_notification"; readonly payload: Change<QuestionNotification> }
  | { readonly type: "agent_event"; readonly payload: Change<AgentNotice> }
  | { readonly type: "attached"; readonly payload: Change<{ readonly session_id: string; readonly clients: number }> }
  | { readonly type: "config_changed"; readonly payload: Change<{ readonly workspace_id: string }> }
  | { readonly type: "message_delta"; readonly payload: MessageDelta }
  | { readonly type: "message_part"; readonly payload: MessagePart }
  | { readonly type: "tool_output"; readonly payload: ToolOutput }
  | { readonly type: "hello"; readonly payload: Hello }
  | { readonly type: "gap"; readonly payload: Hello }
  | { readonly type: "presence"; readonly payload: unknown };

/** One event of a stream. Durable ones have a number. */
export interface Item {
  readonly event: WireEvent;
  readonly number: number | null;
}

export interface Model {
  readonly id: string;
  readonly name?: string;
  readonly context_window?: number;
  readonly default_max_tokens?: number;
  readonly can_reason?: boolean;
  readonly supports_attachments?: boolean;
  readonly cost_per_1m_in?: number;
  readonly cost_per_1m_out?: number;
}
export interface Provider {
  readonly id: string;
  readonly name?: string;
  readonly type?: string;
  readonly api_key?: string;
  /** The reason why it cannot be used. */
  readonly lack?: string;
  readonly models?: readonly Model[];
}
export interface SelectedModel {
  readonly model: string;
  readonly provider: string;
  readonly max_tokens?: number;
  readonly reasoning_effort?: string;
  readonly think?: boolean;
}
export interface AgentInfo {
  readonly is_busy: boolean;
  readonly is_ready: boolean;
  readonly model: Model;
  readonly model_cfg: SelectedModel;
}
export interface Config {
  readonly models?: { readonly large?: SelectedModel; readonly small?: SelectedModel };
  readonly providers?: Readonly<Record<string, Provider>>;
  readonly options?: Readonly<Record<string, unknown>>;
  readonly [key: string]: unknown;
}
export interface Workspace {
  readonly id: string;
  readonly path: string;
  readonly yolo?: boolean;
  readonly data_dir?: string;
  readonly version?: string;
  readonly config?: Config | null;
  readonly skills?: readonly Readonly<Record<string, unknown>>[];
  /** Errors in the settings, each with its file and line. */
  readonly problems?: readonly string[];
}
export interface Job {
  readonly id: string;
  readonly session_id: string;
  readonly run_id: string;
  readonly command: string;
  readonly description: string;
  readonly working_directory: string;
  readonly started_at: number;
  readonly state?: string;
  readonly exit_code?: number | null;
  readonly ended_at?: number;
}
export interface JobOutput {
  readonly job: Job;
  readonly stdout: string;
  readonly stderr: string;
}
export interface ShellResult {
  readonly output: string;
  readonly exit_code: number;
}
export interface Snapshot {
  readonly cursor: number;
  readonly epoch: number;
  readonly workspace: Workspace;
  readonly sessions: readonly Session[];
  readonly messages: readonly Message[];
  readonly runs: readonly Run[];
  readonly permissions?: readonly PermissionRequest[];
  readonly questions?: readonly QuestionRequest[];
  readonly jobs?: readonly Job[];
}
export interface PromptAccepted {
  readonly run_id: string;
  readonly session_id: string;
  readonly delivery: Delivery;
  readonly position: number;
}
export interface CommandInfo {
  readonly name: string;
  readonly source: "user" | "project" | "skill" | "mcp";
  readonly description?: string;
  /** Hint about the arguments. */
  readonly hint?: string;
}
export interface SubagentInfo {
  readonly name: string;
  readonly source: string;
  readonly description?: string;
}
export interface UndoneFile {
  readonly path: string;
  readonly outcome: "restored" | "removed" | "unchanged" | "refused";
  readonly version: number;
  readonly diff?: string;
  readonly reason?: string;
}
export interface UndoReport {
  readonly files: readonly UndoneFile[];
  readonly is_done: boolean;
}
export interface UndoRequest {
  readonly path?: string;
  readonly run_id?: string;
  readonly dry_run?: boolean;
  readonly force?: boolean;
  readonly session_id?: string;
}
export interface TrustBody {
  readonly trusted: boolean;
  readonly files?: readonly string[];
  readonly digest?: string;
  readonly withheld?: readonly { readonly key: string; readonly file: string; readonly line: number }[];
}
export interface ConfigProblem {
  readonly severity: "error" | "warning";
  readonly file: string;
  readonly line: number;
  readonly key: string;
  readonly text: string;
}
export interface SandboxState {
  readonly mode?: "off" | "workspace";
  readonly mechanism?: string | null;
  readonly network?: boolean;
  readonly writable?: readonly string[];
  readonly protected?: readonly string[];
  readonly notes?: readonly string[];
}
export interface Stats {
  readonly sessions: number;
  readonly messages: number;
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly cost: number;
  readonly runs: Readonly<Record<string, number>>;
  readonly days: Readonly<Record<string, number>>;
  readonly seconds: number;
}
