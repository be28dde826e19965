/** A copy button with a confirmation. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Icon } from "../shell/icons.tsx";
import { copyText } from "./copy.ts";

export function CopyButton({ text, label }: { text: string | (() => string); label: string }): JSX.Element {
  const [isDone, setDone] = useState(false);
  useEffect(() => {
    if (!isDone) return undefined;
    const timer = setTimeout(() => setDone(false), 1_500);
    return () => clearTimeout(timer);
  }, [isDone]);
  const copy = (): void => {
    void copyText(typeof text === "string" ? text : text()).then(setDone);
  };
  return (
    <button type="button" class="square small copy" onClick={copy} aria-label={isDone ? "Copied" : label} title={label}>
      <Icon name={isDone ? "check" : "copy"} small />
    </button>
  );
}
