import type { JSX } from "preact";

/** A name with its matched letters highlighted. */
export function Marked({ text, at }: { text: string; at: readonly number[] }): JSX.Element {
  if (!at.length) return <>{text}</>;
  const hits = new Set(at);
  const pieces: { text: string; hit: boolean }[] = [];
  [...text].reduce((index, character) => {
    const hit = hits.has(index);
    const last = pieces[pieces.length - 1];
    if (last && last.hit === hit) last.text += character;
    else pieces.push({ text: character, hit });
    return index + character.length;
  }, 0);
  return <>{pieces.map((piece, index) => (piece.hit ? <b key={index}>{piece.text}</b> : piece.text))}</>;
}
