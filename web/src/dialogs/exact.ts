// Text shown as it is: what one reads is what would be run. Pure.

export interface Piece {
  readonly text: string;
  /** It stands for a character that one would not see. */
  readonly hidden: boolean;
}

const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\u115f\u1160\u3164\uffa0\u034f\u17b4\u17b5\u180b-\u180f\ufe00-\ufe0f\u2800]|(?! )\p{Zs}/u;
const NAMED: Readonly<Record<string, string>> = { "\t": "\\t", "\r": "\\r", "\0": "\\0", "\x1b": "\\x1b", "\x07": "\\a", "\b": "\\b" };

/** Control characters and invisible ones are spelled out; a line break stays one. */
export function shownExactly(text: string): Piece[] {
  const pieces: { text: string; hidden: boolean }[] = [];
  for (const character of text) {
    const hidden = character !== "\n" && INVISIBLE.test(character);
    const shown = hidden ? spelled(character) : character;
    const last = pieces[pieces.length - 1];
    if (last && last.hidden === hidden) last.text += shown;
    else pieces.push({ text: shown, hidden });
  }
  return pieces;
}

function spelled(character: string): string {
  const named = NAMED[character];
  if (named !== undefined) return named;
  const code = character.codePointAt(0) ?? 0;
  if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
  return code > 0xffff ? `\\u{${code.toString(16)}}` : `\\u${code.toString(16).padStart(4, "0")}`;
}

/** Whether anything in it would not be seen as it is. */
export function hidesSomething(text: string): boolean {
  return shownExactly(text).some((piece) => piece.hidden && piece.text !== "\\t");
}
