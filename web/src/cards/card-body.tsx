// The contents of a tool card, by tool.

import type { ComponentChildren, JSX } from "preact";
import { useMemo } from "preact/hooks";
import { hasTwoSides } from "../diff/lines.ts";
import { columns, Diff, turnColumns } from "../diff/diff-view.tsx";
import { Icon } from "../shell/icons.tsx";
import { chooseSession, subagentSession, reportErrors } from "../store.ts";
import { Markdown } from "../text/markdown.tsx";
import { languageOf } from "../text/highlight.ts";
import type { Message, ToolCall, ToolResult } from "../wire/types.ts";
import type { CardState, ToolCardProps } from "./card.tsx";
import { stateOf } from "./card.tsx";
import { Bounded, Code } from "./output.tsx";
import { answerOf, changeOf, parseObject, headlineOf, relativePath, matchesOf, plain, questionsOf, shellOf, textAt, todosOf, viewedOf } from "./tool-data.ts";

/** Returns null if there are no contents. */
export function bodyOf(props: ToolCardProps, state: CardState): ComponentChildren {
  const { call, result } = props;
  if (state === "failed" && call.name !== "bash") return <Bounded text={result?.content ?? ""} kind="error" />;
  switch (call.name) {
    case "bash":
    case "shell":
      return <Shell {...props} />;
    case "write":
    case "edit":
    case "multiedit":
      return <Change call={call} result={result} />;
    case "view":
      return result && <Viewed call={call} result={result} />;
    case "grep":
      return result && <Found result={result} directory={props.directory ?? ""} />;
    case "todos":
      return <Todos call={call} result={result} />;
    case "question":
      return <Questions call={call} result={result} />;
    case "agent":
    case "agentic_fetch":
      return <Subagent {...props} />;
    case "fetch":
    case "web_fetch":
      return result && <Bounded text={result.content} most={12} />;
    default:
      return <Plain {...props} />;
  }
}

function Shell({ call, result, output = "" }: ToolCardProps): JSX.Element {
  const args = parseObject(call.input);
  const command = textAt(args, "command");
  const shown = shellOf(result?.content ?? "", result?.metadata ?? "", output, result !== undefined);
  const text = plain(shown.text).replace(/^\n+/, "");
  // For a running or failed command, the last lines are shown.
  const isEnd = !result || (shown.exit ?? 0) !== 0;
  return (
    <>
      {(command.includes("\n") || command.length > 90) && <Code text={command} language="bash" most={12} kind="command" />}
      {text.trim() ? <Bounded text={text} most={result ? 12 : 10} fromEnd={isEnd} live={!result} /> : result && <p class="card-note">No output.</p>}
    </>
  );
}

function Change({ call, result }: { call: ToolCall; result: ToolResult | undefined }): JSX.Element | null {
  const lines = useMemo(() => changeOf(call.name, call.input, result?.metadata), [call.input, result?.metadata]);
  const failed = parseObject(result?.metadata)["edits_failed"];
  if (!lines.length) return null;
  const isSplit = columns.value === "split";
  const path = textAt(parseObject(call.input), "file_path");
  return (
    <>
      {hasTwoSides(lines) && (
        <div class="diff-tools">
          <button type="button" class="square small" aria-pressed={isSplit} aria-label="Two columns" title={isSplit ? "One column" : "Two columns"} onClick={turnColumns}>
            <Icon name={isSplit ? "unified" : "split"} small />
          </button>
        </div>
      )}
      <Diff lines={lines} path={path} most={24} label={`Change of ${path}`} />
      {Array.isArray(failed) && <p class="card-note error">{failed.length} of the edits could not be made.</p>}
    </>
  );
}

function Viewed({ call, result }: { call: ToolCall; result: ToolResult }): JSX.Element {
  if (result.mime_type?.startsWith("image/") && result.data) {
    return <img class="card-picture" src={`data:${result.mime_type};base64,${result.data}`} alt={result.content} />;
  }
  const { first, text } = viewedOf(result.content, result.metadata, call.input);
  return <Code text={text} language={languageOf(textAt(parseObject(call.input), "file_path"))} first={first} most={16} />;
}

