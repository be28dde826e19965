import type { JSX } from "preact";
import { keyLabels } from "./keys.ts";

export const isMac = typeof navigator !== "undefined" && /Mac|iPhone|iPad/.test(navigator.platform);

export function Keys({ keys }: { keys: string }): JSX.Element {
  return (
    <span class="keys" aria-label={keyLabels(keys, false).join(" ")}>
      {keyLabels(keys, isMac).map((key) => (
        <kbd key={key}>{key}</kbd>
      ))}
    </span>
  );
}
