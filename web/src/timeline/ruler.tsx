import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { clock, elapsed } from "../shell/format.ts";
import { formatDuration, spaceLabels, ticksOf } from "./layout.ts";
import type { Axis, Tick } from "./layout.ts";

const MIN_TICK_DISTANCE = 90;
const LABEL_WIDTH = 84;
const MAX_TICKS = 4_000;

/** The scale above the bars. */
export function Ruler({ axis, scale }: { axis: Axis; scale: number }): JSX.Element {
  const ticks = useMemo(() => spaceLabels(ticksOf(axis, MIN_TICK_DISTANCE / scale), axis.length, LABEL_WIDTH / scale).slice(0, MAX_TICKS), [axis, scale]);
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
          {tick.isWorded ? labelOf(tick, axis.mode === "clock") : ""}
        </span>
      ))}
    </div>
  );
}

function labelOf(tick: Tick, isClock: boolean): string {
  if (tick.isFirst) return isClock ? clock(tick.time) : "0";
  return `+${formatDuration(tick.since)}`;
}
