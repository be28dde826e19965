// A tool call as it is shown, with its result: one line that says what it does, and below it what came of it.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { copyText } from "../chat/copy.ts";
import { Icon } from "../shell/icons.tsx";
import type { IconName } from "../shell/icons.tsx";
import { lasted } from "../timeline/layout.ts";
import type { Message, ToolCall, ToolResult } from "../wire/types.ts";
import { bodyOf } from "./bodies.tsx";
import { CHANGES, changeOf, copyOf, factsOf, headlineOf, numberAt, SENDS, shellOf, sizeOfChange, tookOf } from "./facts.ts";
import { wish } from "./folding.ts";

export interface ToolCardProps {
  readonly call: ToolCall;
  readonly result?: ToolResult | undefined;
  /** What it has printed so far, while it works. */
  readonly output?: string;
  /** The message that made the call. */
  readonly messageId?: string;
  /** What the helper that it sent has said so far. */
  readonly helperMessages?: readonly Message[];
  readonly directory?: string;
  /** The turn has ended: a call without a result will never get one. */
  readonly isOver?: boolean;
  /** It waits for somebody's answer. */
  readonly isAsked?: boolean;
}

export type CardState = "called" | "asked" | "running" | "done" | "failed" | "cut";

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
/** Reading and looking is folded: one wants to know that it was done, not what it saw. */
const OPEN: ReadonlySet<string> = new Set(["bash", "shell", "write", "edit", "multiedit", "todos", "question", "agent", "agentic_fetch", "job_output"]);
const WORDS: Readonly<Record<CardState, string>> = { called: "is being prepared", asked: "waits for an answer", running: "at work", done: "done", failed: "failed", cut: "was cut off" };

export function stateOf(call: ToolCall, result: ToolResult | undefined, isOver = false, isAsked = false): CardState {
  if (result) return result.is_error ? "failed" : "done";
  if (isOver) return "cut";
  if (isAsked) return "asked";
  return call.finished ? "running" : "called";
}

export function ToolCard(props: ToolCardProps): JSX.Element {
  const { call, result, directory = "" } = props;
  const state = stateOf(call, result, props.isOver, props.isAsked);
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
          <span class="unseen">{WORDS[state]}</span>
        </button>
        {result && <Copy text={copyOf(call.input, result.metadata, result.content)} />}
      </div>
      {body && <div class="card-body">{body}</div>}
    </article>
  );
}

/** As its kind is, until somebody says otherwise: here, or for all. A card that fails opens. */
function useFolding(first: boolean): [boolean, (open: boolean) => void] {
  const [said, setSaid] = useState<boolean | null>(null);
  const seen = useRef(wish.value.count);
  const { count, open } = wish.value;
  useEffect(() => {
    if (count === seen.current) return;
    seen.current = count;
    setSaid(open);
  }, [count]);
  return [said ?? first, setSaid];
}

function Mark({ name, state }: { name: string; state: CardState }): JSX.Element {
  if (state === "asked") return <span class="dot asks" />;
  if (state === "running" || state === "called") return <span class="spinner" />;
  return (
    <span class="card-mark">
      <Icon name={state === "failed" ? "warning" : state === "cut" ? "stop" : (ICONS[name] ?? "tool")} small />
    </span>
  );
}

/** Tools of MCP servers have long names: server and tool are told apart. */
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

/** A word at the end of the line: how much, how it ended. */
function Facts({ call, result, state }: FactsProps): JSX.Element | null {
  if (state === "asked") return <span class="chip warning">waits for an answer</span>;
  if (!result) return state === "called" ? <span class="chip">preparing</span> : null;
  const told = factsOf(result.metadata);
  const took = tookOf(result.metadata);
  const { exit } = call.name === "bash" ? shellOf(result.content, result.metadata, "", true) : { exit: null };
  const found = numberAt(told, "number_of_matches") ?? numberAt(told, "number_of_files");
  return (
    <span class="card-facts">
      {CHANGES.has(call.name) && state === "done" && <Size call={call} result={result} />}
      {found !== null && <span class="faint">{`${found}${told["truncated"] === true ? "+" : ""} found`}</span>}
      {told["background"] === true && <span class="chip accent">job {String(told["shell_id"] ?? "")}</span>}
      {exit !== null && exit !== 0 && <span class="chip error">exit {exit}</span>}
      {took !== null && took >= 100 && <span class="faint">{lasted(took)}</span>}
      {state === "failed" && !SENDS.has(call.name) && <span class="chip error">failed</span>}
    </span>
  );
}

function Size({ call, result }: { call: ToolCall; result: ToolResult }): JSX.Element {
  const told = factsOf(result.metadata);
  const lines = "additions" in told ? [] : changeOf(call.name, call.input, result.metadata);
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
