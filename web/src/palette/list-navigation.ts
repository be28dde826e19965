// A list that is navigated with the keys while the focus stays in the field above it.

import type { RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

export interface List {
  readonly at: number;
  readonly ref: RefObject<HTMLUListElement | null>;
  move(to: number): void;
  onKeyDown(event: KeyboardEvent): void;
}

export function useList(count: number, choose: (at: number) => void): List {
  const [wanted, setAt] = useState(0);
  const at = Math.max(0, Math.min(wanted, count - 1));
  const ref = useRef<HTMLUListElement>(null);
  const byKey = useRef(false);
  useEffect(() => {
    if (byKey.current) ref.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
    byKey.current = false;
  }, [at]);
  return {
    at,
    ref,
    move: setAt,
    onKeyDown: (event) => {
      const to = targetIndex(event.key, at, count);
      if (event.key === "Enter" && !event.isComposing && !(event.target instanceof HTMLButtonElement)) choose(at);
      else if (to === null) return;
      else {
        byKey.current = true;
        setAt(to);
      }
      event.preventDefault();
    },
  };
}

/** Returns the target index of a key; null if the key does not move. The list wraps around. */
export function targetIndex(key: string, at: number, count: number): number | null {
  if (count === 0) return null;
  switch (key) {
    case "ArrowDown":
      return (at + 1) % count;
    case "ArrowUp":
      return (at + count - 1) % count;
    case "PageDown":
      return Math.min(count - 1, at + 8);
    case "PageUp":
      return Math.max(0, at - 8);
    default:
      return null;
  }
}
