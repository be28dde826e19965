/** Decodes named and numeric character references of Markdown: the common names and all numbers. Pure. */

const NAMES: Readonly<Record<string, string>> = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", trade: "™", hellip: "…", mdash: "—", ndash: "–",
  lsquo: "‘", rsquo: "’", ldquo: "“", rdquo: "”", laquo: "«", raquo: "»", bull: "•", middot: "·", deg: "°", plusmn: "±", times: "×", divide: "÷",
  le: "≤", ge: "≥", ne: "≠", larr: "←", rarr: "→", uarr: "↑", darr: "↓", harr: "↔", check: "✓", euro: "€", pound: "£", yen: "¥", cent: "¢", sect: "§",
  para: "¶", micro: "µ", frac12: "½", frac14: "¼", frac34: "¾", infin: "∞", alpha: "α", beta: "β", pi: "π", lambda: "λ", sum: "∑", radic: "√",
};
const NAMED = /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z][a-zA-Z0-9]{1,8}));/g;

export function decodeEntities(text: string): string {
  if (!text.includes("&")) return text;
  return text.replace(NAMED, (whole, decimal?: string, hex?: string, name?: string) => {
    if (name !== undefined) return Object.hasOwn(NAMES, name) ? (NAMES[name] ?? whole) : whole;
    const code = decimal !== undefined ? Number(decimal) : Number.parseInt(hex ?? "", 16);
    return code > 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? String.fromCodePoint(code) : "\ufffd";
  });
}
