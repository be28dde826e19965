/** Decides which URLs may be links: web and mail addresses only. Pure. */

const SAFE = /^(?:https?:\/\/|mailto:)/i;
// Browsers ignore control characters and blanks when they parse the scheme.
const IGNORED = /[\u0000-\u0020\u007f-\u009f\u200b-\u200f\u2028-\u202f\ufeff]/g;
const MAX_LENGTH = 4_000;

/** Returns the URL to be used; empty if it is not allowed. */
export function safeAddress(address: string): string {
  const bare = address.replace(IGNORED, "");
  if (!SAFE.test(bare) || bare.length > MAX_LENGTH) return "";
  try {
    const url = new URL(bare);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : "";
  } catch {
    return "";
  }
}
