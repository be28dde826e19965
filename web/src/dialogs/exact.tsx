import type { JSX } from "preact";
import { shownExactly } from "./exact.ts";

/** Text as it is, with what one would not see spelled out. */
export function Exact({ text }: { text: string }): JSX.Element {
  return (
    <>
      {shownExactly(text).map((piece, at) =>
        piece.hidden ? (
          <b key={at} class="hidden-character" title="A character that one would not see">
            {piece.text}
          </b>
        ) : (
          piece.text
        ),
      )}
    </>
  );
}
