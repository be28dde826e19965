// A modal dialog of the browser: it keeps the focus, hides the rest from screen readers, and restores the focus.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useLayoutEffect, useRef } from "preact/hooks";
import { Icon } from "../shell/icons.tsx";

export interface DialogProps {
  readonly title: ComponentChildren;
  readonly kind?: string;
  readonly testid?: string;
  readonly children: ComponentChildren;
  /** Below the contents, always visible. */
  readonly foot?: ComponentChildren;
  /** Beside the title. */
  readonly tools?: ComponentChildren;
  readonly hideHead?: boolean;
  readonly closeLabel?: string;
  /** Initial focus: a selector inside the dialog. */
  readonly focus?: string;
  onClose(): void;
  onKeyDown?(event: KeyboardEvent): void;
}

export function Dialog(props: DialogProps): JSX.Element {
  const self = useRef<HTMLDialogElement>(null);
  const isLeaving = useRef(false);
  const id = useId();
  const onKeyDown = useRef(props.onKeyDown);
  onKeyDown.current = props.onKeyDown;
  useEffect(() => {
    // A removed field or button loses the focus to the page; keys must still reach this dialog.
    const onPage = (event: KeyboardEvent): void => {
      if (event.target === document.body && !event.defaultPrevented) onKeyDown.current?.(event);
    };
    document.addEventListener("keydown", onPage);
    return () => document.removeEventListener("keydown", onPage);
  }, []);
  useLayoutEffect(() => {
    const dialog = self.current;
    if (!dialog) return undefined;
    const before = document.activeElement;
    if (typeof dialog.showModal === "function") dialog.showModal();
    else dialog.setAttribute("open", "");
    const first = dialog.querySelector<HTMLElement>(props.focus ?? "[data-first]");
    first?.focus();
    if (first instanceof HTMLInputElement && first.type === "text") first.select();
    return () => {
      isLeaving.current = true;
      if (typeof dialog.close === "function") dialog.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={self}
      class={`dialog ${props.kind ?? ""}`}
      aria-labelledby={id}
      data-testid={props.testid}
      onCancel={(event) => {
        event.preventDefault();
        props.onClose();
      }}
      onClose={() => {
        // The browser closes it at a second Escape in any case.
        if (self.current?.isConnected && !isLeaving.current) props.onClose();
      }}
      onKeyDown={props.onKeyDown}
      onPointerDown={(event) => {
        if (event.target === self.current) props.onClose();
      }}
    >
      <div class="dialog-box">
        <header class={props.hideHead ? "visually-hidden" : "dialog-head"}>
          <h2 id={id}>{props.title}</h2>
          {!props.hideHead && props.tools}
          {!props.hideHead && (
            <button type="button" class="square" aria-label={props.closeLabel ?? "Close"} title={props.closeLabel ?? "Close"} onClick={props.onClose}>
              <Icon name="close" />
            </button>
          )}
        </header>
        <div class="dialog-body">{props.children}</div>
        {props.foot && <footer class="dialog-foot">{props.foot}</footer>}
      </div>
    </dialog>
  );
}