function Found({ result, directory }: { result: ToolResult; directory: string }): JSX.Element {
  const files = matchesOf(result.content);
  if (!files) return <Bounded text={result.content} />;
  return (
    <ul class="found">
      {files.slice(0, 50).map((file) => (
        <li key={file.path}>
          <b class="mono">{relativePath(file.path, directory)}</b>
          <table>
            <tbody>
              {file.matches.slice(0, 20).map((match, at) => (
                <tr key={at}>
                  <td class="number">{match.line}</td>
                  <td class="text">{match.text.slice(0, 400)}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {file.matches.length > 20 && <small class="faint">{file.matches.length - 20} more in this file</small>}
        </li>
      ))}
    </ul>
  );
}

const MARKS: Readonly<Record<string, string>> = { completed: "done", in_progress: "doing" };

function Todos({ call, result }: { call: ToolCall; result: ToolResult | undefined }): JSX.Element {
  return (
    <ul class="todos">
      {todosOf(call.input, result?.metadata).map((todo, at) => (
        <li key={at} class={MARKS[todo.status] ?? "todo"}>
          <span class="todo-mark" aria-hidden="true" />
          <span class="visually-hidden">{todo.status.replace("_", " ")}: </span>
          {todo.content}
        </li>
      ))}
    </ul>
  );
}

function Questions({ call, result }: { call: ToolCall; result: ToolResult | undefined }): JSX.Element {
  if (!result) {
    return (
      <ul class="question-list">
        {questionsOf(call.input).map((text, at) => (
          <li key={at}>{text}</li>
        ))}
      </ul>
    );
  }
  return (
    <ul class="question-list">
      {result.content.split(/\n\n(?=Q\d+: )/).map((block, at) => {
        const [question = "", ...answer] = block.split("\n");
        return (
          <li key={at}>
            <span class="muted">{question.replace(/^Q\d+: /, "")}</span>
            <span>{answer.map((line) => answerOf(line, call.input)).join(" · ")}</span>
          </li>
        );
      })}
    </ul>
  );
}

/** Activity of the sub-agent of a call: one line per tool call, then its answer. */
function Subagent({ call, result, messageId = "", subagentMessages = [], directory = "" }: ToolCardProps): JSX.Element {
  const prompt = textAt(parseObject(call.input), "prompt");
  const session = messageId && subagentMessages.length ? subagentSession(messageId, call.id) : "";
  return (
    <div class="subagent">
      {prompt.includes("\n") && <Bounded text={prompt} most={4} />}
      <Steps messages={subagentMessages} directory={directory} />
      {result && (
        <div class="subagent-answer">
          <Markdown text={result.content} />
        </div>
      )}
      {session && (
        <button type="button" class="more" onClick={() => void reportErrors(chooseSession(session))}>
          Show the session of the sub-agent
        </button>
      )}
    </div>
  );
}

function Steps({ messages, directory }: { messages: readonly Message[]; directory: string }): JSX.Element | null {
  const results = new Map<string, ToolResult>();
  const calls: ToolCall[] = [];
  for (const part of messages.flatMap((message) => message.parts)) {
    if (part.type === "tool_result") results.set(part.data.tool_call_id, part.data);
    if (part.type === "tool_call") calls.push(part.data);
  }
  if (!calls.length) return null;
  return (
    <ol class="subagent-steps">
      {calls.slice(-40).map((used) => {
        const state = stateOf(used, results.get(used.id));
        return (
          <li key={used.id} class={state}>
            <span class={`dot ${state === "running" || state === "called" ? "busy" : state === "failed" ? "lost" : "live"}`} />
            <b>{used.name}</b>
            <span class="mono clip muted">{headlineOf(used.name, used.input, results.get(used.id)?.metadata, directory)}</span>
          </li>
        );
      })}
    </ol>
  );
}

/** Unknown tools: input and result. */
function Plain({ call, result, output = "" }: ToolCardProps): JSX.Element | null {
  const args = parseObject(call.input);
  const names = Object.keys(args);
  const isKnown = names.length <= 1 || ["ls", "glob", "download", "job_output", "job_kill"].includes(call.name);
  const text = plain(result?.content ?? output);
  return (
    <>
      {!isKnown && (
        <dl class="card-args">
          {names.map((name) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd class="mono">{short(args[name])}</dd>
            </div>
          ))}
        </dl>
      )}
      {text.trim() && <Bounded text={text} fromEnd={!result} live={!result} />}
      {result?.mime_type?.startsWith("image/") && result.data && (
        <img class="card-picture" src={`data:${result.mime_type};base64,${result.data}`} alt={`Result of ${call.name}`} />
      )}
    </>
  );
}

function short(value: unknown): string {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > 600 ? `${text.slice(0, 600)} …` : text;
}
