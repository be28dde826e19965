/** Requests to the server: with the token in a header, never in an address; errors as sentences for people. */

import { comeBack, NoEntry } from "../entry.ts";

/** Something the server refused, or that nobody answered: status 0. The message says what to do. */
export class Problem extends Error {
  override readonly name = "Problem";

  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

const NOBODY = "The server does not answer.";
const STATUSES: Readonly<Record<number, string>> = {
  401: "This page is no longer let in. Run holdfast web in a terminal for a new link.",
  404: "That is not there any more.",
  413: "That is too large to send: leave attachments out, or name files by their path.",
  503: "The server cannot store anything at the moment. Is the disk full?",
};

let token = "";
let refused: (why: string) => void = () => undefined;

/** The token that goes with every request from now on. */
export function setToken(value: string): void {
  token = value;
}

/** Who is told when the server lets this page in no longer. */
export function onRefused(listener: (why: string) => void): void {
  refused = listener;
}

export interface Options {
  readonly method?: string;
  readonly body?: unknown;
  readonly signal?: AbortSignal;
  readonly keepalive?: boolean;
}

function headersOf(options: Options): Record<string, string> {
  const headers: Record<string, string> = { Authorization: `Bearer ${token}` };
  if (options.body !== undefined) headers["Content-Type"] = "application/json";
  return headers;
}

function fetched(path: string, options: Options): Promise<Response> {
  const init: RequestInit = {
    method: options.method ?? "GET",
    headers: headersOf(options),
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
    keepalive: options.keepalive ?? false,
  };
  if (options.body !== undefined) init.body = JSON.stringify(options.body);
  if (options.signal) init.signal = options.signal;
  return fetch(`/v1${path}`, init);
}

async function problemOf(response: Response): Promise<Problem> {
  let message = "";
  try {
    const body = (await response.json()) as { message?: unknown };
    if (typeof body.message === "string") message = body.message;
  } catch {
    // No body that says anything: the status has to do.
  }
  return new Problem(response.status, message || STATUSES[response.status] || `The server answered ${response.status}.`);
}

/** The answer, after its status was looked at. A token that went old with its server is renewed once. Throws `Problem`. */
export async function open(path: string, options: Options = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetched(path, options);
    if (response.status === 401) {
      setToken(await comeBack());
      response = await fetched(path, options);
    }
  } catch (error) {
    if (error instanceof NoEntry) {
      refused(error.message);
      throw new Problem(401, error.message);
    }
    if (options.signal?.aborted) throw new Problem(0, "It was given up.");
    throw new Problem(0, NOBODY);
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

async function asked<T>(path: string, options: Options): Promise<T> {
  const response = await open(path, options);
  const text = await response.text().catch(() => {
    throw new Problem(0, NOBODY);
  });
  return (text === "" ? undefined : JSON.parse(text)) as T;
}

/** Calls below `/v1`. All throw `Problem`. */
export const api = {
  get: <T>(path: string): Promise<T> => asked<T>(path, {}),
  post: <T = void>(path: string, body: unknown = {}, more: Options = {}): Promise<T> =>
    asked<T>(path, { ...more, method: "POST", body }),
  put: <T = void>(path: string, body: unknown): Promise<T> => asked<T>(path, { method: "PUT", body }),
  patch: <T = void>(path: string, body: unknown): Promise<T> => asked<T>(path, { method: "PATCH", body }),
  del: <T = void>(path: string): Promise<T> => asked<T>(path, { method: "DELETE" }),
};
