// Files that the session changed, with their diffs; the last change of a file, or all changes of a run, can be undone.

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { relativePath } from "../cards/tool-data.ts";
import { countChanges as countLines, diffOf } from "../diff/lines.ts";
import { Diff, columns, turnColumns } from "../diff/diff-view.tsx";
import { pluralize } from "../shell/format.ts";
import { Icon } from "../shell/icons.tsx";
import { confirmAction } from "../shell/ui.ts";
import { filesChanged, history, runs, reportErrors, sessionId, toast, undo, workspace } from "../store.ts";
import type { FileVersion, UndoRequest } from "../wire/types.ts";
import { changedFiles, changingRuns, planned } from "./changed-files.ts";
import type { ChangedFile } from "./changed-files.ts";

const versions = signal<readonly FileVersion[] | null>(null);

export function Changes(): JSX.Element {
  const session = sessionId.value;
  const count = filesChanged.value;
  useEffect(() => {
    void reportErrors(history()).then((found) => (versions.value = found ?? []));
  }, [session, count]);
  const files = useMemo(() => changedFiles((versions.value ?? []).filter((one) => one.session_id === session)), [versions.value, session]);
  if (!files.length) return <p class="empty">{versions.value === null ? "Loading …" : "This session has not changed any files."}</p>;
  return (
    <>
      <div class="panel-tools">
        <span class="muted grow">{pluralize(files.length, "file")} changed</span>
        <button type="button" class="square small" aria-pressed={columns.value === "split"} aria-label="Two columns" title="Two columns (Alt D)" onClick={turnColumns}>
          <Icon name="split" small />
        </button>
      </div>
      <RunsToUndo files={files} />
      <ul class="changes">
        {files.map((file) => (
          <File key={file.path} file={file} />
        ))}
      </ul>
    </>
  );
}

function RunsToUndo({ files }: { files: readonly ChangedFile[] }): JSX.Element | null {
  const last = changingRuns(files)[0];
  if (!last) return null;
  const prompt = runs.value.find((run) => run.run_id === last.runId)?.prompt ?? "";
  return (
    <div class="undo-run">
      <span class="grow">
        <small class="muted">The last run with changes: {pluralize(last.files, "file")}</small>
        {prompt && <span class="clip">{prompt}</span>}
      </span>
      <button type="button" class="button small" onClick={() => void confirmUndo({ run_id: last.runId }, "all changes of this run")}>
        <Icon name="undo" small /> Undo the run
      </button>
    </div>
  );
}

function File({ file }: { file: ChangedFile }): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  const lines = useMemo(() => diffOf(file.first.content, file.last.content), [file]);
  const { added, removed } = countLines(lines);
  const name = relativePath(file.path, workspace.value?.path ?? "");
  const word = file.last.is_missing ? "removed" : file.first.is_missing ? "new" : "";
  return (
    <li class="change">
      <div class="change-head">
        <button type="button" class="change-name" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          <Icon name="down" small />
          <span class="clip mono" title={file.path}>
            {name}
          </span>
          {word && <span class={`chip ${word === "new" ? "success" : "error"}`}>{word}</span>}
          <span class="plus">+{added}</span>
          <span class="minus">−{removed}</span>
        </button>
        <button type="button" class="square small" aria-label={`Undo the last change of ${name}`} title="Undo the last change" onClick={() => void confirmUndo({ path: file.path }, `the last change of ${name}`)}>
          <Icon name="undo" small />
        </button>
      </div>
      {isOpen && <Diff lines={lines} path={file.path} most={200} label={`Changes of ${name}`} />}
    </li>
  );
}

/** Undoing a run requires a confirmation of the file list; so does a file that was changed since. */
async function confirmUndo(what: UndoRequest, label: string): Promise<void> {
  const wanted: UndoRequest = { ...what, session_id: sessionId.value ?? "" };
  const root = workspace.value?.path ?? "";
  const plan = await reportErrors(undo({ ...wanted, dry_run: true }));
  if (!plan) return;
  const isRefused = plan.files.some((file) => file.outcome === "refused");
  const sure = isRefused ? "Undo anyway" : "Undo";
  if ((what.run_id || isRefused) && !(await confirmAction(`Undo ${label}?`, planned(plan.files, root).join("\n"), sure))) return;
  const report = await reportErrors(undo({ ...wanted, force: isRefused }));
  const done = report?.files.map((file) => `${relativePath(file.path, root)}: ${file.outcome}`).join("\n");
  if (done) toast("success", done);
  versions.value = (await reportErrors(history())) ?? versions.value;
}
