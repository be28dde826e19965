// Details of one run: distribution of its time, slowest tools, and a replay of its events.

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { headlineOf } from "../cards/tool-data.ts";
import { Conversation } from "../chat/transcript.tsx";
import { clock } from "../shell/format.ts";
import { Icon } from "../shell/icons.tsx";
import { chosenRun } from "../shell/ui.ts";
import { workspace } from "../store.ts";
import { formatDuration } from "./layout.ts";
import { framesOf, describeEvent, viewAt } from "./replay.ts";
import { playhead, wanted } from "./timeline.tsx";
import { sharesOf } from "./tracks.ts";
import type { LogEvent, Track } from "./tracks.ts";

const SPEEDS = [1, 2, 5, 10] as const;
const SHORTEST = 60;
const MAX_LENGTH = 1_500;

interface Props {
  readonly track: Track;
  readonly events: readonly LogEvent[];
  readonly now: number;
}

export function RunDetails({ track, events, now }: Props): JSX.Element {
  const frames = useMemo(() => framesOf(events, track), [events, track]);
  return (
    <aside class="tl-details" aria-label="The run" onKeyDown={onEscape}>
      <header>
        <h2 class="grow">{track.prompt.slice(0, 300) || track.kind}</h2>
        <button type="button" class="square" aria-label="Close" onClick={close}>
          <Icon name="close" />
        </button>
      </header>
      <Shares track={track} now={now} />
      {track.error && <p class="note error">{track.error}</p>}
      <Slowest track={track} now={now} />
      <Replay frames={frames} track={track} />
    </aside>
  );
}

function close(): void {
  document.querySelector<HTMLElement>(".tl-run.chosen .tl-label")?.focus({ preventScroll: true });
  chosenRun.value = null;
}

function onEscape(event: KeyboardEvent): void {
  if (event.key !== "Escape") return;
  event.preventDefault();
  event.stopPropagation();
  close();
}

const PARTS = [
  ["waiting", "queued", "queued"],
  ["model", "write", "model"],
  ["tools", "tool", "tools"],
  ["approval", "approval", "waited for approval"],
] as const;

function Shares({ track, now }: { track: Track; now: number }): JSX.Element {
  const shares = sharesOf(track, now);
  const parts = PARTS.filter(([name]) => shares[name] > 0);
  return (
    <div class="tl-shares">
      <p>
        <b>{formatDuration(shares.total)}</b>
        <span class="muted">
          {" "}
          from {clock(track.accepted)} to {track.ended ? clock(track.ended) : "now"} · {track.outcome ?? "running"}
        </span>
      </p>
      <div class="share-bar" role="img" aria-label={parts.map(([name, , label]) => `${label} ${formatDuration(shares[name])}`).join(", ")}>
        {parts.map(([name, kind]) => (
          <span key={name} class={`swatch ${kind}`} style={{ flexGrow: String(shares[name]) }} />
        ))}
      </div>
      <ul>
        {parts.map(([name, kind, label]) => (
          <li key={name}>
            <span class={`swatch ${kind}`} />
            {label} <b>{formatDuration(shares[name])}</b>
          </li>
        ))}
      </ul>
    </div>
  );
}

function Slowest({ track, now }: { track: Track; now: number }): JSX.Element | null {
  const root = workspace.value?.path ?? "";
  const tools = track.tools.map((tool) => ({
    id: tool.id,
    name: tool.name,
    line: headlineOf(tool.name, tool.input, "", root),
    took: (tool.end ?? now) - tool.start,
    failed: tool.failed,
  }));
  const top = tools.sort((a, b) => b.took - a.took).slice(0, 4);
  const most = top[0]?.took ?? 0;
  if (!top.length) return null;
  return (
    <ul class="tl-slowest" aria-label="Slowest tools">
      {top.map((tool) => (
        <li key={tool.id}>
          <b class={tool.failed ? "error-text" : ""}>{tool.name}</b>
          <span class="mono clip muted">{tool.line}</span>
          <span class="number">{formatDuration(tool.took)}</span>
          <span class="share">
            <span class="swatch tool" style={{ width: `${most ? Math.max(2, (100 * tool.took) / most) : 0}%` }} />
          </span>
        </li>
      ))}
    </ul>
  );
}

