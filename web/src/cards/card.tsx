// A tool call with its result: one summary line, and the contents below it.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { copyText } from "../chat/copy.ts";
import { Icon } from "../shell/icons.tsx";
import type { IconName } from "../shell/icons.tsx";
import { formatDuration } from "../timeline/layout.ts";
import type { Message, ToolCall, ToolResult } from "../wire/types.ts";
import { bodyOf } from "./card-body.tsx";
import { CHANGE_TOOLS, changeOf, copyOf, parseObject, headlineOf, numberAt, SUBAGENT_TOOLS, shellOf, sizeOfChange, durationOf } from "./tool-data.ts";
import { foldRequest } from "./folding.ts";

export interface ToolCardProps {
  readonly call: ToolCall;
  readonly result?: ToolResult | undefined;
  /** The output so far, while it runs. */
  readonly output?: string;
  /** The message with the call. */
  readonly messageId?: string;
  /** The messages of its sub-agent so far. */
  readonly subagentMessages?: readonly Message[];
  readonly directory?: string;
  /** The turn has ended: a call without a result will never get one. */
  readonly isOver?: boolean;
  /** The call waits for an approval. */
  readonly isAwaitingApproval?: boolean;
}

export type CardState = "called" | "awaiting-approval" | "running" | "done" | "failed" | "cut";

const ICONS: Readonly<Record<string, IconName>> = {
  bash: "terminal",
  shell: "terminal",
  job_output: "terminal",
  job_kill: "stop",
  view: "eye",
  write: "file",
  edit: "pen",
  multiedit: "pen",
  glob: "folder",
  ls: "folder",
  grep: "search",
  fetch: "globe",
  web_fetch: "globe",
  agentic_fetch: "globe",
  download: "download",
  todos: "todo",
  question: "question",
  agent: "people",
};
/** Tools that read are folded: their result is rarely of interest. */
const OPEN: ReadonlySet<string> = new Set(["bash", "shell", "write", "edit", "multiedit", "todos", "question", "agent", "agentic_fetch", "job_output"]);
const STATE_LABELS: Readonly<Record<CardState, string>> = { called: "is being prepared", "awaiting-approval": "waits for approval", running: "at work", done: "done", failed: "failed", cut: "was interrupted" };

export function stateOf(call: ToolCall, result: ToolResult | undefined, isOver = false, isAwaitingApproval = false): CardState {
  if (result) return result.is_error ? "failed" : "done";
  if (isOver) return "cut";
  if (isAwaitingApproval) return "awaiting-approval";
  return call.finished ? "running" : "called";
}

export function ToolCard(props: ToolCardProps): JSX.Element {
  const { call, result, directory = "" } = props;
  const state = stateOf(call, result, props.isOver, props.isAwaitingApproval);
  const [isOpen, setOpen] = useFolding(OPEN.has(call.name) || state === "failed");
  const id = useId();
  const headline = headlineOf(call.name, call.input, result?.metadata, directory);
  const body = isOpen ? bodyOf(props, state) : null;
  return (
    <article class={`card ${state}`} data-testid="tool" data-tool={call.name} data-state={state} aria-labelledby={id}>
      <div class="card-head">
        <button type="button" class="card-fold" id={id} aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          <Icon name="next" small />
          <Mark name={call.name} state={state} />
          <span class="card-name">{nameOf(call.name)}</span>
          <span class="card-line clip mono">{headline}</span>
          <Facts call={call} result={result} state={state} />
          <span class="visually-hidden">{STATE_LABELS[state]}</span>
        </button>
        {result && <Copy text={copyOf(call.input, result.metadata, result.content)} />}
      </div>
      {body && <div class="card-body">{body}</div>}
    </article>
  );
}

/** Open or closed by tool, until the user changes it here or for all cards. A card that fails opens. */
function useFolding(first: boolean): [boolean, (open: boolean) => void] {
  const [override, setOverride] = useState<boolean | null>(null);
  const seen = useRef(foldRequest.value.count);
  const { count, open } = foldRequest.value;
  useEffect(() => {
    if (count === seen.current) return;
    seen.current = count;
    setOverride(open);
  }, [count]);
  return [override ?? first, setOverride];
}

function Mark({ name, state }: { name: string; state: CardState }): JSX.Element {
  if (state === "awaiting-approval") return <span class="dot approval" />;
  if (state === "running" || state === "called") return <span class="spinner" />;
  return (
    <span class="card-mark">
      <Icon name={state === "failed" ? "warning" : state === "cut" ? "stop" : (ICONS[name] ?? "tool")} small />
    </span>
  );
}

/** Names of MCP tools are long: server and tool are separated. */
function nameOf(name: string): ComponentChildren {
  const found = /^mcp_+([^_].*?)_+(.+)$/.exec(name);
  if (!found) return name;
  return (
    <>
      <span class="faint">{found[1]} </span>
      {found[2]}
    </>
  );
}

interface FactsProps {
  readonly call: ToolCall;
  readonly result: ToolResult | undefined;
  readonly state: CardState;
}

/** A note at the end of the line: size, outcome. */
function Facts({ call, result, state }: FactsProps): JSX.Element | null {
  if (state === "awaiting-approval") return <span class="chip warning">waits for approval</span>;
  if (!result) return state === "called" ? <span class="chip">preparing</span> : null;
  const meta = parseObject(result.metadata);
  const duration = durationOf(result.metadata);
  const { exit } = call.name === "bash" ? shellOf(result.content, result.metadata, "", true) : { exit: null };
  const found = numberAt(meta, "number_of_matches") ?? numberAt(meta, "number_of_files");
  return (
    <span class="card-facts">
      {CHANGE_TOOLS.has(call.name) && state === "done" && <Size call={call} result={result} />}
      {found !== null && <span class="faint">{`${found}${meta["truncated"] === true ? "+" : ""} found`}</span>}
      {meta["background"] === true && <span class="chip accent">job {String(meta["shell_id"] ?? "")}</span>}
      {exit !== null && exit !== 0 && <span class="chip error">exit {exit}</span>}
      {duration !== null && duration >= 100 && <span class="faint">{formatDuration(duration)}</span>}
      {state === "failed" && !SUBAGENT_TOOLS.has(call.name) && <span class="chip error">failed</span>}
    </span>
  );
}

function Size({ call, result }: { call: ToolCall; result: ToolResult }): JSX.Element {
  const meta = parseObject(result.metadata);
  const lines = "additions" in meta ? [] : changeOf(call.name, call.input, result.metadata);
  const { added, removed } = sizeOfChange(lines, result.metadata);
  return (
    <>
      <span class="plus">+{added}</span>
      <span class="minus">−{removed}</span>
    </>
  );
}

function Copy({ text }: { text: string }): JSX.Element {
  return (
    <button type="button" class="square small card-copy" aria-label="Copy" title="Copy" onClick={() => void copyText(text)}>
      <Icon name="copy" small />
    </button>
  );
}
