// One run: a summary line and its bars.

import type { JSX } from "preact";
import { headlineOf } from "../cards/tool-data.ts";
import { clock } from "../shell/format.ts";
import { Icon } from "../shell/icons.tsx";
import type { IconName } from "../shell/icons.tsx";
import { chosenRun } from "../shell/ui.ts";
import { workspace } from "../store.ts";
import { subagentTracks, subagentOfTool } from "./subagents.ts";
import { endOf, formatDuration, packRows, rowsOf } from "./layout.ts";
import type { Axis } from "./layout.ts";
import { playhead, wanted } from "./timeline.tsx";
import type { Phase, PhaseKind, ToolBar, Track } from "./tracks.ts";

const ROW = 20;
const NAMES: Readonly<Record<PhaseKind, string>> = { wait: "waits for the model", think: "thinks", write: "writes", call: "names a tool" };
const ICONS: Readonly<Record<string, IconName>> = { completed: "check", failed: "warning", cancelled: "stop", interrupted: "warning" };

interface Props {
  readonly track: Track;
  readonly axis: Axis;
  readonly scale: number;
  readonly now: number;
  readonly isChosen: boolean;
}

interface Box {
  readonly left: number;
  readonly width: number;
}

export function TrackRow(props: Props): JSX.Element {
  const { track, axis, scale, now, isChosen } = props;
  const end = endOf(track, now);
  const toolRows = packRows(track.tools.map((tool) => ({ start: tool.start, end: tool.end ?? end })));
  const rows = rowsOf(toolRows, isChosen ? track.tools.flatMap((tool) => subagentTracks.value.get(subagentOfTool(tool)) ?? []) : []);
  const box = (from: number, to: number): Box => {
    const left = axis.position(track, from) * scale;
    return { left, width: Math.max(2, axis.position(track, to) * scale - left) };
  };
  const choose = (): void => {
    chosenRun.value = isChosen ? null : track.runId;
  };
  const at = isChosen ? playhead.value : null;
  return (
    <section class={`tl-run ${isChosen ? "chosen" : ""}`} aria-label={track.prompt.slice(0, 80) || track.kind}>
      <Head track={track} end={end} isChosen={isChosen} choose={choose} />
      <div class="tl-bars" style={{ width: `${axis.length * scale}px`, height: `${(2 + rows.length) * ROW}px` }} onClick={() => (chosenRun.value = track.runId)}>
        <RunBars track={track} end={end} box={box} />
        <Steps track={track} end={end} box={box} />
        {track.tools.map((tool, index) => (
          <Tool key={tool.id} tool={tool} end={end} box={box} top={(2 + (toolRows[index] ?? 0)) * ROW} />
        ))}
        {rows.map((row, index) => row.kind === "subagent" && <SubagentRow key={index} track={row.track} part={row.part} end={endOf(row.track, now)} box={box} top={(2 + index) * ROW} />)}
        {at !== null && <span class="tl-playhead" style={{ left: `${axis.position(track, at) * scale}px` }} />}
      </div>
    </section>
  );
}

/** A row of a sub-agent's model or tools: smaller, below the tool call that started it. */
function SubagentRow({ track, part, end, box, top }: { track: Track; part: "model" | "tools"; end: number; box: Boxed; top: number }): JSX.Element {
  return (
    <span class="tl-subagent">
      {part === "model"
        ? track.steps.flatMap((step) => step.phases.map((phase) => <PhaseBar key={phase.number} phase={phase} step={step.step} end={end} box={box} top={top} prefix="sub-agent, " />))
        : track.tools.map((tool) => <Tool key={tool.id} tool={tool} end={end} box={box} top={top} isSubagent />)}
    </span>
  );
}

function Head({ track, end, isChosen, choose }: { track: Track; end: number; isChosen: boolean; choose(): void }): JSX.Element {
  const outcome = track.foldedInto ? "folded" : (track.outcome ?? (track.started ? "running" : "waiting"));
  return (
    <button type="button" class="tl-label" aria-pressed={isChosen} title={track.prompt.slice(0, 400)} onClick={choose}>
      <span class={`line-mark ${outcome}`}>
        {track.outcome ? <Icon name={ICONS[track.outcome] ?? "check"} small /> : <span class="dot busy" />}
      </span>
      <span class="tl-prompt clip">{track.prompt.replace(/\s+/g, " ") || (track.kind === "summary" ? "summary" : "…")}</span>
      <b>{formatDuration(end - track.accepted)}</b>
      <small class="faint">
        {clock(track.accepted)}
        {track.steps.length > 0 && ` · ${track.steps.length} ${track.steps.length === 1 ? "step" : "steps"}`}
        {track.tools.length > 0 && ` · ${track.tools.length} ${track.tools.length === 1 ? "tool" : "tools"}`}
        {outcome !== "completed" && ` · ${outcome}`}
      </small>
    </button>
  );
}

