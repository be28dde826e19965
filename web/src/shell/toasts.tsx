import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { dismissToast, toasts } from "../store.ts";
import type { Toast } from "../store/state.ts";
import { Icon } from "./icons.tsx";

const DURATIONS = { info: 5_000, success: 4_000, warning: 9_000, error: 12_000 } as const;
const ICONS = { info: "spark", success: "check", warning: "warning", error: "warning" } as const;

/** Toasts, above everything including dialogs, because they report errors of dialogs, too. */
export function Toasts(): JSX.Element {
  const self = useRef<HTMLDivElement>(null);
  const latest = toasts.value.at(-1)?.id;
  useLayoutEffect(() => {
    const element = self.current;
    if (!element || typeof element.showPopover !== "function") return;
    // The last popover shown is on top.
    if (element.matches(":popover-open")) element.hidePopover();
    if (latest !== undefined) element.showPopover();
  }, [latest]);
  return (
    <div ref={self} popover="manual" class="toasts" role="log" aria-live="polite" aria-label="Notes">
      {toasts.value.map((item) => (
        <ToastItem key={item.id} item={item} />
      ))}
    </div>
  );
}

function ToastItem({ item }: { item: Toast }): JSX.Element {
  useEffect(() => {
    const timer = setTimeout(() => dismissToast(item.id), DURATIONS[item.kind]);
    return () => clearTimeout(timer);
  }, [item.id]);
  return (
    <div class={`toast ${item.kind}`}>
      <Icon name={ICONS[item.kind]} />
      <p class="grow">
        {item.title && <b>{item.title} </b>}
        {item.text}
      </p>
      <button type="button" class="square small" aria-label="Dismiss" onClick={() => dismissToast(item.id)}>
        <Icon name="close" small />
      </button>
    </div>
  );
}
