import type { JSX } from "preact";
import { question } from "../shell/ui.ts";
import { Dialog } from "./dialog.tsx";

/** Confirmation of an irreversible action. */
export function Confirm(): JSX.Element | null {
  const request = question.value;
  if (!request) return null;
  return (
    <Dialog
      key={request.title}
      title={request.title}
      kind="narrow"
      testid="confirm"
      focus="[data-first]"
      onClose={() => request.answer(false)}
      foot={
        <div class="form-end">
          <button type="button" class="button" data-first onClick={() => request.answer(false)}>
            Cancel
          </button>
          <button type="button" class={`button ${request.danger ? "danger" : "primary"}`} data-action="confirm" onClick={() => request.answer(true)}>
            {request.confirm}
          </button>
        </div>
      }
    >
      <p class="confirm-text">{request.text}</p>
    </Dialog>
  );
}
