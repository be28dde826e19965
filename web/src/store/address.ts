/** Which directory and session the page's address names: behind the sign that no browser sends to anybody. */

export const wantedSession = (): string | null => new URLSearchParams(location.hash.slice(1)).get("session");

let shown = "";

function addressOf(directory: string, session: string | null): string {
  const address = new URLSearchParams(location.hash.slice(1));
  address.set("dir", directory);
  if (session === null) address.delete("session");
  else address.set("session", session);
  return `#${address.toString()}`;
}

/** Only what stands in the address already is replaced; a choice of the person makes a new entry. */
export function setAddress(directory: string, session: string | null): void {
  const isFirst = shown === "";
  shown = addressOf(directory, session);
  if (isFirst) history.replaceState(null, "", shown);
}

export function pushAddress(): void {
  if (location.hash !== shown) history.pushState(null, "", shown);
}

/** Another directory, and no session. */
export function replaceAddress(directory: string): void {
  shown = `#${new URLSearchParams({ dir: directory }).toString()}`;
  history.replaceState(null, "", shown);
}
