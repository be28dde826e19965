import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { clock, elapsed } from "../shell/format.ts";
import { formatDuration, spaceLabels, ticksOf } from "./layout.ts";
import type { Axis, Tick } from "./layout.ts";

const APART = 90;
const WORDS = 84;
const MOST = 4_000;

/** The scale above the bars. */
export function Ruler({ axis, scale }: { axis: Axis; scale: number }): JSX.Element {
  const ticks = useMemo(() => spaceLabels(ticksOf(axis, APART / scale), axis.length, WORDS / scale).slice(0, MOST), [axis, scale]);
  return (
    <div class="tl-ruler" style={{ width: `${axis.length * scale}px` }} aria-hidden="true">
      {axis.segments.map(
        (segment) =>
          segment.idle && (
            <span
              key={segment.from}
              class="tl-idle"
              style={{ left: `${segment.at * scale}px`, width: `${segment.length * scale}px` }}
              title={`${elapsed(segment.to - segment.from)} idle`}
            />
          ),
      )}
      {ticks.map((tick) => (
        <span key={tick.at} class={tick.isFirst ? "tick first" : "tick"} style={{ transform: `translateX(${tick.at * scale}px)` }}>
          {tick.isWorded ? wordsOf(tick, axis.mode === "clock") : ""}
        </span>
      ))}
    </div>
  );
}

function wordsOf(tick: Tick, isClock: boolean): string {
  if (tick.isFirst) return isClock ? clock(tick.time) : "0";
  return `+${formatDuration(tick.since)}`;
}
