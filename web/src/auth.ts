// Authentication of the page. A link contains a one-time code, which is exchanged for a token of this server process.
//
// After a crash of the server, another process may listen on its port and must not obtain anything useful. Therefore
// the token is invalid after a restart, and the key for a new one is never sent: server and page prove to each other
// that they have it. It is kept in memory only, out of reach of another page that is served from the same port.

/** The page needs a new link. The message explains how to get one. */
export class NotAuthenticated extends Error {}

export interface Authentication {
  token: string;
  /** The directory of the workspace, or "" if the URL contains none. */
  dir: string;
}

interface Credentials {
  token: string;
  page: string;
  key: string;
}

const STORED = "holdfast-token";
const NEEDS_LINK = "This page needs a new link. Run holdfast web in a terminal.";

let code: string | null = null;
let credentials: Credentials | null = null;
let returning: Promise<string> | null = null;

/** True if the URL contains an unused code. */
export const hasCode = (): boolean => new URLSearchParams(location.hash.slice(1)).has("code");

/** Authenticates with the code of the link or the token of this tab. Throws `NotAuthenticated`, or the error of fetch. */
export async function authenticate(): Promise<Authentication> {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const dir = fragment.get("dir") ?? "";
  if (fragment.has("code")) {
    // Removed from the URL and the history before anything else.
    code = fragment.get("code");
    fragment.delete("code");
    history.replaceState(null, "", `#${fragment.toString()}`);
  }
  const token = code === null ? storedToken() : null;
  if (code === null && token === null) throw new NotAuthenticated(NEEDS_LINK);
  const passed = token === null ? await post("/v1/web/exchange", { code }) : await post("/v1/web/page", {}, token);
  code = null;
  return { token: storeCredentials(passed), dir };
}

/** Gets a new token from a restarted server. Throws `NotAuthenticated`, or the error of fetch if there is no response yet. */
export function renewToken(): Promise<string> {
  returning ??= renewTokenOnce().finally(() => {
    returning = null;
  });
  return returning;
}

async function renewTokenOnce(): Promise<string> {
  if (credentials === null) throw new NotAuthenticated(NEEDS_LINK);
  const { page, key } = credentials;
  const clientNonce = hex(crypto.getRandomValues(new Uint8Array(16)));
  const answer = await post<{ nonce: string; proof: string }>("/v1/web/hello", { page, nonce: clientNonce });
  const transcript = `${location.port}\n${clientNonce}\n${answer.nonce}`;
  if (answer.proof !== (await proof(key, `server\n${transcript}`))) {
    throw new NotAuthenticated("Another program responds at this address. Close this page, and run holdfast web in a terminal.");
  }
  return storeCredentials(await post("/v1/web/return", { page, proof: await proof(key, `page\n${transcript}`) }));
}

async function post<T = Credentials>(path: string, body: object, token = ""): Promise<T> {
  const headers: Record<string, string> = { "Content-Type": "application/json" };
  if (token) headers["Authorization"] = `Bearer ${token}`;
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), cache: "no-store" });
  if (response.ok) return (await response.json()) as T;
  if (response.status === 401) throw new NotAuthenticated(NEEDS_LINK);
  const problem = (await response.json().catch(() => ({}))) as { message?: unknown };
  throw new NotAuthenticated(typeof problem.message === "string" ? problem.message : NEEDS_LINK);
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

function storedToken(): string | null {
  try {
    return sessionStorage.getItem(STORED);
  } catch {
    return null;
  }
}

function storeCredentials(received: Credentials): string {
  credentials = received;
  try {
    sessionStorage.setItem(STORED, received.token);
  } catch {
    // Storage is forbidden: the token lasts until the page is reloaded.
  }
  return received.token;
}