type Boxed = (from: number, to: number) => Box;

interface BarProps {
  readonly kind: string;
  readonly box: Box;
  readonly top: number;
  readonly title: string;
  readonly label?: string;
  /** How much of its beginning is covered by another bar. */
  readonly inset?: number;
  /** The event it is about: a click leads there. */
  readonly number?: number;
}

function Bar({ kind, box, top, title, label, inset = 0, number }: BarProps): JSX.Element {
  const go = number === undefined ? undefined : () => (wanted.value = { number });
  return (
    <span class={`tl-bar ${kind}`} title={title} onClick={go} style={{ left: `${box.left}px`, width: `${box.width}px`, top: `${top}px` }}>
      {label && box.width - inset > 34 && (
        <span class="clip" style={inset ? { marginLeft: `${inset}px` } : {}}>
          {label}
        </span>
      )}
    </span>
  );
}

/** From acceptance to the end: waiting first, then at work. */
function RunBars({ track, end, box }: { track: Track; end: number; box: Boxed }): JSX.Element {
  const started = track.started ?? end;
  const waited = started - track.accepted;
  return (
    <>
      {waited > 0 && <Bar kind="queued" box={box(track.accepted, started)} top={0} title={`queued: ${formatDuration(waited)}`} label={`waits ${formatDuration(waited)}`} />}
      {track.started !== null && (
        <Bar kind={`run ${track.foldedInto ? "folded" : (track.outcome ?? "running")}`} box={box(started, end)} top={0} title={`${track.foldedInto ? "folded into the current turn" : (track.outcome ?? "running")}: ${formatDuration(end - started)}`} label={formatDuration(end - started)} />
      )}
      {track.cancelAt !== null && <span class="tl-cancel" title="cancel requested" style={{ left: `${box(track.cancelAt, track.cancelAt).left}px` }} />}
    </>
  );
}

function Steps({ track, end, box }: { track: Track; end: number; box: Boxed }): JSX.Element {
  return (
    <>
      {track.steps.map((step) => (
        <span key={step.step}>
          <span class="tl-step" title={`step ${step.step}: ${formatDuration((step.end ?? end) - step.start)}`} style={{ left: `${box(step.start, step.start).left}px` }} />
          {step.phases.map((phase) => (
            <PhaseBar key={phase.number} phase={phase} step={step.step} end={end} box={box} top={ROW} number={phase.number} />
          ))}
        </span>
      ))}
    </>
  );
}

interface PhaseProps {
  readonly phase: Phase;
  readonly step: number;
  readonly end: number;
  readonly box: Boxed;
  readonly top: number;
  readonly number?: number;
  readonly prefix?: string;
}

function PhaseBar({ phase, step, end, box, top, number, prefix = "" }: PhaseProps): JSX.Element {
  const duration = formatDuration((phase.end ?? end) - phase.start);
  const label = phase.kind === "wait" ? duration : `${NAMES[phase.kind]} ${duration}`;
  return (
    <Bar kind={phase.kind} box={box(phase.start, phase.end ?? end)} top={top} title={`${prefix}step ${step}: ${NAMES[phase.kind]}, ${duration}`} label={label} {...(number === undefined ? {} : { number })} />
  );
}

interface ToolProps {
  readonly tool: ToolBar;
  readonly end: number;
  readonly box: Boxed;
  readonly top: number;
  /** A tool of a sub-agent: its events are not part of the replay. */
  readonly isSubagent?: boolean;
}

function Tool({ tool, end, box, top, isSubagent = false }: ToolProps): JSX.Element {
  const over = tool.end ?? end;
  const line = headlineOf(tool.name, tool.input, "", workspace.value?.path ?? "");
  const bar = box(tool.start, over);
  const first = tool.approvals[0];
  const approvalBox = first ? box(first.start, first.end ?? end) : bar;
  // The approval is first: the label is placed after it.
  const inset = first && approvalBox.left - bar.left < 34 ? approvalBox.left + approvalBox.width - bar.left : 0;
  return (
    <>
      <Bar
        inset={inset}
        kind={`tool ${tool.failed ? "failed" : ""} ${tool.end === null ? "running" : ""}`}
        box={bar}
        top={top}
        title={`${isSubagent ? "sub-agent, " : ""}${tool.name} ${line}: ${formatDuration(over - tool.start)}`}
        label={`${tool.name} ${formatDuration(over - tool.start)}`}
        {...(isSubagent ? {} : { number: tool.endNumber || tool.number })}
      />
      {tool.approvals.map((approval) => (
        <Bar
          key={approval.id}
          kind="approval"
          box={box(approval.start, approval.end ?? end)}
          top={top}
          title={`waits for approval: ${formatDuration((approval.end ?? end) - approval.start)} ${approval.verdict}`}
          {...(isSubagent ? {} : { number: approval.number })}
        />
      ))}
    </>
  );
}
