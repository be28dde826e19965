// How the page gets in. A link carries a code that works once; it becomes a token that dies with the server.
//
// When the server is killed and comes back, whoever holds its port meanwhile must get nothing of use. So the token
// is worthless by then, and the key for a new one never travels: server and page prove to each other that they
// have it. It is kept in memory only, where another page that is served from the same port cannot find it.

/** There is no way in without a new link. The message says how to get one. */
export class NoEntry extends Error {}

export interface Entry {
  token: string;
  /** The directory of the workspace, or "" if the address does not say. */
  dir: string;
}

interface Pass {
  token: string;
  page: string;
  key: string;
}

const STORED = "holdfast-token";
const NEEDS_LINK = "This page needs a link of its own. Run holdfast web in a terminal for one.";

let code: string | null = null;
let pass: Pass | null = null;
let returning: Promise<string> | null = null;

/** Whether the address carries a code that nobody has taken yet. */
export const hasCode = (): boolean => new URLSearchParams(location.hash.slice(1)).has("code");

/** The code of the link, or the token of this tab. Throws `NoEntry`, or what fetch throws if nobody answers. */
export async function enter(): Promise<Entry> {
  const given = new URLSearchParams(location.hash.slice(1));
  const dir = given.get("dir") ?? "";
  if (given.has("code")) {
    // Out of the address and the history before anything else happens.
    code = given.get("code");
    given.delete("code");
    history.replaceState(null, "", `#${given.toString()}`);
  }
  const token = code === null ? stored() : null;
  if (code === null && token === null) throw new NoEntry(NEEDS_LINK);
  const passed = token === null ? await ask("/v1/web/exchange", { code }) : await ask("/v1/web/page", {}, token);
  code = null;
  return { token: keep(passed), dir };
}

/** A new token from a server that came back. Throws `NoEntry`, or what fetch throws if nobody answers yet. */
export function comeBack(): Promise<string> {
  returning ??= comeBackOnce().finally(() => {
    returning = null;
  });
  return returning;
}

async function comeBackOnce(): Promise<string> {
  if (pass === null) throw new NoEntry(NEEDS_LINK);
  const { page, key } = pass;
  const ours = hex(crypto.getRandomValues(new Uint8Array(16)));
  const answer = await ask<{ nonce: string; proof: string }>("/v1/web/hello", { page, nonce: ours });
  const said = `${location.port}\n${ours}\n${answer.nonce}`;
  if (answer.proof !== (await proof(key, `server\n${said}`))) {
    throw new NoEntry("Something else answers at this address. Close this page, and run holdfast web in a terminal.");
  }
  return keep(await ask("/v1/web/return", { page, proof: await proof(key, `page\n${said}`) }));
}

async function ask<T = Pass>(path: string, body: object, token = ""): Promise<T> {
  const headers: Record<string, string> = { "Content-Type": "application/json" };
  if (token) headers["Authorization"] = `Bearer ${token}`;
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), cache: "no-store" });
  if (response.ok) return (await response.json()) as T;
  if (response.status === 401) throw new NoEntry(NEEDS_LINK);
  const problem = (await response.json().catch(() => ({}))) as { message?: unknown };
  throw new NoEntry(typeof problem.message === "string" ? problem.message : NEEDS_LINK);
}

async function proof(key: string, text: string): Promise<string> {
  const utf8 = new TextEncoder();
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const secret = await crypto.subtle.importKey("raw", utf8.encode(key), algorithm, false, ["sign"]);
  return hex(new Uint8Array(await crypto.subtle.sign("HMAC", secret, utf8.encode(text))));
}

function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function stored(): string | null {
  try {
    return sessionStorage.getItem(STORED);
  } catch {
    return null;
  }
}

function keep(given: Pass): string {
  pass = given;
  try {
    sessionStorage.setItem(STORED, given.token);
  } catch {
    // Not allowed to store anything: the token lasts until this page is loaded again.
  }
  return given.token;
}
