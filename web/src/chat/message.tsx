/** One message: a prompt, or an answer with its thoughts, tool calls and end. */

import type { JSX } from "preact";
import { memo } from "preact/compat";
import { useContext, useEffect, useState } from "preact/hooks";
import { foldRequest } from "../cards/folding.ts";
import { ToolCard } from "../cards/index.ts";
import { clock, elapsed, inSeconds } from "../shell/format.ts";
import { Icon } from "../shell/icons.tsx";
import { Markdown } from "../text/markdown.tsx";
import type { Message, Part, Reasoning, ShellCommand, ToolCall } from "../wire/types.ts";
import { Boundary } from "./error-boundary.tsx";
import { CopyButton } from "./copy-button.tsx";
import { finishOf, noteOf, textOf } from "./descriptions.ts";
import { FilePart } from "./files.tsx";
import { SourcesContext } from "./conversation-source.ts";

const LONG_PROMPT = 2_400;

export interface MessageProps {
  readonly message: Message;
  /** Time of the prompt of its turn in Unix seconds; 0 if unknown. */
  readonly promptedAt: number;
  readonly isMarked?: boolean;
}

export function MessageView({ message, promptedAt, isMarked = false }: MessageProps): JSX.Element | null {
  if (message.role === "tool" || message.role === "system") return null;
  if (message.parts.length === 0 && message.role === "user") return null;
  const kind = message.is_summary_message ? "summary" : message.role;
  return (
    <article
      class={`message ${kind}${isMarked ? " marked" : ""}`}
      data-testid="message"
      data-role={message.role}
      data-id={message.id}
      id={`message-${message.id}`}
      tabIndex={-1}
      aria-label={message.role === "user" ? "You" : message.is_summary_message ? "Summary" : "Answer"}
    >
      {message.role === "user" ? <UserMessage message={message} /> : <Answer message={message} promptedAt={promptedAt} />}
    </article>
  );
}

function UserMessage({ message }: { message: Message }): JSX.Element {
  const text = textOf(message);
  const files = message.parts.filter((part) => part.type === "binary");
  const shells = message.parts.filter((part) => part.type === "shell_command");
  return (
    <>
      <div class="prompt-body">
        {text ? <Prompt text={text} /> : null}
        {files.length > 0 ? (
          <ul class="files">
            {files.map((part, at) => (part.type === "binary" ? <FilePart key={at} file={part.data} /> : null))}
          </ul>
        ) : null}
        {shells.map((part, at) => (part.type === "shell_command" ? <Shell key={at} shell={part.data} /> : null))}
      </div>
      <footer class="facts">
        {text ? <CopyButton text={text} label="Copy this prompt" /> : null}
        <Time stamp={message.created_at} />
      </footer>
    </>
  );
}

/** A prompt is shown as it was written, without Markdown. */
function Prompt({ text }: { text: string }): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  const isLong = text.length > LONG_PROMPT;
  return (
    <>
      <p class="prompt">{isLong && !isOpen ? `${text.slice(0, LONG_PROMPT)} …` : text}</p>
      {isLong ? (
        <button type="button" class="button plain small" onClick={() => setOpen(!isOpen)} aria-expanded={isOpen}>
          {isOpen ? "Show less" : "Show all"}
        </button>
      ) : null}
    </>
  );
}

function Shell({ shell }: { shell: ShellCommand }): JSX.Element {
  return (
    <figure class={`shell-command${shell.exit_code === 0 ? "" : " failed"}`}>
      <figcaption>
        <code>$ {shell.command}</code>
        {shell.exit_code === 0 ? null : <span class="chip error">exit code {shell.exit_code}</span>}
        <CopyButton text={shell.output} label="Copy the output" />
      </figcaption>
      {shell.output ? <pre tabIndex={0}>{shell.output.slice(-20_000)}</pre> : null}
    </figure>
  );
}

