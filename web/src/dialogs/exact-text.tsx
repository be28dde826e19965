import type { JSX } from "preact";
import { escapeInvisible } from "./escape-invisible.ts";

/** Text with invisible characters escaped. */
export function Exact({ text }: { text: string }): JSX.Element {
  return (
    <>
      {escapeInvisible(text).map((piece, at) =>
        piece.hidden ? (
          <b key={at} class="hidden-character" title="Invisible character">
            {piece.text}
          </b>
        ) : (
          piece.text
        ),
      )}
    </>
  );
}
