/** The directory and the session in the fragment of the URL, which browsers never send. */

export const wantedSession = (): string | null => new URLSearchParams(location.hash.slice(1)).get("session");

let shown = "";

function addressOf(directory: string, session: string | null): string {
  const address = new URLSearchParams(location.hash.slice(1));
  address.set("dir", directory);
  if (session === null) address.delete("session");
  else address.set("session", session);
  return `#${address.toString()}`;
}

/** Replaces the URL if it already names the session; a selection of the user adds a history entry. */
export function setAddress(directory: string, session: string | null): void {
  const isFirst = shown === "";
  shown = addressOf(directory, session);
  if (isFirst) history.replaceState(null, "", shown);
}

export function pushAddress(): void {
  if (location.hash !== shown) history.pushState(null, "", shown);
}

/** Sets another directory without a session. */
export function replaceAddress(directory: string): void {
  shown = `#${new URLSearchParams({ dir: directory }).toString()}`;
  history.replaceState(null, "", shown);
}