function Replay({ frames, track }: { frames: readonly LogEvent[]; track: Track }): JSX.Element {
  const [chosen, setAt] = useState(frames.length);
  const [isPlaying, setPlaying] = useState(false);
  const [speed, setSpeed] = useState<number>(1);
  const followed = useRef(true);
  const viewElement = useRef<HTMLDivElement>(null);
  const slider = useRef<HTMLInputElement>(null);
  const at = Math.min(followed.current ? frames.length : chosen, frames.length);
  const event = frames[at - 1];
  const view = useMemo(() => viewAt(frames, at), [frames, at]);
  const go = (to: number): void => {
    const position = Math.max(1, Math.min(to, frames.length));
    followed.current = position === frames.length && track.ended === null;
    setAt(position);
  };
  useEffect(() => {
    playhead.value = event?.at ?? null;
    viewElement.current?.scrollTo({ top: viewElement.current.scrollHeight });
  }, [event?.number]);
  const clicked = wanted.value;
  useEffect(() => {
    const found = clicked ? frames.findIndex((frame) => frame.number === clicked.number) : -1;
    if (found >= 0) go(found + 1);
    // Keys apply to the selected run.
    slider.current?.focus({ preventScroll: true });
  }, [clicked]);
  usePlaying(isPlaying, frames, at, speed, go, () => setPlaying(false));
  const start = (): void => {
    if (!isPlaying && at >= frames.length) go(1);
    setPlaying(!isPlaying);
  };
  return (
    <section class="replay" aria-label="Replay" onKeyDown={(key) => onKey(key, at, frames.length, go, start)}>
      <div class="replay-tools">
        <Step icon="back" label="Previous event (←)" onClick={() => go(at - 1)} />
        <Step icon={isPlaying ? "pause" : "play"} label={isPlaying ? "Pause (space)" : "Play (space)"} onClick={start} />
        <Step icon="next" label="Next event (→)" onClick={() => go(at + 1)} />
        <input ref={slider} type="range" min={1} max={Math.max(1, frames.length)} value={at} aria-label="Event" aria-valuetext={event ? `${at} of ${frames.length}: ${describeEvent(event)}` : ""} onInput={(input) => go(Number(input.currentTarget.value))} />
        <button type="button" class="button small" aria-label={`Speed ${speed}`} title="Speed" onClick={() => setSpeed(SPEEDS[(SPEEDS.indexOf(speed as 1) + 1) % SPEEDS.length] ?? 1)}>
          {speed}×
        </button>
      </div>
      <p class="replay-event" data-testid="replay-event">
        <span class="mono faint">#{event?.number ?? 0}</span>
        <span class="grow">{event ? describeEvent(event) : "The log no longer contains events of this run."}</span>
        {event && <span class="faint">+{formatDuration(event.at - track.accepted)}</span>}
      </p>
      <div class="replay-view" ref={viewElement} tabIndex={0} role="region" aria-label="The conversation at that event">
        <Conversation messages={view.messages(track.sessionId)} directory={workspace.value?.path ?? ""} />
      </div>
    </section>
  );
}

function Step({ icon, label, onClick }: { icon: "back" | "next" | "play" | "pause"; label: string; onClick(): void }): JSX.Element {
  return (
    <button type="button" class="square small" aria-label={label} title={label} onClick={onClick}>
      <Icon name={icon} small />
    </button>
  );
}

/** The original duration, within limits that keep each event visible and the replay short. */
function usePlaying(isPlaying: boolean, frames: readonly LogEvent[], at: number, speed: number, go: (to: number) => void, stop: () => void): void {
  useEffect(() => {
    if (!isPlaying) return undefined;
    if (at >= frames.length) {
      stop();
      return undefined;
    }
    const gap = ((frames[at]?.at ?? 0) - (frames[at - 1]?.at ?? 0)) / speed;
    const timer = setTimeout(() => go(at + 1), Math.min(MAX_LENGTH, Math.max(SHORTEST, gap)));
    return () => clearTimeout(timer);
  }, [isPlaying, at, speed, frames]);
}

function onKey(event: KeyboardEvent, at: number, count: number, go: (to: number) => void, start: () => void): void {
  const isSlider = event.target instanceof HTMLInputElement;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === " " && !(event.target instanceof HTMLButtonElement)) start();
  else if (isSlider) return;
  else if (event.key === "ArrowLeft") go(at - 1);
  else if (event.key === "ArrowRight") go(at + 1);
  else if (event.key === "Home") go(1);
  else if (event.key === "End") go(count);
  else return;
  event.preventDefault();
}
