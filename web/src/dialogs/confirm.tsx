import type { JSX } from "preact";
import { question } from "../shell/ui.ts";
import { Dialog } from "./dialog.tsx";

/** Confirmation of an irreversible action. */
export function Confirm(): JSX.Element | null {
  const asked = question.value;
  if (!asked) return null;
  return (
    <Dialog
      key={asked.title}
      title={asked.title}
      kind="narrow"
      testid="confirm"
      focus="[data-first]"
      onClose={() => asked.answer(false)}
      foot={
        <div class="form-end">
          <button type="button" class="button" data-first onClick={() => asked.answer(false)}>
            Cancel
          </button>
          <button type="button" class={`button ${asked.danger ? "danger" : "primary"}`} data-action="confirm" onClick={() => asked.answer(true)}>
            {asked.confirm}
          </button>
        </div>
      }
    >
      <p class="confirm-text">{asked.text}</p>
    </Dialog>
  );
}
