// Positions of the bars of a timeline. Pure: milliseconds in, positions out; the component only scales them.

import type { Track } from "./tracks.ts";

export type Mode = "clock" | "zero";

/** A time interval and its position, both in milliseconds. `idle`: no activity, drawn compressed. */
export interface Segment {
  readonly from: number;
  readonly to: number;
  readonly at: number;
  readonly length: number;
  readonly idle: boolean;
}
export interface Axis {
  readonly mode: Mode;
  readonly segments: readonly Segment[];
  readonly length: number;
  /** Returns the position of a time in a run. */
  position(track: Track, time: number): number;
}

const IDLE_FROM = 5_000;
const IDLE_SHARE = 0.04;

export const endOf = (track: Track, now: number): number => Math.max(track.ended ?? now, track.accepted);

/** By the clock, with idle intervals compressed; or every run from its own start, for comparison. */
export function axisOf(tracks: readonly Track[], now: number, mode: Mode): Axis {
  if (mode === "zero") {
    const length = Math.max(1, ...tracks.map((track) => endOf(track, now) - track.accepted));
    const segments = [{ from: 0, to: length, at: 0, length, idle: false }];
    return { mode, segments, length, position: (track, time) => clamp(time - track.accepted, 0, length) };
  }
  const segments = segmentsOf(tracks, now);
  const last = segments[segments.length - 1];
  return { mode, segments, length: last ? last.at + last.length : 1, position: (_, time) => positionIn(segments, time) };
}

function segmentsOf(tracks: readonly Track[], now: number): Segment[] {
  const busy: [number, number][] = [];
  for (const track of [...tracks].sort((a, b) => a.accepted - b.accepted)) {
    const end = endOf(track, now);
    const last = busy[busy.length - 1];
    if (last && track.accepted - last[1] < IDLE_FROM) last[1] = Math.max(last[1], end);
    else busy.push([track.accepted, end]);
  }
  const total = busy.reduce((sum, [from, to]) => sum + to - from, 0);
  const gap = Math.max(1, total * IDLE_SHARE);
  const segments: Segment[] = [];
  let at = 0;
  busy.forEach(([from, to], index) => {
    const before = busy[index - 1];
    if (before) {
      segments.push({ from: before[1], to: from, at, length: gap, idle: true });
      at += gap;
    }
    const length = Math.max(1, to - from);
    segments.push({ from, to, at, length, idle: false });
    at += length;
  });
  return segments;
}

function positionIn(segments: readonly Segment[], time: number): number {
  const found = segments.find((segment) => time <= segment.to) ?? segments[segments.length - 1];
  if (!found) return 0;
  const share = found.to > found.from ? (time - found.from) / (found.to - found.from) : 0;
  return found.at + clamp(share, 0, 1) * found.length;
}

const clamp = (value: number, low: number, high: number): number => Math.min(Math.max(value, low), high);

/** Assigns overlapping intervals to rows: each to the first row that is free. */
export function packRows(spans: readonly { readonly start: number; readonly end: number }[]): number[] {
  const ends: number[] = [];
  return spans.map(({ start, end }) => {
    let row = ends.findIndex((reached) => reached <= start);
    if (row < 0) row = ends.length;
    ends[row] = Math.max(end, start);
    return row;
  });
}

/** A row of bars of a run: its own tools, or a sub-agent of one of them. */
export type Row = { readonly kind: "tools"; readonly row: number } | { readonly kind: "subagent"; readonly track: Track; readonly part: "model" | "tools" };

/** Returns all rows of a run below its first two, those of sub-agents last. */
export function rowsOf(tools: readonly number[], subagents: readonly Track[]): Row[] {
  const count = Math.max(0, ...tools.map((row) => row + 1));
  const own = Array.from({ length: count }, (_, row): Row => ({ kind: "tools", row }));
  const subagentRows = subagents.flatMap((track): Row[] => [
    { kind: "subagent", track, part: "model" },
    ...(track.tools.length ? [{ kind: "subagent" as const, track, part: "tools" as const }] : []),
  ]);
  return [...own, ...subagentRows];
}

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 216e5, 864e5];

export interface Tick {
  readonly at: number;
  /** Milliseconds since the start of its interval. */
  readonly since: number;
  /** The wall-clock time. */
  readonly time: number;
  readonly isFirst: boolean;
}

/** Returns ticks at round distances, about `apart` drawn milliseconds apart; each busy interval starts at zero. */
export function ticksOf(axis: Axis, apart: number): Tick[] {
  const step = STEPS.find((size) => size >= apart) ?? STEPS[STEPS.length - 1] ?? 1;
  const ticks: Tick[] = [];
  for (const segment of axis.segments) {
    if (segment.idle) continue;
    for (let since = 0; since <= segment.length; since += step) {
      if (since > 0 && segment.length - since < step / 4 && segment !== axis.segments[axis.segments.length - 1]) break;
      ticks.push({ at: segment.at + since, since, time: segment.from + since, isFirst: since === 0 });
    }
  }
  return ticks;
}

/** Removes labels that would overlap; `apart` is the width of a label. */
export function spaceLabels(ticks: readonly Tick[], length: number, apart: number): (Tick & { readonly isWorded: boolean })[] {
  let free = -Infinity;
  return ticks.map((tick, index) => {
    const next = ticks.slice(index + 1, index + 8).find((other) => other.isFirst);
    const isPressed = !tick.isFirst && next !== undefined && next.at - tick.at < apart;
    const isWorded = tick.at >= free && !isPressed && (tick.at === 0 || length - tick.at >= apart / 2);
    if (isWorded) free = tick.at + apart;
    return { ...tick, isWorded };
  });
}

/** Formats a duration readably: 350 ms, 4.2 s, 3 min 05 s. */
export function formatDuration(milliseconds: number): string {
  const ms = Math.max(0, Math.round(milliseconds));
  if (ms < 1_000) return `${ms} ms`;
  if (ms < 10_000) return `${(ms / 1_000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1_000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${String(seconds % 60).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}
