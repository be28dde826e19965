// Exact display of text that will be executed. Pure.

export interface Piece {
  readonly text: string;
  /** It represents an invisible character. */
  readonly hidden: boolean;
}

const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\u115f\u1160\u3164\uffa0\u034f\u17b4\u17b5\u180b-\u180f\ufe00-\ufe0f\u2800]|(?! )\p{Zs}/u;
const NAMED: Readonly<Record<string, string>> = { "\t": "\\t", "\r": "\\r", "\0": "\\0", "\x1b": "\\x1b", "\x07": "\\a", "\b": "\\b" };

/** Escapes control characters and invisible ones; a line break is kept. */
export function escapeInvisible(text: string): Piece[] {
  const pieces: { text: string; hidden: boolean }[] = [];
  for (const character of text) {
    const hidden = character !== "\n" && INVISIBLE.test(character);
    const shown = hidden ? escapeCharacter(character) : character;
    const last = pieces[pieces.length - 1];
    if (last && last.hidden === hidden) last.text += shown;
    else pieces.push({ text: shown, hidden });
  }
  return pieces;
}

function escapeCharacter(character: string): string {
  const named = NAMED[character];
  if (named !== undefined) return named;
  const code = character.codePointAt(0) ?? 0;
  if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
  return code > 0xffff ? `\\u{${code.toString(16)}}` : `\\u${code.toString(16).padStart(4, "0")}`;
}

/** True if the text contains invisible characters. */
export function hasInvisible(text: string): boolean {
  return escapeInvisible(text).some((piece) => piece.hidden && piece.text !== "\\t");
}
