// Formats numbers and times as the terminal app does. Pure.

export function elapsed(milliseconds: number): string {
  const seconds = Math.floor(Math.max(0, milliseconds) / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${String(seconds % 60).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

/** Formats an approximate age. */
export function ago(seconds: number): string {
  if (seconds < 60) return "now";
  if (seconds >= 86_400) return `${Math.floor(seconds / 86_400)} d ago`;
  if (seconds >= 3_600) return `${Math.floor(seconds / 3_600)} h ago`;
  return `${Math.floor(seconds / 60)} min ago`;
}

export function thousands(count: number): string {
  if (count < 1_000) return String(count);
  return count < 1_000_000 ? `${trimmed(count / 1_000)}k` : `${trimmed(count / 1_000_000)}M`;
}

const trimmed = (value: number): string => value.toFixed(1).replace(/\.0$/, "");

export function money(dollars: number): string {
  return dollars >= 0.005 || dollars === 0 ? `$${dollars.toFixed(2)}` : `$${dollars.toFixed(4)}`;
}

/** Converts to seconds: some timestamps are in seconds, some in milliseconds; their magnitude distinguishes them. */
export const inSeconds = (stamp: number): number => (stamp > 1e11 ? Math.floor(stamp / 1000) : stamp);

export function pluralize(count: number, one: string, many = `${one}s`): string {
  return `${count} ${count === 1 ? one : many}`;
}

/** Returns the heading for a date in a list. */
export function dayOf(stamp: number, now: number): string {
  const day = new Date(stamp * 1000);
  const today = new Date(now * 1000);
  today.setHours(0, 0, 0, 0);
  const days = Math.ceil((today.getTime() - day.getTime()) / 86_400_000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  return days <= 7 ? "This week" : "Earlier";
}

export const clock = (milliseconds: number): string =>
  new Date(milliseconds).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export const baseName = (path: string): string => path.split("/").filter(Boolean).pop() ?? path;
