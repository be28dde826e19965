// The panel of a request, above the composer. It is not a dialog: the composer keeps the focus and the keyboard.

import type { ComponentChildren, JSX, Ref } from "preact";
import { useId } from "preact/hooks";
import { Icon } from "../shell/icons.tsx";
import { isTouch } from "../shell/ui.ts";
import { onMouseDown, panelState } from "./keyboard.ts";
import type { PanelState } from "./keyboard.ts";

const INACTIVE: Readonly<Partial<Record<PanelState, readonly string[]>>> = {
  writing: ["Send or clear your text first", "Tab to answer"],
  away: ["Return to the composer, or click here, to answer"],
  waiting: ["Active in a moment", "Tab to answer at once"],
};

const TOUCH = { active: ["Tap an answer"], inactive: ["Tap here first, then an answer"] };

interface Props {
  readonly title: ComponentChildren;
  readonly testid: string;
  readonly kind?: string;
  readonly tools?: ComponentChildren;
  readonly foot: ComponentChildren;
  readonly children: ComponentChildren;
  readonly element: Ref<HTMLElement>;
  /** Active keys by state. */
  readonly keys: Readonly<Record<"active" | "focused", readonly string[]>>;
  onAside(): void;
  onKeyDown?(event: KeyboardEvent): void;
}

export function RequestPanel(props: Props): JSX.Element {
  const id = useId();
  const state = panelState.value;
  const isActive = state === "active" || state === "focused";
  const hint = isTouch ? TOUCH[isActive ? "active" : "inactive"] : (INACTIVE[state] ?? props.keys[state === "focused" ? "focused" : "active"]);
  return (
    <section
      ref={props.element}
      class={`request ${isActive ? "active" : "inactive"} ${state} ${props.kind ?? ""}`}
      aria-labelledby={id}
      data-testid={props.testid}
      data-state={state}
      onKeyDown={props.onKeyDown}
      onMouseDown={onMouseDown}
    >
      <header class="request-head">
        <h2 id={id} aria-live="polite">
          {props.title}
        </h2>
        {props.tools}
        <button type="button" class="square" aria-label="Decide later" title="Decide later" onClick={props.onAside}>
          <Icon name="close" />
        </button>
      </header>
      <div class="request-body">{props.children}</div>
      <footer class="request-foot">
        {props.foot}
        <p class="request-hint">{hint.join(" · ")}</p>
      </footer>
    </section>
  );
}
