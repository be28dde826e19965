/** Which addresses may be followed: those of the web and of mail, nothing else. Pure. */

const SAFE = /^(?:https?:\/\/|mailto:)/i;
// Browsers pass over control characters and blanks when they read the scheme.
const PASSED_OVER = /[\u0000-\u0020\u007f-\u009f\u200b-\u200f\u2028-\u202f\ufeff]/g;
const LONGEST = 4_000;

/** The address as it is followed; empty if it may not be. */
export function safeAddress(address: string): string {
  const bare = address.replace(PASSED_OVER, "");
  if (!SAFE.test(bare) || bare.length > LONGEST) return "";
  try {
    const url = new URL(bare);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : "";
  } catch {
    return "";
  }
}
