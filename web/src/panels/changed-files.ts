// Changes of a session by file. Pure.

import { relativePath } from "../cards/tool-data.ts";
import type { FileVersion, UndoneFile } from "../wire/types.ts";

export interface ChangedFile {
  readonly path: string;
  readonly first: FileVersion;
  readonly last: FileVersion;
  readonly versions: readonly FileVersion[];
  /** The runs that changed it, newest first. */
  readonly runs: readonly string[];
}

const isSame = (one: FileVersion, other: FileVersion): boolean =>
  one.content === other.content && Boolean(one.is_missing) === Boolean(other.is_missing);

/** Returns each changed file with its first and its latest version, newest first. */
export function changedFiles(versions: readonly FileVersion[]): ChangedFile[] {
  const found = new Map<string, FileVersion[]>();
  for (const version of [...versions].sort((a, b) => a.version - b.version)) {
    found.set(version.path, [...(found.get(version.path) ?? []), version]);
  }
  const files: ChangedFile[] = [];
  for (const [path, known] of found) {
    const first = known[0];
    const last = known[known.length - 1];
    if (!first || !last || isSame(first, last)) continue;
    const runs = known.filter((one) => (one.origin ?? "tool") === "tool" && one.run_id).map((one) => one.run_id ?? "");
    files.push({ path, first, last, versions: known, runs: [...new Set(runs.reverse())] });
  }
  return files.sort((a, b) => b.last.created_at - a.last.created_at);
}

/** Returns the runs that changed files, newest first, with the number of files. */
export function changingRuns(files: readonly ChangedFile[]): { runId: string; files: number; at: number }[] {
  const found = new Map<string, { files: Set<string>; at: number }>();
  for (const file of files) {
    for (const version of file.versions) {
      if ((version.origin ?? "tool") !== "tool" || !version.run_id) continue;
      const known = found.get(version.run_id) ?? { files: new Set<string>(), at: 0 };
      known.files.add(file.path);
      known.at = Math.max(known.at, version.created_at);
      found.set(version.run_id, known);
    }
  }
  return [...found].map(([runId, known]) => ({ runId, files: known.files.size, at: known.at })).sort((a, b) => b.at - a.at);
}

const PLANNED = { restored: "will be restored", removed: "is removed", unchanged: "is unchanged" } as const;

/** Describes the effect of an undo on each file; refusals first. */
export function planned(files: readonly UndoneFile[], root: string): string[] {
  const refused = files.filter((file) => file.outcome === "refused");
  const others = files.filter((file) => file.outcome !== "refused");
  return [...refused, ...others].map((file) => {
    const name = relativePath(file.path, root);
    return file.outcome === "refused" ? `${name}: ${file.reason ?? "no"}` : `${name} ${PLANNED[file.outcome]}`;
  });
}
