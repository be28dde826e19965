/** Requests to the server: the token in a header, never in a URL; errors as messages for the user. */

import { renewToken, NotAuthenticated } from "../auth.ts";

/** A refused request, or one without a response: status 0. The message explains what to do. */
export class Problem extends Error {
  override readonly name = "Problem";

  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

const NO_RESPONSE = "The server does not answer.";
const STATUSES: Readonly<Record<number, string>> = {
  401: "This page is signed out. Run holdfast web in a terminal for a new link.",
  404: "It no longer exists.",
  413: "The request is too large: remove attachments, or give paths of files in the prompt.",
  503: "The server cannot store anything at the moment. Is the disk full?",
};

let token = "";
let refused: (why: string) => void = () => undefined;

/** Sets the token of all further requests. */
export function setToken(value: string): void {
  token = value;
}

/** Sets the callback for refused authentication. */
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

function fetchChecked(path: string, options: Options): Promise<Response> {
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
    // Without a message in the body, the status is reported.
  }
  return new Problem(response.status, message || STATUSES[response.status] || `The server answered ${response.status}.`);
}

/** Returns the response after checking its status. A token of a restarted server is renewed once. Throws `Problem`. */
export async function open(path: string, options: Options = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetchChecked(path, options);
    if (response.status === 401) {
      setToken(await renewToken());
      response = await fetchChecked(path, options);
    }
  } catch (error) {
    if (error instanceof NotAuthenticated) {
      refused(error.message);
      throw new Problem(401, error.message);
    }
    if (options.signal?.aborted) throw new Problem(0, "The request was aborted.");
    throw new Problem(0, NO_RESPONSE);
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

async function request<T>(path: string, options: Options): Promise<T> {
  const response = await open(path, options);
  const text = await response.text().catch(() => {
    throw new Problem(0, NO_RESPONSE);
  });
  return (text === "" ? undefined : JSON.parse(text)) as T;
}

/** Requests below `/v1`. All throw `Problem`. */
export const api = {
  get: <T>(path: string): Promise<T> => request<T>(path, {}),
  post: <T = void>(path: string, body: unknown = {}, more: Options = {}): Promise<T> =>
    request<T>(path, { ...more, method: "POST", body }),
  put: <T = void>(path: string, body: unknown): Promise<T> => request<T>(path, { method: "PUT", body }),
  patch: <T = void>(path: string, body: unknown): Promise<T> => request<T>(path, { method: "PATCH", body }),
  del: <T = void>(path: string): Promise<T> => request<T>(path, { method: "DELETE" }),
};
