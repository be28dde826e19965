// The runs of a session on a common time axis: waiting, model, tools.

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { isWriting } from "../palette/keys.ts";
import { useNow } from "../panels/use-now.ts";
import { pluralize } from "../shell/format.ts";
import { Icon } from "../shell/icons.tsx";
import { chosenRun } from "../shell/ui.ts";
import { sessionId } from "../store.ts";
import { RunDetails } from "./details.tsx";
import { useSubagents } from "./subagents.ts";
import { axisOf } from "./layout.ts";
import type { Axis, Mode } from "./layout.ts";
import { log, showEarlier, useLog } from "./log.ts";
import { Ruler } from "./ruler.tsx";
import { TrackRow } from "./track.tsx";
import { Tracker } from "./tracks.ts";

const mode = signal<Mode>("clock");
/** Zoom factor relative to the whole timeline. */
const zoom = signal(1);
const MAX_ZOOM = 200;
const SIDE = 24;

/** Position of the replay, for the mark across all bars; null if none is open. */
export const playhead = signal<number | null>(null);

/** The clicked event; the replay moves there. */
export const wanted = signal<{ readonly number: number } | null>(null);

export function Timeline(): JSX.Element {
  const session = sessionId.value ?? "";
  useLog(session);
  const { events, isComplete, hasEarlier, first, trouble } = log.value;
  // Showing earlier runs restarts the log.
  const tracker = useMemo(() => new Tracker(), [events[0]?.number]);
  const tracks = useMemo(() => tracker.read(events).filter((track) => track.number >= first), [tracker, events, first]);
  const now = useNow(tracks.some((track) => track.ended === null), 500);
  const axis = useMemo(() => axisOf(tracks, now, mode.value), [tracks, now, mode.value]);
  const [wide, setWide] = useState(800);
  const scroller = useRef<HTMLDivElement>(null);
  useWidth(scroller, setWide);
  const scale = (Math.max(200, wide - 2 * SIDE) / axis.length) * zoom.value;
  useZoom(scroller, axis, scale);
  const chosen = tracks.find((track) => track.runId === chosenRun.value);
  useSubagents(chosen);
  useEffect(() => {
    // The composer is not shown and the focus is anywhere, so keys are handled globally.
    addEventListener("keydown", onKey);
    return () => {
      removeEventListener("keydown", onKey);
      playhead.value = null;
      wanted.value = null;
    };
  }, []);
  return (
    <div class={`timeline ${chosen ? "with-details" : ""}`} data-testid="timeline">
      <div class="tl-main">
        <Tools count={tracks.length} isComplete={isComplete} />
        {trouble && <p class="note warning">{trouble}</p>}
        {!tracks.length && isComplete && <p class="empty">The log no longer contains runs of this session.</p>}
        <div class="tl-scroll" ref={scroller} tabIndex={0} role="region" aria-label="Runs on a common axis">
          {tracks.length > 0 && <Ruler axis={axis} scale={scale} />}
          {hasEarlier && (
            <button type="button" class="button small plain tl-earlier" onClick={showEarlier}>
              Earlier runs
            </button>
          )}
          {tracks.map((track) => (
            <TrackRow key={track.runId} track={track} axis={axis} scale={scale} now={now} isChosen={track === chosen} />
          ))}
        </div>
        <Legend />
      </div>
      {chosen && <RunDetails key={chosen.runId} track={chosen} events={events} now={now} />}
    </div>
  );
}

function Tools({ count, isComplete }: { count: number; isComplete: boolean }): JSX.Element {
  const one = (name: Mode, label: string, title: string): JSX.Element => (
    <button type="button" aria-pressed={mode.value === name} title={title} onClick={() => (mode.value = name)}>
      {label}
    </button>
  );
  return (
    <div class="tl-tools">
      <span class="muted grow">{isComplete ? pluralize(count, "run") : "Loading the log …"}</span>
      <div class="segments" role="group" aria-label="Axis">
        {one("clock", "By the clock", "In real time, with long pauses compressed")}
        {one("zero", "From zero", "Every run from its own start, for comparison")}
      </div>
      <div class="tl-zoom" role="group" aria-label="Zoom">
        <button type="button" class="square small" aria-label="Zoom out (−)" title="Zoom out (−)" onClick={() => closer(1 / 1.5)}>
          <Icon name="minus" small />
        </button>
        <button type="button" class="square small" aria-label="Show everything (0)" title="Show everything (0)" onClick={() => (zoom.value = 1)}>
          <Icon name="fit" small />
        </button>
        <button type="button" class="square small" aria-label="Zoom in (+)" title="Zoom in (+)" onClick={() => closer(1.5)}>
          <Icon name="plus" small />
        </button>
      </div>
    </div>
  );
}

function closer(by: number): void {
  zoom.value = Math.min(MAX_ZOOM, Math.max(1, zoom.value * by));
}

function onKey(event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey || isWriting(event.target) || document.querySelector("dialog[open]") !== null) return;
  if (event.key === "+" || event.key === "=") closer(1.5);
  else if (event.key === "-") closer(1 / 1.5);
  else if (event.key === "0") zoom.value = 1;
  else return;
  event.preventDefault();
}

function useWidth(scroller: { current: HTMLDivElement | null }, onWidth: (wide: number) => void): void {
  useLayoutEffect(() => {
    const element = scroller.current;
    if (!element) return undefined;
    onWidth(element.clientWidth);
    if (typeof ResizeObserver === "undefined") return undefined;
    const watcher = new ResizeObserver(() => onWidth(element.clientWidth));
    watcher.observe(element);
    return () => watcher.disconnect();
  }, []);
}

/** Ctrl and the wheel zoom; the time under the pointer stays in place. */
function useZoom(scroller: { current: HTMLDivElement | null }, axis: Axis, scale: number): void {
  const now = useRef({ axis, scale });
  const hold = useRef<{ moment: number; x: number } | null>(null);
  now.current = { axis, scale };
  useLayoutEffect(() => {
    const element = scroller.current;
    if (!element || !hold.current) return;
    element.scrollLeft = hold.current.moment * scale - hold.current.x + SIDE;
    hold.current = null;
  }, [scale]);
  useEffect(() => {
    const element = scroller.current;
    if (!element) return undefined;
    const onWheel = (event: WheelEvent): void => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const x = event.clientX - element.getBoundingClientRect().left;
      hold.current = { moment: (element.scrollLeft + x - SIDE) / now.current.scale, x };
      closer(Math.exp(-event.deltaY / 300));
    };
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => element.removeEventListener("wheel", onWheel);
  }, []);
}

const LEGEND = [
  ["queued", "queued"],
  ["wait", "waits for the model"],
  ["think", "thinks"],
  ["write", "writes"],
  ["call", "prepares a tool call"],
  ["tool", "tool"],
  ["approval", "waits for approval"],
] as const;

function Legend(): JSX.Element {
  return (
    <ul class="tl-legend" aria-label="Colours">
      {LEGEND.map(([kind, label]) => (
        <li key={kind}>
          <span class={`swatch ${kind}`} />
          {label}
        </li>
      ))}
    </ul>
  );
}
