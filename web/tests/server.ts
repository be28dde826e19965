// A scripted server on a real socket: routes are functions, the stream is written by the test.

import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

export interface RecordedRequest {
  readonly method: string;
  readonly path: string;
  readonly query: URLSearchParams;
  readonly token: string;
  readonly body: any;
}

export type Route = (request: RecordedRequest) => Answer | Promise<Answer>;
export type Answer = { readonly status?: number; readonly body?: unknown } | "hang up" | "stream";

const SNAPSHOT = { cursor: 10, epoch: 1, workspace: { id: "w", path: "/w" }, sessions: [], messages: [], runs: [] };

export class Backend {
  readonly requests: RecordedRequest[] = [];
  readonly streams: ServerResponse[] = [];
  readonly routes = new Map<string, Route>();
  private server: Server | null = null;
  private readonly fetch = globalThis.fetch;

  constructor() {
    const pass = { token: "t1", page: "p", key: "k" };
    this.on("POST /v1/web/exchange", () => ({ body: pass }));
    this.on("POST /v1/workspaces", () => ({ body: SNAPSHOT.workspace }));
    this.on("GET /v1/workspaces/w", () => ({ body: SNAPSHOT.workspace }));
    this.on("GET /v1/workspaces/w/snapshot", () => ({ body: SNAPSHOT }));
    this.on("GET /v1/workspaces/w/agent", () => ({ body: { is_busy: false, is_ready: true, model: { id: "m" }, model_cfg: { model: "m", provider: "p" } } }));
    this.on("GET /v1/workspaces/w/permissions/skip", () => ({ body: { skip: false } }));
    this.on("GET /v1/workspaces/w/jobs", () => ({ body: [] }));
    this.on("POST /v1/workspaces/w/current-session", () => ({}));
    this.on("GET /v1/workspaces/w/events", () => "stream");
  }

  on(route: string, answer: Route): void {
    this.routes.set(route, answer);
  }

  async open(): Promise<void> {
    const server = createServer((request, response) => void this.answer(request, response));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    this.server = server;
    const { port } = server.address() as AddressInfo;
    globalThis.fetch = (input, init) => this.fetch(`http://127.0.0.1:${port}${String(input)}`, init);
  }

  async close(): Promise<void> {
    globalThis.fetch = this.fetch;
    this.server?.closeAllConnections();
    await new Promise((resolve) => this.server?.close(resolve));
  }

  /** Requests of a route, in order. */
  calls(route: string): RecordedRequest[] {
    return this.requests.filter((one) => `${one.method} ${one.path}` === route);
  }

  send(event: unknown, number?: number): void {
    const id = number === undefined ? "" : `id: ${number}\n`;
    this.streams[this.streams.length - 1]?.write(`${id}data: ${JSON.stringify(event)}\n\n`);
  }

  private async answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const url = new URL(request.url ?? "/", "http://x");
    const text = Buffer.concat(chunks).toString();
    const recorded: RecordedRequest = {
      method: request.method ?? "",
      path: url.pathname,
      query: url.searchParams,
      token: (request.headers.authorization ?? "").replace("Bearer ", ""),
      body: text ? JSON.parse(text) : undefined,
    };
    this.requests.push(recorded);
    const given = (await this.routes.get(`${recorded.method} ${recorded.path}`)?.(recorded)) ?? { status: 404, body: { message: "Not there." } };
    if (given === "hang up") {
      request.socket.destroy();
    } else if (given === "stream") {
      response.writeHead(200, { "Content-Type": "text/event-stream" });
      this.streams.push(response);
      this.send({ type: "hello", payload: { cursor: Number(recorded.query.get("since")), oldest: 0, epoch: 1 } });
    } else {
      response.writeHead(given.status ?? 200, { "Content-Type": "application/json" });
      response.end(given.body === undefined ? "" : JSON.stringify(given.body));
    }
  }
}

export { SNAPSHOT };
