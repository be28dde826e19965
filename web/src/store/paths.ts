/** URLs below `/v1`, and unique ids. */

import { workspace } from "./state.ts";

export function newId(): string {
  if (typeof crypto.randomUUID === "function") return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-4${hex.slice(13, 16)}-a${hex.slice(17, 20)}-${hex.slice(20)}`;
}

/** Returns the URL of a resource in the workspace, below `/v1`. */
export function at(path = "", query: Readonly<Record<string, string | number | undefined>> = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const encoded = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `/workspaces/${encodeURIComponent(workspace.value?.id ?? "")}${path}${encoded ? `?${encoded}` : ""}`;
}
