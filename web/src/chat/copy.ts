/** Copying: with the clipboard the browser gives, or the old way. */

import { toast } from "../store/state.ts";

/** Whether it worked. Without the right to the clipboard the text is selected and copied the old way. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "unseen";
    document.body.append(field);
    field.select();
    const isDone = document.execCommand("copy");
    field.remove();
    if (!isDone) toast("error", "The browser does not let this page copy. Select the text and copy it yourself.");
    return isDone;
  }
}
