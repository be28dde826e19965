/** Copies text with the clipboard API, or with a selection where it is not available. */

import { toast } from "../store/state.ts";

/** Returns whether it succeeded. Without permission for the clipboard the text is selected and copied. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "visually-hidden";
    document.body.append(field);
    field.select();
    const isDone = document.execCommand("copy");
    field.remove();
    if (!isDone) toast("error", "The browser does not allow this page to copy. Select the text and copy it.");
    return isDone;
  }
}