function Answer({ message, promptedAt }: { message: Message; promptedAt: number }): JSX.Element {
  const finish = finishOf(message);
  const note = finish === null ? null : noteOf(finish);
  const isLast = finish !== null && finish.reason !== "tool_use";
  const last = message.parts.length - 1;
  return (
    <>
      {message.is_summary_message ? <p class="heading">Summary of the earlier conversation</p> : null}
      {message.parts.map((part, at) => (
        <Boundary key={at} raw={() => JSON.stringify(part.data, null, 2)}>
          <PartView part={part} message={message.id} isOpen={finish === null && at === last} />
        </Boundary>
      ))}
      {note === null ? null : (
        <div class={`ending ${note.kind}`} role={note.kind === "error" ? "alert" : "note"}>
          <strong>{note.title}</strong>
          {note.text ? <p class="ending-text">{note.text}</p> : null}
          {note.hint ? <p class="muted">{note.hint}</p> : null}
        </div>
      )}
      {isLast ? <End message={message} promptedAt={promptedAt} /> : null}
    </>
  );
}

function End({ message, promptedAt }: { message: Message; promptedAt: number }): JSX.Element {
  const finish = finishOf(message);
  const duration = promptedAt > 0 && finish !== null ? inSeconds(finish.time) - inSeconds(promptedAt) : 0;
  const text = textOf(message);
  return (
    <footer class="facts">
      <Time stamp={finish?.time ?? message.updated_at} />
      {duration > 0 ? <span>{elapsed(duration * 1_000)}</span> : null}
      {message.model ? <span class="clip model">{message.model}</span> : null}
      {text ? <CopyButton text={text} label="Copy this answer" /> : null}
    </footer>
  );
}

interface PartProps {
  readonly part: Part;
  readonly message: string;
  readonly isOpen: boolean;
}

/** An unchanged part is not rendered again when its message grows. */
const PartView = memo(function PartView({ part, message, isOpen }: PartProps): JSX.Element | null {
  switch (part.type) {
    case "text":
      return <Markdown text={part.data.text} live={isOpen} />;
    case "reasoning":
      return <Thought thought={part.data} isOpen={isOpen} />;
    case "tool_call":
      return <Tool call={part.data} message={message} />;
    case "binary":
      return (
        <ul class="files">
          <FilePart file={part.data} />
        </ul>
      );
    case "shell_command":
      return <Shell shell={part.data} />;
    default:
      return null;
  }
});

function Tool({ call, message }: { call: ToolCall; message: string }): JSX.Element {
  const sources = useContext(SourcesContext);
  const result = sources.result(message, call.id);
  return (
    <ToolCard
      call={call}
      result={result}
      output={sources.output(message, call.id)}
      isOver={sources.isOver()}
      isAwaitingApproval={result === undefined && sources.isAwaitingApproval(call.id)}
      messageId={message}
      subagentMessages={sources.subagent(message, call.id)}
      directory={sources.directory()}
    />
  );
}

function Thought({ thought, isOpen }: { thought: Reasoning; isOpen: boolean }): JSX.Element | null {
  const [isUnfolded, setUnfolded] = useState(false);
  const all = foldRequest.value;
  useEffect(() => {
    if (all.count > 0) setUnfolded(all.open);
  }, [all]);
  const duration = (thought.finished_at ?? 0) - (thought.started_at ?? 0);
  const label = isOpen ? "Thinking" : duration > 0 ? `Thought for ${elapsed(inSeconds(duration) * 1_000)}` : "Thought";
  if (thought.thinking === "" && !isOpen) return null;
  return (
    <section class="thought">
      <button type="button" class="fold" aria-expanded={isUnfolded} onClick={() => setUnfolded(!isUnfolded)}>
        <Icon name={isUnfolded ? "down" : "next"} small />
        <span>{label}</span>
        {isUnfolded ? null : <span class="clip faint preview">{lastLine(thought.thinking)}</span>}
      </button>
      {isUnfolded ? <Markdown text={thought.thinking} live={isOpen} /> : null}
    </section>
  );
}

/** The newest line of a folded thought. */
function lastLine(thinking: string): string {
  const lines = thinking.slice(-400).trimEnd().split("\n");
  return (lines[lines.length - 1] ?? "").replace(/[*#`]/g, "").slice(0, 200);
}

function Time({ stamp }: { stamp: number }): JSX.Element {
  const moment = new Date(inSeconds(stamp) * 1_000);
  return (
    <time dateTime={moment.toISOString()} title={moment.toLocaleString()}>
      {clock(moment.getTime()).replace(/:\d\d(?=\s|$)/, "")}
    </time>
  );
}
